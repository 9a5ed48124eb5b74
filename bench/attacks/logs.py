"""Logs to be read: a million distinct nodes in one file, and a small Parquet file that expands to 50 million rows."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.attacks.target import Target, Verdict
from fanout.replog.files.columns import Column
from fanout.replog.files.schema import UPDATES

__all__ = ["NEEDS", "run"]

NEEDS = ("scratch",)
_NODES = 1_000_000
_ROWS = 50_000_000
_GROUP = 1_000_000
_WHOLE = 0.1
"""Least scale at which each command reads each log; below it one command does."""
_SECONDS_MAX = 120.0
_RESIDENT_MIB_MAX = 1024.0
_COMMANDS = (("log", "stat"), ("log", "verify"), ("log", "show"))


async def run(target: Target) -> Verdict:
    """Write them, and let each command that reads a log have them."""
    assert target.scratch is not None
    many, bomb = target.scratch / "many-nodes", target.scratch / "bomb"
    _write(many, target.scaled(_NODES), nodes=True)
    _write(bomb, target.scaled(_ROWS), nodes=False)
    worst_s = worst_mib = 0.0
    failed = 0
    for directory in (many, bomb):
        for command in _COMMANDS if target.scale >= _WHOLE else _COMMANDS[-1:]:
            seconds, mib, good = await asyncio.to_thread(_read, [*command, str(directory)])
            worst_s, worst_mib, failed = max(worst_s, seconds), max(worst_mib, mib), failed + (not good)
    size = sum(path.stat().st_size for path in bomb.rglob("*.parquet"))
    return Verdict(
        held=not failed and worst_s <= _SECONDS_MAX and worst_mib <= _RESIDENT_MIB_MAX,
        promise=f"fanout log ends within {_SECONDS_MAX:g} s, and takes {_RESIDENT_MIB_MAX:g} MiB",
        figures={
            "seconds_max": round(worst_s, 1),
            "resident_mib_max": round(worst_mib, 1),
            "failed": failed,
            "bomb_bytes": size,
        },
    )


def _read(arguments: list[str]) -> tuple[float, float, bool]:
    """Return the time of a command, its most resident memory in MiB, and whether it ended as commands do."""
    begun_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fanout", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    late = threading.Timer(_SECONDS_MAX, process.kill)
    late.start()
    errors = b""
    with process.stderr:
        while piece := os.read(process.stderr.fileno(), 65_536):
            errors = (errors + piece)[-65_536:]
    late.cancel()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    good = process.returncode in (0, 1, 5) and b"Traceback" not in errors
    return time.perf_counter() - begun_s, usage.ru_maxrss / 1024, good


def _write(directory: Path, rows: int, *, nodes: bool) -> None:
    """Write a log of so many rows, all alike but for the node."""
    place = directory / "v1" / "updates" / "node=n" / "date=2026-01-01" / "hour=00"
    place.mkdir(parents=True)
    with pq.ParquetWriter(place / "1-1.parquet", UPDATES, compression="zstd") as writer:
        for begin in range(0, rows, _GROUP):
            count = min(_GROUP, rows - begin)
            columns = []
            for field in UPDATES:
                if field.name == "node" and nodes:
                    names = pa.array([f"node-{number}" for number in range(begin, begin + count)])
                    columns.append(names.dictionary_encode().cast(field.type))
                else:
                    columns.append(_constant(field.type, count))
            writer.write_table(pa.Table.from_arrays(columns, schema=UPDATES))


def _constant(kind: pa.DataType, count: int) -> Column:
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, kind.index_type), count), pa.array(["n"]))
    if pa.types.is_string(kind):
        return pa.repeat(pa.scalar("topic", kind), count)
    if pa.types.is_boolean(kind):
        return pa.repeat(pa.scalar(True), count)
    return pa.repeat(pa.scalar(1, pa.int64()), count).cast(kind)
