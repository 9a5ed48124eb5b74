"""Segments: the append-only files of the replication log, until they are sealed into Parquet.

Owns the format, appending to a segment, and reading its whole frames.

A segment is a sequence of frames. A frame is a mark, a header, then one or two Arrow IPC streams (lz4). The CRC covers
the header too, because a flipped row count is as bad as a flipped row. The first frame, OPENED, names the node and the
time, so that everything derived from a segment is derived from its content. A ROWS frame holds all rows of both tables
between two log positions. FINISHED says that the segment was closed in good order, with the number and the positions of
its rows.

Behind bytes that are no whole frame, reading goes on at the next mark with a whole frame of later rows. A mark holds a
random token of the run, which is in the segment's name and in no message: rows hold bytes that strangers chose, and a
frame that a stranger wrote into a topic or a stamp must never be read as ours. Segments of older versions have no
marks; of those, the prefix of whole frames is read.

A segment that ends in the middle of a frame is *torn*, as after a kill. Other bytes that are no whole frame are
*damage*.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import pyarrow as pa

from fanout.replog.files.schema import EVENTS, SCHEMA_VERSION, UPDATES, refuse_version
from fanout.runtime.directories import sync_directory

__all__ = [
    "Damage",
    "Frame",
    "FrameKind",
    "SegmentFile",
    "SegmentIdentity",
    "SegmentReader",
    "encode_rows",
    "frame_times",
    "make_directory",
]

_MAGIC = b"fLog"
_HEADER = struct.Struct("<4sBxxxIIIIqqI")
"""Magic, kind, bytes of updates, bytes of events, rows of updates, rows of events, first and last log_pos,
CRC."""

_FIRST_LOG_POS = 6
"""Index of the first log_pos in the header."""

_MARK = struct.Struct("<4s8sqI")
"""The mark before the header: magic, token of the run, floor of the segment, length of header and streams.

