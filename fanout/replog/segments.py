"""Segments: the append-only files that hold the replication log until it is sealed into Parquet.

Owns the format, how a segment is appended to, and how its whole frames are read back. Knows nothing of
Parquet, queues or threads.

A segment is a sequence of frames. Each is a header, then one or two Arrow IPC streams (lz4), and its CRC
covers the header too (a flipped row count is as bad as a flipped row). The first frame, OPENED, names the
node and the moment, so that everything derived from a segment is derived from its content. A ROWS frame holds
all rows of both tables between two log positions. FINISHED says that the segment was closed in good order, and how many
rows it has between which positions.
Recovery is the exact prefix of whole frames: reading stops at the first one that is short, does not fit its
CRC, or goes back in the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Self

import pyarrow as pa

from fanout.replog.schema import EVENTS, SCHEMA_VERSION, UPDATES

__all__ = [
    "Frame",
    "FrameKind",
    "SegmentFile",
    "SegmentIdentity",
    "SegmentReader",
    "encode_rows",
    "make_directory",
    "sync_directory",
]

_MAGIC = b"fLog"
_HEADER = struct.Struct("<4sBxxxIIIIqqI")
"""Magic, kind, bytes of updates, bytes of events, rows of updates, rows of events, first and last log_pos,
CRC."""

_FIRST_LOG_POS = 6
"""Its place in the header."""

_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync

_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class FrameKind(IntEnum):
    """What a frame holds."""

    OPENED = 1
    """The segment's identity as JSON; the first frame."""
    ROWS = 2
    """Rows of both tables."""
    FINISHED = 3
    """No rows; the last frame of a segment that was closed in good order, with the counts and positions of all."""


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """What a segment is; everything derived from it (names, directories) depends on nothing else."""

    node: str
    role: str
    node_epoch: int
    number: int
    """Position among the segments of this node epoch, from 1."""
    opened_us: int
    """Unix time in microseconds by the node's clock."""
    schema_version: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        """The file name without a suffix."""
        return f"{self.node_epoch}-{self.number:06d}"

    @property
    def hour(self) -> str:
        """The hour in UTC in which it was opened, as the directories of the sealed log name it."""
        return f"{datetime.fromtimestamp(self.opened_us // 1_000_000, UTC):date=%Y-%m-%d/hour=%H}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame of rows, as it was read."""

    updates: bytes
    """An Arrow IPC stream; empty for no rows."""
    events: bytes
    update_rows: int
    event_rows: int
    first_log_pos: int
    last_log_pos: int


def encode_rows(
    updates: Sequence[pa.RecordBatch],
    events: Sequence[pa.RecordBatch],
    *,
    first_log_pos: int,
    last_log_pos: int,
) -> bytes:
    """Return a frame of rows.

    Args:
        updates: Record batches of `schema.UPDATES`.
        events: Record batches of `schema.EVENTS`.
        first_log_pos: Lowest position of any row.
        last_log_pos: Highest position of any row.
    """
    return _encode(
        FrameKind.ROWS,
        _stream(updates, UPDATES),
        _stream(events, EVENTS),
        update_rows=sum(batch.num_rows for batch in updates),
        event_rows=sum(batch.num_rows for batch in events),
        first_log_pos=first_log_pos,
        last_log_pos=last_log_pos,
    )


def _stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> memoryview:
    """Return an Arrow IPC stream with its own schema and dictionaries: each frame can be read alone."""
    if not batches:
        return memoryview(b"")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_IPC_OPTIONS) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _encode(
    kind: FrameKind,
    updates: bytes | memoryview,
    events: bytes | memoryview = b"",
    *,
    update_rows: int = 0,
    event_rows: int = 0,
    first_log_pos: int = 0,
    last_log_pos: int = 0,
) -> bytes:
    fields = (kind, len(updates), len(events), update_rows, event_rows, first_log_pos, last_log_pos)
    header = _HEADER.pack(_MAGIC, *fields, 0)[:-4]
    crc = zlib.crc32(events, zlib.crc32(updates, zlib.crc32(header)))
    return b"".join((header, crc.to_bytes(4, "little"), updates, events))


