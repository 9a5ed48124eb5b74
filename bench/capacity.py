"""Idle connections, durable sessions and messages that wait for them: memory and CPU of each, ours only.

Each figure is the difference of the node's resident memory (VmRSS) before and after, over the number of things added,
on a node that was started for it and warmed up. The clients live in this process and are not counted.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.arguments import at_least
from bench.load import connect, publish, publishes
from bench.processes import Node, wait_for
from bench.report import Figures, Report, Row, medians
from fanout.mqtt.packets import Connect, Disconnect, Subscribe, Subscription, encode
from fanout.mqtt.publish import encode_publish

__all__ = ["add_arguments", "run"]

_VERSION = 4
_WARM_UP = 200
_DEADLINE_S = 120.0
_SETTINGS = (
    "sys_interval_s = 0\nsession_expiry_max_s = 3600\n"
    "connections_max = 100000\nconnections_per_address_max = 100000\nconnection_burst_max = 100000\n"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of some number of things at a node."""

    count: int
    """Number of them."""
    resident_bytes: int
    """Extra memory of the node with all of them."""
    cpu_s: float
    """CPU time that it took to add them, all together."""

    def figures(self) -> Figures:
        """Return what a table shows of it, by column."""
        return {
            "count": self.count,
            "bytes each": self.resident_bytes / self.count,
            "MiB": self.resident_bytes / 2**20,
            "CPU us each": self.cpu_s / self.count * 1e6,
            "CPU s": self.cpu_s,
        }


class _Gauge:
    """The node's memory and CPU time, and what they were at the last look."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last = self._look()

    def cost(self, count: int) -> Cost:
        """Return what so many things have cost since the last call, or since the gauge was made."""
        before, self._last = self._last, self._look()
        return Cost(count, self._last[0] - before[0], self._last[1] - before[1])

    def _look(self) -> tuple[int, float]:
        return self._resident(), self._node.usage().cpu_s

    def _resident(self) -> int:
        assert self._node.process is not None
        status = Path(f"/proc/{self._node.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--connections", type=at_least(1), default=5_000, help="idle connections (5000)")
    parser.add_argument(
        "--sessions", type=at_least(1), default=2_000, help="durable sessions without a connection (2000)"
    )
    parser.add_argument("--queued", type=at_least(1), default=100, help="messages that wait for each session (100)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds with all connections idle (5)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure nodes that are started for it, `runs` times."""
    queued, payload_bytes = arguments.queued, arguments.payload_bytes
    costs: dict[str, list[Cost]] = {}
    for _ in range(arguments.runs):
        for what, cost in (
            *_idle_connections(arguments.connections, idle_s=arguments.idle),
            *_durable_sessions(arguments.sessions, queued, payload_bytes, shared=False),
            *_durable_sessions(arguments.sessions, queued, payload_bytes, shared=True),
        ):
            costs.setdefault(what, []).append(cost)
    lines = (
        Row({"what": what, **medians(runs).figures()}, runs=[asdict(each) for each in runs])
        for what, runs in costs.items()
    )
    return Report("capacity", f"what one costs a node; medians of {arguments.runs} runs", tuple(lines))


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


def _idle_connections(count: int, *, idle_s: float) -> Iterator[tuple[str, Cost]]:
    with _node() as (node, gauge):
        clients: list[socket.socket] = []
        try:
            clients += [connect(node.port, f"c-{number}") for number in range(count)]
            _wait(node, connections=count)
            yield "idle connection", gauge.cost(count)
            for number, client in enumerate(clients):
                _subscribe(client, b"own/%d" % number, qos=0)
            yield "its subscription, on top", gauge.cost(count)
            time.sleep(idle_s)
            yield f"{idle_s:g} s idle with all connections", gauge.cost(1)
        finally:
            for client in clients:
                client.close()


def _durable_sessions(count: int, queued: int, payload_bytes: int, *, shared: bool) -> Iterator[tuple[str, Cost]]:
    """Measure sessions that are away: each with a topic of its own, or all with the same subscription."""
    kind = "common filter" if shared else "own filter"
    with _node() as (node, gauge):
        for number in range(count):
            topic_filter = b"bench/#" if shared else b"own/%d" % number
            client = _subscribed(node.port, f"s-{number}", topic_filter, clean=False)
            client.sendall(encode(Disconnect(), version=_VERSION))
            client.close()
        _wait(node, connections=0, sessions=count)
        yield f"durable session, {kind}", gauge.cost(count)
        with connect(node.port, "publisher") as publisher:
            if shared:
                packets = publishes(queued, root="bench", topics=queued, payload_bytes=payload_bytes, qos=1)
                publish(publisher, packets, messages=queued, qos=1)
            else:
                for start in range(0, count, 100):
                    packets = _to_each(range(start, min(start + 100, count)), queued, payload_bytes)
                    publish(publisher, packets, messages=queued * (min(start + 100, count) - start), qos=1)
        yield f"waiting message, {kind}", gauge.cost(count * queued)


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
