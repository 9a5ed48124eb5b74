"""Bursts to many subscribers with one process and with several that serve clients; ours only."""

from __future__ import annotations

import argparse
import os

from bench.arguments import at_least, numbers
from bench.report import Ask, Report, Row, medians, ratio, rows
from bench.stage import LABELS, OURS, Run, Stage, burst

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--workers", type=numbers(1), default="1,2", help="numbers of workers, the first to compare with (1,2)"
    )
    parser.add_argument("--subscribers", type=numbers(1), default="100,1000", help="numbers of subscribers (100,1000)")
    parser.add_argument(
        "--deliveries", type=at_least(1), default=10_000_000, help="aimed-at deliveries of a run (10000000)"
    )
    parser.add_argument("--messages-min", type=at_least(1), default=2_000, help="fewest messages of a burst (2000)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")


def run(arguments: argparse.Namespace) -> Report:
    """Measure each number of workers in turn, on a node that is started for the run."""
    lines: list[Row] = []
    counts = arguments.workers
    for subscribers in arguments.subscribers:
        messages = max(arguments.messages_min, min(100_000, arguments.deliveries // subscribers))
        runs: dict[int, list[Run]] = {number: [] for number in counts}
        for _ in range(arguments.runs):
            for number in counts:
                runs[number].append(_one(number, subscribers, messages, arguments.payload_bytes))
        rates = {number: medians(results).delivered_per_s for number, results in runs.items()}
        for number in counts:
            asked: tuple[Ask, ...] = ()
            if number > counts[0]:
                gain = ratio(rates[number], rates[counts[0]])
                asked = (Ask(f"delivered/s, times that with {counts[0]}", gain, at_least=0.8 * number / counts[0]),)
            case = {"workers": number, "subscribers": subscribers, "messages": messages}
            lines += rows(case, {OURS: runs[number]}, labels=LABELS, asked={OURS: asked})
    title = (
        f"bursts at QoS 0; medians of {arguments.runs} alternating runs; primary, publisher and readers share the "
        f"{os.cpu_count()} cores"
    )
    return Report("workers", title, tuple(lines))


def _one(workers: int, subscribers: int, messages: int, payload_bytes: int) -> Run:
    with Stage() as stage, stage.sides(OURS, settings=f"workers = {workers}\n") as sides:
        return burst(sides[OURS], subscribers=subscribers, qos=0, messages=messages, payload_bytes=payload_bytes)
