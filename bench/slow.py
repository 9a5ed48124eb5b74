"""A stalled subscriber and some at half speed among many: what the others and the memory feel, beside a bridge.

A queue has room for a whole burst: a quick subscriber that waits for a core of this machine must lose nothing either.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

from bench.arguments import at_least
from bench.report import Ask, Report, alternate, rows
from bench.stage import BRIDGE, LABELS, OURS, Run, Side, Stage, burst

__all__ = ["add_arguments", "run"]

_WRITE_BUFFER_BYTES = 1 << 20
_SLOW = " with slow ones"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--subscribers", type=at_least(1), default=1000, help="subscribers in all (1000)")
    parser.add_argument("--stalled", type=at_least(0), default=1, help="of these, subscribers that never read (1)")
    parser.add_argument(
        "--half-speed", type=at_least(0), default=50, help="of these, subscribers at half the speed (50)"
    )
    parser.add_argument("--messages", type=at_least(1), default=4_000, help="messages of a burst (4000)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=1_024, help="size of a payload (1024)")
    parser.add_argument("--no-bridge", action="store_true", help="ours only, to have many runs in little time")
    parser.add_argument(
        "--queue-bytes-max", type=at_least(1), default=8 << 20, help="server.queue_bytes_max of ours (8388608)"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measure each server with quick subscribers only and with some slow ones in their places, alternately."""
    slow = arguments.stalled + arguments.half_speed
    fast = arguments.subscribers - slow

    def one(side: Side, *, stalled: int, half_speed: int) -> Run:
        return burst(
            side,
            subscribers=arguments.subscribers - stalled - half_speed,
            qos=0,
            messages=arguments.messages,
            payload_bytes=arguments.payload_bytes,
            stalled=stalled,
            half_speed=half_speed,
        )

    settings = f"queue_bytes_max = {arguments.queue_bytes_max}\nwrite_buffer_high_bytes = {_WRITE_BUFFER_BYTES}\n"
    names = (OURS,) if arguments.no_bridge else (OURS, BRIDGE)
    with Stage() as stage, stage.sides(*names, settings=settings) as sides:
        cases = {}
        for name, side in sides.items():
            cases[name] = partial(one, side, stalled=0, half_speed=0)
            cases[name + _SLOW] = partial(one, side, stalled=arguments.stalled, half_speed=arguments.half_speed)
        runs = alternate(arguments.runs, cases)
    allowed_mib = slow * (arguments.queue_bytes_max + _WRITE_BUFFER_BYTES) / 2**20
    # Bursts differ by a third; two that follow each other, with the same on the machine beside them, differ by less.
    pairs = list(zip(runs[OURS], runs[OURS + _SLOW], strict=True))
    others = median(
        mixed.delivered_per_s / fast / quick.delivered_per_s * arguments.subscribers for quick, mixed in pairs
    )
    # The peak only grows: what slow ones add is beyond the peak of the first run, which had none.
    added_mib = runs[OURS + _SLOW][-1].resident_mib_max - runs[OURS][0].resident_mib_max
    asked = (
        Ask("each of the others, times without slow ones", others, at_least=0.95),
        Ask("MiB added to the peak", added_mib, at_most=allowed_mib),
    )
    labels = {name: LABELS[name.removesuffix(_SLOW)] + (_SLOW if _SLOW in name else "") for name in runs}
    title = (
        f"{arguments.subscribers:,} subscribers; with slow ones {arguments.stalled:,} of them stalled and "
        f"{arguments.half_speed:,} at half speed; "
        f"{arguments.messages:,} messages of {arguments.payload_bytes:,} bytes; "
        f"medians of {arguments.runs} alternating runs, and of their pairs"
    )
    return Report("slow", title, tuple(rows({}, runs, labels=labels, asked={OURS + _SLOW: asked})))
