"""Replication logs on disk, written by the real writer."""

from __future__ import annotations

import json
from pathlib import Path

from fanout.replica.update import ChangeKind, Changes, Phase, Stamp, Update, content_digest
from fanout.replog.write.writer import LogWriter
from fanout.selection import Selector

__all__ = ["EPOCH", "RunningClock", "write_primary_log", "write_secondary_log"]

EPOCH = 1_763_712_000_000_000
"""When the nodes of these logs started: 2025-11-21 08:00:00 UTC, in microseconds."""


class RunningClock:
    """A clock that goes one millisecond forward each time it is read."""

    def __init__(self, start_us: int) -> None:
        self._now_ns = start_us * 1000

    def forward_to(self, time_us: int) -> None:
        self._now_ns = time_us * 1000

    def now_ns(self) -> int:
        self._now_ns += 1_000_000
        return self._now_ns

    def monotonic(self) -> float:
        return self._now_ns / 1e9


def write_primary_log(directory: Path, *, updates: int, origin_us: int | None = None) -> None:
    """Write what a primary called hub published: updates of as many topics, stamped then or (None) a ms apart."""
    clock = RunningClock(EPOCH)
    log = LogWriter(directory, node="hub", role="primary", node_epoch=EPOCH, clock=clock)
    log.open()
    log.event("start", detail=json.dumps({"format": 1, "links": []}))
    log.append(changes(range(updates), clock=clock, origin_us=origin_us), source=log.source())
    clock.forward_to(EPOCH + 10_000_000)
    log.event("heartbeat")
    log.event("stop")
    assert log.close(timeout_s=30)


def write_secondary_log(directory: Path, *, updates: int, without: frozenset[int] = frozenset()) -> None:
    """Write what a secondary called edge-1 applied of it, live, some updates apart."""
    clock = RunningClock(EPOCH - 1_000_000)
    log = LogWriter(directory, node="edge-1", role="secondary", node_epoch=EPOCH - 1_000_000, clock=clock)
    selector = Selector("plant/#")
    source = log.source(link="plant", selectors=[selector])
    link_epoch = EPOCH - 900_000
    log.open()
    link = {
        "name": "plant",
        "primary": ["mqtt://127.0.0.1:1883"],
        "selectors": [{"filter": "plant/#", "exclude": [], "qos": 1, "prefix": ""}],
    }
    log.event("start", detail=json.dumps({"format": 1, "links": [link]}))
    for state in ("connecting", "snapshot", "live"):
        if state == "live":
            log.event("complete", link="plant", link_epoch=link_epoch, selector="plant/#", evidence="marker")
        log.event("state", link="plant", link_epoch=link_epoch, state=state)
    clock.forward_to(EPOCH + 100_000)
    applied = [number for number in range(updates) if number not in without]
    log.append(changes(applied, clock=clock), source=source, link_epoch=link_epoch)
    clock.forward_to(EPOCH + 10_000_000)
    log.event("heartbeat", link="plant", link_epoch=link_epoch, lag_us=4_100)
    log.event("stop")
    assert log.close(timeout_s=30)


def changes(numbers: range | list[int], *, clock: RunningClock, origin_us: int | None = None) -> Changes:
    """Return one batch of stamped updates."""
    made: list[Update] = []
    for number in numbers:
        topic, payload = b"plant/line/%d" % number, b"%d" % number
        stamp = Stamp("hub", EPOCH, number + 1, origin_us or EPOCH + 1000 * (number + 1))
        made.append((topic, payload, 1, True, b"", clock.now_ns(), 0, content_digest(topic, payload), stamp))
    return Changes(made, bytearray([ChangeKind.NEW]) * len(made), made, Phase.LIVE)
