"""Disks of members: real files, written on the event loop, and what a kill or the loss of power leaves of them."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

from bench.simulate.loop import current_machine
from fanout.storage.write_behind import WriteBehindStore

__all__ = ["Disk", "SimulatedStore"]


class Disk:
    """The disk of a member, through all of its processes."""

    def __init__(self, directory: Path) -> None:
        """Begin empty.

        Args:
            directory: For the files; each process has a directory of its own in it.
        """
        self._directory, self._processes = directory, 0

    @property
    def directory(self) -> Path:
        """Directory of the files of the process that runs, or that is to run."""
        return self._directory / str(self._processes)

    def turn_over(self, draw: random.Random, *, loses: bool) -> None:
        """Leave what a killed process leaves to the next one.

        The files are copied: the old process has them open still, and SQLite refuses a second one in one process.

        Args:
            draw: Decides where a file is torn.
            loses: True if the machine lost its power, so that the end of what was not forced is missing.
        """
        old, self._processes = self.directory, self._processes + 1
        if not old.is_dir():
            return
        shutil.copytree(old, self.directory, ignore=shutil.ignore_patterns("*-shm"))
        if loses:
            for path in sorted(self.directory.glob("*-wal")):
                size, forced = path.stat().st_size, SimulatedStore.forced.get(old / path.name, 0)
                with path.open("r+b") as file:
                    file.truncate(draw.randint(min(forced, size), size))


class _Wake:
    """Stands for the event that wakes the thread of a store."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store

    def set(self) -> None:
        self._store.plan()

    def clear(self) -> None:
        pass


class SimulatedStore(WriteBehindStore):
    """The store without its thread: each transaction is a callback, after the time that the machine's disk takes."""

    forced: dict[Path, int] = {}  # noqa: RUF012
    """Bytes of each write-ahead log that were forced to the disk."""

    def __init__(self, path: Path, **options: Any) -> None:
        """Prepare."""
        super().__init__(path, **options)
        self._wake = _Wake(self)  # type: ignore[assignment]
        self._is_planned = self._is_open = False

    def start(self) -> None:
        """Begin to write."""
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self._step()

    def plan(self) -> None:
        """Write soon."""
        if self._is_open and not self._is_planned and self._loop is not None:
            machine = current_machine()
            self._is_planned = True
            self._loop.call_later(machine.disk_s if machine is not None else 0.0, self._step)

    def close(self, *, timeout_s: float) -> bool:
        """Write what waits, and close the file."""
        while self._is_open and (self._queue or self._units):
            self._step()
        self._is_open = False
        self.file.close()
        return True

    def _step(self) -> None:
        """Make one transaction, as the thread does."""
        self._is_planned = self._is_telling = self._woken = False
        if not self._is_open:
            return
        self._take()
        assert self._loop is not None
        force = self._unforced and self._loop.time() >= self._force_at
        if self._units or force:
            self._commit(force=force)
            if force or self._sync == "always":
                log = self.path.with_name(f"{self.path.name}-wal")
                self.forced[log] = log.stat().st_size if log.exists() else 0
        if self._unforced:
            self._loop.call_at(self._force_at, self.plan)
        if self._queue and not self._is_telling:
            self.plan()
