"""The file of retained values: writing, waiting for a commit, opening and loading; ours only, in this process."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from bench.arguments import at_least
from bench.disc_only import measure_only
from bench.report import Figures, Report, Row, medians, percentile
from fanout.replica.store import Replica
from fanout.replica.update import ChangeKind, Changes, Phase, Update, content_digest
from fanout.storage.write_behind import WriteBehindStore

__all__ = ["add_arguments", "run"]

_BATCH = 1_000
_WAITS = 200


@dataclass(frozen=True, slots=True)
class _Run:
    new_per_s: float
    new_cpu_us: float
    replaced_per_s: float
    replaced_cpu_us: float
    commit_ms: float
    commit_ms_99: float
    open_s: float
    load_s: float
    load_cpu_us: float
    file_bytes: float

    def figures(self) -> Figures:
        """Return what a table shows of it, by column."""
        return {
            "new/s": self.new_per_s,
            "CPU us": self.new_cpu_us,
            "replaced/s": self.replaced_per_s,
            "replaced, CPU us": self.replaced_cpu_us,
            "commit ms": self.commit_ms,
            "commit ms, 99 %": self.commit_ms_99,
            "open s": self.open_s,
            "load s": self.load_s,
            "load, CPU us": self.load_cpu_us,
            "file bytes": self.file_bytes,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--topics", type=at_least(1), default=1_000_000, help="retained values (1000000)")
    parser.add_argument("--payload-bytes", type=at_least(1), default=64, help="size of a payload (64)")
    parser.add_argument("--sync", default="interval", choices=("off", "interval", "always"), help="retained.sync")
    parser.add_argument("--only", action="store_true", help='retained.storage = "disc_only" in place of "disc"')
    parser.add_argument(
        "--cache-bytes", type=at_least(1), default=256 * 1024 * 1024, help="retained.cache_bytes (256 MiB)"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Write every topic, write each again, wait for single values, and read the file as a node that starts does."""
    if arguments.only:
        only = [asyncio.run(measure_only(arguments)) for _ in range(arguments.runs)]
        case = {
            "topics": arguments.topics,
            "payload bytes": arguments.payload_bytes,
            "cache bytes": arguments.cache_bytes,
        }
        row = Row({**case, **medians(only).figures()}, runs=[asdict(each) for each in only])
        return Report("disc", f"disc_only, batches of {_BATCH} values; medians of {arguments.runs} runs", (row,))
    runs = [asyncio.run(_one(arguments)) for _ in range(arguments.runs)]
    case = {"topics": arguments.topics, "payload bytes": arguments.payload_bytes, "sync": arguments.sync}
    row = Row({**case, **medians(runs).figures()}, runs=[asdict(each) for each in runs])
    return Report("disc", f"batches of {_BATCH} values; medians of {arguments.runs} runs", (row,))


async def _one(arguments: argparse.Namespace) -> _Run:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "retained.sqlite"
        store = _store(path, arguments)
        await asyncio.to_thread(store.open, now_ns=time.time_ns())
        store.start()
        new_s, new_cpu_s = await _write(store, arguments, ChangeKind.NEW, b"a" * arguments.payload_bytes)
        replaced_s, replaced_cpu_s = await _write(store, arguments, ChangeKind.REPLACED, b"b" * arguments.payload_bytes)
        waits = [await _wait(store, arguments, number) for number in range(_WAITS)]
        await asyncio.to_thread(store.close, timeout_s=60)
        again, replica = _store(path, arguments), Replica()
        begun = time.perf_counter()
        again.open(now_ns=time.time_ns())
        opened, opened_cpu_s = time.perf_counter(), time.process_time()
        for piece in again.read("link"):
            replica.apply(piece, phase=Phase.SNAPSHOT)
        loaded, loaded_cpu_s = time.perf_counter(), time.process_time()
        assert len(replica) == arguments.topics, len(replica)
        size = again.stats().file_bytes
        again.close(timeout_s=60)
    return _Run(
        new_per_s=arguments.topics / new_s,
        new_cpu_us=new_cpu_s / arguments.topics * 1e6,
        replaced_per_s=arguments.topics / replaced_s,
        replaced_cpu_us=replaced_cpu_s / arguments.topics * 1e6,
        commit_ms=percentile(waits, 0.5) * 1e3,
        commit_ms_99=percentile(waits, 0.99) * 1e3,
        open_s=opened - begun,
        load_s=loaded - opened,
        load_cpu_us=(loaded_cpu_s - opened_cpu_s) / arguments.topics * 1e6,
        file_bytes=size,
    )


def _store(path: Path, arguments: argparse.Namespace) -> WriteBehindStore:
    return WriteBehindStore(
        path, sync=arguments.sync, sync_interval_s=1.0, hold=lambda _: None, logger=structlog.get_logger("bench")
    )


async def _write(
    store: WriteBehindStore, arguments: argparse.Namespace, kind: ChangeKind, payload: bytes
) -> tuple[float, float]:
    """Hand over every topic, some batches at a time, as a link that is held back does; return seconds, and of CPU."""
    batches = list(_batches(arguments.topics, kind, payload))
    begun, begun_cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, len(batches), 50):
        done = asyncio.Event()
        for changes in batches[start : start + 50]:
            store.put("link", [changes])
        store.put("link", [], done=done.set)
        await done.wait()
    return time.perf_counter() - begun, time.process_time() - begun_cpu_s


async def _wait(store: WriteBehindStore, arguments: argparse.Namespace, number: int) -> float:
    """Return how long one value takes until it is committed, in seconds."""
    update = _update(number % arguments.topics, b"%d" % number)
    done = asyncio.Event()
    begun = time.perf_counter()
    store.put("link", [Changes([update], bytearray([ChangeKind.REPLACED]), [], Phase.LIVE)], done=done.set)
    await done.wait()
    return time.perf_counter() - begun


def _batches(topics: int, kind: ChangeKind, payload: bytes) -> Iterator[Changes]:
    for start in range(0, topics, _BATCH):
        updates = [_update(number, payload) for number in range(start, min(topics, start + _BATCH))]
        yield Changes(updates, bytearray([kind]) * len(updates), [], Phase.LIVE)


def _update(number: int, payload: bytes) -> Update:
    topic = b"plant/line%d/cell%d/sensor%d/temp" % (number // 10_000, number // 100 % 100, number)
    return (topic, payload, 1, True, b"", 1, 0, content_digest(topic, payload), None)
