"""What an idle connection, a durable session and a message that waits for one cost a node: memory and CPU.

Each figure is the difference of the node's resident memory (VmRSS) before and after, over the number of things added,
on a node that was started for it and warmed up. The clients live in this process and are not counted.
"""

from __future__ import annotations

import gc
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load import burst, connect, publish_burst
from bench.processes import Node, wait_for
from fanout.mqtt.packets import Connect, Disconnect, Subscribe, Subscription, encode
from fanout.mqtt.publish import encode_publish

__all__ = ["Cost", "measure"]

_VERSION = 4
_SPARE_FILES = 200
_WARM_UP = 200
_IDLE_S = 5.0
_DEADLINE_S = 120.0
_SETTINGS = (
    "sys_interval_s = 0\nsession_expiry_max_s = 3600\n"
    "connections_max = 100000\nconnections_per_address_max = 100000\nconnection_burst_max = 100000\n"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What some number of things cost a node."""

    what: str
    count: int
    resident_bytes: int
    """How much more memory the node had with them, all together."""
    cpu_s: float
    """CPU time that it took to add them, all together."""

    @property
    def bytes_each(self) -> float:
        """Memory of one."""
        return self.resident_bytes / self.count

    @property
    def cpu_us_each(self) -> float:
        """CPU time of one in microseconds."""
        return self.cpu_s / self.count * 1e6

    def as_dict(self) -> dict[str, object]:
        """Return what a JSON document says about it."""
        return {**asdict(self), "bytes_each": self.bytes_each, "cpu_us_each": self.cpu_us_each}


class _Gauge:
    """The node's memory and CPU time, and what they were at the last look."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.look()

    def look(self) -> tuple[int, float]:
        """Return how much memory and CPU time have grown since the last look."""
        resident, cpu_s = self._resident(), self._node.usage().cpu_s
        before = getattr(self, "_last", (resident, cpu_s))
        self._last = (resident, cpu_s)
        return resident - before[0], cpu_s - before[1]

    def cost(self, what: str, count: int) -> Cost:
        """Return what so many things have cost since the last look."""
        return Cost(what, count, *self.look())

    def _resident(self) -> int:
        assert self._node.process is not None
        status = Path(f"/proc/{self._node.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def measure(*, connections: int, sessions: int, queued: int, payload_bytes: int) -> list[Cost]:
    """Measure, and return the costs in the order of the report.

    Args:
        connections: Idle connections.
        sessions: Durable sessions without a connection.
        queued: Messages that wait for each of these.
        payload_bytes: Size of their payloads.

    Raises:
        RuntimeError: The system does not give this process as many open files as it needs.
    """
    _allow_files(connections + _SPARE_FILES)
    return [
        *_idle_connections(connections),
        *_durable_sessions(sessions, queued, payload_bytes, shared=False),
        *_durable_sessions(sessions, queued, payload_bytes, shared=True),
    ]


def _allow_files(wanted: int) -> None:
    """Let this process, and the nodes that it starts, open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(f"the system allows {hard} open files, {wanted} are needed: raise `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _node() -> Iterator[tuple[Node, _Gauge]]:
    """Give a node that has served some clients already, and its gauge."""
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory), role="primary", name="capacity", settings=_SETTINGS, log=False)
        with node:
            clients = [_subscribed(node.port, f"warm-{number}", b"warm/%d" % number) for number in range(_WARM_UP)]
            for client in clients:
                client.close()
            _wait(node, connections=0)
            yield node, _Gauge(node)


def _idle_connections(count: int) -> Iterator[Cost]:
    with _node() as (node, gauge):
        clients: list[socket.socket] = []
        try:
            clients += [connect(node.port, f"c-{number}") for number in range(count)]
            _wait(node, connections=count)
            yield gauge.cost("idle connection", count)
            for number, client in enumerate(clients):
                _subscribe(client, b"own/%d" % number, qos=0)
            yield gauge.cost("its subscription, on top", count)
            time.sleep(_IDLE_S)
            _, cpu_s = gauge.look()
            yield Cost(f"{_IDLE_S:g} s idle with all connections", 1, 0, cpu_s)
        finally:
            for client in clients:
                client.close()


def _durable_sessions(count: int, queued: int, payload_bytes: int, *, shared: bool) -> Iterator[Cost]:
    """Measure sessions that are away: each with a topic of its own, or all with the same subscription."""
    kind = "common filter" if shared else "own filter"
    with _node() as (node, gauge):
        for number in range(count):
            topic_filter = b"bench/#" if shared else b"own/%d" % number
            client = _subscribed(node.port, f"s-{number}", topic_filter, clean=False)
            client.sendall(encode(Disconnect(), version=_VERSION))
            client.close()
        _wait(node, connections=0, sessions=count)
        yield gauge.cost(f"durable session, {kind}", count)
        with connect(node.port, "publisher") as publisher:
            if shared:
                packets = burst(queued, topics=queued, payload_bytes=payload_bytes, qos=1)
                publish_burst(publisher, packets, messages=queued, qos=1)
            else:
                for start in range(0, count, 100):
                    packets = _to_each(range(start, min(start + 100, count)), queued, payload_bytes)
                    publish_burst(publisher, packets, messages=queued * (min(start + 100, count) - start), qos=1)
                    publisher.setblocking(True)
        gc.collect()
        yield gauge.cost(f"waiting message, {kind}", count * queued)


def _to_each(sessions: range, queued: int, payload_bytes: int) -> bytes:
    payload = b"x" * payload_bytes
    return b"".join(
        encode_publish(b"own/%d" % number, payload, version=_VERSION, qos=1, packet_id=index % 60_000 + 1)
        for index, number in enumerate(number for number in sessions for _ in range(queued))
    )


def _subscribed(port: int, client_id: str, topic_filter: bytes, *, clean: bool = True) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(encode(Connect(client_id, _VERSION, clean_start=clean), version=_VERSION))
    _read(client, 4)
    _subscribe(client, topic_filter, qos=1)
    return client


def _subscribe(client: socket.socket, topic_filter: bytes, *, qos: int) -> None:
    client.sendall(encode(Subscribe(1, (Subscription(topic_filter, qos),)), version=_VERSION))
    _read(client, 5)


def _read(client: socket.socket, size: int) -> None:
    answer = b""
    while len(answer) < size:
        piece = client.recv(size - len(answer))
        if not piece:
            raise ConnectionError("the node closed the connection")
        answer += piece


def _wait(node: Node, *, connections: int, sessions: int | None = None) -> None:
    """Return once the node has so many connections, and sessions if that is given."""

    def holds() -> bool:
        server = node.get("/v1/status").json()["server"]
        return server["connections"] == connections and sessions in (None, server["sessions"])

    wait_for(holds, what=f"{connections} connections", deadline_s=_DEADLINE_S)
