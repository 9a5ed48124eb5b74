"""Bursts to many subscribers of one process, of a pool on one machine, and of such a pool below a hub; ours only."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.arguments import at_least, numbers
from bench.processes import Node, Usage, link, selector
from bench.report import Ask, Report, Row, medians, ratio, rows
from bench.stage import LABELS, OURS, Run, Side, Stage, burst, wait_through

__all__ = ["add_arguments", "run"]

_ONE, _MEMBERS, _CHAIN = "1", "2 members", "hub and 2 members"
_COUNT = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--subscribers", type=numbers(1), default="100,1000", help="numbers of subscribers (100,1000)")
    parser.add_argument(
        "--deliveries", type=at_least(1), default=10_000_000, help="aimed-at deliveries of a run (10000000)"
    )
    parser.add_argument("--messages-min", type=at_least(1), default=2_000, help="fewest messages of a burst (2000)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure each in turn, on servers that are started for the run."""
    lines: list[Row] = []
    kinds = (_ONE, _MEMBERS, _CHAIN)
    for subscribers in arguments.subscribers:
        messages = max(arguments.messages_min, min(100_000, arguments.deliveries // subscribers))
        runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
        for _ in range(arguments.runs):
            for kind in kinds:
                with Stage() as stage, _side(stage, kind) as side:
                    runs[kind].append(
                        burst(
                            side,
                            subscribers=subscribers,
                            qos=0,
                            messages=messages,
                            payload_bytes=arguments.payload_bytes,
                        )
                    )
        rates = {kind: medians(results).delivered_per_s for kind, results in runs.items()}
        for kind in kinds:
            asked: tuple[Ask, ...] = ()
            if kind != _ONE:
                asked = (Ask("delivered/s, times that of one process", ratio(rates[kind], rates[_ONE]), at_least=0.75),)
            case = {"processes": kind, "subscribers": subscribers, "messages": messages}
            lines += rows(case, {OURS: runs[kind]}, labels=LABELS, asked={OURS: asked})
    title = (
        f"bursts at QoS 0; medians of {arguments.runs} alternating runs; primary, publisher and readers share the "
        f"{os.cpu_count()} cores"
    )
    return Report("members", title, tuple(lines))


class _Below(Node):
    """Members below a hub, which is counted with them."""

    hub: Node

    def usage(self) -> Usage:
        own, above = super().usage(), self.hub.usage()
        return Usage(
            own.cpu_s + above.cpu_s,
            own.resident_bytes + above.resident_bytes,
            own.resident_bytes_max + above.resident_bytes_max,
        )


@contextmanager
def _side(stage: Stage, kind: str) -> Iterator[Side]:
    topics = selector(f"{OURS}/#", qos=0)
    with ExitStack() as ends:
        primary = stage.primary.port
        if kind == _CHAIN:
            hub = Node(stage.scratch, role="secondary", name="hub", links=link(primary, topics))
            below = _Below(
                stage.scratch,
                role="secondary",
                name="edge",
                links=link(ends.enter_context(hub).port, topics),
                log=False,
                members=_COUNT,
            )
            below.hub = hub
            node: Node = below
        else:
            members = _COUNT if kind == _MEMBERS else 0
            node = Node(stage.scratch, role="secondary", name="edge", links=link(primary, topics), members=members)
        side = Side(OURS, ends.enter_context(node), primary)
        wait_through(side)
        yield side
