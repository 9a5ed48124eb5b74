"""Authorization of CONNECT, SUBSCRIBE, PUBLISH and Will Messages by the gate, synchronous or not.

Owns the pending decisions. A connection is suspended while a decision is pending, so that the packets of one client are
processed in order. `fanout.access.gate` decides; without a gate every client may do everything.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from fanout.access.authorization import Access
from fanout.access.gate import Gate
from fanout.access.identity import Credentials, Identity
from fanout.errors import ProtocolError
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.packets import Connect, Subscribe
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import Limit
from fanout.server.base.ports import Ingress, PublishVerdict
from fanout.server.client.connack import Terms
from fanout.server.client.connection import ClientConnection
from fanout.server.session.session import Session
from fanout.server.session.wills import WillMessage

__all__ = ["AuthorizationFlow", "Claim", "SessionUser", "claim_of"]

ASKED_MAX: Final = 32
"""Limit of concurrent requests to the HTTP hook for messages of one client, or for its subscriptions, so that it alone
cannot fill the queue."""

_Decision: TypeAlias = bool | asyncio.Future[bool]


class SessionUser(Protocol):
    """Whom a session belongs to; an `Identity` is one."""

    @property
    def user(self) -> str:
        """The verified user; empty for a client without one."""

    @property
    def superuser(self) -> bool:
        """True if it may read and write every topic."""


class Claim(enum.Enum):
    """Right of a client to the existing session with its Client Identifier."""

    RESUME = "resume"
    """The client may resume the session: it is its own."""
    START_CLEAN = "start clean"
    """The client may end the session but not resume it: it had no owner, or the same user with other permissions."""
    REFUSED = "refused"
    """The client is refused: the session belongs to another user."""


def claim_of(client: SessionUser | None, owner: SessionUser | None) -> Claim:
    """Return the right of a client to an existing session with its Client Identifier.

    Args:
        client: The client; None without access control.
        owner: The session's client; None without access control.
    """
    if client is None or owner is None:
        return Claim.RESUME
    if (client.user, client.superuser) == (owner.user, owner.superuser):
        return Claim.RESUME
    if client.user == owner.user != "" or not (owner.user or owner.superuser):
        return Claim.START_CLEAN
    return Claim.REFUSED


class AuthorizationFlow:
    """Asks the gate, and continues when it has decided."""

    def __init__(self, context: ServerContext, *, gate: Gate | None, ingress: Ingress) -> None:
        """Prepare.

        Args:
            context: Shared objects of the server. One SUBSCRIBE has as many Topic Filters checked as a session may
                have; more get 0x97.
            gate: The gate; None allows everything.
            ingress: Receives the messages that may be published.
        """
        self._context = context
        self._gate = gate
        self._ingress = ingress
        self._clock = context.clock
        self._counters = context.counters
        self._logger = context.logger
        self._tasks: set[asyncio.Task[Access | ReasonCode]] = set()

    async def close(self) -> None:
        """Wait for the end of all tasks; their connections are closed already."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    # CONNECT.

    def connect(
        self,
        connection: ClientConnection,
        packet: Connect,
        terms: Terms,
        *,
        then: Callable[[Access | None], None],
    ) -> None:
        """Authenticate a client and check that it may publish its Will Message.

        Args:
            connection: The client's connection; it is refused here, or suspended until the decision.
            packet: Its CONNECT.
            terms: The terms on which it would be accepted.
            then: Accepts the client; called at once when the decision is there at once.
        """
        gate = self._gate
        if gate is None:
            then(None)
            return
        credentials = connection.credentials(packet, client_id=terms.client_id)
        answer = gate.authenticate_now(credentials)
        finish = partial(self._identified, connection, credentials, then)
        if isinstance(answer, ReasonCode):
            finish(answer)
            return
        if answer is not None:
            access = gate.authorize(answer)
            allowed = _may_publish_will(access, terms.will)
            if isinstance(allowed, bool):
                finish(access if allowed else ReasonCode.NOT_AUTHORIZED)
                return
        task = asyncio.create_task(self._identify(gate, credentials, answer, terms.will), name="server-identify")
        self._tasks.add(task)
        connection.suspend(task.cancel)
        task.add_done_callback(partial(self._task_ended, connection, finish))

    async def _identify(
        self, gate: Gate, credentials: Credentials, identity: Identity | None, will: WillMessage | None
    ) -> Access | ReasonCode:
        answer = identity or await gate.authenticate(credentials)
        if isinstance(answer, ReasonCode):
            return answer
        access = gate.authorize(answer)
        allowed = _may_publish_will(access, will)
        if not (allowed if isinstance(allowed, bool) else await allowed):
            return ReasonCode.NOT_AUTHORIZED
        # The configuration may have been replaced while the hook decided on the Will Message.
        return access if gate.admits(answer) else ReasonCode.NOT_AUTHORIZED

    def _task_ended(
        self,
        connection: ClientConnection,
        finish: Callable[[Access | ReasonCode], None],
        task: asyncio.Task[Access | ReasonCode],
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled() or connection.is_closing():
            return
        if task.exception() is not None:  # a bug, which the event loop reports; it must not admit the client
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE)
        finish(task.result())
        connection.resume()

    def _identified(
        self,
        connection: ClientConnection,
        credentials: Credentials,
        then: Callable[[Access | None], None],
        answer: Access | ReasonCode,
    ) -> None:
        if isinstance(answer, Access):
            then(answer)
            return
        self._logger.warning(
            "client_refused",
            reason=answer.text,
            client_id=credentials.client_id,
            username=credentials.username or "",
            address=connection.address,
        )
        connection.refuse(answer)

    # SUBSCRIBE.

    def subscribe(
        self,
        connection: ClientConnection,
        session: Session,
        packet: Subscribe,
        *,
        then: Callable[[Mapping[int, ReasonCode]], None],
    ) -> None:
        """Check which subscriptions are refused.

        Args:
            connection: The client's connection; suspended until all decisions are there.
            session: Its session.
            packet: Its SUBSCRIBE.
            then: Carries out the SUBSCRIBE; gets the Reason Codes of refused subscriptions by index. Called at once
            when
                all decisions are there at once, and never when the connection ends before.
        """
        access = session.access
        if access is None:
            then({})
            return
        refused: dict[int, ReasonCode] = {}
        left = iter(enumerate(packet.subscriptions))
        has_waited = False

        def go_on() -> None:
            """Decide on further ones, up to the one at which the limit of requests to the hook is reached."""
            nonlocal has_waited
            waiting: dict[int, asyncio.Future[bool]] = {}
            for index, subscription in left:
                if index >= self._context.config.subscriptions_max:
                    refused[index] = ReasonCode.QUOTA_EXCEEDED
                    self._counters.limits_reached[Limit.SUBSCRIPTIONS] += 1
                    continue
                try:
                    allowed = access.may_subscribe(subscription.topic_filter)
                except ProtocolError:
                    continue  # the registry has the Reason Code for it
                if isinstance(allowed, asyncio.Future):
                    waiting[index] = allowed
                    if len(waiting) == ASKED_MAX:
                        break
                elif not allowed:
                    refuse(index)
            if waiting:
                if not has_waited:
                    has_waited = True
                    connection.suspend()
                _when_all(waiting.values(), partial(decided, waiting))
            elif has_waited:
                for index in range(len(packet.subscriptions)):  # the rules may have been replaced meanwhile
                    if index not in refused and _is_denied(access, packet.subscriptions[index].topic_filter):
                        refuse(index)
                then(refused)
                connection.resume()
            else:
                then(refused)

        def decided(waiting: Mapping[int, asyncio.Future[bool]]) -> None:
            if connection.session is not session:
                return
            for index, decision in waiting.items():
                if not decision.result():
                    refuse(index)
            go_on()

        def refuse(index: int) -> None:
            refused[index] = ReasonCode.NOT_AUTHORIZED
            self._log_refused(session, access, packet.subscriptions[index].topic_filter)

        go_on()

    def _log_refused(self, session: Session, access: Access, topic_filter: bytes) -> None:
        denied = access.explain(topic_filter)
        why: dict[str, Any] = {"by": "hook"}
        if denied is not None:
            why = {"topic": denied.topic, "rule": "none allows it" if denied.rule is None else denied.rule}
        self._logger.warning(
            "subscription_refused",
            client_id=session.client_id,
            user=access.identity.user,
            filter=topic_filter.decode(),
            **why,
        )

    # PUBLISH and Will Messages.

    def publish(
        self, session: Session, rows: list[PublishRow], *, connection: ClientConnection | None = None
    ) -> Sequence[PublishVerdict]:
        """Pass the messages that may be published to the ingress, and refuse the others.

        Args:
            session: Session of the publisher.
            rows: The messages, in order.
            connection: Its connection, suspended until all decisions are there; None for a Will Message.

        Returns:
            As `Ingress.publish`.
        """
        access = session.access
        if access is None or access.may_publish_all:
            return self._ingress.publish(session.client_id, rows, self._clock.now_ns(), user=session.user)
        decisions = [access.may_publish(rows[0][0])] if len(rows) == 1 else _decide(access, rows)
        first = next((index for index, one in enumerate(decisions) if not isinstance(one, bool)), None)
        if first is None:
            return self._hand_over(session, access, rows, decisions)
        verdicts: list[PublishVerdict] = []
        if first:
            verdicts += self._hand_over(session, access, rows[:first], decisions[:first])
        loop = asyncio.get_running_loop()
        late = [loop.create_future() for _ in rows[first:]]
        if connection is not None:
            connection.suspend()
        self._decide_later(
            session, access, rows=rows[first:], decisions=decisions[first:], late=late, connection=connection
        )
        return [*verdicts, *late]

    def _decide_later(
        self,
        session: Session,
        access: Access,
        *,
        rows: list[PublishRow],
        decisions: list[_Decision],
        late: list[asyncio.Future[ReasonCode]],
        connection: ClientConnection | None,
    ) -> None:
        """Wait for `decisions` on the first of `rows`, publish these, and continue with the others."""

        def decided() -> None:
            known = [one if isinstance(one, bool) else one.result() for one in decisions]
            count = len(known)
            verdicts = self._hand_over(session, access, rows[:count], known)
            for future, verdict in zip(late, verdicts, strict=False):
                _resolve(future, verdict)
            if count < len(rows):
                rest = rows[count:]
                more = _decide(access, rest)
                self._decide_later(session, access, rows=rest, decisions=more, late=late[count:], connection=connection)
            elif connection is not None:
                connection.send_acks()  # before the answers to the packets kept while it was suspended
                connection.resume()

        _when_all([one for one in decisions if not isinstance(one, bool)], decided)

    def _hand_over(
        self, session: Session, access: Access, rows: list[PublishRow], decisions: Sequence[_Decision]
    ) -> Sequence[PublishVerdict]:
        now_ns = self._clock.now_ns()
        if all(decisions):
            return self._ingress.publish(session.client_id, rows, now_ns, user=session.user)
        allowed = [row for row, decision in zip(rows, decisions, strict=True) if decision]
        taken = self._ingress.publish(session.client_id, allowed, now_ns, user=session.user) if allowed else ()
        verdicts = iter(taken)
        return [next(verdicts) if decision else ReasonCode.NOT_AUTHORIZED for decision in decisions]


