"""Collector of the facts about one topic: the node's parts, the primary by name, the replication log, one client.

`fanout.api.topic_verdict` judges them. The primary is requested as the link's user on a connection of its own, so the
link's session is not affected. A value may change while it is compared; then it is compared again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from fanout.api.models import utc_from_ns
from fanout.api.topic_facts import PrimaryAnswer, TopicClient, TopicExplanation, TopicFacts, TopicLink, TopicValue
from fanout.api.topic_verdict import explain
from fanout.config import LinkConfig, NodeConfig
from fanout.errors import FanoutError, PrimaryRefused
from fanout.link.ingest.content_filter import reason_against_payload
from fanout.link.model.rows import PAYLOAD as ROW_PAYLOAD
from fanout.link.model.rows import PROPERTIES as ROW_PROPERTIES
from fanout.link.protocol.handshake import reason_text
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.explain.log_search import search_log
from fanout.node.explain.nearest_selector import nearest_selector
from fanout.replica.store import Replica
from fanout.replica.update import DIGEST, EXPIRES_NS, PAYLOAD, RECEIVED_NS, TOPIC, Update, content_digest
from fanout.runtime.system_clock import Clock
from fanout.selection import Selector
from fanout.server.client.client_list import ClientQuery

if TYPE_CHECKING:
    from fanout.link.link import Link
    from fanout.server.client.server import Server

__all__ = ["TopicExplainer"]

ASK_S: Final = 10.0
"""Limit in seconds of each request to the primary."""
_ROUNDS_MAX: Final = 3
"""Requests to the primary while the value here changes meanwhile."""
_NS_PER_S: Final = 1_000_000_000
_SETTLE_S: Final = 0.5
"""Time for an update that is under way to arrive before a difference counts."""
_BESIDE: Final = 8
"""Topics beside the topic that are requested as well."""
_USER_REFUSALS: Final = frozenset({ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED, ReasonCode.BANNED})


class TopicExplainer:
    """Explains topics of one node."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        links: Sequence[tuple[Link, Replica]],
        own: Replica,
        server: Server | None,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare.

        Args:
            config: The node's configuration.
            links: The links with their replicas.
            own: Values that clients published at this node.
            server: The server of clients; None on a node that serves none.
            clock: Clock of the node.
            sleep: Waits for some seconds.
        """
        self._config = config
        self._links = links
        self._own = own
        self._server = server
        self._clock = clock
        self._sleep = sleep

    async def explain(self, topic: str, *, at_primary: bool, client_id: str | None) -> TopicExplanation:
        """Return the explanation of a topic.

        Args:
            topic: A legal Topic Name.
            at_primary: True if it is the topic's name at the primary, not at this node.
            client_id: The client that does not get it; None for none.
        """
        for link, replica in self._links:
            for index, selector in enumerate(link.config.selectors):
                local = f"{selector.prefix}{topic}" if at_primary else topic
                if selector.covers_local(local.encode()) and not _is_control(link.config, selector, local):
                    return explain(await self._inside(link, replica, index, local, client_id))
        held = self._own.view.get(topic.encode())
        return explain(
            TopicFacts(
                node=self._config.node.id,
                topic=topic,
                at=utc_from_ns(self._clock.now_ns()),
                link=None,
                nearest=nearest_selector(topic, [link.config for link, _ in self._links]),
                own=held is not None,
                value=_value(held),
                client=await self._client(client_id, topic),
            )
        )

    async def _inside(self, link: Link, replica: Replica, index: int, topic: str, client_id: str | None) -> TopicFacts:
        """Return the facts about a topic inside a selector."""
        selector = link.config.selectors[index]
        at_primary = topic.removeprefix(selector.prefix)
        held, answer, changing = await self._compare(link, replica, selector, topic)
        log = self._config.log
        status, now_ns = link.status(), self._clock.now_ns()
        last = status.newest_audit
        skipped = replica.refused.skip_reason(topic.encode())
        return TopicFacts(
            node=self._config.node.id,
            topic=topic,
            at=utc_from_ns(now_ns),
            link=TopicLink(
                name=link.config.name,
                selector=selector.filter,
                topic=at_primary,
                primary=status.primary,
                username=link.config.username,
                state=status.shown_state,
                since=utc_from_ns(status.since_ns),
                current_until=None if status.stale_s is None else utc_from_ns(now_ns - int(status.stale_s * _NS_PER_S)),
                reason=status.reason,
                audited=utc_from_ns(status.audit_ended_ns) if last is not None and not last.failure else None,
                retained=not selector.live_only,
                limit=None if skipped else replica.refused.limit_of(topic.encode(), index=index),
                skipped=skipped,
                unconfirmed=topic.encode() in replica.unconfirmed,
            ),
            value=_value(held),
            primary=answer,
            changing=changing,
            log=None
            if log is None
            else await search_log(log.directory, node=self._config.node.id, link=link.config.name, topic=at_primary),
            client=await self._client(client_id, topic),
        )

    async def _compare(
        self, link: Link, replica: Replica, selector: Selector, topic: str
    ) -> tuple[Update | None, PrimaryAnswer, bool]:
        """Return the value here, the primary's answer, and whether the value here changed in every round."""
        key, at_primary = topic.encode(), topic.removeprefix(selector.prefix)
        beside = _topics_beside(replica, selector, key)
        for _ in range(_ROUNDS_MAX):
            before = replica.view.get(key)
            answer = await _ask(link, selector, at_primary, beside)
            held = replica.view.get(key)
            for one in (held, before):
                if _is_same(one, answer):
                    return one, answer, False
            if answer.outcome not in ("value", "absent"):
                return held, answer, False
            if held == before:
                await self._sleep(_SETTLE_S)
                held = replica.view.get(key)
                if _is_same(held, answer):
                    return held, answer, False
            if held == before:
                return held, answer, False
        return held, answer, answer.outcome == "value" and held is not None

    async def _client(self, client_id: str | None, topic: str) -> TopicClient | None:
        if client_id is None:
            return None
        if self._server is None:
            return TopicClient(client_id=client_id, session=False, unknown="this node serves no clients")
        page = await self._server.clients(ClientQuery(client_ids=(client_id,), topic=topic.encode()))
        if not page.clients:
            return TopicClient(client_id=client_id, session=False)
        (found,) = page.clients
        return TopicClient.of(
            found,
            session=True,
            connected=found.connected_s is not None,
            filters=found.matching,
            denied_by=found.denied_by or None,
            slow_seconds=found.slow_s,
        )


