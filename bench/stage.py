"""The servers of one benchmark: a Mosquitto primary, and beside it what is measured.

Each server under test has a *root*, the first level of its topics, and replicates nothing else: while one is
measured, the others have nothing to do. All queues of both Mosquittos are unlimited, so that nothing is dropped and
everybody must deliver everything.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import VERSION, connect, packet_bytes, publish, publishes
from bench.processes import (
    FlashMQ,
    Mosquitto,
    Node,
    Server,
    free_port,
    link,
    make_certificate,
    pool_section,
    selector,
    wait_for,
)
from bench.readers import Audience, Clients, Readers
from fanout.mqtt.packets import Subscribe, Subscription, encode
from fanout.mqtt.publish import encode_publish

__all__ = [
    "BARE",
    "BRIDGE",
    "BRIDGE_TLS",
    "COPIES",
    "DIRECT",
    "FLASHMQ",
    "HOP",
    "LABELS",
    "NO_COPIES",
    "ON_DISK",
    "OURS",
    "OURS_TLS",
    "RELAY",
    "SESSIONS",
    "VALUES",
    "Run",
    "Side",
    "Stage",
    "bridges",
    "burst",
    "wait_through",
]

OURS = "ours"
"""A secondary with all of its features on."""
BARE = "bare"
"""A secondary without a replication log."""
BRIDGE = "peer"
"""A Mosquitto that bridges the primary."""
FLASHMQ = "fmqb"
"""A FlashMQ that bridges the primary."""
DIRECT = "prim"
"""The primary itself: what a subscriber there sees."""
VALUES = "disc"
"""As `OURS`, with retained values on disk."""
SESSIONS = "sess"
"""As `VALUES`, with sessions on disk."""
COPIES = "pool"
"""As `OURS`, in a pool with another member, which keeps copies of its sessions."""
NO_COPIES = "solo"
"""As `COPIES`, without copies."""
RELAY = "rely"
"""The relay, for the self-test of the load generator. All names are roots, hence of one length."""
HOP = "bhop"
"""The least that a hop in Python can do."""
OURS_TLS = "otls"
"""As `OURS`, with TLS between it and the primary."""
BRIDGE_TLS = "ptls"
"""As `BRIDGE`, with TLS between it and the primary."""

LABELS = {
    OURS: "ours",
    BARE: "ours, no log",
    BRIDGE: "bridge",
    FLASHMQ: "FlashMQ bridge",
    DIRECT: "primary",
    VALUES: "ours, values on disk",
    SESSIONS: "ours, sessions on disk too",
    COPIES: "pool, copies of sessions",
    NO_COPIES: "pool, no copies",
    RELAY: "load generator's limit",
    HOP: "bare hop in Python",
    OURS_TLS: "ours, TLS",
    BRIDGE_TLS: "bridge, TLS",
}
"""Their name in a table."""

_FLASHMQ_BINARY = "FLASHMQ"
"""The environment variable that names the binary."""
_UNLIMITED = ("max_queued_messages 0", "max_inflight_messages 0")
ON_DISK = {
    VALUES: '[retained]\nstorage = "disc"\n',
    SESSIONS: '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n',
}
_SETTLE_S = 0.2
_LOAD_PIECE = 50_000


@dataclass(frozen=True, slots=True)
class Side:
    """One server under test."""

    name: str
    """Also the root of its topics."""
    server: Server
    """The measured load."""
    publish_port: int
    """Port at which its topics are published: the primary's."""

    def packet_bytes(self, *, payload_bytes: int, qos: int) -> int:
        """Return the size of each packet of its topics."""
        return packet_bytes(root=self.name, payload_bytes=payload_bytes, qos=qos)


