"""Mark beside the file of retained values: the number of the newest batch of the history that was committed.

It finds a file, or its write-ahead log, that was cut off or is older: then batches that clients were answered for are
missing. The mark is in shared memory of the system, so it costs a microsecond and survives a kill.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final

__all__ = ["ToldMark"]

_POSITION: Final = struct.Struct("<Q")


class ToldMark:
    """The mark; written by one thread."""

    def __init__(self, path: Path) -> None:
        """Open the mark, or create it with 0.

        Raises:
            OSError: It cannot be used.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < _POSITION.size:
                os.pwrite(descriptor, bytes(_POSITION.size), 0)
            self._memory = mmap.mmap(descriptor, _POSITION.size)
        finally:
            os.close(descriptor)

    @property
    def position(self) -> int:
        """The number."""
        return int(_POSITION.unpack_from(self._memory)[0])

    @position.setter
    def position(self, position: int) -> None:
        _POSITION.pack_into(self._memory, 0, position)

    def close(self) -> None:
        """Close it."""
        self._memory.close()
