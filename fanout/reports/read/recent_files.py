"""Sealed files that a report on a window of time reads, and their start in each node's log.

Owns the choice by the footers of the files, newest first. So the rows that a report reads depend on the length of the
window, not of the logs. Events from before the window are read, except files with heartbeats alone, because only events
tell the selections of links and when they were complete. Knows files, not Spark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import zip_longest
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.errors import ReportError
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.survey import LogCut

__all__ = ["MARGIN_US", "SealedFile", "Segment", "Span", "cut_of", "recent_files", "sealed_file"]

MARGIN_US: Final = 300_000_000
"""Extra time of each log beyond the window: updates on the way, and heartbeats before an absence."""

_QUIET: Final = "heartbeat"
"""The event that says nothing of the time after the next one."""

_PATH: Final = re.compile(
    r"(?P<table>updates|events)/node=(?P<node>[^/]*)/date=(?P<date>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d\d)/"
    r"(?P<node_epoch>\d+)-(?P<number>\d+)\.parquet$"
)

Segment = tuple[int, int]
"""The node epoch and number of a segment; a node's are in this order."""


class SealedFile(NamedTuple):
    """A sealed file, by its name."""

    path: str
    table: str
    node: str
    segment: Segment
    hour: str
    """In which its segment was opened."""

    @property
    def hour_us(self) -> int:
        """The begin of that hour."""
        return int(datetime.fromisoformat(self.hour).timestamp()) * 1_000_000


def sealed_file(path: str) -> SealedFile | None:
    """Return what the name of a file says; None if nodes give no such name."""
    if (name := _PATH.search(path)) is None:
        return None
    segment = int(name["node_epoch"]), int(name["number"])
    return SealedFile(path, name["table"], unquote(name["node"]), segment, f"{name['date']}T{name['hour']}:00+00:00")


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of a segment's files, or of all that is read of a process."""

    rows: int
    first_pos: int
    last_pos: int
    first_us: int
    last_us: int


def recent_files(files: LogFiles, *, since_us: int, reference: str | None) -> tuple[LogFiles, tuple[LogCut, ...]]:
    """Return the files that a report on a window needs, and the begin of each log that is not read whole.

    The window is by the clock of the reference that is asked for, else of the primaries, else of the taps, else of any
    node. A log that ends before the newest of theirs is read back as far again: its clock may be slow. With a
    file that Spark alone sees, none is left out here: `recent_by_name` chooses.

    Args:
        files: The logs.
        since_us: The begin of the window. The report must have an end too: final values need all rows.
        reference: The node that was asked for as the reference; None when the report chooses.

    Raises:
        ReportError: A file cannot be read.
    """
    if not (nodes := _by_node((*files.updates, *files.events))):
        return files, ()
    span = cache(lambda node, segment: _span(nodes[node][segment].values()))
    newest = {node: max(segments) for node, segments in nodes.items()}
    ends_us = {node: span(node, segment).last_us for node, segment in newest.items()}
    roles = {node: _role(next(iter(nodes[node][segment].values()))) for node, segment in newest.items()}
    end_us = max(ends_us[node] for node in _timekeepers(roles, reference=reference))
    cuts: list[LogCut] = []
    chosen: dict[str, list[str]] = {"updates": [], "events": []}
    for node, segments in nodes.items():
        from_us = since_us - max(0, end_us - ends_us[node]) - MARGIN_US
        taken: dict[Segment, Span] = {}
        newest_first = sorted(segments, reverse=True)
        for segment, before in zip_longest(newest_first, newest_first[1:]):
            taken[segment] = span(node, segment)
            # Where a clock was set forward, as after a start, a segment reaches back further than the one before it.
            if taken[segment].first_us <= from_us and (before is None or span(node, before).last_us <= from_us):
                break
        for segment in taken:
            for table, path in segments[segment].items():
                chosen[table].append(path)
        if earlier := segments.keys() - taken.keys():
            chosen["events"] += _telling({segment: segments[segment] for segment in earlier})
            cuts.append(cut_of(node, taken))
    updates, events = (tuple(sorted(chosen[table])) for table in ("updates", "events"))
    return (replace(files, updates=updates, events=events), tuple(cuts)) if cuts else (files, ())