The length repeats the header's: if both agree and the file is shorter, the end was torn off.
"""
_MARK_MAGIC = b"fMrk"

_SEGMENT_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]{16})\.seg")

_SEARCH_BYTES: Final = 1 << 20

_SECTOR_BYTES: Final = 512

_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync

_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class FrameKind(IntEnum):
    """Kind of a frame."""

    OPENED = 1
    """The segment's identity as JSON; the first frame."""
    ROWS = 2
    """Rows of both tables."""
    FINISHED = 3
    """The last frame of a segment that was closed in good order, with the counts and positions of all rows."""


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """Identity of a segment; names and directories derive from it alone."""

    node: str
    role: str
    node_epoch: int
    number: int
    """Position among the segments of this node epoch, from 1."""
    opened_us: int
    """Time of opening, Unix time in microseconds by the node's clock."""
    schema_version: int = SCHEMA_VERSION
    token: str = ""
    """Token in the marks of its frames, 16 hexadecimal digits; empty in a segment without marks."""
    floor: int = 0
    """The last position of the segments before it; each mark holds it or a lower one."""

    @property
    def name(self) -> str:
        """The name of its sealed files, without a suffix."""
        return f"{self.node_epoch}-{self.number:06d}"

    @property
    def segment_name(self) -> str:
        """The name of the segment."""
        return f"{self.name}-{self.token}.seg" if self.token else f"{self.name}.seg"

    @property
    def hour(self) -> str:
        """The hour in UTC in which it was opened, as in the directories of the sealed log."""
        return f"{datetime.fromtimestamp(self.opened_us // 1_000_000, UTC):date=%Y-%m-%d/hour=%H}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame of rows that was read."""

    updates: bytes
    """An Arrow IPC stream; empty for no rows."""
    events: bytes
    update_rows: int
    event_rows: int
    first_log_pos: int
    last_log_pos: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are no whole frame, and not a torn end."""

    offset: int
    end: int
    first_log_pos: int
    """The first position that may be lost."""
    last_log_pos: int | None
    """The last one; below the first when none is lost, None when no whole frame follows."""
    first_us: int | None
    """Time of the last row before it, Unix time in microseconds; None without one."""
    last_us: int | None
    """Time of the first row after it."""

    @property
    def size(self) -> int:
        """Number of damaged bytes."""
        return self.end - self.offset

    @property
    def positions(self) -> int | None:
        """Number of positions that may be lost; None when it cannot be known."""
        return None if self.last_log_pos is None else self.last_log_pos - self.first_log_pos + 1


def encode_rows(
    updates: Sequence[pa.RecordBatch],
    events: Sequence[pa.RecordBatch],
    *,
    first_log_pos: int,
    last_log_pos: int,
    token: str = "",
    floor: int = 0,
) -> bytes:
    """Return a frame of rows.

    Args:
        updates: Record batches of `schema.UPDATES`.
        events: Record batches of `schema.EVENTS`.
        first_log_pos: Lowest position of any row.
        last_log_pos: Highest position of any row.
        token: Epoch of the segment's identity.
        floor: Likewise.
    """
    return _encode(
        FrameKind.ROWS,
        _stream(updates, UPDATES),
        _stream(events, EVENTS),
        update_rows=sum(batch.num_rows for batch in updates),
        event_rows=sum(batch.num_rows for batch in events),
        first_log_pos=first_log_pos,
        last_log_pos=last_log_pos,
        token=token,
        floor=floor,
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
    token: str = "",
    floor: int = 0,
) -> bytes:
    fields = (kind, len(updates), len(events), update_rows, event_rows, first_log_pos, last_log_pos)
    header = _HEADER.pack(_MAGIC, *fields, 0)[:-4]
    mark = b""
    if token:
        mark = _MARK.pack(_MARK_MAGIC, bytes.fromhex(token), floor, _HEADER.size + len(updates) + len(events))
    crc = zlib.crc32(events, zlib.crc32(updates, zlib.crc32(mark + header)))
    return b"".join((mark, header, crc.to_bytes(4, "little"), updates, events))


def _mark(token: str) -> bytes:
    """Return the common beginning of all marks of a run."""
    return _MARK_MAGIC + bytes.fromhex(token)


class SegmentFile:
    """A segment that is appended to.

    Every method that writes may raise OSError; `size` is then still the end of the last whole frame.
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
        self._mark = _mark(identity.token) if identity.token else b""

    @classmethod
    def create(cls, directory: Path, identity: SegmentIdentity) -> Self:
        """Make the file and write its first frame.

        Raises:
            FileExistsError: There is a segment of this name.
            OSError: The file cannot be made or written.
        """
        path = directory / identity.segment_name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        segment = cls(path, identity, descriptor)
        try:
            segment._append(
                _encode(
                    FrameKind.OPENED, json.dumps(asdict(identity)).encode(), token=identity.token, floor=identity.floor
                )
            )
            sync_directory(directory)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return segment

    def append(self, frame: bytes, *, update_rows: int, event_rows: int, last_log_pos: int) -> None:
        """Append a frame of `encode_rows`; a failure removes the part that was written."""
        assert frame.startswith(self._mark), "the frame is of another run"
        self._append(frame)
        if not self.first_log_pos:
            header = _MARK.size if self._mark else 0
            self.first_log_pos = _HEADER.unpack_from(frame, header)[_FIRST_LOG_POS]
        self.update_rows += update_rows
        self.event_rows += event_rows
        self.last_log_pos = last_log_pos

    def _append(self, frame: bytes) -> None:
        # A frame after a torn one could not be read, so a failure must leave no part of a frame.
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
        """Sync the file to the disk."""
        try:
            _sync_data(self._descriptor)
        except OSError:
            # The kernel reports a failed write-back once and may have dropped the pages: a later success says
            # nothing.
            self.damaged = True
            raise

    def close(self) -> None:
        """Close the file; after no failure, with the frame FINISHED."""
        try:
            if not self.damaged:
                finished = _encode(
                    FrameKind.FINISHED,
                    b"",
                    update_rows=self.update_rows,
                    event_rows=self.event_rows,
                    first_log_pos=self.first_log_pos,
                    last_log_pos=self.last_log_pos,
                    token=self.identity.token,
                    floor=self.identity.floor,
                )
                self._append(finished)
                self.sync()
        finally:
            os.close(self._descriptor)


