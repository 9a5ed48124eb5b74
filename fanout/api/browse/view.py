"""Interface of a node for reading topics and events; `fanout.node.browse.browser` implements it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from fanout.api.browse.models import EventsDocument, LagHistory, TopicDetail, TopicsDocument, TopTopics, TreeDocument
from fanout.errors import FanoutError
from fanout.runtime.slices import Slices

__all__ = [
    "OPERATOR_KEY",
    "READER_KEY",
    "WRITE_KEY",
    "NodeBrowser",
    "Reader",
    "ReaderRefused",
    "TopicQuery",
    "Write",
]

READER_KEY: Final = "fanout.reader"
"""Key of the scope of a request with its `Reader`; it is absent for operators."""
Write: TypeAlias = Callable[[bytes], bool]
"""Writes a piece of an answer under way at once; returns False, and writes nothing, if it must wait."""
WRITE_KEY: Final = "fanout.write"
"""Extension (ASGI) with the `Write` of the connection."""
OPERATOR_KEY: Final = "fanout.operator"
"""Key of the scope of a request for an open path: True for an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """Question for a page of topics; names are UTF-8."""

    topic_filter: bytes = b"#"
    """A valid Topic Filter, not of a Shared Subscription."""
    prefix: bytes = b""
    """Beginning of the topics; empty for all."""
    search: bytes = b""
    """Words that a topic must contain, in any order; ASCII letters match in both cases. Empty for none."""
    after: bytes = b""
    """Topic after which the page begins; empty for the first one."""
    limit: int = 100
    """Most topics on the page."""
    value_bytes: int = 256
    """Bytes of each payload that are shown."""


class Reader(Protocol):
    """User of the node who asks over HTTP, with the rights that its clients have."""

    @property
    def user(self) -> str:
        """Name of the user."""

    @property
    def connections_max(self) -> int | None:
        """Most Network Connections of the user by a table of quotas; None without such a bound."""

    async def may_read(self, topic_filter: bytes) -> bool:
        """Return True if the user may subscribe to a valid Topic Filter now."""

    def keeps(self, topic_filter: bytes) -> bool:
        """Return True if the user may still connect, and the rules still grant a Topic Filter."""


class ReaderRefused(FanoutError):
    """A user is refused for another reason than its name and password."""

    def __init__(self, status_code: int, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.status_code = status_code
        """403 or 503."""


class NodeBrowser(Protocol):
    """Reads topics and events of a node."""

    @property
    def slices(self) -> Slices:
        """Share of the event loop for costly documents."""

    async def reader(self, username: str, password: bytes, *, address: str) -> Reader | None:
        """Return the user with a name and a password; None if they are not valid, or the node has no users.

        Raises:
            ReaderRefused: They may be valid, but nobody can tell now (503), or users may not ask over HTTP (403).
        """

    def is_topic_filter(self, topic_filter: bytes) -> bool:
        """Return True if this is a valid Topic Filter, not of a Shared Subscription."""

    def is_topic_name(self, topic: bytes) -> bool:
        """Return True if this is a valid Topic Name."""

    async def page(self, query: TopicQuery) -> TopicsDocument:
        """Return a page of topics."""

    def topic(self, topic: bytes, *, for_operator: bool) -> TopicDetail:
        """Return one topic.

        Args:
            topic: A valid Topic Name.
            for_operator: False for a user, who is not told of others.
        """

    async def tree(self, prefix: bytes, *, after: bytes | None, limit: int) -> TreeDocument:
        """Return a page of the levels below a branch, after the level `after`."""

    async def top(self, count: int) -> TopTopics:
        """Return the busiest branches and topics."""

    def lag_history(self) -> LagHistory:
        """Return the lag of each link over the last hour."""

    def events(self, *, before: int | None, limit: int) -> EventsDocument:
        """Return the newest events, those before the one with the number `before`."""

    def stream(
        self, topic_filter: bytes, *, last_id: str, value_bytes: int, write: Write | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield server-sent events of the retained and live values that a Topic Filter matches.

        Args:
            topic_filter: A valid Topic Filter, not of a Shared Subscription.
            last_id: `Last-Event-ID` of a client that comes back; empty for none.
            value_bytes: Bytes of each payload that are shown.
            write: Writes some of the events, in place of yielding them, while the reader waits for more; None if they
                are all to be yielded.
        """

    def event_stream(self, *, last_id: str) -> AsyncGenerator[bytes]:
        """Yield server-sent events of the node's events, those after `last_id` first."""

    @property
    def stale_s(self) -> float | None:
        """Age in seconds of the values of a node that serves stale ones; None otherwise."""
