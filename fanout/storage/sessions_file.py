"""The file of sessions: what a node leaves at its stop, for its next start.

Owns the form of the file, which is written whole and read once. A node that was killed leaves none: what clients
have got and said since a file was written would be missing in it, and a message at QoS 2 would come twice or never.
The content of a record is not known here.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from fanout.errors import StoreError
from fanout.runtime.directories import sync_directory
from fanout.storage.file import FileDamagedError

__all__ = ["read_records", "remove_file", "set_aside", "write_records", "written_ns"]

_MAGIC: Final = b"fanout sessions\0\1"
_HEADER: Final = struct.Struct(f"!{len(_MAGIC)}sQI")  # the time at which it was written follows, and its CRC-32
_RECORD: Final = struct.Struct("!II")  # length and CRC-32 of the record after it
_END: Final = 0xFFFF_FFFF  # in place of a length; the number of records follows


def write_records(path: Path, records: Iterable[bytes], *, now_ns: int) -> int:
    """Write the file, whole or not at all, and force it to the disk.

    Args:
        path: The file; an older one is replaced.
        records: Its records, each below 4 GiB.
        now_ns: Unix time in nanoseconds, which `written_ns` returns.

    Returns:
        The number of records.

    Raises:
        StoreError: It cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(_header(now_ns))
            for record in records:
                file.write(_RECORD.pack(len(record), zlib.crc32(record)))
                file.write(record)
                count += 1
            file.write(_RECORD.pack(_END, count))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise _unusable(path, error) from error
    return count


def written_ns(path: Path) -> int | None:
    """Return when the file was written, Unix time in nanoseconds; None when there is none.

    Raises:
        FileDamagedError: It is not such a file.
        StoreError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise FileDamagedError("it does not begin like a file of sessions of this version")
    time_ns = int(_HEADER.unpack(header)[1])
    if header != _header(time_ns):
        raise FileDamagedError("its time is not what was written")
    return time_ns


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the records; the end of the file is checked before the last one.

    Raises:
        FileDamagedError: The file is not whole, or a record is not what was written.
        StoreError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - _HEADER.size - _RECORD.size
            file.seek(_HEADER.size)
            count = 0
            while True:
                head = file.read(_RECORD.size)
                if len(head) < _RECORD.size:
                    raise FileDamagedError("its end is missing")
                length, check = _RECORD.unpack(head)
                if length == _END:
                    break
                left -= _RECORD.size + length
                if left < 0:
                    raise FileDamagedError("its end is missing")
                record = file.read(length)
                if zlib.crc32(record) != check:
                    raise FileDamagedError(f"record {count + 1} is not what was written")
                count += 1
                yield record
            if check != count or left:
                raise FileDamagedError(f"it has {count} records where {check} were written")
    except OSError as error:
        raise _unusable(path, error) from error


def remove_file(path: Path) -> None:
    """Remove the file for good, so that no later start reads it again.

    Raises:
        StoreError: It cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise _unusable(path, error) from error


def set_aside(path: Path, *, now_ns: int) -> Path:
    """Rename the file, which is damaged; return its new path.

    Raises:
        StoreError: It cannot be renamed.
    """
    aside = path.with_name(f"{path.name}.damaged-{now_ns // 1_000_000}")
    try:
        path.rename(aside)
    except OSError as error:
        raise _unusable(path, error) from error
    return aside


def _header(now_ns: int) -> bytes:
    return _HEADER.pack(_MAGIC, now_ns, zlib.crc32(now_ns.to_bytes(8, "big")))


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the file of sessions {path} cannot be used: {(error.strerror or str(error)).lower()}",
        hint="Check the key node.data_directory, that this user may write there, and that the disk has room",
    )
