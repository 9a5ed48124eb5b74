"""Durable sessions on disk: how long a node takes to stop, and to have them again after a stop and after a kill."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass

from bench.arguments import at_least
from bench.load import connect, expect, packet_bytes, publish, publishes
from bench.processes import Node, link, selector, wait_for
from bench.report import Figures, Report, Row, medians
from bench.roaming import packets
from bench.stage import ON_DISK, SESSIONS, Stage

__all__ = ["add_arguments", "run"]

_SUBACK_BYTES = 5
_PAYLOAD_BYTES = 64
_END_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--sessions", type=at_least(1), default=10_000, help="durable sessions, whose clients are away (10000)"
    )
    parser.add_argument("--messages", type=at_least(1), default=100, help="messages at QoS 1 that wait for each (100)")


@dataclass(frozen=True, slots=True)
class _Run:
    end_s: float
    start_s: float
    file_bytes: float
    delivered: float
    """Messages that came to the sessions that were looked at."""
    expected: float
    """Messages that waited for them."""

    def figures(self) -> Figures:
        """Return what a table shows of it, by column."""
        return {
            "end s": self.end_s,
            "start s": self.start_s,
            "file bytes": self.file_bytes,
            "missing": self.expected - self.delivered,
        }


def run(arguments: argparse.Namespace) -> Report:
    """End and start a node with these sessions, by turns in good order and with SIGKILL."""
    case = {"sessions": arguments.sessions, "messages": arguments.messages}
    with Stage() as stage:
        runs = [_one(stage, arguments, number=number, kill=bool(number % 2)) for number in range(2 * arguments.runs)]
    rows = [
        Row({**case, "end": name, **medians(some).figures()}, runs=[asdict(each) for each in some])
        for name, some in (("SIGTERM", runs[::2]), ("SIGKILL", runs[1::2]))
    ]
    return Report("sessions", f"sessions on disk; medians of {arguments.runs} alternating runs", tuple(rows))


def _one(stage: Stage, arguments: argparse.Namespace, *, number: int, kill: bool) -> _Run:
    root = f"r{number:03}"
    links = ON_DISK[SESSIONS] + link(stage.primary.port, selector(f"{root}/#", qos=1))
    with Node(stage.scratch, role="secondary", name=root, links=links) as node:
        node.wait_ready()
        for each in range(arguments.sessions):
            with connect(node.port, f"{root}-{each}", durable=True) as client:
                client.sendall(packets.subscribe({f"{root}/#": 1}, packet_id=1, version=4))
                expect(client, _SUBACK_BYTES, b"\x90")
        wait_for(lambda: _server(node)["connections"] == 0, what="all clients being away", deadline_s=_END_S)
        with connect(stage.primary.port, "bench-publisher") as publisher:
            data = publishes(arguments.messages, root=root, topics=10, payload_bytes=_PAYLOAD_BYTES, qos=1)
            publish(publisher, data, messages=arguments.messages, qos=1)
        waiting = arguments.sessions * arguments.messages
        wait_for(lambda: _server(node)["queued_messages"] == waiting, what="all messages waiting", deadline_s=_END_S)
        begun = time.perf_counter()
        if kill:
            node.kill()
        else:
            node.stop(deadline_s=_END_S)
        ended = time.perf_counter()
        file_bytes = sum(path.stat().st_size for path in (stage.scratch / root).iterdir() if path.is_file())
        started = time.perf_counter()
        node.start()
        took_s = time.perf_counter() - started
        looked_at = range(0, arguments.sessions, max(1, arguments.sessions // 10))
        size = packet_bytes(root=root, payload_bytes=_PAYLOAD_BYTES, qos=1)
        expected = arguments.messages * len(looked_at)
        delivered = sum(_read(node, f"{root}-{each}", arguments.messages * size) // size for each in looked_at)
    return _Run(ended - begun, took_s, file_bytes, delivered, expected)


def _server(node: Node) -> dict[str, int]:
    figures: dict[str, int] = node.get("/v1/status").json()["server"]
    return figures


def _read(node: Node, client_id: str, count: int) -> int:
    """Return how many of `count` bytes come to a client that comes back."""
    left = count
    with connect(node.port, client_id, resume=True) as client:
        while left and (data := client.recv(min(left, 1 << 16))):
            left -= len(data)
    return count - left
