"""Many subscribers of many retained topics at once: time until all have all, beside a Mosquitto bridge."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial

from bench.arguments import at_least
from bench.load import connect, packet_bytes
from bench.paced import latencies_until
from bench.readers import Audience, Readers
from bench.report import Ask, Report, alternate, medians, percentile, ratio, rows
from bench.stage import BRIDGE, LABELS, OURS, Side, Stage

__all__ = ["add_arguments", "run"]

_DEADLINE_S = 600


@dataclass(frozen=True, slots=True)
class JoinRun:
    """One crowd at one server."""

    seconds: float
    """From the first SUBSCRIBE until the last subscriber has the last topic."""
    live_p50_ms: float
    """Latency of the updates that another subscriber got meanwhile."""
    live_p99_ms: float
    """The same, at 99 %."""
    cpu_s_per_million: float
    """CPU seconds of the server under test for a million retained messages."""
    resident_mib_max: float
    """Highest resident set size of the server under test so far, in MiB."""
    delivered: float
    """Retained messages that the crowd got."""
    expected: float
    """Messages that it should have got."""

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        return {
            "all have all after s": self.seconds,
            "delivered/s": self.delivered / self.seconds,
            "live p50 ms": self.live_p50_ms,
            "live p99 ms": self.live_p99_ms,
            "CPU s per million": self.cpu_s_per_million,
            "peak MiB": self.resident_mib_max,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--subscribers", type=at_least(1), default=200, help="subscribers that join at once (200)")
    parser.add_argument("--topics", type=at_least(1), default=50_000, help="retained topics (50000)")
    parser.add_argument("--rate", type=float, default=100, help="live updates a second to one other subscriber (100)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=0, help="QoS of the hop and of those that join (0)")


def run(arguments: argparse.Namespace) -> Report:
    """Let the crowd join at ours and at the bridge alternately."""
    with Stage(qos=arguments.qos) as stage:
        for name in (OURS, BRIDGE):
            stage.load_retained(name, topics=arguments.topics, payload_bytes=arguments.payload_bytes)
        with stage.sides(OURS, BRIDGE) as sides:
            runs = alternate(arguments.runs, {name: partial(_join, side, arguments) for name, side in sides.items()})
    speed = ratio(medians(runs[BRIDGE]).seconds, medians(runs[OURS]).seconds)
    title = (
        f"{arguments.subscribers:,} subscribers join at once at QoS {arguments.qos} on {arguments.topics:,} retained "
        f"topics, {arguments.rate:g} live updates/s meanwhile; medians of {arguments.runs} alternating runs"
    )
    asked = {OURS: (Ask("times as fast as the bridge", speed, at_least=10.0),)}
    return Report("join", title, tuple(rows({}, runs, labels=LABELS, asked=asked)))


def _join(side: Side, arguments: argparse.Namespace) -> JoinRun:
    payload_bytes, live_root = arguments.payload_bytes, f"{side.name}/live"
    size = side.packet_bytes(payload_bytes=payload_bytes, qos=arguments.qos)
    live_size = packet_bytes(root=live_root, payload_bytes=payload_bytes, qos=0)
    crowd = Audience(side.server.port, side.name, arguments.subscribers, size, qos=arguments.qos, subscribed=False)
    watcher = Audience(side.server.port, live_root, 1, live_size, latencies=True, name="bench-watcher")
    with Readers(watcher) as live, Readers(crowd) as joining:
        publisher = connect(side.publish_port, "bench-publisher")
        try:
            before = side.server.usage()
            started = time.monotonic()
            joining.expect(arguments.topics)
            latencies_s = latencies_until(
                lambda: joining.done,
                live=live,
                publisher=publisher,
                per_s=arguments.rate,
                root=live_root,
                payload_bytes=payload_bytes,
                deadline_s=_DEADLINE_S,
            )
            arrivals = joining.wait(deadline_s=1)
            after = side.server.usage()
        finally:
            publisher.close()
    expected = arguments.topics * arguments.subscribers
    return JoinRun(
        seconds=arrivals.finished - started,
        live_p50_ms=percentile(latencies_s, 0.5) * 1e3,
        live_p99_ms=percentile(latencies_s, 0.99) * 1e3,
        cpu_s_per_million=(after.cpu_s - before.cpu_s) / expected * 1e6,
        resident_mib_max=after.resident_bytes_max / 2**20,
        delivered=arrivals.delivered,
        expected=expected,
    )
