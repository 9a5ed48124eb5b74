"""Inspection of a log directory: the figures of `fanout log stat` and the checks of `fanout log verify`.

Nothing is changed, and nodes may go on writing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.errors import LogError
from fanout.replog.files.columns import Column
from fanout.replog.files.node_lock import LastRun, lock_is_damaged, read_last_run
from fanout.replog.files.schema import check_expansion
from fanout.replog.files.sealing import TABLES, footer_statistics, node_of, read_aside
from fanout.replog.files.segments import Damage, SegmentReader
from fanout.replog.read.reading import LogPart, log_parts
from fanout.replog.runs import missing_numbers, read_runs
from fanout.replog.shipping.archive import read_removed
from fanout.runtime.regular_files import require_regular

__all__ = ["NodeCheck", "NodeFigures", "PositionGap", "Problem", "stat", "verify"]

_RUNS_MAX = 1_000
"""Runs of positions of a part that are told one by one."""
_TIME_COLUMN = {"updates": "applied", "events": "at"}


@dataclass(slots=True)
class NodeFigures:
    """Figures of one node's log."""

    node: str
    last_run: LastRun | None = None
    """The newest run, as the lock file has it."""
    node_epochs: int = 0
    """Runs of the node that left rows."""
    sealed_files: int = 0
    sealed_bytes: int = 0
    open_segments: int = 0
    """Segments that are not sealed."""
    open_bytes: int = 0
    torn_bytes: int = 0
    """Bytes in incomplete last frames: still being written, or cut off by a kill."""
    damaged_bytes: int = 0
    """Other bytes that are no whole frames."""
    update_rows: int = 0
    event_rows: int = 0
    first_us: int | None = None
    """Time of the oldest row, Unix time in microseconds; None when there are no rows."""
    last_us: int | None = None
    """Time of the newest row."""
    missing_positions: int = 0
    """Positions without a row, from 1 to the highest known position of each run: rows that were not logged, or whose
    files were removed."""


@dataclass(frozen=True, slots=True)
class PositionGap:
    """Positions that no row has."""

    node_epoch: int
    first: int
    last: int
    explained: bool
    """True if gap events cover all of them."""
    removed: bool = False
    """True if the node itself removed their files, as too old or too many."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a file."""

    path: Path
    text: str


