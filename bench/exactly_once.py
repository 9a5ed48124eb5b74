"""Messages at QoS 2 from clients to clients of one secondary: alone, as a member of a pool, with sessions on disk."""

from __future__ import annotations

import argparse
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from bench.arguments import at_least
from bench.load import connect
from bench.processes import Node, free_port, link, pool_section, selector
from bench.report import Ask, Report, alternate, medians, ratio, rows
from bench.roaming import packets
from bench.stage import ON_DISK, SESSIONS, VALUES, Stage

__all__ = ["add_arguments", "run"]

ALONE, MEMBER = "alon", "memb"
"""Roots of the topics, of one length."""
_LABELS = {ALONE: "alone", MEMBER: "member of a pool", VALUES: "values on disk", SESSIONS: "sessions on disk too"}
_VERSION = 4
_LEFT = 0.98
"""Part of the messages per second of a secondary alone that must be left in a pool."""
_LEFT_ON_DISK = 0.85
"""Part of the messages per second with values on disk that must be left with durable sessions there too."""
_SETTLE_S = 0.5
_SILENCE_S = 30.0
_READ_BYTES = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--subscribers", type=at_least(1), default=5, help="subscribers, each to everything (5)")
    parser.add_argument("--publishers", type=at_least(1), default=5, help="publishers (5)")
    parser.add_argument("--messages", type=at_least(1), default=10_000, help="messages of all publishers (10000)")
    parser.add_argument("--window", type=at_least(1), default=20, help="messages in flight of each publisher (20)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure both secondaries alternately."""
    with Stage() as stage, _nodes(stage) as nodes:
        runs = alternate(arguments.runs, {name: partial(_measure, name, nodes[name], arguments) for name in nodes})
    speeds = {name: medians(results).messages_per_s for name, results in runs.items()}
    asked = {
        MEMBER: (Ask("times that alone", ratio(speeds[MEMBER], speeds[ALONE]), at_least=_LEFT),),
        SESSIONS: (
            Ask("times that with values on disk", ratio(speeds[SESSIONS], speeds[VALUES]), at_least=_LEFT_ON_DISK),
        ),
    }
    case = {"subscribers": arguments.subscribers, "messages": arguments.messages}
    title = f"QoS 2 from client to primary to clients; medians of {arguments.runs} alternating runs"
    return Report("qos2", title, tuple(rows(case, runs, labels=_LABELS, asked=asked)))


@dataclass(frozen=True, slots=True)
class Run:
    """All messages once through one secondary."""

    messages_per_s: float
    """Messages whose handshakes have ended at all clients, divided by the time from the first PUBLISH."""
    cpu_us_per_message: float
    """CPU microseconds of the secondary for a message, from the publisher and to all subscribers."""
    session_calls: float
    """Calls about sessions that the secondary made to other members meanwhile."""
    delivered: float
    """Messages that subscribers got to the end of their handshake."""
    expected: float
    """Messages that they should have got."""

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        return {
            "messages/s": self.messages_per_s,
            "CPU us per message": self.cpu_us_per_message,
            "calls to members": int(self.session_calls),
        }


@contextmanager
def _nodes(stage: Stage) -> Iterator[dict[str, Node]]:
    """Start the secondaries; the other member of the pool replicates the same."""
    scratch, primary = stage.scratch, stage.primary.port
    ports = free_port(), free_port()

    def node(name: str, root: str, *, pool: str = "") -> Node:
        links = ON_DISK.get(root, "") + link(primary, selector(f"{root}/#", qos=2, writes="forward")) + pool
        return Node(scratch, role="secondary", name=name, links=links)

    with ExitStack() as ends:
        alone = ends.enter_context(node("alone", ALONE))
        member = ends.enter_context(node("member", MEMBER, pool=pool_section(ports[0], ports)))
        # It has a topic of its own, so that it costs no processor time while the messages are sent.
        other = ends.enter_context(node("other", "else", pool=pool_section(ports[1], ports)))
        on_disk = {root: ends.enter_context(node(root, root)) for root in ON_DISK}
        for each in (alone, member, other, *on_disk.values()):
            each.wait_ready()
        yield {ALONE: alone, MEMBER: member, **on_disk}


def _measure(root: str, node: Node, arguments: argparse.Namespace) -> Run:
    share = arguments.messages // arguments.publishers
    total = share * arguments.publishers
    durable = root in ON_DISK
    with ExitStack() as ends:
        subscribers = [
            _Subscriber(node.port, f"{root}-s{number}", total, durable=durable)
            for number in range(arguments.subscribers)
        ]
        publishers = [
            _Publisher(node.port, f"{root}-p{number}", f"{root}/{number}", share, arguments.window, durable=durable)
            for number in range(arguments.publishers)
        ]
        for each in (*subscribers, *publishers):
            ends.callback(each.connection.close)
        for subscriber in subscribers:
            subscriber.subscribe(f"{root}/#")
        _turn(subscribers)
        for subscriber in subscribers:
            subscriber.begin()
        time.sleep(_SETTLE_S)  # members are told of new clients some time after their CONNECT
        calls, before, started = _session_calls(node), node.usage(), time.monotonic()
        for publisher in publishers:
            publisher.begin()
        _turn([*publishers, *subscribers])
        took_s, after = time.monotonic() - started, node.usage()
    return Run(
        messages_per_s=total / took_s,
        cpu_us_per_message=(after.cpu_s - before.cpu_s) / total * 1e6,
        session_calls=_session_calls(node) - calls,
        delivered=sum(each.released for each in subscribers),
        expected=total * len(subscribers),
    )


def _session_calls(node: Node) -> float:
    """Return how many calls about sessions a node has made; 0 for one in no pool."""
    lines = [line for line in node.get("/metrics").text.splitlines() if "pool_session_calls_total{" in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


class _Client(ABC):
    """One connection; `is_done` once all that it waits for has come."""

    def __init__(self, port: int, client_id: str, *, durable: bool) -> None:
        self.connection: socket.socket = connect(port, client_id, durable=durable)
        self.connection.setblocking(False)
        self.is_done = False
        self._buffer = bytearray()

    def read(self) -> None:
        """Take what came and answer it, in one write."""
        data = self.connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data
        self.write(b"".join(map(self._answer, packets.take_packets(self._buffer))))

    def write(self, data: bytes) -> None:
        """Write all of it; what is in flight fits into the buffers of a socket."""
        if data and self.connection.send(data) < len(data):
            raise BlockingIOError("the server reads too slowly")

    @abstractmethod
    def _answer(self, packet: packets.Packet) -> bytes:
        """Take a packet, and return the answer to it."""


class _Subscriber(_Client):
    def __init__(self, port: int, client_id: str, messages: int, *, durable: bool) -> None:
        super().__init__(port, client_id, durable=durable)
        self.released = 0
        """Messages whose PUBREL came."""
        self._messages = messages

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe at QoS 2; done with the SUBACK."""
        self.write(packets.subscribe({topic_filter: 2}, packet_id=1, version=_VERSION))

    def begin(self) -> None:
        """Wait for all messages."""
        self.is_done = False

    def _answer(self, packet: packets.Packet) -> bytes:
        if packet.kind == packets.PUBLISH:
            publish = packets.read_publish(packet, version=_VERSION)
            if publish.qos != 2:
                raise ValueError(f"a message came at QoS {publish.qos}")
            return packets.short(packets.PUBREC, publish.packet_id)
        if packet.kind == packets.PUBREL:
            self.released += 1
            self.is_done = self.released == self._messages
            return packets.short(packets.PUBCOMP, packet.packet_id)
        self.is_done = packet.kind == packets.SUBACK
        return b""


class _Publisher(_Client):
    def __init__(self, port: int, client_id: str, topic: str, messages: int, window: int, *, durable: bool) -> None:
        super().__init__(port, client_id, durable=durable)
        self._topic, self._window = topic, window
        self._waiting = deque(range(messages))
        self._in_flight = 0

    def begin(self) -> None:
        """Fill the window."""
        self.write(b"".join(self._next() for _ in range(min(self._window, len(self._waiting)))))

    def _next(self) -> bytes:
        self._in_flight += 1
        number = self._waiting.popleft()
        packet_id = number % 65_535 + 1
        payload = b"%064d" % number
        return packets.publish(self._topic, payload, qos=2, packet_id=packet_id, dup=False, version=_VERSION)

    def _answer(self, packet: packets.Packet) -> bytes:
        if packet.kind == packets.PUBREC:
            return packets.short(packets.PUBREL, packet.packet_id)
        if packet.kind != packets.PUBCOMP:
            raise ValueError(f"a publisher got a packet of type {packet.kind}")
        self._in_flight -= 1
        self.is_done = not self._in_flight and not self._waiting
        return self._next() if self._waiting else b""


def _turn(clients: Sequence[_Client]) -> None:
    """Read and answer until every client is done.

    Raises:
        TimeoutError: Nothing came for `_SILENCE_S`.
    """
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.connection, selectors.EVENT_READ, client)
        while not all(client.is_done for client in clients):
            ready = selector.select(_SILENCE_S)
            if not ready:
                waiting = sum(not client.is_done for client in clients)
                raise TimeoutError(f"no byte for {_SILENCE_S} s; {waiting} of {len(clients)} clients wait")
            for key, _ in ready:
                key.data.read()
