"""Lock file of the retained values, where one process opens the database twice and SQLite's own locks do not help.

The lock file stays when the lock is released. The kernel releases the lock when its process ends in any way.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fanout.errors import StoreError

__all__ = ["FileLock"]


class FileLock:
    """The lock, held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        """Prepare.

        Args:
            path: The file to lock; the lock file's name is that name with `.lock` appended.
        """
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Lock other processes out.

        Raises:
            StoreError: Another process has the lock, or the lock file cannot be used.
        """
        lock = self._path.with_name(f"{self._path.name}.lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if isinstance(error, BlockingIOError):
                raise StoreError(
                    f"the file of retained values {self._path} is in use by another process",
                    hint="Stop that process, or give this node another node.id or node.data_directory",
                ) from error
            raise StoreError(
                f"the file of retained values {self._path} cannot be used: {error}",
                hint="Check the key node.data_directory, and that this user may write there",
            ) from error

    def release(self) -> None:
        """Release the lock; harmless when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
