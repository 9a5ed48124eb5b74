"""Updates at an even rate to many subscribers: latency and CPU, beside a Mosquitto bridge."""

from __future__ import annotations

import argparse
from functools import partial

from bench.arguments import at_least, numbers
from bench.paced import PacedRun, paced
from bench.report import Ask, Report, Row, alternate, medians, ratio, rows
from bench.stage import BRIDGE, BRIDGE_TLS, LABELS, OURS, OURS_TLS, Side, Stage, bridges

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--subscribers", type=numbers(1), default="200", help="numbers of subscribers (200)")
    parser.add_argument("--samples", type=at_least(1), default=10, help="subscribers that take latencies (10)")
    parser.add_argument("--rate", type=float, default=2_000, help="updates a second (2000)")
    parser.add_argument("--seconds", type=float, default=20, help="length of a run (20)")
    parser.add_argument("--tls", action="store_true", help="also measure both with TLS to the primary")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure ours and the bridges alternately, for each number of subscribers."""
    results: list[Row] = []
    names = (OURS, *bridges(), *((OURS_TLS, BRIDGE_TLS) if arguments.tls else ()))
    with Stage(tls=arguments.tls) as stage, stage.sides(*names) as sides:
        for subscribers in arguments.subscribers:
            results += _compare(sides, subscribers, arguments)
    title = (
        f"{arguments.rate:g} updates/s for {arguments.seconds:g} s at QoS 0; "
        f"medians of {arguments.runs} alternating runs"
    )
    return Report("steady", title, tuple(results))


def _compare(sides: dict[str, Side], subscribers: int, arguments: argparse.Namespace) -> list[Row]:
    def one(side: Side) -> PacedRun:
        return paced(
            side,
            subscribers=subscribers,
            samples=arguments.samples,
            per_s=arguments.rate,
            seconds=arguments.seconds,
            payload_bytes=arguments.payload_bytes,
        )

    runs = alternate(arguments.runs, {name: partial(one, side) for name, side in sides.items()})
    ours, peer = medians(runs[OURS]), medians(runs[BRIDGE])
    asked = (
        Ask("p99, times the bridge's", ratio(ours.p99_ms, peer.p99_ms), at_most=1.0),
        Ask("CPU, times the bridge's", ratio(ours.cpu_s, peer.cpu_s), at_most=0.333),
    )
    return rows({"subscribers": subscribers}, runs, labels=LABELS, asked={OURS: asked})