class SegmentFile:
    """A segment that is being appended to.

    Every method that writes may raise OSError; `size` then still tells where the last whole frame ends.
    """

    def __init__(self, path: Path, identity: SegmentIdentity, descriptor: int) -> None:
        self.path = path
        self.identity = identity
        self.size = 0
        """Bytes of whole frames."""
        self.update_rows = 0
        self.event_rows = 0
        self.first_log_pos = 0
        """Lowest position of the rows in it; 0 for none."""
        self.last_log_pos = 0
        """Highest position of the rows in it; 0 for none."""
        self.damaged = False
        """Bytes of a broken frame could not be removed, or a sync failed: nothing more may be appended."""
        self._descriptor = descriptor

    @classmethod
    def create(cls, directory: Path, identity: SegmentIdentity) -> Self:
        """Make the file and write its first frame.

        Raises:
            FileExistsError: There is a segment of this name.
            OSError: The file cannot be made or written.
        """
        path = directory / f"{identity.name}.seg"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        segment = cls(path, identity, descriptor)
        try:
            segment._append(_encode(FrameKind.OPENED, json.dumps(asdict(identity)).encode()))
            sync_directory(directory)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return segment

    def append(self, frame: bytes, *, update_rows: int, event_rows: int, last_log_pos: int) -> None:
        """Append a frame of `encode_rows`; when that fails take away what was written of it."""
        self._append(frame)
        self.first_log_pos = self.first_log_pos or _HEADER.unpack_from(frame)[_FIRST_LOG_POS]
        self.update_rows += update_rows
        self.event_rows += event_rows
        self.last_log_pos = last_log_pos

    def _append(self, frame: bytes) -> None:
        # A frame behind a torn one would never be read again, so a failure must leave no part of it.
        view = memoryview(frame)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            try:
                os.ftruncate(self._descriptor, self.size)
            except OSError:
                self.damaged = True
            raise
        self.size += len(frame)

    def sync(self) -> None:
        """Put what was appended on the disk."""
        try:
            _sync_data(self._descriptor)
        except OSError:
            # The kernel reports a failed write-back once and may have dropped the pages: a later success says
            # nothing.
            self.damaged = True
            raise

    def close(self) -> None:
        """Close the file, with the frame that says so when nothing went wrong."""
        try:
            if not self.damaged:
                finished = _encode(
                    FrameKind.FINISHED,
                    b"",
                    update_rows=self.update_rows,
                    event_rows=self.event_rows,
                    first_log_pos=self.first_log_pos,
                    last_log_pos=self.last_log_pos,
                )
                self._append(finished)
                self.sync()
        finally:
            os.close(self._descriptor)


class SegmentReader:
    """The whole frames of a segment, from the first on; iterate over it once.

    Reads up to the length that the file had when it was opened, one frame at a time, so that a segment that
    is still written can be read. After the iteration the attributes tell what was found.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.identity: SegmentIdentity | None = None
        """None when not even the first frame is whole; then there are no others."""
        self.finished = False
        """Whether the segment was closed in good order."""
        self.update_rows = 0
        self.event_rows = 0
        self.first_log_pos = 0
        self.last_log_pos = 0
        """0 when there are no rows."""
        self.good_bytes = 0
        """Bytes of whole frames."""
        self.total_bytes = os.fstat(stream.fileno()).st_size
        self._stream = stream

    @property
    def torn_bytes(self) -> int:
        """Bytes behind the last whole frame."""
        return self.total_bytes - self.good_bytes

    def __iter__(self) -> Iterator[Frame]:
        while not self.finished:
            header = self._stream.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            magic, kind, updates_bytes, events_bytes, *numbers, crc = _HEADER.unpack(header)
            body_bytes = updates_bytes + events_bytes
            if magic != _MAGIC or body_bytes > self.torn_bytes - _HEADER.size:
                return
            body = self._stream.read(body_bytes)
            if len(body) < body_bytes or zlib.crc32(body, zlib.crc32(header[:-4])) != crc:
                return
            frame = Frame(body[:updates_bytes], body[updates_bytes:], *numbers)
            whole_bytes = len(header) + body_bytes
            if kind == FrameKind.OPENED and self.identity is None:
                self.identity = _identity(body)
                if self.identity is None:
                    return
                self.good_bytes += whole_bytes
            elif kind == FrameKind.ROWS and self.identity and frame.first_log_pos > self.last_log_pos:
                self.good_bytes += whole_bytes
                self.update_rows += frame.update_rows
                self.event_rows += frame.event_rows
                self.first_log_pos = self.first_log_pos or frame.first_log_pos
                self.last_log_pos = frame.last_log_pos
                yield frame
            elif kind == FrameKind.FINISHED and self.identity and numbers in ([0] * 4, self._found()):
                self.good_bytes += whole_bytes
                self.finished = True
            else:
                return

    def _found(self) -> list[int]:
        return [self.update_rows, self.event_rows, self.first_log_pos, self.last_log_pos]

    def skim(self) -> Frame | None:
        """Read all frames and return the last one with rows, or None."""
        last = None
        for frame in self:
            last = frame
        return last


def _identity(body: bytes) -> SegmentIdentity | None:
    """Read the body of the first frame; None when another version of the format wrote it."""
    try:
        return SegmentIdentity(**json.loads(body))
    except (TypeError, ValueError):
        return None


def make_directory(directory: Path, *, durable: bool) -> None:
    """Make a directory and those above it, perhaps each durable in its parent."""
    if directory.is_dir():
        return
    make_directory(directory.parent, durable=durable)
    directory.mkdir(exist_ok=True)
    if durable:
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Put the entries of a directory on the disk: a new or renamed file is not durable without it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
