"""Which sealed files hold the last minutes, and where in each node's log they begin.

Owns the choice of the window and of the files that are read for it, by the footers of the newest ones alone: what it
costs goes with the length of the window, not with that of the logs. Knows files, not Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.errors import ReportError
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.sealed_files import identity
from fanout.reports.read.survey import LogCut
from fanout.reports.values.figures import time_of

__all__ = ["MARGIN_US", "Recent", "recent_files", "recent_names"]

MARGIN_US: Final = 300_000_000
"""How much more than the window is read of each log: updates on the way, and heartbeats in front of an absence."""

_HOUR_US: Final = 3_600_000_000
"""What the directories of sealed files tell apart, by the time at which a segment was opened."""

_Segment = tuple[int, int]
"""The node epoch and number of a segment; a node's are in this order."""


@dataclass(frozen=True, slots=True)
class Recent:
    """The last minutes of the logs."""

    files: LogFiles
    cuts: tuple[LogCut, ...]
    """Where the files of each node begin."""
    since: datetime
    until: datetime
    """Behind the newest row that is sealed of those whose clock counts."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The rows of a segment's files."""

    rows: int
    first_pos: int
    last_pos: int
    first_us: int
    last_us: int


def recent_files(listed: LogFiles, *, minutes: float, reference: str | None, directories: Sequence[str]) -> Recent:
    """Return the last minutes of the logs, and a margin in front of them.

    They end with the newest sealed row of the reference that is asked for, else of the primaries, else of the taps,
    else of any node: one clock that is ahead elsewhere must not move the window away from what there is to compare.

    Args:
        listed: Sealed files on this machine, at least the recent ones.
        minutes: The length of the window.
        reference: The node that was asked for as the reference; None when the report chooses.
        directories: What the report names as its input.

    Raises:
        ReportError: A file cannot be read, or there is none.
    """
    nodes = _by_node((*listed.updates, *listed.events))
    if not nodes:
        raise ReportError("nothing is sealed yet", hint="A node seals its first file after log.segment_age_max_s")
    span = cache(lambda node, segment: _span(nodes[node][segment].values()))
    newest = {node: max(segments) for node, segments in nodes.items()}
    ends_us = {node: span(node, segment).last_us for node, segment in newest.items()}
    roles = {node: _role(next(iter(nodes[node][segment].values()))) for node, segment in newest.items()}
    end_us = max(ends_us[node] for node in _timekeepers(roles, reference=reference))
    length_us = round(minutes * 60_000_000)
    cuts: list[LogCut] = []
    paths: dict[str, list[str]] = {"updates": [], "events": []}
    for node, segments in nodes.items():
        # By its own clock where that is behind, or its log late.
        from_us = min(ends_us[node], end_us) - length_us - MARGIN_US
        taken: dict[_Segment, _Span] = {}
        newest_first = sorted(segments, reverse=True)
        for segment, before in zip_longest(newest_first, newest_first[1:]):
            taken[segment] = span(node, segment)
            for table, path in segments[segment].items():
                paths[table].append(path)
            # Where a clock was set forward, as behind a start, a segment reaches back further than the one before it.
            if taken[segment].first_us <= from_us and (before is None or span(node, before).last_us <= from_us):
                break
        cuts.append(_cut(node, taken))
    return Recent(
        LogFiles.of_files(updates=sorted(paths["updates"]), events=sorted(paths["events"]), directories=directories),
        tuple(cuts),
        time_of(end_us - length_us),
        time_of(end_us + 1),
    )


def recent_names(names: Iterable[str], *, minutes: float) -> frozenset[str]:
    """Return which of these sealed files may be needed for the last minutes, by what their names alone tell.

    Args:
        names: As `recent_files` takes paths, here below the URI of a store.
        minutes: The length of the window.
    """
    found: set[str] = set()
    for segments in _by_node(names).values():
        begun = {segment: _opened_us(next(iter(files.values()))) for segment, files in segments.items()}
        # The newest may be of any time of its hour, and its log as much behind those of others.
        from_us = begun[max(begun)] - round(minutes * 60_000_000) - MARGIN_US - _HOUR_US
        for segment in sorted(segments, reverse=True):
            found.update(segments[segment].values())
            if begun[segment] + _HOUR_US <= from_us:
                break
    return frozenset(found)


def _by_node(paths: Iterable[str]) -> dict[str, dict[_Segment, dict[str, str]]]:
    """Return the files by node, segment and table; of copies one."""
    nodes: dict[str, dict[_Segment, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        process, number = identity(path)
        table, node, epoch = process.split("/")
        nodes[unquote(node.removeprefix("node="))][int(epoch), number].setdefault(table, path)
    return nodes


def _timekeepers(roles: Mapping[str, str], *, reference: str | None) -> list[str]:
    """Return the nodes by whose clocks the window ends."""
    if reference is not None and reference in roles:
        return [reference]
    for role in ("primary", "tap"):
        if found := [node for node in roles if roles[node] == role]:
            return found
    return list(roles)


def _cut(node: str, taken: Mapping[_Segment, _Span]) -> LogCut:
    first = min(taken)
    processes: dict[int, list[_Span]] = defaultdict(list)
    for (epoch, _), span in taken.items():
        processes[epoch].append(span)
    absent = 0
    for epoch, spans in processes.items():
        begin = taken[first].first_pos if epoch == first[0] else 1
        absent += max(span.last_pos for span in spans) - begin + 1 - sum(span.rows for span in spans)
    return LogCut(node, first[0], taken[first].first_pos, taken[first].first_us, absent)


def _span(paths: Iterable[str]) -> _Span:
    found: list[tuple[int, Any, Any]] = []
    for path in paths:
        with _reading(path):
            metadata = pq.read_metadata(path)
            names = metadata.schema.names
            time = names.index("applied" if "applied" in names else "at")
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                # Any: the stubs allow for files without statistics, which nodes do not make.
                pos: Any = group.column(names.index("log_pos")).statistics
                at: Any = group.column(time).statistics
                if group.num_rows:
                    found.append((group.num_rows, pos, at))
    if not found:
        raise ReportError(f"{path} holds no row", hint="Nodes never seal such a file: copy it again, or take it away")
    return _Span(
        rows=sum(rows for rows, _, _ in found),
        first_pos=min(pos.min_raw for _, pos, _ in found),
        last_pos=max(pos.max_raw for _, pos, _ in found),
        first_us=min(at.min_raw for _, _, at in found),
        last_us=max(at.max_raw for _, _, at in found),
    )


def _role(path: str) -> str:
    with _reading(path):
        column = pq.read_table(path, columns=["role"], partitioning=None).column("role")
    return str(column[0].as_py())


def _opened_us(path: str) -> int:
    """Return the begin of the hour in which a segment was opened, as its directories say."""
    date, hour = (part.partition("=")[2] for part in Path(path).parts[-3:-1])
    return round(datetime.strptime(f"{date} {hour}", "%Y-%m-%d %H").replace(tzinfo=UTC).timestamp()) * 1_000_000


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ReportError(
            f"{path} cannot be read: {error}", hint="`fanout log verify` tells whether it is damaged"
        ) from error
