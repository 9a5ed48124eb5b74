"""Lock of one node's part of a log directory, and the record of the node's last run in it.

Owns `open/node=N/lock`. One process writes a node's log at a time; the kernel frees the lock when that process ends in
any way. The content of the file tells the next start whether the last run stopped in good order. Its modification time
is the sign of life: no row of the run is lost that is newer. The sign costs no row and no sync, and survives the end of
the process, but not of the machine; so it holds only until the machine restarts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from fanout.errors import LogError
from fanout.replog.files.segments import make_directory
from fanout.runtime.regular_files import open_regular

__all__ = ["LastRun", "NodeLock", "lock_is_damaged", "read_last_run"]

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""The kernel's identifier of each start of the machine."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """Content of the lock file: the last run of the node."""

    node_epoch: int
    pid: int
    clean: bool
    """True if every appended row had been written when it stopped."""
    boot_id: str = field(default="", compare=False)
    """The machine's present start; empty when it is not known, as of an older version."""


class NodeLock:
    """The lock, held from `acquire` to `release`."""

    def __init__(self, path: Path, *, node: str, node_epoch: int) -> None:
        self.last_run: LastRun | None = None
        """The run before this one; None if there was none or the file cannot be read."""
        self.lost_until_ns: int | None = None
        """Time of the newest row that the run before this one may have lost, Unix time in nanoseconds; None when it is
        not known."""
        self._path = path
        self._node = node
        self._node_epoch = node_epoch
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock, read the last run, and write this one.

        Raises:
            LogError: Another process has it, the file cannot be used, or this epoch has been used already.
        """
        try:
            make_directory(self._path.parent, durable=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogError(
                f"the replication log cannot use {self._path.parent}: {error.strerror}",
                hint="Check the key log.directory, and that this user may write there",
            ) from error
        try:
            self._acquire(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _acquire(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _parse(os.pread(descriptor, 4096, 0))
            who = f"process {holder.pid}" if holder else "another process"
            raise LogError(
                f"the replication log of node {self._node!r} in {self._path.parent} is in use by {who}",
                hint="Stop that process, or give this node another node.id or log.directory",
            ) from error
        self.last_run = _parse(os.pread(descriptor, 4096, 0))
        if self.last_run and self.last_run.node_epoch == self._node_epoch:
            raise LogError(
                f"the replication log of node {self._node!r} already has the epoch {self._node_epoch}",
                hint="Check the clock of this machine, then start the node again",
            )
        if self.last_run and self.last_run.boot_id and self.last_run.boot_id == _boot_id():
            self.lost_until_ns = os.fstat(descriptor).st_mtime_ns or None
        self._write(descriptor, clean=False)

    def sign(self, lost_until_ns: int) -> None:
        """Give the sign of life: the next start may take rows that are newer for never logged.

        Args:
            lost_until_ns: Time of the newest row that can be lost if the process ends before the next sign; 0 when
                nobody can tell.
        """
        _set_time(self._descriptor, lost_until_ns)

    def release(self, *, clean: bool) -> None:
        """Write how this run ended and give up the lock.

        Args:
            clean: True if every appended row has been written.
        """
        self._write(self._descriptor, clean=clean)
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, descriptor: int, *, clean: bool) -> None:
        # After a good end nobody asks, and older versions read the file.
        run = LastRun(self._node_epoch, os.getpid(), clean, "" if clean else _boot_id())
        text = json.dumps({key: value for key, value in asdict(run).items() if value != ""}).encode()
        # A full disk must not keep a node from starting; at worst the next start knows less about this run.
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
            os.fsync(descriptor)
        _set_time(descriptor, 0)


def lock_is_damaged(path: Path) -> bool:
    """Tell whether a lock file exists and cannot be read; an empty one was never written."""
    try:
        with open_regular(path) as file:
            text = file.read()
    except FileNotFoundError:
        return False
    return bool(text) and _parse(text) is None


def read_last_run(path: Path) -> LastRun | None:
    """Return the content of the lock file without taking the lock; None for no content."""
    try:
        with open_regular(path) as file:
            return _parse(file.read())
    except FileNotFoundError:
        return None


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def _set_time(descriptor: int, time_ns: int) -> None:
    # Without a sign of life more is unknown, and the node goes on.
    with contextlib.suppress(OSError):
        os.utime(descriptor, ns=(time_ns, time_ns))


def _parse(text: bytes) -> LastRun | None:
    try:
        return LastRun(**json.loads(text))
    except (ValueError, TypeError):
        return None