@dataclass(slots=True)
class NodeCheck:
    """Result of the check of one node's files."""

    node: str
    files: int = 0
    """Sealed files and segments that were read."""
    rows: int = 0
    """Rows of both tables."""
    gaps: list[PositionGap] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if everything is readable and every missing position is explained, or was removed by the node itself."""
        return not self.problems and all(gap.explained or gap.removed for gap in self.gaps)


def stat(directory: Path) -> list[NodeFigures]:
    """Return the figures of a log directory, from the footers of its files, node by node.

    Raises:
        LogError: The directory is not that of a log, or a file cannot be read.
    """
    found: dict[str, NodeFigures] = {}
    with_rows: set[tuple[str, int]] = set()
    highest: dict[tuple[str, int], int] = {}
    try:
        for place in (directory / "open").glob("node=*"):  # before the parts are listed, which only grow
            for epoch, known in (read_runs(place) or {}).items():
                highest[place.name, epoch] = known.last_log_pos
        with log_parts(directory) as parts:
            for name, part in parts.items():
                figures = found.setdefault(name.node, NodeFigures(node_of(name.node)))
                # While a segment exists it has all rows, and its sealed files may not be there yet.
                last = (
                    _stat_sealed(figures, part.sealed) if part.segment is None else _stat_segment(figures, part.segment)
                )
                run = (name.node, name.node_epoch)
                highest[run] = max(highest.get(run, 0), last)
                with_rows.add(run)
        for place in (directory / "open").glob("node=*"):
            figures = found.setdefault(place.name, NodeFigures(node_of(place.name)))
            figures.last_run = read_last_run(place / "lock")
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"the log in {directory} cannot be read: {error}", hint="Run fanout log verify") from error
    for node, figures in found.items():
        runs = [last for (owner, _), last in highest.items() if owner == node]
        figures.node_epochs = sum(owner == node for owner, _ in with_rows)
        figures.missing_positions = sum(runs) - figures.update_rows - figures.event_rows
    return sorted(found.values(), key=lambda figures: figures.node)


def verify(directory: Path) -> list[NodeCheck]:
    """Read every row of a log directory, and check the promises of the writer, node by node.

    Raises:
        LogError: The directory is not that of a log.
    """
    checks: dict[str, NodeCheck] = {}
    gap_details: dict[str, list[dict[str, Any]]] = {}
    reached: dict[tuple[str, int], int] = {}  # by run: the last position that is accounted for
    before_it: dict[tuple[str, int], int] = {}  # by run: the number of the previous part
    removed: dict[str, dict[int, int]] = {}  # by node: the highest number of each run whose files were removed
    numbers: dict[tuple[str, int], set[int]] = {}  # by run: of the existing parts
    records = {place.name: read_runs(place) for place in (directory / "open").glob("node=*")}  # before the parts
    with log_parts(directory) as parts:
        for name, part in parts.items():
            check = checks.setdefault(name.node, NodeCheck(node_of(name.node)))
            run = (name.node, name.node_epoch)
            numbers.setdefault(run, set()).add(name.number)
            positions: list[Column] = []
            if name.node not in removed:
                removed[name.node] = read_removed(directory / "open" / name.node)
            # Rows missing at the end of a part show only at the next part.
            touched = before_it.get(run, 0) <= removed[name.node].get(name.node_epoch, 0)
            touched &= name.node_epoch in removed[name.node]
            before_it[run] = name.number
            for table, rows in _read(part, check):
                check.rows += rows.num_rows
                positions += rows["log_pos"].chunks
                if table == "events":
                    gap_details.setdefault(name.node, []).extend(_gap_details(rows))
            path = next(iter(part.sealed.values()), directory)
            runs, more = _runs(positions)
            for first, last in runs:
                before = reached.get(run, 0)
                if first > before + 1:
                    check.gaps.append(
                        PositionGap(name.node_epoch, before + 1, first - 1, explained=False, removed=touched)
                    )
                elif first <= before:
                    text = f"position {first} of epoch {name.node_epoch} is there more than once"
                    check.problems.append(Problem(path, text))
                reached[run] = max(before, last)
            if more:
                text = f"{more:,} more places of epoch {name.node_epoch} have gaps, or positions more than once"
                check.problems.append(Problem(path, text))
    for path in sorted((directory / "open").glob("node=*/*.unreadable")):
        check = checks.setdefault(path.parent.name, NodeCheck(node_of(path.parent.name)))
        check.problems.append(Problem(path, "its first frame cannot be read, so it was not sealed"))
        numbers.setdefault((path.parent.name, _epoch(path)), set()).add(_number(path))
    for node, record in records.items():
        place = directory / "open" / node
        if record is None or lock_is_damaged(place / "lock"):
            check = checks.setdefault(node, NodeCheck(node_of(node)))
            which = place / ("lock" if record is not None else "runs.json")
            check.problems.append(Problem(which, "it is damaged; the next start of the node writes it anew"))
        for epoch, known in (record or {}).items():
            check = checks.setdefault(node, NodeCheck(node_of(node)))
            run = (node, epoch)
            until = read_removed(place).get(epoch, 0)
            for number in missing_numbers(known, found=numbers.get(run, ()), removed=until):
                check.problems.append(Problem(place / f"{epoch}-{number:06d}", "it is missing, open and sealed"))
            if reached.get(run, 0) < known.last_log_pos:
                first, last = reached.get(run, 0) + 1, known.last_log_pos
                check.gaps.append(PositionGap(epoch, first, last, explained=False, removed=until >= known.segments))
    for path in sorted((directory / "open").glob("node=*/*.damaged")):
        check = checks.setdefault(path.parent.name, NodeCheck(node_of(path.parent.name)))
        check.problems += _kept_aside(path)
    for node, check in checks.items():
        details = gap_details.get(node, [])
        check.gaps = [replace(gap, explained=_explained(gap, details)) for gap in check.gaps]
    return sorted(checks.values(), key=lambda check: check.node)


def _stat_sealed(figures: NodeFigures, files: dict[str, Path]) -> int:
    """Add a sealed part to the figures; return its highest position."""
    last_log_pos = 0
    for table, path in files.items():
        figures.sealed_files += 1
        figures.sealed_bytes += path.stat().st_size
        for rows, positions, times in footer_statistics(path):
            _count(figures, table, rows)
            last_log_pos = max(last_log_pos, positions.max_raw)
            _widen(figures, times.min_raw, times.max_raw)
    return last_log_pos


def _stat_segment(figures: NodeFigures, segment: BinaryIO) -> int:
    """Add a segment that is not sealed to the figures; return its highest position."""
    reader = SegmentReader(segment)
    figures.open_segments += 1
    figures.open_bytes += reader.total_bytes
    for table, rows in _frames(reader):
        times = rows[_TIME_COLUMN[table]].cast(pa.int64())
        _widen(figures, pc.min(times).as_py(), pc.max(times).as_py())
    _count(figures, "updates", reader.update_rows)
    _count(figures, "events", reader.event_rows)
    figures.torn_bytes += reader.torn_bytes
    figures.damaged_bytes += reader.damaged_bytes
    return reader.last_log_pos


def _frames(reader: SegmentReader) -> Iterator[tuple[str, pa.Table]]:
    """Return the rows of a segment, frame by frame."""
    for frame in reader:
        for table, stream in (("updates", frame.updates), ("events", frame.events)):
            if stream:
                yield table, pa.ipc.open_stream(stream).read_all()


def _count(figures: NodeFigures, table: str, rows: int) -> None:
    if table == "updates":
        figures.update_rows += rows
    else:
        figures.event_rows += rows


def _widen(figures: NodeFigures, first_us: int, last_us: int) -> None:
    figures.first_us = first_us if figures.first_us is None else min(figures.first_us, first_us)
    figures.last_us = last_us if figures.last_us is None else max(figures.last_us, last_us)


def _read(part: LogPart, check: NodeCheck) -> Iterator[tuple[str, pa.Table]]:
    """Read all columns of a part in pieces of bounded size; note what cannot be read."""
    if part.segment is not None:
        check.files += 1
        reader = SegmentReader(part.segment)
        yield from _frames(reader)
        path = Path(part.segment.name)
        check.problems += [Problem(path, _as_text(one)) for one in reader.damage]
        return
    for table, path in part.sealed.items():
        check.files += 1
        try:
            require_regular(path)
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                check_expansion(file.metadata, nbytes=path.stat().st_size)
                if not file.schema_arrow.equals(TABLES[table]):
                    check.problems.append(Problem(path, "its columns are not those of this version"))
                    continue
                for group in range(file.num_row_groups):
                    yield table, file.read_row_group(group)
        except (OSError, pa.ArrowException) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            check.problems.append(Problem(path, f"it cannot be read: {reason}"))


def _kept_aside(path: Path) -> Iterator[Problem]:
    """Return the damage of a segment that is sealed."""
    try:
        for one in read_aside(path):
            yield Problem(path, f"when it was sealed, {_as_text(one)}; remove this file when that is known")
    except (OSError, ValueError) as error:
        yield Problem(path, f"it has damaged bytes of a segment, and cannot be read: {error}")


def _as_text(damage: Damage) -> str:
    """Describe damaged bytes, and the rows that they cost."""
    first, last = damage.first_log_pos, damage.last_log_pos
    if last is None:
        cost = f"rows from {first:,} on may be lost"
    elif last < first:
        cost = "no row is lost"
    else:
        cost = f"rows {first:,} to {last:,} are lost ({last - first + 1:,})"
    return f"{damage.size:,} bytes at {damage.offset:,} were damaged: {cost}"


def _epoch(path: Path) -> int:
    return int(path.stem.split("-")[0]) if path.stem.split("-")[0].isdecimal() else 0


def _number(path: Path) -> int:
    number = (*path.stem.split("-"), "")[1]
    return int(number) if number.isdecimal() else 0


def _gap_details(events: pa.Table) -> list[dict[str, Any]]:
    """Return the details of the gap events."""
    details = []
    for event, detail in zip(events["event"].to_pylist(), events["detail"].to_pylist(), strict=True):
        if event == "gap":
            with contextlib.suppress(ValueError):
                details.append(json.loads(str(detail)))
    return details


def _runs(columns: list[Column]) -> tuple[list[tuple[int, int]], int]:
    """Return positions as runs without gaps, in order; a repeated position begins a new run.

    Returns:
        The first `_RUNS_MAX` runs, and one to the last position for the rest; and the number of breaks in that one.
    """
    if not columns:
        return [], 0
    joined = pa.concat_arrays(columns)
    positions = joined.take(pc.sort_indices(joined))
    steps = pc.subtract(positions[1:], positions[:-1])
    breaks = pc.indices_nonzero(pc.not_equal(steps, pa.scalar(1, pa.int64())))
    told: list[Any] = breaks[:_RUNS_MAX].to_pylist()
    runs, start = [], 0
    for index in [*told, len(positions) - 1]:
        runs.append((positions[start].as_py(), positions[index].as_py()))
        start = index + 1
    return runs, len(breaks) - len(told)


def _explained(gap: PositionGap, details: list[dict[str, Any]]) -> bool:
    """Tell whether gap events cover all positions of a gap."""
    reached = gap.first
    told = sorted(
        (detail["first_log_pos"], detail["last_log_pos"] or gap.last)
        for detail in details
        if detail.get("node_epoch") == gap.node_epoch
        and detail.get("first_log_pos")
        and (detail.get("last_log_pos") or detail.get("reason") == "damage")
    )
    for first, last in told:
        if first <= reached:
            reached = max(reached, last + 1)
    return reached > gap.last
