"""Makers of core objects for tests: sessions that write into a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fanout.config import QueueOverflow
from fanout.replica.update import Update
from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageQueue
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.retained_cache import RetainedPieces
from fanout.server.session.retained_delivery import RetainedDelivery
from fanout.server.session.session import Session
from tests.oracle.packets import decode_packets

__all__ = ["Peer", "Values", "make_session", "options"]


class Values:
    """A store of retained values that finds all of them for any filter.

    Attributes:
        values: By Topic Name.
        piece: How many it gives at once.
        pieces: What its deliveries share.
    """

    def __init__(self, values: dict[bytes, Update]) -> None:
        self.values = values
        self.piece = 100
        self.pieces = RetainedPieces()

    def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield the values of topics that are there now, read piece by piece."""
        topics = list(self.values)
        for start in range(0, len(topics), self.piece):
            yield [self.values[topic] for topic in topics[start : start + self.piece] if topic in self.values]

    def get_many(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the values that are there now."""
        return [self.values[topic] for topic in topics if topic in self.values]

    def delivery(
        self, topic_filter: bytes, granted: SubscriptionOptions, *, manifest: bool = False
    ) -> RetainedDelivery:
        """Make a delivery of the values."""
        return RetainedDelivery(topic_filter, options=granted, store=self, pieces=self.pieces, manifest=manifest)


def make_session(
    client_id: str = "c",
    *,
    wire: WireVariant | None = None,
    counters: Counters | None = None,
    queue_messages_max: int = 1000,
    queue_bytes_max: int = 1_000_000,
    queue_overflow: QueueOverflow = "disconnect",
    overflowed: dict[Session, None] | None = None,
) -> Session:
    """Make a session without a connection, for MQTT 5 unless `wire` says otherwise."""
    return Session(
        client_id,
        wire=WireVariant(5) if wire is None else wire,
        queue=MessageQueue(messages_max=queue_messages_max, bytes_max=queue_bytes_max, overflow=queue_overflow),
        overflowed={} if overflowed is None else overflowed,
        counters=Counters() if counters is None else counters,
    )


def options(
    qos: int = 0, *, no_local: bool = False, retain_as_published: bool = False, identifier: int = 0
) -> SubscriptionOptions:
    """Make the options of a subscription."""
    return SubscriptionOptions(qos, no_local, retain_as_published, identifier)


class Peer:
    """A session whose connection keeps what is written to it."""

    def __init__(self, session: Session, *, window: int = 100) -> None:
        self.session = session
        self.written: list[bytes] = []
        self.window = window
        self.connect()

    def connect(self) -> None:
        """Attach a connection, and keep the PUBRELs that it begins with."""
        first = self.session.connect(self.written.append, window=self.window)
        if first:
            self.written.append(first)

    def take_piece(self, *, messages_max: int = 100, bytes_max: int = 100_000, now_ns: int = 0) -> None:
        """Let the session write one piece."""
        self.written.append(self.session.take(now_ns=now_ns, messages_max=messages_max, bytes_max=bytes_max))

    def take(self, *, messages_max: int = 100, now_ns: int = 0) -> None:
        """Let the session write until there is nothing more, or it is blocked."""
        while self.session.sender.pending:
            self.take_piece(now_ns=now_ns, messages_max=messages_max)
            if self.session.sender.inflight.blocked:
                return

    def read(self) -> bytes:
        """Return and forget what was written, which the oracle has read."""
        data = b"".join(self.written)
        self.written.clear()
        decode_packets(data, version=self.session.wire.version, sender="server")
        return data
