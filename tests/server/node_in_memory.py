"""The least that a server needs around it: a store, an ingress and a clock, all in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog

from fanout.access.gate import Gate
from fanout.amqp.opening import LazyDoor
from fanout.config import Address, ServerConfig
from fanout.durable.hosting.server_sessions import ServerSessions
from fanout.durable.hosting.session_values import SessionValues
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.history import Origin
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Stamp, Update, content_digest
from fanout.server import PublishVerdict, Server
from fanout.storage.store import DiskStore

__all__ = ["ManualClock", "NodeInMemory", "update"]

LOOPBACK = (Address("mqtt", "127.0.0.1", 0),)


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self._now_ns = 1_700_000_000_000_000_000
        self._monotonic = 1000.0

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return self._now_ns

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass, without anything being done that is due."""
        self._now_ns += int(seconds * 1_000_000_000)
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Set the time of day."""
        self._now_ns += int(seconds * 1_000_000_000)


class NodeInMemory:
    """A server with a replica of its own, into which every client may publish.

    Attributes:
        verdicts: What `publish` answers for a topic that begins with a key, instead of taking the message.
        published: Every row that was published, with its client.
        storage: Where batches go before they are dispatched; None for nowhere.
    """

    def __init__(self, *, gate: Gate | None = None, **settings: object) -> None:
        self.clock = ManualClock()
        self.replica = Replica()
        self.verdicts: dict[bytes, Callable[[], PublishVerdict]] = {}
        self.published: list[tuple[str, PublishRow]] = []
        self.storage: DiskStore | None = None
        self.config = ServerConfig(**{"listen": LOOPBACK, **settings})  # type: ignore[arg-type]  # tests know the keys
        self.server = Server(
            self.config,
            node_id="node-1",
            store=self,
            ingress=self,
            clock=self.clock,
            logger=structlog.get_logger(),
            known_topics=self.replica.values,
            gate=gate,
            amqp=LazyDoor("node-1"),
        )
        self.sessions = ServerSessions(self.server, link_of=lambda topic: "")
        self.values = SessionValues(self.server)

    @property
    def port(self) -> int:
        """The server's port."""
        return int(self.server.addresses[0].rpartition(":")[2])

    def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield retained values in pieces."""
        return self.replica.match(topic_filter)

    def get_many(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the retained values of topics."""
        return self.replica.get_many(topics)

    def publish(self, client_id: str, rows: list[PublishRow], now_ns: int, *, user: str = "") -> list[PublishVerdict]:
        """Take what a client published."""
        self.published += [(client_id, row) for row in rows]
        verdicts: list[PublishVerdict] = []
        accepted: list[Update] = []
        for row in rows:
            make_verdict = next((make for key, make in self.verdicts.items() if row[0].startswith(key)), None)
            verdicts.append(make_verdict() if make_verdict is not None else ReasonCode.SUCCESS)
            if make_verdict is None:
                topic, payload, flags, _, properties, expiry_s, _ = row
                expires_ns = now_ns + expiry_s * 1_000_000_000 if expiry_s is not None else 0
                digest = content_digest(topic, payload)
                qos, retain = flags >> 1 & 3, bool(flags & 1)
                accepted.append((topic, payload, qos, retain, properties, now_ns, expires_ns, digest, None))
        packet_ids = tuple(row[3] for row, verdict in zip(rows, verdicts, strict=True) if row[2] & 4 and verdict == 0)
        self.take(accepted, origin=client_id, packet_ids=packet_ids)
        return verdicts

    def take(self, updates: list[Update], *, origin: str | None = None, packet_ids: tuple[int, ...] = ()) -> None:
        """Apply and dispatch updates, as if they came from a link, or from a client."""
        changes = self.replica.apply(updates, phase=Phase.LIVE)
        if self.storage is not None:
            publisher = None if origin is None else Origin(origin, packet_ids)
            self.storage.put("link", [changes], origin=publisher)
        self.server.dispatch(changes.dispatch, origin=origin, position=changes.position)

    def set(self, topic: bytes, payload: bytes, **more: object) -> None:
        """Apply and dispatch one retained update; see `update`."""
        self.take([update(topic, payload, **more)])  # type: ignore[arg-type]  # as `update` takes them

    async def pass_time(self, seconds: float) -> None:
        """Let time pass and let the server do what is due."""
        self.clock.advance(seconds)
        self.server.context.timer.run_due()
        await asyncio.sleep(0)


def update(
    topic: bytes,
    payload: bytes,
    *,
    qos: int = 0,
    retain: bool = True,
    properties: bytes = b"",
    expires_ns: int = 0,
    stamp: Stamp | None = None,
) -> Update:
    """Make an update."""
    return (topic, payload, qos, retain, properties, 0, expires_ns, content_digest(topic, payload), stamp)
