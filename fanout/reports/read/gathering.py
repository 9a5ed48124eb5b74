"""The files of a table gathered into one, for the time of one report.

A node seals a file each minute. Spark opens each file several times, which takes longer than reading it when it holds
few rows. Sail checks no page against its checksum, and does not name a damaged file: Arrow does, while it copies. The
copies are of the caller's directory, and no row changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.errors import ReportError
from fanout.replog.files.schema import EVENTS, UPDATES, check_expansion
from fanout.reports.read.log_files import LogFiles

__all__ = ["gather_files"]

_SMALL_BYTES: Final = 1024 * 1024
_FEW: Final = 100
"""So many small files of a table Spark reads in less time than a copy is worth."""
_ROWS_MAX: Final = 500_000
"""Rows held in memory before they are written, about 100 bytes each."""
_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Size of the files that are read before their rows are counted."""


def gather_files(files: LogFiles, *, scratch: Path, every: bool) -> LogFiles:
    """Return the logs with files of this machine copied into one for each table.

    Args:
        files: The logs.
        scratch: A directory for the copies, which the caller removes after the report.
        every: True for every file; False for small ones, and only if there are many.

    Raises:
        ReportError: A file cannot be read, or the copy cannot be written.
    """
    return replace(
        files,
        updates=_gathered(files.updates, schema=UPDATES, into=scratch / "updates.parquet", every=every),
        events=_gathered(files.events, schema=EVENTS, into=scratch / "events.parquet", every=every),
        counts=files.given,
    )


def _gathered(paths: Sequence[str], *, schema: pa.Schema, into: Path, every: bool) -> tuple[str, ...]:
    chosen = [path for path in paths if every or _is_small(path)]
    if not chosen or not (every or len(chosen) > _FEW):
        return tuple(paths)
    plain = pa.schema([field.with_type(getattr(field.type, "value_type", field.type)) for field in schema])
    try:
        with (
            pq.ParquetWriter(into, plain, store_schema=False, compression="zstd", write_page_checksum=True) as writer,
            ThreadPoolExecutor(thread_name_prefix="fanout-gather") as threads,
        ):
            pending: list[pa.Table] = []
            for some in _in_portions(chosen):
                pending += threads.map(partial(_read, schema=plain), some)
                if sum(table.num_rows for table in pending) >= _ROWS_MAX:
                    _write(writer, pending)
                    pending = []
            _write(writer, pending)
    except OSError as error:
        raise ReportError(
            f"{into.parent} cannot be written: {error}", hint="Make room there, or name another place in TMPDIR"
        ) from error
    left = set(chosen)
    return (*(path for path in paths if path not in left), str(into))


def _is_small(path: str) -> bool:
    try:
        return "://" not in path and 0 < Path(path).stat().st_size <= _SMALL_BYTES
    except OSError:  # gone since it was listed: who reads it tells
        return False


def _in_portions(paths: Sequence[str]) -> Iterator[list[str]]:
    """Give the paths in order, so many at a time that what they hold fits into memory."""
    portion: list[str] = []
    nbytes = 0
    for path in paths:
        portion.append(path)
        nbytes += Path(path).stat().st_size if Path(path).is_file() else 0
        if nbytes >= _AT_ONCE_BYTES:
            yield portion
            portion, nbytes = [], 0
    yield portion


def _read(path: str, *, schema: pa.Schema) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            check_expansion(file.metadata, nbytes=Path(path).stat().st_size)
            return file.read(use_threads=False).cast(schema)
    except FileNotFoundError as error:
        raise ReportError(
            f"{path} was removed while the report was made, as retention does with old files",
            hint="Make it again; of files that are about to go, make it from a copy",
        ) from error
    except (OSError, pa.ArrowException, ValueError) as error:
        raise ReportError(
            f"{path} cannot be read: {error}",
            hint="Make the report again; if `fanout log verify` calls the file damaged, copy it again or take it away",
        ) from error


def _write(writer: pq.ParquetWriter, tables: Sequence[pa.Table]) -> None:
    if tables:
        writer.write_table(pa.concat_tables(tables), row_group_size=_ROWS_MAX)
