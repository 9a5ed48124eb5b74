"""Many retained topics: time until ready, memory for each, beside a Mosquitto bridge."""

from __future__ import annotations

import argparse
import http.client
import json
import time
from dataclasses import dataclass
from functools import partial

from bench.arguments import at_least, numbers
from bench.load import VERSION, connect, topic
from bench.processes import Node, wait_for
from bench.readers import Audience, Readers
from bench.report import Ask, Report, Row, alternate, medians, ratio, rows
from bench.stage import BRIDGE, LABELS, OURS, Side, Stage, wait_through
from fanout.mqtt.packets import Subscribe, Subscription, encode

__all__ = ["add_arguments", "run"]

_DEADLINE_S = 300
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """One start of one server."""

    listens_after_s: float
    """From the start of the process until it accepts connections."""
    seconds: float
    """From the start of the process until it is ready (ours), or has the last topic (the bridge)."""
    cpu_us_per_topic: float
    """CPU microseconds for a topic, the start included."""
    bytes_per_topic: float
    """Growth of the resident set over one without topics, for a topic."""
    peak_bytes_per_topic: float
    """The same with the highest resident set so far."""
    delivered: float
    """Messages that a later subscriber got."""
    expected: float
    """Number of topics."""

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        return {
            "listens after s": self.listens_after_s,
            "ready after s": self.seconds,
            "CPU us per topic": self.cpu_us_per_topic,
            "bytes per topic": self.bytes_per_topic,
            "peak bytes per topic": self.peak_bytes_per_topic,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--topics", type=numbers(1), default="200000,1000000", help="numbers of topics (200000,1000000)"
    )
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=0, help="QoS of the hop (0)")
    parser.add_argument("--rest", type=float, default=2.0, help="seconds before memory is looked at (2)")


def run(arguments: argparse.Namespace) -> Report:
    """Start ours and the bridge alternately beside a primary that has the topics already."""
    results: list[Row] = []
    for topics in arguments.topics:
        results += _compare(topics, arguments)
    title = (
        f"from the start of the process, {arguments.payload_bytes} byte payloads; "
        f"medians of {arguments.runs} alternating starts"
    )
    return Report("snapshot", title, tuple(results))


def _compare(topics: int, arguments: argparse.Namespace) -> list[Row]:
    payload_bytes = arguments.payload_bytes
    with Stage(qos=arguments.qos) as stage:
        empty = {name: _resident_bytes_when_empty(stage, name) for name in (OURS, BRIDGE)}
        for name in empty:
            stage.load_retained(name, topics=topics, payload_bytes=payload_bytes)

        def one(name: str) -> SnapshotRun:
            return _start(
                stage,
                name,
                topics=topics,
                payload_bytes=payload_bytes,
                empty_bytes=empty[name],
                rest_s=arguments.rest,
            )

        runs = alternate(arguments.runs, {name: partial(one, name) for name in empty})
    ours, peer = medians(runs[OURS]), medians(runs[BRIDGE])
    asked = (
        Ask("time, times the bridge's", ratio(ours.seconds, peer.seconds), at_most=1.1),
        Ask("time since it listens, times the bridge's", ratio(_since(ours), _since(peer)), at_most=1.1),
        Ask("memory, times the bridge's", ratio(ours.bytes_per_topic, peer.bytes_per_topic), at_most=1.5),
    )
    return rows({"topics": topics}, runs, labels=LABELS, asked={OURS: asked})


def _since(run: SnapshotRun) -> float:
    return run.seconds - run.listens_after_s


def _resident_bytes_when_empty(stage: Stage, name: str) -> int:
    with stage.sides(name) as sides:
        return sides[name].server.usage().resident_bytes


def _start(stage: Stage, name: str, *, topics: int, payload_bytes: int, empty_bytes: int, rest_s: float) -> SnapshotRun:
    started = time.monotonic()
    with stage.side(name) as side:
        listens_after_s = time.monotonic() - started
        if isinstance(side.server, Node):
            _wait_ready(side.server)
        else:
            _wait_for_topic(side, number=topics - 1)
        seconds = time.monotonic() - started
        cpu_s = side.server.usage().cpu_s
        wait_through(side)
        time.sleep(rest_s)  # what was only needed on the way is given back
        usage = side.server.usage()
        size = side.packet_bytes(payload_bytes=payload_bytes, qos=0)
        with Readers(Audience(side.server.port, name, 1, size, subscribed=False)) as readers:
            readers.expect(topics)
            delivered = readers.wait().delivered
    return SnapshotRun(
        listens_after_s=listens_after_s,
        seconds=seconds,
        cpu_us_per_topic=cpu_s / topics * 1e6,
        bytes_per_topic=(usage.resident_bytes - empty_bytes) / topics,
        peak_bytes_per_topic=(usage.resident_bytes_max - empty_bytes) / topics,
        delivered=delivered,
        expected=topics,
    )


def _wait_ready(node: Node) -> None:
    """Ask over one connection, which costs the node less than a new one for each question."""
    connection = http.client.HTTPConnection(node.host, node.http_port, timeout=60)

    def ready() -> bool:
        time.sleep(_POLL_S)
        connection.request("GET", "/readyz")
        return json.loads(connection.getresponse().read())["ready"] is True

    try:
        wait_for(ready, what="being ready", deadline_s=_DEADLINE_S)
    finally:
        connection.close()


def _wait_for_topic(side: Side, *, number: int) -> None:
    """Return once the server has the topic that the primary sends last, since it got it last.

    The subscriber of that one topic costs the bridge nothing; one of all topics would cost a delivery for each.
    """
    client = connect(side.server.port, "bench-last")
    try:
        subscription = Subscription(topic(side.name, number), 0)
        client.sendall(encode(Subscribe(packet_id=1, subscriptions=(subscription,)), version=VERSION))
        client.settimeout(_DEADLINE_S)
        data = b""
        while topic(side.name, number) not in data:
            piece = client.recv(4096)
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
    finally:
        client.close()