async def _ask(link: Link, selector: Selector, topic: str, beside: list[str]) -> PrimaryAnswer:
    """Request a topic, and others beside it, at the primary."""
    try:
        answer = await link.ask_by_name([topic, *beside], deadline_s=ASK_S)
    except PrimaryRefused as error:
        denied = error.reason_code in _USER_REFUSALS
        return PrimaryAnswer(outcome="denied" if denied else "unanswered", error=error.message, hint=error.hint or None)
    except (FanoutError, ValueError) as error:
        return PrimaryAnswer(
            outcome="unanswered",
            error=error.message if isinstance(error, FanoutError) else str(error),
            hint=(isinstance(error, FanoutError) and error.hint) or None,
        )
    beside_absent = sum(one in answer.absent or one in answer.denied for one in beside)
    if topic in answer.refused:
        code = answer.refused[topic]
        return PrimaryAnswer(
            outcome="refused",
            error=reason_text(code),
            beside_asked=len(beside),
            beside_absent=beside_absent,
        )
    row = answer.values.get(topic)
    if row is None:
        return PrimaryAnswer(outcome="absent", beside_asked=len(beside), beside_absent=beside_absent)
    payload = row[ROW_PAYLOAD]
    return PrimaryAnswer(
        outcome="value",
        value=TopicValue(digest=_digest(content_digest(topic.encode(), payload)), payload_bytes=len(payload)),
        unfit=reason_against_payload(payload, row[ROW_PROPERTIES], selector),
        beside_asked=len(beside),
        beside_absent=beside_absent,
    )


def _topics_beside(replica: Replica, selector: Selector, topic: bytes) -> list[str]:
    """Return the names at the primary of a few topics that are held beside one: of its own branch, then around it."""
    found: dict[str, None] = {}
    parent = topic.rpartition(b"/")[0]
    branches = [b"+", b"#"] if not parent else [parent + b"/+", parent.rpartition(b"/")[0] + b"/#"]
    for branch in branches:
        topics = (value[TOPIC] for piece in islice(replica.match(branch.removeprefix(b"/")), 4) for value in piece)
        for one in topics:
            if one != topic and selector.covers_local(one):
                found[one.decode().removeprefix(selector.prefix)] = None
            if len(found) == _BESIDE:
                return list(found)
    return list(found)


def _is_control(config: LinkConfig, selector: Selector, topic: str) -> bool:
    return topic.removeprefix(selector.prefix).startswith(f"{config.control_topic}/")


def _is_same(held: Update | None, answer: PrimaryAnswer) -> bool:
    if answer.value is None:
        return held is None and answer.outcome == "absent"
    return held is not None and _digest(held[DIGEST]) == answer.value.digest


def _value(held: Update | None) -> TopicValue | None:
    if held is None:
        return None
    return TopicValue(
        digest=_digest(held[DIGEST]),
        payload_bytes=len(held[PAYLOAD]),
        received=utc_from_ns(held[RECEIVED_NS]),
        expires=utc_from_ns(held[EXPIRES_NS]) if held[EXPIRES_NS] else None,
    )


def _digest(digest: int) -> str:
    return f"{digest:016x}"
