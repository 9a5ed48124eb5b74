"""Newest rows of a log, for `fanout log show`: read from the end, so that the cost follows the number of rows shown.

Nothing is changed, and nodes may go on writing.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.errors import LogError
from fanout.replog.files.log_directories import find_logs
from fanout.replog.files.schema import check_expansion
from fanout.replog.files.sealing import TABLES, node_of
from fanout.replog.files.segments import SegmentReader
from fanout.replog.read.reading import LogPart, parts_of_logs
from fanout.runtime.regular_files import require_regular

__all__ = ["name_of_code", "newest_rows", "pieces_of"]

_FOREIGN: Final = "`fanout log verify` tells whether it is damaged; take a file away that no node of this version wrote"


def newest_rows(
    directory: Path,
    table: str,
    *,
    count: int,
    node: str | None = None,
    wanted_topic: Callable[[str], bool] | None = None,
    kinds: Collection[str] | None = None,
    since: datetime | None = None,
) -> list[dict[str, Any]]:
    """Return the last rows that each node logged, oldest first: by time, and of one node in the order of its log.

    Args:
        directory: The log's directory, or one above several logs.
        table: `updates` or `events`.
        count: Greatest number, over all nodes.
        node: The node whose rows are wanted; None for all.
        wanted_topic: Tells whether updates of a topic are wanted, called once per topic and piece; None for all.
        kinds: The events that are wanted, by the column `event`; None for all.
        since: The time from which rows are wanted, by the clock of the node that logged them; None for all.

    Raises:
        LogError: There is no log in the directory, or a file cannot be read.
    """
    logs = find_logs(directory)
    by_node: dict[str, list[LogPart]] = {}
    time = "applied" if table == "updates" else "at"

    def wanted(piece: pa.Table) -> pa.Table:
        if kinds is not None:
            piece = piece.filter(
                pc.is_in(piece["event"].cast(pa.string()), value_set=pa.array(sorted(kinds), pa.string()))
            )
        if since is not None:
            piece = piece.filter(pc.greater_equal(piece[time], pa.scalar(since, piece.schema.field(time).type)))
        return piece if wanted_topic is None else _with_topics(piece, wanted_topic)

    try:
        with parts_of_logs(logs) as parts:
            for name, part in parts.items():
                if node in (None, node_of(name.node)):
                    by_node.setdefault(name.node, []).append(part)
            found = [row for of_node in by_node.values() for row in _last(of_node, table, count, wanted, since)]
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"the log in {directory} cannot be read: {error}", hint="Run fanout log verify") from error
    found.sort(key=lambda row: (row[time], row["node"], row["node_epoch"], row["log_pos"]))
    return found[max(0, len(found) - count) :]


def _last(
    parts: list[LogPart],
    table: str,
    count: int,
    wanted: Callable[[pa.Table], pa.Table],
    since: datetime | None,
) -> list[dict[str, Any]]:
    """Return the last wanted rows of one node, in any order."""
    rows: list[dict[str, Any]] = []
    for part in reversed(parts):
        for piece in pieces_of(part, table, since=since):
            found = wanted(piece)
            # Rows of a piece are grouped by link, not sorted.
            order = pc.sort_indices(found["log_pos"])
            rows += _with_times(found.take(order[max(0, len(order) - count) :])).to_pylist()
        if len(rows) >= count:
            break
    return rows


def _with_times(rows: pa.Table) -> pa.Table:
    """Clamp times that Python cannot hold, such as stamps of the year 10000, which publishers may send."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            times = rows[at]
            first, last = (pa.scalar(end.replace(tzinfo=UTC), field.type) for end in (datetime.min, datetime.max))
            times = pc.if_else(pc.greater(times, last), last, times)
            rows = rows.set_column(at, field, pc.if_else(pc.less(times, first), first, times))
    return rows


def name_of_code(kind: type[enum.IntEnum], code: int) -> str:
    """Return the name of a code in the column `change` or `phase`; of one that is not known here, the number."""
    try:
        return kind(code).name.lower()
    except ValueError:
        return str(code)


def pieces_of(
    part: LogPart, table: str, *, since: datetime | None = None, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of one table of a part, in pieces; those of a piece are grouped by link, not sorted.

    Args:
        part: The part.
        table: `updates` or `events`.
        since: Pieces of sealed files that end before this time are left out; None leaves out none.
        columns: The columns to read of sealed files; None for all. Segments yield all in any case.

    Raises:
        LogError: A sealed file cannot be read, or has not the columns of the log.
    """
    if part.segment is not None:
        return _of_segment(part, table)
    return _of_file(part.sealed.get(table), TABLES[table], since, columns)


def _of_segment(part: LogPart, table: str) -> Iterator[pa.Table]:
    assert part.segment is not None
    for frame in SegmentReader(part.segment):
        stream = frame.updates if table == "updates" else frame.events
        if stream:
            yield pa.ipc.open_stream(stream).read_all()


def _of_file(
    path: Path | None, schema: pa.Schema, since: datetime | None, columns: list[str] | None
) -> Iterator[pa.Table]:
    if path is None:
        return
    names = columns or schema.names
    with _reading(path):
        require_regular(path)
        with pq.ParquetFile(path) as file:
            check_expansion(file.metadata, nbytes=path.stat().st_size)
            groups = range(file.num_row_groups)
            for group in groups:
                if since is None or not _ends_before(file.metadata.row_group(group), since):
                    piece = file.read_row_group(group, columns=names)
                    # Of other types are files that another program wrote; it may have used other encodings, too.
                    yield piece.select(names).cast(pa.schema([schema.field(name) for name in names]))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LogError(f"{path} cannot be read: {reason}", hint=_FOREIGN) from error


def _ends_before(group: pq.RowGroupMetaData, time: datetime) -> bool:
    """Return whether all rows of a group are older than `time`, by what the file says of it."""
    columns = (group.column(index) for index in range(group.num_columns))
    at = next((column for column in columns if column.path_in_schema in ("at", "applied")), None)
    latest: Any = at.statistics.max if at is not None and at.statistics is not None else None
    return isinstance(latest, datetime) and latest < time


def _with_topics(piece: pa.Table, wanted_topic: Callable[[str], bool]) -> pa.Table:
    topics: list[Any] = pc.unique(piece["topic"]).to_pylist()
    return piece.filter(
        pc.is_in(piece["topic"], value_set=pa.array([t for t in topics if wanted_topic(t)], pa.string()))
    )
