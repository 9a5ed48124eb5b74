"""Write-behind store: replicas are in memory, and a thread writes their changes to the file of retained values.

Owns the thread, the bound on pending changes, and the callbacks after a commit.

The event loop hands over references and pays nothing for each value. The thread makes one transaction of everything
that is pending, with only the newest value of each topic, so a busier node has larger transactions. The next one begins
when those have put what they have to who waited for the last.

When the disk fails (full, broken), the thread tries the same values again every second, an alarm stands in the figures,
and `hold` applies backpressure once too much is pending. Nothing is acknowledged before it is committed, and nothing is
dropped.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final, Unpack

from fanout.replica.history import Origin
from fanout.replica.update import ChangeKind, Changes, Update
from fanout.storage.file import ClientWrites
from fanout.storage.store import DiskStore, Done, Encode, StoreOptions, StoreStats, stored_rows

__all__ = ["BYTES_HIGH", "BYTES_LOW", "ROWS_HIGH", "ROWS_LOW", "WriteBehindStore"]

ROWS_HIGH: Final = 1_000_000
"""Pending updates above which `hold(True)` is called."""
ROWS_LOW: Final = 200_000
"""Pending updates below which `hold(False)` is called."""
BYTES_HIGH: Final = 256 * 1024 * 1024
"""Pending bytes of payloads and properties above which `hold(True)` is called."""
BYTES_LOW: Final = 64 * 1024 * 1024
"""Pending bytes below which `hold(False)` is called."""
_ROWS_AT_ONCE: Final = 20_000
"""Updates after which a transaction ends, so that the first do not wait for all."""
BYTES_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes after which a transaction ends, so that neither memory nor the write-ahead log grows with the queue."""
RETRY_S: Final = 1.0
_STORES: Final = frozenset({int(ChangeKind.NEW), int(ChangeKind.REPLACED)})
_REMOVES: Final = frozenset({int(ChangeKind.REMOVED), int(ChangeKind.REFUSED)})
_PAYLOAD: Final = itemgetter(1)
_PROPERTIES: Final = itemgetter(4)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Changes that are committed together or not at all."""

    store: str
    changes: Sequence[Changes]
    session: Encode | None
    rows: int
    size: int
    done: Done | None
    clients: ClientWrites | None


class WriteBehindStore(DiskStore):
    """Retained values in a file behind replicas in memory.

    `read` comes after `sessions`. `put` never waits.
    """

    def __init__(self, path: Path, **options: Unpack[StoreOptions]) -> None:
        """Prepare; see `DiskStore`."""
        super().__init__(path, thread_name="fanout-storage-writer", **options)
        self._queue: deque[_Unit] = deque()
        self._woken = False
        self._is_telling = False
        """True if those who wait for the last transaction are being told: what they put goes into the next one."""
        self._close_by = 0.0  # monotonic time; valid once `_closing` is set
        self._put_rows = self._put_bytes = 0  # counted by the event loop
        self._done_rows = self._done_bytes = 0  # counted by the thread
        self._alarm = ""
        self._failure: Exception | None = None
        """Error that ended the thread early."""
        # The transaction under way, which is retried until it succeeds.
        self._values: dict[str, dict[bytes, Update | None]] = {}
        self._sessions: dict[str, Encode] = {}
        self._clients = ClientWrites()
        self._rows = 0
        self._bytes = 0
        self._units = 0
        self._done: list[Done] = []
        self._unforced = False
        self._force_at = 0.0

    def read(self, store: str) -> Iterator[list[Update]]:
        """Yield the values of a store, some thousand at a time.

        Raises:
            FileDamagedError: The file cannot be read.
        """
        return self.file.read(store)

    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Encode | None = None,
        done: Done | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Queue the changes of batches. `session` is called in the thread, once for the newest of a transaction."""
        history = self.history.note(changes, now_ns=time.time_ns(), origin=origin)
        rows = sum(map(stored_rows, changes))
        if not rows and session is None and done is None and not history:
            return
        clients = ClientWrites(history) if history else None
        rows = max(rows, sum(len(batch.updates) for batch in history))
        self._append(_Unit(store, changes, session, rows, sum(map(_size, changes)), done, clients))

    def put_sessions(self, records: dict[str, bytes | None], *, history_from: int, done: Done) -> None:
        """Queue sessions of clients."""
        size = sum(len(record) for record in records.values() if record is not None)
        writes = ClientWrites(records=records, history_from=history_from)
        self._append(_Unit("", (), None, 0, size, done, writes))

    def _append(self, unit: _Unit) -> None:
        self._put_rows += unit.rows
        self._put_bytes += unit.size
        self._queue.append(unit)
        if not self._woken:
            self._woken = True
            self._wake.set()
        if not self._held and (self.waiting > ROWS_HIGH or self.waiting_bytes > BYTES_HIGH):
            self._held = True
            self._hold(True)
            self._release()  # the thread may have committed all of it before it could see `_held`

    def _release(self) -> None:
        if self._held and self.waiting < ROWS_LOW and self.waiting_bytes < BYTES_LOW:
            self._held = False
            self._hold(False)

    @property
    def waiting(self) -> int:
        """Number of updates that are not committed yet."""
        return self._put_rows - self._done_rows

    @property
    def waiting_bytes(self) -> int:
        """Bytes of their payloads and properties."""
        return self._put_bytes - self._done_bytes

    async def wait_failed(self) -> None:
        """Wait until the thread ends before `close`, which is a bug: nothing is acknowledged after it.

        Raises:
            RuntimeError: It did.
        """
        await self._failed.wait()
        raise RuntimeError(
            f"the thread that writes retained values to {self.path} ended: {self._failure!r}. This is a bug: report"
            " it with the log. Acknowledged messages are in the file"
        ) from self._failure

    def stats(self) -> StoreStats:
        """Return the figures of this moment."""
        alarm = "the writer ended unexpectedly" if self._failure is not None else self._alarm
        return self._make_stats(committed=self._done_rows, waiting_bytes=self.waiting_bytes, alarm=alarm)

    def close(self, *, timeout_s: float) -> bool:
        """Write what waits, and close the file; return whether everything is written.

        Args:
            timeout_s: Longest duration.
        """
        if self._thread.ident is None:
            if self._file is not None:
                self._file.close()
            return True
        self._close_by = time.monotonic() + timeout_s
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s + RETRY_S)
        return not self._thread.is_alive() and not self.waiting

    def _tell(self, done: Iterable[Done]) -> None:
        """Call those who wait for a transaction that is committed; runs on the event loop."""
        try:
            for each in done:
                each()
        finally:
            self._wake.set()
        self._release()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # any error: else it goes unnoticed, and the node waits for ever
            self._failure = error
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._failed.set)
        finally:
            self.file.close()

    def _write_all(self) -> None:
        closing = False
        while not (closing and self._is_over()):
            is_idle = not self._queue and not self._units
            if (is_idle or self._is_telling) and not self._closing.is_set():
                due_s = max(0.0, self._force_at - time.monotonic()) if self._unforced else None
                self._wake.wait(due_s)
            self._wake.clear()
            self._is_telling = False
            self._woken = False  # before the queue is read: later puts wake the thread again
            closing = self._closing.is_set()
            self._take()
            force = self._unforced and (closing or time.monotonic() >= self._force_at)
            if (self._units or force) and not self._commit(force=force):
                if closing:
                    time.sleep(max(0.0, min(RETRY_S, self._close_by - time.monotonic())))
                else:
                    self._closing.wait(RETRY_S)

    def _is_over(self) -> bool:
        return (not self._queue and not self._units) or time.monotonic() >= self._close_by

    def _take(self) -> None:
        """Move pending units into the transaction under way."""
        while self._queue and self._rows < _ROWS_AT_ONCE and self._bytes < BYTES_AT_ONCE:
            unit = self._queue.popleft()
            if unit.changes:
                values = self._values.setdefault(unit.store, {})
                for changes in unit.changes:
                    _merge(values, changes)
            if unit.session is not None:
                self._sessions[unit.store] = unit.session
            if unit.done is not None:
                self._done.append(unit.done)
            if unit.clients is not None:
                self._clients.add(unit.clients)
            self._rows += unit.rows
            self._bytes += unit.size
            self._units += 1

    def _commit(self, *, force: bool) -> bool:
        try:
            sessions = {store: encode() for store, encode in self._sessions.items()}
            self.file.commit(self._values, sessions, clients=self._clients, force=force)
        except (sqlite3.Error, OSError) as error:
            if not self._alarm:
                self._logger.error("retained values cannot be written", reason=str(error), file=str(self.path))
            self._alarm = f"retained values cannot be written to {self.path}: {error}"
            return False
        if self._alarm:
            self._logger.warning("retained values can be written again", waiting=self.waiting)
            self._alarm = ""
        if self._sync == "interval" and self._units and not force:
            if not self._unforced:
                self._force_at = time.monotonic() + self._sync_interval_s
            self._unforced = True
        else:
            self._unforced = False
        self._done_rows += self._rows
        self._done_bytes += self._bytes
        self._transactions += 1
        self._tell_history(self._clients.history)
        done, self._done = self._done, []
        self._values, self._sessions, self._rows, self._bytes, self._units = {}, {}, 0, 0, 0
        self._clients = ClientWrites()
        if (done or self._held) and self._loop is not None and not self._loop.is_closed():
            self._is_telling = self._woken = True
            self._wake.clear()
            self._loop.call_soon_threadsafe(self._tell, done)
        return True


def _size(changes: Changes) -> int:
    """Return the bytes of payloads and properties that a batch holds in memory."""
    updates = changes.updates
    return sum(map(len, map(_PAYLOAD, updates))) + sum(map(len, map(_PROPERTIES, updates)))


def _merge(values: dict[bytes, Update | None], changes: Changes) -> None:
    for update, kind in zip(changes.updates, changes.kinds, strict=True):
        if kind in _STORES:
            values[update[0]] = update
        elif kind in _REMOVES:
            values[update[0]] = None
    for value in changes.corrected:
        values[value[0]] = value
