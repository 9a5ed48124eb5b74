"""Browser: joins pages, streams, activity and events of a node for its HTTP interface (`NodeBrowser`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Final

from fanout.access.gate import Gate
from fanout.access.identity import Credentials, Identity
from fanout.api.browse.models import (
    BusyBranch,
    BusyTopic,
    EventsDocument,
    LagHistory,
    TopicDetail,
    TopicsDocument,
    TopTopics,
    TreeDocument,
)
from fanout.api.browse.view import Reader, ReaderRefused, TopicQuery
from fanout.errors import ProtocolError, RequestRefused
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import SHARE_PREFIX, check_topic_filter, check_topic_name
from fanout.node.browse.activity import Observe, TopicActivity
from fanout.node.browse.events import NodeEvents
from fanout.node.browse.lags import NodeLags
from fanout.node.browse.pages import Store, TopicPages
from fanout.node.browse.streams import Streams, frame
from fanout.replica.update import Update
from fanout.runtime.slices import Slices
from fanout.runtime.system_clock import Clock

__all__ = ["Browser"]

_READER_ID: Final = "http"
"""Client Identifier of users who ask over HTTP, for rules and the HTTP hook."""


_SLICE_S: Final = 0.001
"""Time of the event loop that costly documents take at once."""
_SHARE: Final = 0.5
"""Most of the event loop's time that they take together."""