class Stage:
    """A primary and whatever is started beside it, in one scratch directory; a context manager."""

    def __init__(self, *, qos: int = 0, tls: bool = False) -> None:
        """Describe a stage.

        Args:
            qos: Of the hop from the primary to each server.
            tls: True if the primary has a listener with TLS, for `OURS_TLS` and `BRIDGE_TLS`.
        """
        self._qos = qos
        self._tls_port = free_port() if tls else 0
        self._ends = ExitStack()
        self.scratch = Path()
        """Directory of the servers' files."""
        self.primary: Server
        """The Mosquitto primary."""

    def __enter__(self) -> Stage:
        with ExitStack() as ends:
            self.scratch = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fanout-bench-")))
            settings = [*_UNLIMITED, *self._tls_listener()]
            self.primary = ends.enter_context(Mosquitto(self.scratch, name="primary", settings=settings))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @contextmanager
    def further_primary(self, name: str) -> Iterator[Server]:
        """Start one more Mosquitto and end it afterwards; stopped, it forgets everything."""
        with Mosquitto(self.scratch, name=name, settings=_UNLIMITED) as primary:
            yield primary

    @contextmanager
    def side(self, name: str, *, settings: str = "", links: str = "") -> Iterator[Side]:
        """Start one server and end it afterwards; it listens, but need not hold anything yet.

        Args:
            name: OURS, BARE, BRIDGE, FLASHMQ, DIRECT, RELAY, HOP, OURS_TLS, BRIDGE_TLS, VALUES, SESSIONS, COPIES or
                NO_COPIES.
            settings: Further lines for `[server]` of a secondary.
            links: Further links of a secondary, from `bench.processes.link`.
        """
        if name == DIRECT:
            yield Side(name, self.primary, self.primary.port)
            return
        if name in (COPIES, NO_COPIES):
            with self._member(name) as server:
                yield Side(name, server, self.primary.port)
            return
        with self._server(name, settings=settings, links=links) as server:
            yield Side(name, server, server.port if name == RELAY else self.primary.port)

    @contextmanager
    def sides(self, *names: str, settings: str = "") -> Iterator[dict[str, Side]]:
        """Start several servers and wait until each of them is through with its snapshot and forwards."""
        with ExitStack() as ends:
            sides = {name: ends.enter_context(self.side(name, settings=settings)) for name in names}
            for side in sides.values():
                wait_through(side)
            yield sides

    def load_retained(self, root: str, *, topics: int, payload_bytes: int, primary: Server | None = None) -> None:
        """Publish a retained message at each of `topics` topics of a primary, and wait until it has them."""
        client = connect((primary or self.primary).port, "bench-loader")
        try:
            for start in range(0, topics, _LOAD_PIECE):
                number = min(_LOAD_PIECE, topics - start)
                packets = publishes(
                    number, root=root, topics=topics, payload_bytes=payload_bytes, qos=1, retain=True, start=start
                )
                publish(client, packets, messages=number, qos=1)
        finally:
            client.close()

    def _tls_listener(self) -> list[str]:
        """Return the settings of the primary's listener with TLS; none without."""
        if not self._tls_port:
            return []
        make_certificate(self._certificate)
        return [f"listener {self._tls_port} 127.0.0.1", f"certfile {self._certificate}", f"keyfile {self._certificate}"]

    @property
    def _certificate(self) -> Path:
        """The primary's certificate, which is its own CA, and its key."""
        return self.scratch / "primary.pem"

    @contextmanager
    def _member(self, name: str) -> Iterator[Node]:
        """Start a pool of two, and give one of them; it is ready, and hears the other."""
        ports = free_port(), free_port()
        settings = f"session_copies = {str(name == COPIES).lower()}\n"
        nodes = [
            Node(
                self.scratch,
                role="secondary",
                name=f"{name}-{number}",
                links=pool_section(port, ports, settings=settings)
                + link(self.primary.port, selector(f"{name}/#", qos=self._qos)),
            )
            for number, port in enumerate(ports)
        ]
        with nodes[0], nodes[1]:
            wait_for(lambda: bool(nodes[0].get("/v1/pool").json()["ready"]), what=f"{name} knowing its pool")
            yield nodes[0]

    def _server(self, name: str, *, settings: str, links: str) -> Server:
        if name in (OURS, BARE, OURS_TLS, *ON_DISK):
            first = link(self.primary.port, selector(f"{name}/#", qos=self._qos))
            if name == OURS_TLS:
                keys = f'ca_file = "{self._certificate}"\n'
                first = link(self._tls_port, selector(f"{name}/#", qos=self._qos), settings=keys)
                first = first.replace("mqtt://", "mqtts://")
            parts = ON_DISK.get(name, "") + first + links
            return Node(self.scratch, role="secondary", name=name, links=parts, settings=settings, log=name != BARE)
        if name == RELAY:
            port = free_port()
            command = [sys.executable, "-m", "bench.relay", str(port)]
            return Server(command, log=self.scratch / "relay.log", port=port)
        if name == HOP:
            port = free_port()
            command = [sys.executable, "-m", "bench.hop", str(port), str(self.primary.port), name]
            return Server(command, log=self.scratch / "hop.log", port=port)
        if name == FLASHMQ:
            return FlashMQ(
                self.scratch,
                binary=os.environ[_FLASHMQ_BINARY],
                primary_port=self.primary.port,
                topic_filter=f"{name}/#",
                qos=self._qos,
            )
        return Mosquitto(
            self.scratch,
            name="bridge" if name == BRIDGE else "bridge-tls",
            settings=[
                *_UNLIMITED,
                f"connection bench-{name}",  # its Client Identifier
                f"address 127.0.0.1:{self.primary.port if name == BRIDGE else self._tls_port}",
                *([] if name == BRIDGE else [f"bridge_cafile {self._certificate}"]),
                f"topic {name}/# in {self._qos}",
                # MQTT 3.1.1: with an unlimited window its MQTT 5 bridge sends Receive Maximum 0, which is refused.
                "bridge_protocol_version mqttv311",
                "notifications false",
                "restart_timeout 1",
            ],
        )


