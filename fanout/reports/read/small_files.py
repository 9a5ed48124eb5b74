"""Few large files in the place of the many small ones that nodes seal, for the time of one report.

Spark opens each file several times, which takes longer than reading it when it holds the rows of a minute; Arrow copies
it in a millisecond. Owns which files are worth that. The copies are of the caller's directory, and no row changes.
"""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = ["join_small_files"]

_SMALL_BYTES: Final = 1024 * 1024
_FEW: Final = 100
"""So many small files of a table Spark reads in less time than a copy is worth."""
_ROWS_MAX: Final = 500_000
"""Rows held in memory before they are written, about 100 bytes each."""
_AT_ONCE: Final = 16
"""Files that are read before their rows are counted: at most 50,000 rows each, by their size."""


def join_small_files(files: LogFiles, *, scratch: Path) -> LogFiles:
    """Return the logs with what is in small files of this machine copied into few large ones.

    Args:
        files: The logs.
        scratch: A directory for the copies, which the caller removes after the report.

    Raises:
        ReportError: A file cannot be read, or the copy cannot be written.
    """
    return replace(
        files,
        updates=_joined(files.updates, schema=UPDATES, into=scratch / "updates.parquet"),
        events=_joined(files.events, schema=EVENTS, into=scratch / "events.parquet"),
        counts=files.given,
    )


def _joined(paths: Sequence[str], *, schema: pa.Schema, into: Path) -> tuple[str, ...]:
    small = [path for path in paths if _is_small(path)]
    if len(small) <= _FEW:
        return tuple(paths)
    try:
        with (
            pq.ParquetWriter(into, schema, compression="zstd", write_page_checksum=True) as writer,
            ThreadPoolExecutor(thread_name_prefix="fanout-join") as threads,
        ):
            pending: list[pa.Table] = []
            for first in range(0, len(small), _AT_ONCE):
                pending += threads.map(partial(_read, schema=schema), small[first : first + _AT_ONCE])
                if sum(table.num_rows for table in pending) >= _ROWS_MAX:
                    _write(writer, pending)
                    pending = []
            _write(writer, pending)
    except OSError as error:
        raise ReportError(
            f"{into.parent} cannot be written: {error}", hint="Make room there, or name another place in TMPDIR"
        ) from error
    left = set(small)
    return (*(path for path in paths if path not in left), str(into))


def _is_small(path: str) -> bool:
    try:
        return "://" not in path and 0 < Path(path).stat().st_size <= _SMALL_BYTES
    except OSError:  # gone since it was listed: who reads it tells
        return False


def _read(path: str, *, schema: pa.Schema) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            check_expansion(file.metadata, nbytes=Path(path).stat().st_size)
            return file.read(use_threads=False).cast(schema)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise ReportError(
            f"{path} cannot be read: {error}",
            hint="Make the report again; if `fanout log verify` calls the file damaged, copy it again or take it away",
        ) from error


def _write(writer: pq.ParquetWriter, tables: Sequence[pa.Table]) -> None:
    if tables:
        writer.write_table(pa.concat_tables(tables).unify_dictionaries(), row_group_size=_ROWS_MAX)
