"""A replica torn down or swept to many subscribers: what updates of another link wait for meanwhile; ours only."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial

from bench.arguments import at_least
from bench.load import connect, packet_bytes
from bench.paced import latencies_until
from bench.processes import Node, link, selector
from bench.readers import Audience, Readers
from bench.report import Ask, Report, alternate, medians, percentile, rows
from bench.stage import LABELS, OURS, Stage, wait_through

__all__ = ["add_arguments", "run"]

_GONE = "gone"
"""Root of what is removed."""
_MQTT_5 = 5
_QUIET_S = 2.0
_RETRY = "retry_min_s = 0.05\nretry_max_s = 0.1\n"


@dataclass(frozen=True, slots=True)
class TearDownRun:
    """One tear-down, or sweep."""

    seconds: float
    """From when the primary is back, without its topics, until the last subscriber was told of the last of them."""
    quiet_p99_ms: float
    """Of the other link's updates before the tear-down, from the publisher's write to the subscriber's read."""
    quiet_ms_max: float
    """The highest of them."""
    live_p50_ms: float
    """Of the other link's updates during the tear-down."""
    live_p99_ms: float
    """The same, at 99 %."""
    live_ms_max: float
    """The highest of them."""
    cpu_s_per_million: float
    """CPU seconds of the node for a million removals that were delivered."""
    resident_mib_max: float
    """Highest resident set size of the node, in MiB."""
    delivered: float
    """Removals that the subscribers got."""
    expected: float
    """Messages that they should have got."""

    def figures(self) -> dict[str, float | int | str]:
        """Return what a table shows."""
        return {
            "all told after s": self.seconds,
            "removals/s": self.delivered / self.seconds,
            "p99 ms before": self.quiet_p99_ms,
            "max ms before": self.quiet_ms_max,
            "p50 ms": self.live_p50_ms,
            "p99 ms": self.live_p99_ms,
            "max ms": self.live_ms_max,
            "CPU s per million": self.cpu_s_per_million,
            "peak MiB": self.resident_mib_max,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--topics", type=at_least(1), default=20_000, help="retained topics that are removed (20000)")
    parser.add_argument("--subscribers", type=at_least(1), default=200, help="subscribers that are told of each (200)")
    parser.add_argument(
        "--loss",
        choices=("tear_down", "serve_stale"),
        default="tear_down",
        help="on_session_loss of the link; with serve_stale its topics are swept when the new session is proved",
    )
    parser.add_argument("--stalled", type=at_least(0), default=0, help="subscribers more that do not read (0)")
    parser.add_argument("--rate", type=float, default=100, help="updates a second of the other link (100)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--deadline", type=float, default=600, help="seconds that a run may take (600)")


def run(arguments: argparse.Namespace) -> Report:
    """Remove the replica of one link, again and again, beside a link with steady traffic."""
    with Stage() as stage:
        runs = alternate(arguments.runs, {OURS: partial(_tear_down, stage, arguments)})
    asked = {OURS: (Ask("highest latency of the other link, ms", medians(runs[OURS]).live_ms_max, at_most=100.0),)}
    title = (
        f"{arguments.topics:,} topics removed ({arguments.loss}) to {arguments.subscribers:,} subscribers, "
        f"{arguments.stalled:,} more stalled; {arguments.rate:g} updates/s on another link; medians of "
        f"{arguments.runs} runs"
    )
    case = {"loss": arguments.loss, "topics": arguments.topics, "subscribers": arguments.subscribers}
    return Report("teardown", title, tuple(rows(case, runs, labels=LABELS, asked=asked)))


def _tear_down(stage: Stage, arguments: argparse.Namespace) -> TearDownRun:
    topics, payload_bytes = arguments.topics, arguments.payload_bytes
    removal_bytes = packet_bytes(root=_GONE, payload_bytes=0, qos=0, version=_MQTT_5)
    with stage.further_primary("going") as going:
        stage.load_retained(_GONE, topics=topics, payload_bytes=payload_bytes, primary=going)
        settings = f'{_RETRY}on_session_loss = "{arguments.loss}"\ngrace_s = {arguments.deadline}\n'
        going_link = link(going.port, selector(f"{_GONE}/#", qos=0), name="going", settings=settings)
        with stage.side(OURS, links=going_link) as side:
            assert isinstance(side.server, Node)
            side.server.wait_ready(deadline_s=arguments.deadline)
            wait_through(side)
            size = side.packet_bytes(payload_bytes=payload_bytes, qos=0)
            watcher = Audience(side.server.port, side.name, 1, size, latencies=True, name="bench-watcher")
            crowd = Audience(
                side.server.port,
                _GONE,
                arguments.subscribers,
                removal_bytes,
                stalled=arguments.stalled,
                live_only=True,  # else each would get a replica first
                name="bench-crowd",
            )
            with Readers(watcher) as live, Readers(crowd) as told:
                publisher = connect(side.publish_port, "bench-publisher")
                updates = partial(
                    latencies_until,
                    live=live,
                    publisher=publisher,
                    per_s=arguments.rate,
                    root=side.name,
                    payload_bytes=payload_bytes,
                    deadline_s=arguments.deadline,
                )
                try:
                    quiet_until = time.monotonic() + _QUIET_S
                    quiet_s = updates(lambda: time.monotonic() >= quiet_until)
                    told.expect(topics)
                    before = side.server.usage()
                    going.kill()
                    going.start()  # it has neither its topics nor the node's session any more
                    started = time.monotonic()
                    live_s = updates(lambda: told.done)
                    arrivals = told.wait(deadline_s=1)
                    after = side.server.usage()
                finally:
                    publisher.close()
    expected = topics * arguments.subscribers
    return TearDownRun(
        seconds=arrivals.finished - started,
        quiet_p99_ms=percentile(quiet_s, 0.99) * 1e3,
        quiet_ms_max=max(quiet_s) * 1e3,
        live_p50_ms=percentile(live_s, 0.5) * 1e3,
        live_p99_ms=percentile(live_s, 0.99) * 1e3,
        live_ms_max=max(live_s) * 1e3,
        cpu_s_per_million=(after.cpu_s - before.cpu_s) / expected * 1e6,
        resident_mib_max=after.resident_bytes_max / 2**20,
        delivered=arrivals.delivered,
        expected=expected,
    )
