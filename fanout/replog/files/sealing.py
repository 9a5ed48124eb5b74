"""Sealing: turns a closed segment into Parquet files, which reports read.

Owns the layout of the sealed log, and the steps by which a file appears whole or not at all: it is written under a name
that begins with a dot, synced, renamed, the directory is synced, and only then is the segment removed. All names follow
from the segment's first frame, so sealing again after a crash between any two steps overwrites the same files with the
same rows.

    DIRECTORY/v1/updates/node=N/date=YYYY-MM-DD/hour=HH/EPOCH-NUMBER.parquet
    DIRECTORY/v1/events/node=N/date=YYYY-MM-DD/hour=HH/EPOCH-NUMBER.parquet
    DIRECTORY/open/node=N/EPOCH-NUMBER-TOKEN.seg
    DIRECTORY/open/node=N/EPOCH-NUMBER.damaged
    DIRECTORY/open/node=N/lock
    DIRECTORY/open/node=N/runs.json

A `.damaged` file keeps the bytes of a segment that were no frame: for each place a line of JSON, then the bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.replog.files.schema import EVENTS, SCHEMA_VERSION, UPDATES
from fanout.replog.files.segments import Damage, SegmentIdentity, SegmentReader, make_directory
from fanout.runtime.directories import sync_directory
from fanout.runtime.regular_files import open_regular, require_regular

__all__ = [
    "TABLES",
    "Sealed",
    "convert",
    "footer_statistics",
    "last_row",
    "last_sealed",
    "node_of",
    "open_directory",
    "read_aside",
    "seal",
    "sealed_files",
    "sealed_path",
    "table_directory",
]

TABLES = {"updates": UPDATES, "events": EVENTS}

_TIMES = {"updates": "applied", "events": "at"}

_ROW_GROUP_ROWS = 262_144
"""Rows in a row group; as many are in memory while sealing, at about 100 bytes each."""

_ASIDE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Damaged bytes of a segment that are kept, at most."""

_DELTA_COLUMNS = ("log_pos", "sequence", "origin", "applied", "at")


@dataclass(frozen=True, slots=True)
class Sealed:
    """Result of sealing a segment."""

    identity: SegmentIdentity | None
    """None when the first frame cannot be read; the file is then kept under another name unless it is
    empty."""
    update_rows: int
    event_rows: int
    last_log_pos: int
    torn_bytes: int
    """Bytes of an incomplete last frame; they are lost."""
    damage: tuple[Damage, ...]
    """Other bytes that are no whole frames; they are kept aside."""
    finished: bool
    """True if the segment was closed in good order."""
    files: tuple[Path, ...]


def open_directory(directory: Path, node: str) -> Path:
    """Return the directory of a node's segments."""
    return directory / "open" / f"node={quote(node, safe='')}"


def table_directory(directory: Path, table: str) -> Path:
    """Return the directory of a table's sealed files."""
    return directory / f"v{SCHEMA_VERSION}" / table


def sealed_path(directory: Path, table: str, identity: SegmentIdentity) -> Path:
    """Return the sealed file of one table of a segment."""
    # Spark decodes the percent encoding of a partition's value.
    node = f"node={quote(identity.node, safe='')}"
    return table_directory(directory, table) / node / identity.hour / f"{identity.name}.parquet"


def node_of(name: str) -> str:
    """Return the node of a directory named `node=...`."""
    return unquote(name.removeprefix("node="))


def last_row(files: Iterable[Path]) -> tuple[int, int] | None:
    """Return the highest position in sealed files and the newest time, Unix time in nanoseconds; None without rows.

    Raises:
        OSError: A file cannot be read.
        pyarrow.ArrowException: A file is damaged.
    """
    positions: list[int] = []
    times_us: list[int] = []
    for path in files:
        for _, pos, at in footer_statistics(path):
            positions.append(pos.max_raw)
            times_us.append(at.max_raw)
    return (max(positions), max(times_us) * 1000) if positions else None


def footer_statistics(path: Path) -> Iterator[tuple[int, Any, Any]]:
    """Yield, for each row group of a sealed file, its rows and the statistics of their positions and times.

    Raises:
        OSError: The file cannot be read, or is no regular file.
        pyarrow.ArrowException: It is damaged, or not a file that a node wrote.
    """
    require_regular(path)
    metadata = pq.read_metadata(path)
    names = metadata.schema.names
    table = next((table for table, time in _TIMES.items() if time in names), None)
    if table is None or "log_pos" not in names:
        raise pa.ArrowInvalid(f"{path} has not the columns of a log")
    schema = metadata.schema.to_arrow_schema()
    for name in ("log_pos", _TIMES[table]):
        if schema.field(name).type != TABLES[table].field(name).type:
            raise pa.ArrowInvalid(f"column {name!r} of {path} has another type than in a log")
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        pos, at = (group.column(names.index(name)).statistics for name in ("log_pos", _TIMES[table]))
        if pos is None or at is None or not (pos.has_min_max and at.has_min_max):
            raise pa.ArrowInvalid(f"the footer of {path} does not say which positions and times it has")
        yield group.num_rows, pos, at


def sealed_files(directory: Path, *, node: str, node_epoch: int | None = None) -> Iterator[Path]:
    """Yield a node's sealed files of both tables, of one run or of all."""
    run = "*" if node_epoch is None else node_epoch
    for table in TABLES:
        place = table_directory(directory, table) / f"node={quote(node, safe='')}"
        yield from place.glob(f"date=*/hour=*/{run}-*.parquet")


