"""Make few large files of the many small ones that nodes seal: `fanout report compact`.

Owns the layout of a compacted directory, and how it changes: files are written under names of a new generation and
forced to the disk, then the manifest names them in the place of those that they supersede. Until then nothing has
changed, and a killed run leaves only files that nothing names, which the next one removes. What was superseded stays
for one run more, since a report may be reading it.

    DIR/updates/date=YYYY-MM-DD/primary=P/node=N/GENERATION.parquet
    DIR/events/date=YYYY-MM-DD/node=N/GENERATION.parquet
    DIR/compacted.json

The date is the one under which the node sealed its rows, the primary the one that stamped them. All columns are in the
files; the directories are for readers that leave some out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.errors import ReportError
from fanout.replog.files.schema import EVENTS, UPDATES
from fanout.reports.read.compacted import TABLES, Compacted, read_compacted, without_compacted
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.sealed_files import sync_directory

__all__ = ["CompactionResult", "compact"]

_SCHEMAS: Final = {"updates": UPDATES, "events": EVENTS}
_UNSTAMPED: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Spark and others call the directory of rows without a value."""
_OTHERS: Final = "__OTHERS__"
"""What the directory of all primaries beyond `_PRIMARIES_MAX` is called; no node can have this name."""
_PRIMARIES_MAX: Final = 200
"""Primaries of one place that get a file of their own, since all are open at a time: publishers may stamp too."""
_ROW_GROUP_ROWS: Final = 1_000_000
_PENDING_ROWS_MAX: Final = 2_000_000
"""Rows held in memory before they are written, over all files that are being made; about 100 bytes each."""
_READ_ROWS: Final = 131_072


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a run did."""

    sealed_files: int
    """Sealed files that it took in."""
    files: int
    """Files that the directory has now."""


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """What is compacted together: a table's rows of one node and date."""

    table: str
    date: str
    """The name of its directory, `date=...`."""
    node: str
    """The name of its directory, `node=...`."""


def compact(logs: Sequence[Path | str], *, into: Path, tell: Callable[[str], None] | None = None) -> CompactionResult:
    """Take the sealed files of log directories into a compacted directory, those that are not in it yet.

    Running it again changes nothing; what it is given is only read.

    Args:
        logs: Local log directories.
        into: The compacted directory; made when it is not there.
        tell: Is told what is being worked on; None tells nobody.

    Raises:
        ReportError: A directory is not that of a log, a file cannot be read or written, or another process compacts
            into the directory.
    """
    for directory in logs:
        if "://" in str(directory) or read_compacted(directory) is not None:
            raise ReportError(
                f"{directory} is no local log directory",
                hint="Give what nodes write to: log.directory, or an s3:// or gs:// URI",
            )
    if into.exists() and not into.is_dir():
        raise ReportError(f"{into} is not a directory", hint="Give a directory for the large files, or a new place")
    listed = LogFiles.in_directories(logs)
    try:
        with _locked(into):
            known = read_compacted(into) or Compacted(into)
            new = _by_place([*listed.updates, *listed.events], known=known)
            superseded: list[str] = []
            for place, sealed in sorted(new.items()):
                if tell is not None:
                    tell(f"{place.table} {place.date} {place.node}")
                former = [file for file in known.files[place.table] if _is_of(file, place)]
                former.sort(key=lambda file: (f"primary={_OTHERS}" in file, file))  # who has a file keeps it
                made = _rewrite([*(str(into / file) for file in former), *sealed], place=place, known=known)
                known.files[place.table] = sorted({*known.files[place.table], *made} - {*former})
                superseded += former
                for path in sealed:
                    known.seen.add(path)
            if new:
                known.generation += 1
                known.superseded = superseded
                known.write()
            _sweep(known)
    except (OSError, pa.ArrowException) as error:
        raise ReportError(
            f"the logs cannot be compacted into {into}: {error}",
            hint="What counted there before counts on; check the disk and the permissions, and run it again",
        ) from error
    return CompactionResult(sum(map(len, new.values())), sum(map(len, known.files.values())))


