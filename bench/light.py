"""A few updates a second to one subscriber: what the hop adds to the latency, beside a Mosquitto bridge.

A hop that only hands bytes on is measured too: its delay is that of the system and of Python, not ours.
"""

from __future__ import annotations

import argparse
from functools import partial

from bench.arguments import at_least
from bench.paced import PacedRun, paced
from bench.report import Ask, Report, alternate, medians, ratio, rows
from bench.stage import BRIDGE, DIRECT, HOP, LABELS, OURS, Side, Stage, bridges

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rate", type=float, default=10, help="updates a second (10)")
    parser.add_argument("--seconds", type=float, default=20, help="length of a run (20)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure at the primary itself, at ours, at the bridge and at the bare hop alternately."""

    def one(side: Side) -> PacedRun:
        return paced(
            side,
            subscribers=1,
            samples=1,
            per_s=arguments.rate,
            seconds=arguments.seconds,
            payload_bytes=arguments.payload_bytes,
        )

    with Stage() as stage, stage.sides(DIRECT, OURS, *bridges(), HOP) as sides:
        runs = alternate(arguments.runs, {name: partial(one, side) for name, side in sides.items()})
    p50_ms = {name: medians(results).p50_ms for name, results in runs.items()}
    ours, peer = (p50_ms[name] - p50_ms[DIRECT] for name in (OURS, BRIDGE))
    asked = (Ask("p50 above the primary's, times the bridge's", ratio(ours, peer), at_most=1.5),)
    title = (
        f"{arguments.rate:g} updates/s for {arguments.seconds:g} s to one subscriber at QoS 0; "
        f"medians of {arguments.runs} alternating runs"
    )
    return Report("light", title, tuple(rows({}, runs, labels=LABELS, asked={OURS: asked})))
