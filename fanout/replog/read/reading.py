"""Reading of logs that may still be written: everything durable, each row once.

Sealed files are used as they are. Whole frames of open segments are converted into a directory of the caller. Nothing
is locked and nothing in the log changes, so nodes go on writing and sealing.

Why no row is missed or read twice: a segment disappears only by being sealed, and its sealed files exist before it is
removed. So segments are opened first (an open file outlives its name) and sealed files are listed after that; what was
sealed in between is in both, and one of the two is used. A directory listing is no snapshot: it may show a file and not
an older one that was made during the listing. So everything is listed twice, and only files that are not newer than the
newest of the first listing are used; all older files existed before the second listing began.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.errors import LogError
from fanout.replog.files.columns import EventRow, RowEncoder
from fanout.replog.files.log_directories import is_log
from fanout.replog.files.sealing import TABLES, convert, last_row, node_of, sealed_path, table_directory
from fanout.replog.files.segments import SegmentIdentity, SegmentReader
from fanout.replog.runs import Run, read_runs
from fanout.replog.shipping.archive import read_removed
from fanout.replog.write.write_queue import Loss
from fanout.runtime.regular_files import open_regular, require_regular

__all__ = ["LogPart", "PartName", "StagedLog", "log_parts", "parts_of_logs", "stage"]

_NAME = re.compile(r"(\d+)-(\d+)(?:-[0-9a-f]{16})?")  # a segment's may have the token of its marks


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """Node, epoch and number in the paths of a segment and of its sealed files."""

    node: str
    """The name of its directory, `node=...`."""
    node_epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class LogPart:
    """A segment, its sealed files, or both while it is being sealed."""

    sealed: dict[str, Path] = field(default_factory=dict)
    """The sealed file of each table; complete when there is no segment."""
    segment: BinaryIO | None = None
    """The segment, opened."""


@dataclass(frozen=True, slots=True)
class StagedLog:
    """The Parquet files that hold everything durable, each row once."""

    updates: tuple[Path, ...]
    """Files of the table `updates`, by node, epoch and number."""
    events: tuple[Path, ...]
    """Files of the table `events`; for each run whose end is lost, one with a `gap` event that says so."""
    open_segments: int
    """Segments that were converted."""
    torn_bytes: int
    """Bytes after their last whole frame: a frame that is being written, or the end of a crashed run."""


def stage(directories: Sequence[Path], *, target: Path) -> StagedLog:
    """List the Parquet files of logs, with what is not sealed yet converted to Parquet.

    Args:
        directories: Directories of logs, each of one or several nodes. A segment that is in several is read
            once.
        target: An empty directory for the converted files; the caller removes it when the lists are of no use
            any more.

    Raises:
        LogError: A directory is not that of a log, or a file cannot be read or written.
    """
    files: dict[str, dict[PartName, Path]] = {table: {} for table in TABLES}
    runs: dict[tuple[Path, int], Run] = {}  # read before the files are listed, whose number only grows
    open_segments = torn_bytes = 0
    try:
        for directory in directories:
            known = {place: read_runs(place) or {} for place in (directory / "open").glob("node=*")}
            runs |= {(place, epoch): run for place, of_node in known.items() for epoch, run in of_node.items()}
        with parts_of_logs(directories) as parts:
            for name, part in parts.items():
                for table, path in part.sealed.items():
                    with contextlib.suppress(FileNotFoundError):  # removed since it was listed; who reads it tells
                        require_regular(path)
                    files[table][name] = path
                if part.segment is None:
                    continue
                reader = SegmentReader(part.segment)
                unsealed = TABLES.keys() - part.sealed.keys()
                for table, path in convert(reader, directory=target, tables=unsealed, durable=False).items():
                    files[table][name] = path
                open_segments += 1
                torn_bytes += reader.torn_bytes
            for (place, epoch), run in runs.items():
                if read_removed(place).get(epoch, 0) < run.segments:
                    _tell_lost_end(PartName(place.name, epoch, run.segments + 1), run, files=files, target=target)
    except OSError as error:
        raise LogError(f"a log cannot be read: {error}", hint="Check the disk and the permissions") from error
    updates, events = (tuple(path for _, path in sorted(files[table].items())) for table in ("updates", "events"))
    return StagedLog(updates, events, open_segments, torn_bytes)


def _tell_lost_end(name: PartName, run: Run, *, files: dict[str, dict[PartName, Path]], target: Path) -> None:
    """Add a gap event if a run had later rows than there are.

    Rows lost in the middle show as missing positions; a lost end is known from the record of the runs only. The event
    has the last of the lost positions.

    Args:
        name: Name of a part of the run, with a number that no segment with rows has.
        run: The record of the run.
        files: The files of each table; one is added.
        target: Directory of the new file.
    """
    newest = []
    for table in TABLES:
        of_run = [one for one in files[table] if (one.node, one.node_epoch) == (name.node, name.node_epoch)]
        newest += [files[table][max(of_run)]] if of_run else []
    try:
        found = last_row(newest)
    except pa.ArrowException:  # the reader of the file reports it
        return
    last_log_pos, last_ns = found or (0, name.node_epoch * 1000)
    if last_log_pos >= run.last_log_pos:
        return
    node = node_of(name.node)
    loss = Loss(
        "missing",
        link="",
        link_epoch=name.node_epoch,
        node_epoch=name.node_epoch,
        rows=run.last_log_pos - last_log_pos,
        first_log_pos=last_log_pos + 1,
        last_log_pos=run.last_log_pos,
        first_ns=last_ns,
        last_ns=max(last_ns, run.noted_us * 1000),
    )
    event = EventRow("", name.node_epoch, "gap", loss.last_ns or 0, detail=loss.detail(), log_pos=run.last_log_pos)
    rows = RowEncoder(node=node, role=run.role, node_epoch=name.node_epoch).events([event])
    identity = SegmentIdentity(node, run.role, name.node_epoch, name.number, run.noted_us)
    path = sealed_path(target, "events", identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_batches([rows]), path)
    files["events"][name] = path


@contextlib.contextmanager
def parts_of_logs(directories: Sequence[Path]) -> Iterator[dict[PartName, LogPart]]:
    """Yield the parts of several logs as `log_parts` does; a part that is in several logs comes once.

    Raises:
        LogError: A directory is not that of a log.
        OSError: One, or a segment in it, cannot be read.
    """
    parts: dict[PartName, LogPart] = {}
    with contextlib.ExitStack() as stack:
        for directory in directories:
            for name, part in stack.enter_context(log_parts(directory)).items():
                if name not in parts or part.segment is None:  # a sealed part is complete
                    parts[name] = part
        yield dict(sorted(parts.items()))


@contextlib.contextmanager
def log_parts(directory: Path) -> Iterator[dict[PartName, LogPart]]:
    """Yield the parts of a log; their segments are open inside the context.

    Raises:
        LogError: The directory is not that of a log.
        OSError: It, or a segment in it, cannot be read.
    """
    if not is_log(directory):
        raise LogError(
            f"{directory} is not the directory of a replication log",
            hint="Give the value of log.directory of a node",
        )
    newest: dict[tuple[str, int], int] = {}
    for name, _ in [
        *_segments(directory),
        *(found for table in TABLES for found in _sealed(directory, table)),
    ]:
        newest[name.node, name.node_epoch] = max(newest.get((name.node, name.node_epoch), 0), name.number)
    parts: dict[PartName, LogPart] = {}
    with contextlib.ExitStack() as stack:
        for name, path in _segments(directory):
            if name.number <= newest.get((name.node, name.node_epoch), 0):
                with contextlib.suppress(FileNotFoundError):  # sealed since it was listed
                    parts[name] = LogPart(segment=stack.enter_context(open_regular(path)))
        for table in TABLES:
            for name, path in _sealed(directory, table):
                if name.number <= newest.get((name.node, name.node_epoch), 0):
                    parts.setdefault(name, LogPart()).sealed[table] = path
        yield dict(sorted(parts.items()))


def _segments(directory: Path) -> Iterator[tuple[PartName, Path]]:
    for path in _entries(directory / "open", depth=2):
        if path.suffix == ".seg" and (match := _NAME.fullmatch(path.stem)):
            yield PartName(path.parts[-2], int(match[1]), int(match[2])), path


def _sealed(directory: Path, table: str) -> Iterator[tuple[PartName, Path]]:
    for path in _entries(table_directory(directory, table), depth=4):
        if path.suffix == ".parquet" and (match := _NAME.fullmatch(path.stem)):
            yield PartName(path.parts[-4], int(match[1]), int(match[2])), path


def _entries(root: Path, *, depth: int) -> Iterator[Path]:
    """Yield the entries `depth` levels below a directory.

    Unlike a glob, it raises for a directory that may not be read.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # gone since it was listed, or never there
            raise error

    for place, directories, names in os.walk(root, onerror=failed, followlinks=True):
        if len(Path(place).parts) == len(root.parts) + depth - 1:
            yield from (Path(place, name) for name in (*directories, *names))
            directories.clear()