def bridges() -> tuple[str, ...]:
    """Return the sides that bridge the primary: Mosquitto, and FlashMQ where `FLASHMQ` names its binary."""
    return (BRIDGE, FLASHMQ) if os.environ.get(_FLASHMQ_BINARY) else (BRIDGE,)


def wait_through(side: Side) -> None:
    """Return once the server is ready and a message published for it comes out of it."""
    if isinstance(side.server, Node):
        side.server.wait_ready()
    if side.publish_port == side.server.port:
        return
    probe = encode_publish(f"{side.name}/probe".encode(), b"through", version=VERSION)
    reader, writer = connect(side.server.port, "bench-probe-reader"), connect(side.publish_port, "bench-probe-writer")
    try:
        subscription = Subscription(f"{side.name}/probe".encode(), 0)
        reader.sendall(encode(Subscribe(packet_id=1, subscriptions=(subscription,)), version=VERSION))
        reader.settimeout(0.2)

        def arrives() -> bool:
            writer.sendall(probe)
            try:
                return probe in reader.recv(4096)
            except TimeoutError:
                return False

        wait_for(arrives, what=f"{side.name} forwarding from the primary")
    finally:
        reader.close()
        writer.close()


@dataclass(frozen=True, slots=True)
class Run:
    """One burst through one server."""

    delivered_per_s: float
    """Deliveries to the fast subscribers, divided by the time from the first write to the last delivery."""
    cpu_s_per_million: float
    """CPU seconds of the server under test for a million deliveries."""
    cpu_us_per_update: float
    """CPU microseconds of the server under test for a message, delivered to all."""
    resident_mib_max: float
    """Highest resident set size of the server under test so far, in MiB."""
    delivered: float
    """Messages that the fast subscribers got."""
    expected: float
    """Messages that they should have got."""

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        return {
            "delivered/s": self.delivered_per_s,
            "CPU s per million": self.cpu_s_per_million,
            "CPU us per update": self.cpu_us_per_update,
            "peak MiB": self.resident_mib_max,
        }


def burst(
    side: Side,
    *,
    subscribers: int,
    qos: int,
    messages: int,
    payload_bytes: int,
    topics: int = 1000,
    retained: int = 0,
    stalled: int = 0,
    half_speed: int = 0,
    durable: bool = False,
    bursts: int = 1,
    clients: Callable[[Audience], Clients] | None = None,
) -> Run:
    """Publish `messages` at once and wait until each of the fast subscribers has all of them; so often as asked.

    Args:
        side: The server under test.
        subscribers: Number of those that read as fast as they can.
        qos: Of the publisher and the subscribers.
        messages: Number of them.
        payload_bytes: Size of each payload.
        topics: Number of topics that they are spread over.
        retained: Number of topics with a retained value already, which the subscribers get before.
        stalled: Number of other subscribers that never read.
        half_speed: Number of other subscribers that read half as fast as the rest.
        durable: True if their sessions outlive their connections.
        bursts: Number of repetitions without a pause, with never more in flight than a window.
        clients: Makes the subscribers; None for those of MQTT.
    """
    packets = publishes(messages, root=side.name, topics=topics, payload_bytes=payload_bytes, qos=qos)
    audience = Audience(
        port=side.server.port,
        root=side.name,
        count=subscribers,
        packet_bytes=side.packet_bytes(payload_bytes=payload_bytes, qos=qos),
        qos=qos,
        stalled=stalled,
        half_speed=half_speed,
        subscribed=not retained,
        durable=durable,
    )
    with Readers(audience, clients) as readers:
        publisher = connect(side.publish_port, "bench-publisher")
        try:
            if retained:
                readers.expect(retained)
                readers.wait()
            time.sleep(_SETTLE_S)  # the subscribers of the run before are still being forgotten
            before = side.server.usage()
            started = time.monotonic()
            arrivals = []
            for _ in range(bursts):
                readers.expect(messages)
                publish(publisher, packets, messages=messages, qos=qos)
                arrivals.append(readers.wait())
            after = side.server.usage()
        finally:
            publisher.close()
    cpu_s, expected = after.cpu_s - before.cpu_s, messages * bursts * subscribers
    delivered = sum(one.delivered for one in arrivals)
    return Run(
        delivered_per_s=delivered / (arrivals[-1].finished - started),
        cpu_s_per_million=cpu_s / expected * 1e6,
        cpu_us_per_update=cpu_s / (messages * bursts) * 1e6,
        resident_mib_max=after.resident_bytes_max / 2**20,
        delivered=delivered,
        expected=expected,
    )