def _telling(segments: Mapping[Segment, Mapping[str, str]]) -> list[str]:
    """Return the files of events that say more than that a node was alive, and the last of each of its processes."""
    last = dict(sorted(segments))
    return [
        files["events"]
        for (epoch, number), files in segments.items()
        if "events" in files and (last[epoch] == number or not _is_quiet(files["events"]))
    ]


def _by_node(paths: Iterable[str]) -> dict[str, dict[Segment, dict[str, str]]]:
    """Return the files by node, segment and table, of copies one; nothing when any is not on this machine."""
    nodes: dict[str, dict[Segment, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        if "://" in path or (one := sealed_file(path)) is None:
            return {}
        nodes[one.node][one.segment].setdefault(one.table, path)
    return nodes


def _timekeepers(roles: Mapping[str, str], *, reference: str | None) -> list[str]:
    """Return the nodes by whose clocks the window is."""
    if reference is not None and reference in roles:
        return [reference]
    for role in ("primary", "tap"):
        if found := [node for node in roles if roles[node] == role]:
            return found
    return list(roles)


def cut_of(node: str, taken: Mapping[Segment, Span]) -> LogCut:
    """Return the begin of a log of which these segments are read."""
    first = min(taken)
    processes: dict[int, list[Span]] = defaultdict(list)
    for (epoch, _), span in taken.items():
        processes[epoch].append(span)
    absent = 0
    for epoch, spans in processes.items():
        begin = taken[first].first_pos if epoch == first[0] else 1
        absent += max(span.last_pos for span in spans) - begin + 1 - sum(span.rows for span in spans)
    return LogCut(node, first[0], taken[first].first_pos, taken[first].first_us, absent)


def _span(paths: Iterable[str]) -> Span:
    found: list[tuple[int, Any, Any]] = []
    for path in paths:
        with _reading(path):
            metadata = pq.read_metadata(path)
            found += zip(
                _row_counts(metadata),
                _statistics(metadata, "log_pos"),
                _statistics(metadata, "applied" if "applied" in metadata.schema.names else "at"),
                strict=True,
            )
    if not found:
        raise ReportError(f"{path} holds no row", hint="Nodes never seal such a file: copy it again, or take it away")
    return Span(
        rows=sum(rows for rows, _, _ in found),
        first_pos=min(pos.min_raw for _, pos, _ in found),
        last_pos=max(pos.max_raw for _, pos, _ in found),
        first_us=min(at.min_raw for _, _, at in found),
        last_us=max(at.max_raw for _, _, at in found),
    )


def _is_quiet(path: str) -> bool:
    """Return whether all events of a file are heartbeats, by its footer."""
    with _reading(path):
        metadata = pq.read_metadata(path)
        return all(each.min == each.max == _QUIET for each in _statistics(metadata, "event"))


def _row_counts(metadata: pq.FileMetaData) -> list[int]:
    return [group.num_rows for group in map(metadata.row_group, range(metadata.num_row_groups)) if group.num_rows]


def _statistics(metadata: pq.FileMetaData, name: str) -> Sequence[Any]:
    """Return the statistics of a column of each row group that has rows.

    Raises:
        ValueError: The file has no such column, or says nothing of it.
    """
    if name not in metadata.schema.names:
        raise ValueError(f"it has no column {name!r}")
    column = metadata.schema.names.index(name)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    found: list[Any] = [group.column(column).statistics for group in groups if group.num_rows]
    if not all(each is not None and each.has_min_max for each in found):
        raise ValueError(f"its footer does not say which values column {name!r} has")
    return found


def _role(path: str) -> str:
    with _reading(path):
        column = pq.read_table(path, columns=["role"], partitioning=None).column("role")
    return str(column[0].as_py())


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:  # among the latter some are the former
        raise ReportError(
            f"{path} cannot be read: {error}",
            hint="`fanout log verify` tells whether it is damaged; a file that no node wrote does not belong here",
        ) from error