@contextlib.contextmanager
def _locked(into: Path) -> Iterator[None]:
    into.mkdir(parents=True, exist_ok=True)
    with (into / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ReportError(f"another process compacts into {into}", hint="Wait for its end") from error
        yield


def _by_place(paths: Sequence[str], *, known: Compacted) -> dict[_Place, list[str]]:
    """Return the sealed files that are not compacted yet, each once, in the order in which they were written."""
    found: dict[_Place, dict[tuple[int, int], str]] = defaultdict(dict)
    for path in without_compacted(paths, [known]):
        table, node, date = Path(path).parts[-5:-2]
        epoch, _, number = Path(path).stem.partition("-")
        found[_Place(table, date, node)].setdefault((int(epoch), int(number)), path)
    return {place: [path for _, path in sorted(files.items())] for place, files in found.items()}


def _is_of(file: str, place: _Place) -> bool:
    table, date, *_, node, _ = Path(file).parts
    return (table, date, node) == (place.table, place.date, place.node)


def _rewrite(paths: Sequence[str], *, place: _Place, known: Compacted) -> list[str]:
    """Write the rows of files into one file of each primary; return their names relative to the directory."""
    schema = _SCHEMAS[place.table]
    pending_rows = 0
    with contextlib.ExitStack() as stack:
        outputs: dict[str | None, _Output] = {}
        for path in paths:
            for batch in _batches(path):
                for stamped_by, rows in _by_primary(pa.Table.from_batches([batch]).cast(schema)):
                    known_or_few = stamped_by in outputs or len(outputs) < _PRIMARIES_MAX
                    primary = stamped_by if known_or_few else _OTHERS
                    if primary not in outputs:
                        target = known.directory / _name(place, primary, generation=known.generation + 1)
                        outputs[primary] = stack.enter_context(_Output(target, schema))
                    outputs[primary].add(rows)
                pending_rows += batch.num_rows
                if pending_rows >= _PENDING_ROWS_MAX:
                    pending_rows = 0
                    for output in outputs.values():
                        output.flush()
        for output in outputs.values():
            output.finish()
    return [str(output.path.relative_to(known.directory)) for output in outputs.values()]


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    """Return the rows of a file in pieces; of what is wrong with it the name is told."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield from file.iter_batches(_READ_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise ReportError(
            f"{path} cannot be read: {error}",
            hint="Run it again; if `fanout log verify` calls the file damaged, copy it again or take it away",
        ) from error


def _by_primary(rows: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    if "stamp_primary" not in rows.schema.names:
        yield None, rows
        return
    primaries = rows["stamp_primary"].cast(pa.string())
    for primary in pc.unique(primaries).to_pylist():
        mask = pc.is_null(primaries) if primary is None else pc.equal(primaries, pa.scalar(primary))
        yield primary, rows.filter(mask)


def _name(place: _Place, primary: str | None, *, generation: int) -> str:
    stamped_by = _UNSTAMPED if primary is None else quote(primary, safe="")
    parts = [place.date, f"primary={stamped_by}", place.node] if place.table == "updates" else [place.date, place.node]
    return "/".join([place.table, *parts, f"{generation:06}.parquet"])


class _Output:
    """A file that is being made; what an error leaves of it is named by nobody."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._pending: list[pa.Table] = []
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(OSError):
                self._writer.close()

    def add(self, rows: pa.Table) -> None:
        """Add rows; they are in memory until the next `flush`."""
        self._pending.append(rows)

    def flush(self) -> None:
        """Write what was added."""
        if self._pending:
            rows = pa.concat_tables(self._pending).unify_dictionaries()
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
            self._pending = []

    def finish(self) -> None:
        """Write all, and put it on the disk, with the directories that may be new."""
        self.flush()
        self._writer.close()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        for directory in list(self.path.parents)[:5]:  # up to the compacted directory
            sync_directory(directory)


def _sweep(known: Compacted) -> None:
    """Remove the files that neither count nor counted before the last run, and directories that are then empty."""
    keep = {*known.superseded, *(file for table in TABLES for file in known.files[table])}
    for table in TABLES:
        for path in list((known.directory / table).rglob("*.parquet")):  # listed before directories go
            if str(path.relative_to(known.directory)) not in keep:
                path.unlink()
                for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
                    with contextlib.suppress(OSError):  # there is something in it
                        directory.rmdir()
