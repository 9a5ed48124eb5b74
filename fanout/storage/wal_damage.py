"""Damage of SQLite's write-ahead log, which SQLite itself does not report.

SQLite reads the log up to the first frame that is not whole, and goes on without what is behind it: so it recovers from
a process that was killed while it wrote. A frame that was damaged later looks the same to it, and committed
transactions vanish. But a killed process leaves no whole frame with a wrong checksum: each write makes the file longer,
and the file ends in the frame that was not finished, or goes on with those of an earlier log.

The format is that of https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
"""

from __future__ import annotations

import os
import struct
from itertools import count
from pathlib import Path
from typing import Final

__all__ = ["find_wal_damage"]

_HEADER: Final = struct.Struct(">8I")
"""Magic, version, page size, checkpoint number, both salts, both checksums."""
_FRAME: Final = struct.Struct(">6I")
"""Page number, pages after a commit or 0, both salts, both checksums."""
_MAGIC: Final = 0x377F0682
_BIG_ENDIAN: Final = 1
"""This bit of the magic says in which order checksums take the bytes of a word."""
_CHECKED_BYTES: Final = 24
_GENERATIONS: Final = 1 << 20
"""Greatest number of earlier salts that still mark a frame as left by an earlier log."""

_Sums = tuple[int, int]


def find_wal_damage(path: Path, *, valid_frames: int) -> str:
    """Return what of a write-ahead log is not what was written; empty when no damage shows.

    A log that was cut off shows none.

    Args:
        path: The log.
        valid_frames: Number of its frames up to the last commit that SQLite has found.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return ""
    with file:
        if os.fstat(file.fileno()).st_size < _HEADER.size:
            return ""
        header = file.read(_HEADER.size)
        magic, _, page, _, salt, other_salt, *written = _HEADER.unpack(header)
        order = ">" if magic & _BIG_ENDIAN else "<"
        sums = _add(header[:_CHECKED_BYTES], (0, 0), order)
        if magic & ~_BIG_ENDIAN != _MAGIC or sums != tuple(written):
            return "the header of its write-ahead log is not what was written"
        size = page + _FRAME.size
        if valid_frames > 0:
            file.seek(_HEADER.size + (valid_frames - 1) * size)
            sums = _FRAME.unpack(file.read(_FRAME.size))[4:]
        file.seek(_HEADER.size + max(0, valid_frames) * size)
        for number in count(max(0, valid_frames) + 1):
            frame = file.read(size)
            if len(frame) < size:
                return ""
            _, _, *salts, first, second = _FRAME.unpack_from(frame)
            if _is_earlier(salts[0], than=salt):
                return ""
            sums = _add(frame[:8] + frame[_FRAME.size :], sums, order)
            if salts != [salt, other_salt] or sums != (first, second):
                following = file.read(_FRAME.size)
                if len(following) == _FRAME.size and _is_earlier(_FRAME.unpack(following)[2], than=salt):
                    return ""  # perhaps not finished: the earlier frame at its place was longer than what is written
                return f"frame {number} of its write-ahead log is not what was written"
    raise AssertionError


def _is_earlier(salt: int, *, than: int) -> bool:
    """Return whether a frame is what an earlier log has left in the file: each log adds 1 to the salt."""
    return 0 < (than - salt) % (1 << 32) < _GENERATIONS


def _add(data: bytes, sums: _Sums, order: str) -> _Sums:
    """Add bytes to a checksum."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
