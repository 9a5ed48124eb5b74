"""Retained values in the file only: snapshot, updates all over the file, an audit, a search, a start; ours only.

The replica on an event loop of its own, without a link: cost of a value, longest turn of the loop, memory of the
process at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import structlog

from bench.report import Figures
from fanout.replica.update import Phase, Update, content_digest
from fanout.storage.direct import DirectStore
from fanout.storage.replica import DiscReplica

__all__ = ["OnlyRun", "measure_only"]

_BATCH: int = 1_000
_SCATTERED: int = 200_000
"""Updates to topics all over the file."""


@dataclass(frozen=True, slots=True)
class OnlyRun:
    """Result of one run."""

    snapshot_cpu_us: float
    scattered_cpu_us: float
    audit_cpu_us: float
    match_cpu_us: float
    longest_ms: float
    longest_match_ms: float
    open_s: float
    load_s: float
    load_cpu_us: float
    file_bytes: float
    peak_mib: float

    def figures(self) -> Figures:
        """Return what a table shows of it, by column."""
        return {
            "snapshot, CPU us": self.snapshot_cpu_us,
            "scattered, CPU us": self.scattered_cpu_us,
            "audit, CPU us": self.audit_cpu_us,
            "match, CPU us": self.match_cpu_us,
            "longest turn ms": self.longest_ms,
            "longest of match ms": self.longest_match_ms,
            "open s": self.open_s,
            "load s": self.load_s,
            "load, CPU us": self.load_cpu_us,
            "file bytes": self.file_bytes,
            "peak RSS MiB": self.peak_mib,
        }


async def measure_only(arguments: argparse.Namespace) -> OnlyRun:
    """Fill a replica, change some of it, audit it, read all of it, and count it again as a node that starts does."""
    topics: int = arguments.topics
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "retained.sqlite"
        reading = asyncio.Event()
        reading.set()
        store = _store(path, arguments, hold=lambda held: reading.clear() if held else reading.set())
        await asyncio.to_thread(store.open, now_ns=time.time_ns())
        replica = DiscReplica(store.table("link"))
        store.start()
        first, second = b"a" * arguments.payload_bytes, b"b" * arguments.payload_bytes
        snapshot_us, longest_ms = await _apply(
            replica, _updates(range(topics), first), phase=Phase.SNAPSHOT, reading=reading
        )
        count = min(_SCATTERED, topics)
        numbers = random.Random(1).sample(range(topics), count)
        scattered_us, longest_scattered_ms = await _apply(
            replica, _updates(numbers, second), phase=Phase.LIVE, reading=reading
        )
        await _apply(replica, _updates(numbers, first), phase=Phase.LIVE, reading=reading)
        replica.begin_pass()
        audit_us, longest_audit_ms = await _apply(
            replica, _updates(range(topics), first), phase=Phase.AUDIT, reading=reading
        )
        assert not replica.unseen_count, replica.unseen_count
        assert not replica.changed_count, replica.changed_count
        replica.drop_pass()
        match_us, longest_match_ms = await _match(replica, topics)
        size = store.stats().file_bytes
        await asyncio.to_thread(store.close, timeout_s=600)
        again = _store(path, arguments, hold=lambda _: None)
        begun = time.perf_counter()
        again.open(now_ns=time.time_ns())
        opened, opened_cpu_s = time.perf_counter(), time.process_time()
        replica = DiscReplica(again.table("link"))
        assert replica.load(lambda update: content_digest(update[0], update[1]) == update[7]) == 0
        loaded, loaded_cpu_s = time.perf_counter(), time.process_time()
        assert len(replica) == topics, len(replica)
        again.close(timeout_s=600)
    return OnlyRun(
        snapshot_cpu_us=snapshot_us,
        scattered_cpu_us=scattered_us,
        audit_cpu_us=audit_us,
        match_cpu_us=match_us,
        longest_ms=max(longest_ms, longest_scattered_ms, longest_audit_ms),
        longest_match_ms=longest_match_ms,
        open_s=opened - begun,
        load_s=loaded - opened,
        load_cpu_us=(loaded_cpu_s - opened_cpu_s) / topics * 1e6,
        file_bytes=size,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _store(path: Path, arguments: argparse.Namespace, *, hold: Callable[[bool], None]) -> DirectStore:
    return DirectStore(
        path,
        sync=arguments.sync,
        sync_interval_s=1.0,
        cache_bytes=arguments.cache_bytes,
        hold=hold,
        logger=structlog.get_logger("bench"),
    )


async def _apply(
    replica: DiscReplica, updates: Iterator[Update], *, phase: Phase, reading: asyncio.Event
) -> tuple[float, float]:
    """Apply updates in batches, each a turn of the loop; return CPU us for each, and the longest turn in ms."""
    count, cpu_s, longest_s = 0, 0.0, 0.0
    while batch := list(islice(updates, _BATCH)):
        await reading.wait()  # as a link does
        begun, begun_cpu_s = time.perf_counter(), time.process_time()
        replica.apply(batch, phase=phase)
        await asyncio.sleep(0)  # the commit is a callback
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.perf_counter() - begun)
        cpu_s += time.process_time() - begun_cpu_s
        count += len(batch)
    return cpu_s / count * 1e6, longest_s * 1e3


async def _match(replica: DiscReplica, topics: int) -> tuple[float, float]:
    count, longest_s, begun_cpu_s = 0, 0.0, time.process_time()
    last = time.perf_counter()
    for piece in replica.match(b"#"):
        count += len(piece)
        longest_s = max(longest_s, time.perf_counter() - last)
        await asyncio.sleep(0)
        last = time.perf_counter()
    assert count == topics, count
    return (time.process_time() - begun_cpu_s) / count * 1e6, longest_s * 1e3


def _updates(numbers: Iterable[int], payload: bytes) -> Iterator[Update]:
    for number in numbers:
        topic = b"plant/line%d/cell%d/sensor%d/temp" % (number // 10_000, number // 100 % 100, number)
        yield (topic, payload, 1, True, b"", 1, 0, content_digest(topic, payload), None)