def last_sealed(directory: Path, *, node: str, node_epoch: int) -> tuple[int, int] | None:
    """Return the `last_row` of the newest sealed files of a run; None when it has none that can be read."""
    found: dict[int, list[Path]] = {}
    for path in sealed_files(directory, node=node, node_epoch=node_epoch):
        found.setdefault(int(path.stem.partition("-")[2]), []).append(path)
    try:
        return last_row(found[max(found)]) if found else None
    except (OSError, pa.ArrowException):
        return None


def seal(segment: Path, *, directory: Path) -> Sealed:
    """Turn a segment into Parquet files in `directory`, durably, and remove it.

    Raises:
        OSError: A file cannot be read or written; the segment is still there and sealing may be tried again.
    """
    with segment.open("rb") as stream:
        reader = SegmentReader(stream)
        files = convert(reader, directory=directory, durable=True)
    if reader.identity is None and reader.total_bytes:
        segment.rename(segment.with_suffix(".unreadable"))
    else:
        if reader.damage:
            _keep_aside(segment, reader)
        segment.unlink()
    return Sealed(
        identity=reader.identity,
        update_rows=reader.update_rows,
        event_rows=reader.event_rows,
        last_log_pos=reader.last_log_pos,
        torn_bytes=reader.torn_bytes,
        damage=tuple(reader.damage),
        finished=reader.finished,
        files=tuple(files.values()),
    )


def read_aside(path: Path) -> list[Damage]:
    """Return the damage that a `.damaged` file records.

    Raises:
        OSError: It cannot be read.
        ValueError: It is itself damaged.
    """
    found: list[Damage] = []
    with open_regular(path) as file:
        while line := file.readline(4096):
            told = json.loads(line)
            kept_bytes = told.pop("kept_bytes")
            try:
                found.append(Damage(**told))
            except TypeError as error:
                raise ValueError(str(error)) from error
            file.seek(kept_bytes, os.SEEK_CUR)
    return found


def _keep_aside(segment: Path, reader: SegmentReader) -> None:
    """Write the damaged bytes of a segment, up to a bound, beside it."""
    assert reader.identity is not None
    path = segment.with_name(f"{reader.identity.name}.damaged")
    unfinished = path.with_name(f".{path.name}.unfinished")
    room = _ASIDE_BYTES_MAX
    with segment.open("rb") as source, unfinished.open("wb") as aside:
        for one in reader.damage:
            source.seek(one.offset)
            data = source.read(min(one.size, room))
            room -= len(data)
            aside.write(json.dumps(asdict(one) | {"kept_bytes": len(data)}).encode() + b"\n" + data)
        aside.flush()
        os.fsync(aside.fileno())
    unfinished.rename(path)
    sync_directory(path.parent)


def convert(
    reader: SegmentReader, *, directory: Path, durable: bool, tables: Collection[str] = tuple(TABLES)
) -> dict[str, Path]:
    """Write the whole frames of a segment as Parquet files at their places under `directory`.

    Args:
        reader: The segment, not yet iterated over.
        directory: The log's directory, or another for the same layout.
        durable: True to wait until the files are on the disk.
        tables: The tables to convert.

    Returns:
        The file of each table that has rows.

    Raises:
        OSError: A file cannot be read or written; no unfinished file is left.
    """
    files: dict[str, _ParquetFile] = {}
    with contextlib.ExitStack() as stack:
        for frame in reader:
            assert reader.identity is not None  # the reader yields no rows before it
            for table, stream in (("updates", frame.updates), ("events", frame.events)):
                if not stream or table not in tables:
                    continue
                if table not in files:
                    path = sealed_path(directory, table, reader.identity)
                    files[table] = stack.enter_context(_ParquetFile(path, TABLES[table], durable=durable))
                files[table].write(pa.ipc.open_stream(stream).read_all())
        for file in files.values():
            file.publish()
    return {table: file.path for table, file in files.items()}


class _ParquetFile:
    """A Parquet file that appears at its path whole, or not at all."""

    def __init__(self, path: Path, schema: pa.Schema, *, durable: bool) -> None:
        self.path = path
        self._durable = durable
        self._unfinished = path.with_name(f".{path.name}.unfinished")
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        make_directory(path.parent, durable=durable)
        delta = {name: "DELTA_BINARY_PACKED" for name in _DELTA_COLUMNS if name in schema.names}
        # A digest is as good as random: a dictionary of it only costs.
        dictionary = [name for name in schema.names if name not in delta and name != "digest"]
        self._writer = pq.ParquetWriter(
            self._unfinished,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=dictionary,  # type: ignore[arg-type]  # the stubs do not know a list
            column_encoding=delta,
            write_page_checksum=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._unfinished.unlink(missing_ok=True)

    def write(self, rows: pa.Table) -> None:
        """Add rows; they are buffered into row groups."""
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        if self._pending_rows >= _ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        # Frames bring their own dictionaries; a row group has one.
        rows = pa.concat_tables(self._pending).unify_dictionaries()
        self._writer.write_table(rows, row_group_size=self._pending_rows)
        self._pending = []
        self._pending_rows = 0

    def publish(self) -> None:
        """Write the buffered rows and give the file its name."""
        if self._pending:
            self._flush()
        self._writer.close()
        if self._durable:
            with self._unfinished.open("rb") as file:
                os.fsync(file.fileno())
        self._unfinished.rename(self.path)
        if self._durable:
            sync_directory(self.path.parent)
