"""Authorization of one client: its rights to read and write topics, by the rules and the HTTP hook. Both must allow.

A replacement at the gate holds from the next decision on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from fanout.access.http_hook import Answer, HttpHook, Question
from fanout.access.identity import Identity
from fanout.access.rules import Denied, Rights, RuleSet
from fanout.config.access import HookAction
from fanout.mqtt.topics import parse_shared

__all__ = ["Access", "Policy"]

_NO_RULES = RuleSet()


class Policy(Protocol):
    """Rules and hook in force; implemented by `fanout.access.gate.Gate`."""

    @property
    def rules(self) -> RuleSet:
        """The rules; another object when they are replaced."""

    @property
    def hook(self) -> HttpHook | None:
        """The hook; None when there is none."""

    def hook_for(self, action: HookAction) -> HttpHook | None:
        """Return the hook if it is asked for `action`."""


class Access:
    """Rights of one client, by the policy in force at the moment of each question."""

    __slots__ = ("_policy", "_rights", "_rules", "identity")

    def __init__(self, policy: Policy, identity: Identity) -> None:
        self.identity = identity
        """The client."""
        self._policy = policy
        self._rules: RuleSet
        self._rights: Rights  # by _rules; unlimited for a superuser
        self._renew()

    @property
    def may_publish_all(self) -> bool:
        """True if every topic may be written, so that single topics need no decision."""
        return self._current().unlimited and self._hook("publish") is None

    def may_publish(self, topic: bytes) -> bool | asyncio.Future[bool]:
        """Decide whether `topic`, a legal Topic Name, may be written.

        Returns:
            The decision; or, when the hook must be asked, a future of it that is never cancelled and never fails.
        """
        if self._rules is not self._policy.rules:
            self._renew()
        if not self._rights.may_publish(topic):
            return False
        if self._policy.hook is None:  # the usual case of every PUBLISH
            return True
        hook = self._hook("publish")
        return True if hook is None else self._ask(hook, "publish", topic)

    def may_subscribe(self, topic_filter: bytes) -> bool | asyncio.Future[bool]:
        """Decide whether every topic of a Topic Filter may be read.

        Args:
            topic_filter: A legal Topic Filter; of a Shared Subscription the filter after the group counts.

        Returns:
            As `may_publish`.

        Raises:
            ProtocolError: The filter begins like a Shared Subscription and is none.
        """
        if not self._current().may_subscribe(topic_filter):
            return False
        hook = self._hook("subscribe")
        if hook is None:
            return True
        shared = parse_shared(topic_filter)
        return self._ask(hook, "subscribe", topic_filter if shared is None else shared[1])

    def explain(self, topic_filter: bytes) -> Denied | None:
        """Return why the rules refuse a subscription, for a log line; None when they grant it.

        Raises:
            ProtocolError: As `may_subscribe`.
        """
        return self._current().explain(topic_filter)

    def lost(self, topic_filters: Iterable[bytes]) -> list[bytes]:
        """Return the subscriptions that the rules no longer grant.

        Args:
            topic_filters: Granted Topic Filters, as the client sent them. The hook is not asked again.
        """
        return [topic_filter for topic_filter in topic_filters if self.explain(topic_filter) is not None]

    @property
    def max_age_s(self) -> float:
        """Bound on the age of what waits for the client, by the rules in force, in seconds; 0 for none."""
        return self._current().max_age_s

    def _current(self) -> Rights:
        """Return the rights by the rules in force."""
        if self._rules is not self._policy.rules:
            self._renew()
        return self._rights

    def _renew(self) -> None:
        self._rules = self._policy.rules
        rules = _NO_RULES if self.identity.superuser else self._rules
        self._rights = rules.rights(self.identity)

    def _hook(self, action: HookAction) -> HttpHook | None:
        """Return the hook if it is to be asked for `action`."""
        return None if self.identity.superuser else self._policy.hook_for(action)

    def _ask(self, hook: HttpHook, action: HookAction, topic: bytes) -> bool | asyncio.Future[bool]:
        identity = self.identity
        question = Question(action, identity.client_id, identity.user or None, identity.address, topic.decode())
        asked = hook.ask(question)
        if isinstance(asked, Answer):
            return asked.allow
        decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def decide(task: asyncio.Task[Answer]) -> None:
            try:
                decision.set_result(not task.cancelled() and task.result().allow)
            except Exception:
                decision.set_result(False)
                raise  # a bug, which the event loop reports; the future is set all the same

        asked.add_done_callback(decide)
        return decision
