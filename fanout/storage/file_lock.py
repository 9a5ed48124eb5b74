"""The lock of the file of retained values, where one process has that open twice: SQLite's own locks do not help then.

Owns the lock file, which stays when nobody has the lock; the kernel frees that when its process ends in whatever way.
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
            path: The file that is locked; the lock file has `.lock` behind its name.
        """
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Keep other processes away.

        Raises:
            StoreError: One has it, or the lock file cannot be used.
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
        """Let others have it; harmless when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