class SegmentReader:
    """The whole frames of a segment, in order; iterate over it once.

    Reads up to the length that the file had when it was opened, so a segment that is still written can be read. After
    the iteration the attributes hold the findings.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.identity: SegmentIdentity | None = None
        """Identity of the segment; None when no frame tells it, and then no rows are read."""
        self.finished = False
        """True if the segment was closed in good order."""
        self.update_rows = 0
        self.event_rows = 0
        self.first_log_pos = 0
        self.last_log_pos = 0
        """0 when there are no rows."""
        self.good_bytes = 0
        """Bytes of whole frames."""
        self.torn_bytes = 0
        """Bytes of an incomplete last frame."""
        self.damage: list[Damage] = []
        """Other bytes that are no whole frames."""
        self.total_bytes = os.fstat(stream.fileno()).st_size
        self._stream = stream
        self._name = _SEGMENT_NAME.fullmatch(Path(os.fspath(stream.name)).name)
        self._mark = b""  # the beginning of all marks; empty in a segment without
        self._last: Frame | None = None  # the last one with rows
        self._floor = 0
        self._bad = -1  # begin of the bytes that are no frame, while there are some
        self._last_told = 0  # the last position, as the last frame tells

    @property
    def damaged_bytes(self) -> int:
        """Bytes of all damage."""
        return sum(one.size for one in self.damage)

    def __iter__(self) -> Iterator[Frame]:
        """Read the frames.

        Raises:
            LogError: A later version of fanout wrote the segment.
        """
        begin = self._read(0, _MARK.size)
        if begin.startswith(_MARK_MAGIC):
            self._mark = begin[: len(_MARK_MAGIC) + 8]
        at = 0
        while at < self.total_bytes and not self.finished:
            found = self._frame(at)
            if found is None:
                self._bad = at if self._bad < 0 else self._bad
                if not at and self._name:
                    self._mark = _mark(self._name[3])
                at = self._find_mark(at + 1)
                continue
            end, frame = found
            if self._bad >= 0:
                self._note(self._bad, at, frame)
                self._bad = -1
            self.good_bytes += end - at
            at = end
            if frame is not None:
                self._last = frame
                self.update_rows += frame.update_rows
                self.event_rows += frame.event_rows
                self.first_log_pos = self.first_log_pos or frame.first_log_pos
                self.last_log_pos = frame.last_log_pos
                yield frame
        bad = at if self._bad < 0 else self._bad
        if bad < self.total_bytes:
            if not self.finished and self._is_torn(bad):
                self.torn_bytes = self.total_bytes - bad
            else:
                self._note(bad, self.total_bytes, None)

    def skim(self) -> Frame | None:
        """Read all frames and return the last one with rows, or None."""
        for _ in self:
            pass
        return self._last

    def _frame(self, at: int) -> tuple[int, Frame | None] | None:
        """Read the frame at an offset: its end, and its rows; None when there is no trustworthy frame."""
        mark_bytes = _MARK.size if self._mark else 0
        head = self._read(at, mark_bytes + _HEADER.size)
        if len(head) < mark_bytes + _HEADER.size or not head.startswith(self._mark):
            return None
        header = head[mark_bytes:]
        magic, kind, updates_bytes, events_bytes, *numbers, crc = _HEADER.unpack(header)
        body_bytes = updates_bytes + events_bytes
        end = at + len(head) + body_bytes
        if magic != _MAGIC or end > self.total_bytes:
            return None
        floor, told_bytes = _MARK.unpack_from(head)[2:] if mark_bytes else (0, len(header) + body_bytes)
        if told_bytes != len(header) + body_bytes:
            return None
        body = self._read(at + len(head), body_bytes)
        if len(body) < body_bytes or zlib.crc32(body, zlib.crc32(head[:-4])) != crc:
            return None
        self._floor = max(self._floor, floor)
        if kind == FrameKind.OPENED:
            identity = None if at else _identity(body, self._stream.name)
            if identity is None or (_mark(identity.token) if identity.token else b"") != self._mark:
                return None
            self.identity = identity
            return end, None
        frame = Frame(body[:updates_bytes], body[updates_bytes:], *numbers)
        if kind == FrameKind.ROWS and frame.first_log_pos > self.last_log_pos:
            if self.identity is None and self._name and at:
                self.identity = _identity_of_rows(frame, number=int(self._name[2]), token=self._name[3])
            return None if self.identity is None else (end, frame)
        if kind == FrameKind.FINISHED and self.identity and self._closes(numbers):
            self.finished = True
            self._last_told = max(numbers[3], self.last_log_pos)
            return end, None
        return None

    def _closes(self, told: list[int]) -> bool:
        """Tell whether the counts and positions of the last frame are those of this segment."""
        found = [self.update_rows, self.event_rows, self.first_log_pos, self.last_log_pos]
        if told in ([0] * 4, found):
            return True
        # Its counts have what was damaged, too.
        damaged = self._bad >= 0 or bool(self.damage)
        return damaged and told[0] >= found[0] and told[1] >= found[1] and told[3] >= found[3]

    def _find_mark(self, at: int) -> int:
        """Return the offset of the next mark, or the end of the file if there is none."""
        if not self._mark:
            return self.total_bytes
        while at < self.total_bytes:
            piece = self._read(at, _SEARCH_BYTES)
            found = piece.find(self._mark)
            if found >= 0:
                return at + found
            at += max(1, len(piece) - len(self._mark) + 1)
        return self.total_bytes

    def _note(self, offset: int, end: int, after: Frame | None) -> None:
        """Note damage, with the rows around it."""
        last_log_pos = None
        if after is not None:
            last_log_pos = after.first_log_pos - 1
        elif self.finished:
            last_log_pos = self._last_told or None
        self.damage.append(
            Damage(
                offset,
                end,
                first_log_pos=max(self.last_log_pos, self._floor) + 1,
                last_log_pos=last_log_pos,
                first_us=None if self._last is None else frame_times(self._last)[1],
                last_us=None if after is None else frame_times(after)[0],
            )
        )

    def _is_torn(self, at: int) -> bool:
        """Tell whether the file ends in the middle of a frame that begins here.

        After a power failure a file may be as long as it was to become, and end in zeros.
        """
        size = self.total_bytes - at
        mark_bytes = _MARK.size if self._mark else 0
        head = self._read(at, mark_bytes + _HEADER.size)
        sector = self._read(max(at, (self.total_bytes - 1) // _SECTOR_BYTES * _SECTOR_BYTES), _SECTOR_BYTES)
        if not any(sector):
            return True
        begin = self._mark or _MAGIC
        if head[: len(begin)] != begin[: len(head)]:
            return False
        if len(head) < mark_bytes + _HEADER.size:
            return True
        told = _MARK.unpack_from(head)[3] if mark_bytes else 0
        magic, _, updates_bytes, events_bytes, *_ = _HEADER.unpack(head[mark_bytes:])
        frame_bytes = _HEADER.size + updates_bytes + events_bytes
        return magic == _MAGIC and told in (0, frame_bytes) and mark_bytes + frame_bytes > size

    def _read(self, at: int, size: int) -> bytes:
        self._stream.seek(at)
        return self._stream.read(min(size, max(0, self.total_bytes - at)))


def frame_times(frame: Frame) -> tuple[int, int]:
    """Return the oldest and the newest time of a frame's rows, Unix time in microseconds."""
    import pyarrow.compute as pc  # slow to import, and needed only after a crash

    times: list[int] = []
    for stream, column in ((frame.updates, "applied"), (frame.events, "at")):
        if stream:
            ends: Any = pc.min_max(pa.ipc.open_stream(stream).read_all()[column].cast(pa.int64())).as_py()
            times += [ends["min"], ends["max"]]
    return min(times), max(times)


def _identity_of_rows(frame: Frame, *, number: int, token: str) -> SegmentIdentity:
    """Return the identity of a segment whose first frame is damaged."""
    row: Any = pa.ipc.open_stream(frame.updates or frame.events).read_all().slice(0, 1).to_pylist()[0]
    return SegmentIdentity(
        node=row["node"],
        role=row["role"],
        node_epoch=row["node_epoch"],
        number=number,
        opened_us=frame_times(frame)[0],
        token=token,
    )


def _identity(body: bytes, path: str) -> SegmentIdentity | None:
    """Read the body of the first frame; None when it is no identity.

    Raises:
        LogError: A later version of fanout wrote it.
    """
    try:
        told = json.loads(body)
        refuse_version(path, int(told["schema_version"]))
        return SegmentIdentity(**told)
    except (KeyError, TypeError, ValueError):
        return None


def make_directory(directory: Path, *, durable: bool) -> None:
    """Make a directory and its parents; `durable` syncs each parent."""
    if directory.is_dir():
        return
    make_directory(directory.parent, durable=durable)
    directory.mkdir(exist_ok=True)
    if durable:
        sync_directory(directory.parent)
