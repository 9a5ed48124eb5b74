"""What the tests of the log write and how they read it back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.replica.update import ChangeKind, Changes, Phase, Stamp, Update, content_digest
from fanout.replog.files.columns import LogSource, UpdateRows
from fanout.replog.files.schema import EVENTS, UPDATES
from fanout.replog.files.segments import SegmentReader

EPOCH = 1_700_000_000_000_000
NOW_NS = EPOCH * 1000 + 5_000_000


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until it is told otherwise."""

    ns: int = NOW_NS
    seconds: float = 0.0

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return self.ns

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.ns += int(seconds * 1e9)
        self.seconds += seconds


@dataclass(frozen=True, slots=True)
class PlainSelector:
    """A selector that covers the local topics that begin with its prefix and its root."""

    filter: str
    prefix: str = ""

    def covers_local(self, topic: bytes) -> bool:
        """Tell whether this selector replicates a local topic."""
        return topic.startswith((self.prefix + self.filter.removesuffix("#")).encode())


def make_update(
    topic: bytes,
    payload: bytes = b"value",
    *,
    qos: int = 1,
    retain: bool = True,
    received_ns: int = NOW_NS,
    stamp: Stamp | None = None,
) -> Update:
    """Return an update as a link would make it."""
    return (topic, payload, qos, retain, b"", received_ns, 0, content_digest(topic, payload), stamp)


def make_updates(count: int, *, start: int = 0, payload_bytes: int = 8) -> list[Update]:
    """Return updates that differ in topic and payload."""
    return [
        make_update(b"plant/line%d/sensor%d" % (index % 3, index), b"%d" % index * payload_bytes)
        for index in range(start, start + count)
    ]


def make_changes(updates: Sequence[Update], *, kind: ChangeKind = ChangeKind.NEW, phase: Phase = Phase.LIVE) -> Changes:
    """Return updates as a replica hands them on."""
    listed = list(updates)
    return Changes(listed, bytearray([kind]) * len(listed), listed, phase)


def make_rows(
    updates: Sequence[Update],
    *,
    source: LogSource,
    first_log_pos: int = 1,
    link_epoch: int = 7,
    phase: Phase = Phase.LIVE,
    flags: Sequence[int] | None = None,
) -> UpdateRows:
    """Return updates as the backlog hands them on."""
    kinds = bytearray([ChangeKind.NEW]) * len(updates)
    return UpdateRows(source, link_epoch, phase, list(updates), kinds, flags, first_log_pos)


def parquet_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the rows of Parquet files, in the order of the log."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        table = pq.ParquetFile(path).read()
        assert table.schema in (UPDATES, EVENTS)
        rows += table.to_pylist()
    return sorted(rows, key=lambda row: (row["node"], row["node_epoch"], row["log_pos"]))


def sealed_paths(directory: Path, table: str) -> list[Path]:
    """Return the sealed files of a table."""
    return sorted((directory / "v1" / table).rglob("*.parquet"))


def sealed_rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of all sealed files of a table."""
    return parquet_rows(sealed_paths(directory, table))


def segment_rows(path: Path, table: str = "updates") -> list[dict[str, Any]]:
    """Return the rows in the whole frames of a segment."""
    rows: list[dict[str, Any]] = []
    with path.open("rb") as stream:
        for frame in SegmentReader(stream):
            data = frame.updates if table == "updates" else frame.events
            if data:
                rows += pa.ipc.open_stream(data).read_all().to_pylist()
    return rows