def _may_publish_will(access: Access, will: WillMessage | None) -> _Decision:
    return True if will is None or access.may_publish_all else access.may_publish(will.row[0])


def _is_denied(access: Access, topic_filter: bytes) -> bool:
    """Return whether the rules refuse a subscription; the registry has the Reason Code of one without a legal form."""
    try:
        return access.explain(topic_filter) is not None
    except ProtocolError:
        return False


def _decide(access: Access, rows: list[PublishRow]) -> list[_Decision]:
    """Decide on `rows`, up to the one at which the limit of requests to the hook is reached."""
    decisions: list[_Decision] = []
    asked = 0
    for row in rows:
        decision = access.may_publish(row[0])
        decisions.append(decision)
        if decision is not True and decision is not False:
            asked += 1
            if asked == ASKED_MAX:
                break
    return decisions


def _when_all(decisions: Collection[asyncio.Future[bool]], then: Callable[[], None]) -> None:
    """Call `then` when all decisions are there, in the next turn of the event loop at the earliest."""
    left = len(decisions)
    if not left:
        asyncio.get_running_loop().call_soon(then)
        return

    def one_came(_: asyncio.Future[bool]) -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    for decision in decisions:
        decision.add_done_callback(one_came)


def _resolve(future: asyncio.Future[ReasonCode], verdict: PublishVerdict) -> None:
    if isinstance(verdict, ReasonCode):
        future.set_result(verdict)
        return
    assert isinstance(verdict, asyncio.Future)
    verdict.add_done_callback(lambda came: future.set_result(came.result()))
