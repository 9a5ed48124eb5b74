"""Many retained topics: time until ready, memory for each, beside a Mosquitto bridge."""

from __future__ import annotations

import argparse
import http.client
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from bench.load import connect, topic
from bench.processes import Node, wait_for
from bench.readers import Audience, Readers
from bench.report import Ask, Report, Row, alternate, medians, ratio
from bench.stage import BRIDGE, LABELS, OURS, Side, Stage, wait_through
from fanout.mqtt.packets import Subscribe, Subscription, encode
from bench.load import VERSION

__all__ = ["add_arguments", "run"]

_DEADLINE_S = 300
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """One start of one server."""

    seconds: float
    """From the start of the process until it is ready (ours), or has the last topic (the bridge)."""
    cpu_us_per_topic: float
    """CPU microseconds for a topic, the start included."""
    bytes_per_topic: float
    """Growth of the resident set over one without topics, for a topic."""
    peak_bytes_per_topic: float
    """The same with the highest resident set so far."""
    delivered: float
    """What a subscriber got that came afterwards."""
    expected: float
    """How many topics there are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--topics", default="200000,1000000", help="numbers of topics (200000,1000000)")
    parser.add_argument("--payload-bytes", type=int, default=64, help="size of a payload (64)")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=0, help="QoS of the hop (0)")


def run(arguments: argparse.Namespace) -> Report:
    """Start ours and the bridge alternately beside a primary that has the topics already."""
    rows: list[Row] = []
    for topics in map(int, arguments.topics.split(",")):
        with Stage(qos=arguments.qos) as stage:
            empty = {name: _resident_bytes_when_empty(stage, name) for name in (OURS, BRIDGE)}
            for name in (OURS, BRIDGE):
                stage.load_retained(name, topics=topics, payload_bytes=arguments.payload_bytes)

            def one(name: str) -> SnapshotRun:
                return _start(stage, name, topics=topics, payload_bytes=arguments.payload_bytes, empty=empty[name])  # noqa: B023

            runs = alternate(arguments.runs, {name: partial(one, name) for name in (OURS, BRIDGE)})
        rows += _rows(runs, topics)
    title = (
        f"from the start of the process, {arguments.payload_bytes} byte payloads; "
        f"medians of {arguments.runs} alternating starts"
    )
    return Report("snapshot", title, tuple(rows))