class Browser:
    """Reads topics and events of a node."""

    def __init__(
        self,
        *,
        stores: Callable[[], Sequence[Store]],
        match: Callable[[bytes], Iterator[list[Update]]],
        observe: Observe | None,
        stale_s: Callable[[], float | None],
        clock: Clock,
        gate: Gate | None = None,
        readers: Callable[[bytes], int] | None = None,
    ) -> None:
        """Join the parts.

        Args:
            stores: Returns the replicas of the node, which do not overlap.
            match: Yields the retained values that a Topic Filter matches, in pieces.
            observe: Observes the node's messages; None on a node without a server.
            stale_s: Returns the age in seconds of stale values that are served; None otherwise.
            clock: The clock.
            gate: Access control of clients; None on a node without clients.
            readers: Returns the number of sessions that subscribe to a Topic Name; None on a node without clients.
        """
        self._readers = readers
        self._gate = gate
        self.slices = Slices(slice_s=_SLICE_S, share=_SHARE)
        """Share of the event loop for costly documents."""
        self.node_events = NodeEvents(clock.now_ns)
        """The node's events."""
        self.lags = NodeLags()
        """Lag of each link over the last hour."""
        self._stale_s = stale_s
        self.activity = TopicActivity(observe, monotonic=clock.monotonic)
        """Counts of messages."""
        self._pages = TopicPages(stores, activity=self.activity, slices=self.slices)
        self._streams = None if observe is None else Streams(observe, match, slices=self.slices)

    def close(self) -> None:
        """End all streams."""
        self.node_events.close()
        self.activity.close()
        if self._streams is not None:
            self._streams.close()

    def note(self, kind: str, *, link: str = "", state: str = "", selector: str = "", detail: str = "") -> None:
        """Note an event; arguments as in the replication log."""
        self.node_events.add(kind, link=link, state=state, selector=selector, detail=detail)
        if kind in ("state", "tear_down") and self._streams is not None:
            self._streams.tell(kind, {"link": link, "state": state} if state else {"link": link})

    @property
    def stale_s(self) -> float | None:
        """Age in seconds of stale values that are served; None otherwise."""
        return self._stale_s()

    def is_topic_filter(self, topic_filter: bytes) -> bool:
        """See `NodeBrowser`."""
        return not topic_filter.startswith(SHARE_PREFIX) and _is_valid(check_topic_filter, topic_filter)

    def is_topic_name(self, topic: bytes) -> bool:
        """See `NodeBrowser`."""
        return _is_valid(check_topic_name, topic)

    async def page(self, query: TopicQuery) -> TopicsDocument:
        """See `NodeBrowser`."""
        return await self._pages.page(query)

    def topic(self, topic: bytes, *, for_operator: bool) -> TopicDetail:
        """See `NodeBrowser`."""
        readers = self._readers(topic) if for_operator and self._readers is not None else None
        return self._pages.topic(topic, readers=readers)

    async def tree(self, prefix: bytes, *, after: bytes | None, limit: int) -> TreeDocument:
        """See `NodeBrowser`."""
        return await self._pages.tree(prefix, after=after, limit=limit)

    async def top(self, count: int) -> TopTopics:
        """See `NodeBrowser`."""
        activity = self.activity
        activity.look()
        branches = await self.slices.run(activity.busiest_branches(count))
        interval_s = activity.interval_s
        busiest = activity.busiest(count) if interval_s else []
        return TopTopics(
            interval_s=interval_s,
            branches=tuple(
                BusyBranch(filter=f"{branch.decode()}/#", per_second=round(rate, 3)) for branch, rate in branches
            ),
            topics=tuple(BusyTopic(topic=topic.decode(), per_second=round(rate, 3)) for topic, rate in busiest),
            per_second=round(activity.per_second, 3),
        )

    def lag_history(self) -> LagHistory:
        """See `NodeBrowser`."""
        return self.lags.document()

    def events(self, *, before: int | None, limit: int) -> EventsDocument:
        """See `NodeBrowser`."""
        return self.node_events.page(before=before, limit=limit)

    def stream(
        self, topic_filter: bytes, *, last_id: str, value_bytes: int, write: Callable[[bytes], bool] | None = None
    ) -> AsyncGenerator[bytes]:
        """See `NodeBrowser`.

        Raises:
            RequestRefused: The node delivers no messages: it is a tap.
        """
        if self._streams is None:
            raise RequestRefused("a tap delivers no messages", hint="Ask a secondary; /v1/topics works here too")
        return self._streams.read(topic_filter, last_id=last_id, value_bytes=value_bytes, write=write)

    async def reader(self, username: str, password: bytes, *, address: str) -> Reader | None:
        """See `NodeBrowser`."""
        if self._gate is None or not self._gate.has_users:
            return None
        who = Credentials(
            client_id=_READER_ID, address=address, local=False, username=username, password=password or None
        )
        identity = await self._gate.authenticate(who, connects=False)
        if not isinstance(identity, Identity):
            if identity in (ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE):
                hint = "Ask again later; access in /v1/status counts failures of the HTTP hook"
                raise ReaderRefused(503, "user and password cannot be checked now", hint=hint)
            if identity is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID:
                hint = f"The Client Identifier {_READER_ID} is reserved for another user: see access.reserved"
                raise ReaderRefused(403, "users may not ask over HTTP", hint=hint)
            return None
        if not identity.user:
            return None
        return _Reader(self._gate, identity)

    async def event_stream(self, *, last_id: str) -> AsyncGenerator[bytes]:
        """See `NodeBrowser`."""
        async for event in self.node_events.read(last_id=last_id):
            if event is None:
                yield b": waiting\n\n"
            else:
                event_id = f"{self.node_events.process}-{event.id}"
                yield frame("event", event.model_dump(mode="json"), event_id=event_id)


class _Reader:
    """User who asks over HTTP."""

    def __init__(self, gate: Gate, identity: Identity) -> None:
        self._gate = gate
        self._identity = identity
        self._access = gate.authorize(identity)

    @property
    def user(self) -> str:
        """See `Reader`."""
        return self._identity.user

    @property
    def connections_max(self) -> int | None:
        """See `Reader`."""
        quota = self._gate.quota_of(self.user)
        return None if quota is None else quota.connections_max

    async def may_read(self, topic_filter: bytes) -> bool:
        """See `Reader`."""
        decision = self._access.may_subscribe(topic_filter)
        return decision if isinstance(decision, bool) else await decision

    def keeps(self, topic_filter: bytes) -> bool:
        """See `Reader`."""
        return self._gate.admits(self._identity) and not self._access.lost([topic_filter])


def _is_valid(check: Callable[[bytes], None], text: bytes) -> bool:
    try:
        check(text)
    except ProtocolError:
        return False
    return True
