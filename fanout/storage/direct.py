"""Direct store: the file of retained values where memory has none of them (`disc_only`).

The event loop reads and writes it.

Owns the transaction under way, its commit, and the notice to those who wait for it; also the thread that forces
committed transactions to the disk and copies the write-ahead log into the file.

The connection that writes also reads, so it sees uncommitted values and nothing has to be remembered beside the file. A
transaction holds everything that one turn of the event loop did, so it never splits what belongs together. A commit
writes to the system without waiting for the disk; the thread waits, with a connection of its own.

When the disk fails, the values are nowhere else, so the node ends. The next node begins with what is committed, and
that is all that was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Unpack

from fanout.errors import StoreError
from fanout.replica.history import Origin
from fanout.replica.update import Changes, Update
from fanout.storage.file import ClientWrites, RetainedFile, translated
from fanout.storage.file_lock import FileLock
from fanout.storage.store import DiskStore, Done, Encode, StoreOptions, StoreStats, stored_rows
from fanout.storage.table import RetainedTable, attach_scratch

__all__ = ["DirectStore"]

_SCRATCH_SHARE: Final = 4
"""The scratch file gets a fourth of the cache."""
CHECKPOINT_ROWS: Final = 20_000
"""Written values after which the write-ahead log is copied into the file."""
LOG_PAGES_MAX: Final = 65_536
"""Size of the write-ahead log (256 MiB) above which links and publishers wait until all of it is copied and reset."""
_LOG_BYTES_LEFT: Final = 64 * 1024 * 1024
FORGOTTEN_AT_ONCE: Final = 5_000
"""Marks of an ended pass that are removed in one piece."""
_RETRY_S: Final = 0.02


class DirectStore(DiskStore):
    """Retained values in a file only.

    Everything but `open`, `sessions`, `forget` and `close` belongs to the code that fills the replicas until `start`,
    and then to the event loop.
    """

    def __init__(self, path: Path, *, cache_bytes: int, **options: Unpack[StoreOptions]) -> None:
        """Prepare; see `DiskStore`.

        Args:
            path: The file.
            cache_bytes: Size of the part of the file in memory.
            options: See `DiskStore`.
        """
        super().__init__(path, thread_name="fanout-storage-checkpoints", **options)
        self._cache_bytes = cache_bytes
        self._lock = FileLock(path)
        self._tables: dict[str, RetainedTable] = {}
        self._failure: StoreError | None = None
        self._using = threading.RLock()
        """Held while the connection is used, because `close` runs in another thread: SQLite does not survive that."""
        self._closed = False
        self._done: list[Done] = []
        self._rows = 0
        """Updates handed over and not committed."""
        self._rows_total = 0
        self._clients = ClientWrites()
        """Changes that the sessions of clients need, in the transaction under way."""
        self._unforced: list[tuple[int, list[Done]]] = []
        """With `always`: the numbers of transactions, and the callbacks that wait until they are on the disk."""
        self._passes = 0
        self._passes_over: list[int] = []
        """Ended passes whose marks are not removed yet."""
        self._forgetting: asyncio.TimerHandle | None = None
        """Timer for the next removal of marks, if no other commit comes first."""
        self._written = 0
        """Values written since the last request for a checkpoint."""
        # Owned by the thread.
        self._forced = 0
        """Number of the last transaction that is on the disk."""
        self._checkpoint_due = threading.Event()

    # --- before `start` ---

    def open(self, *, now_ns: int) -> None:
        """Lock and open the file; see `DiskStore.open`."""
        self._lock.acquire()
        try:
            super().open(now_ns=now_ns)
        except StoreError:
            self._lock.release()
            raise

    def set_aside(self, reason: str, *, now_ns: int) -> None:
        """Rename the file, and create a new one for the same tables; see `DiskStore.set_aside`."""
        super().set_aside(reason, now_ns=now_ns)
        for table in self._tables.values():
            table.renew()

    def forget(self, store: str) -> None:
        """Remove a store with all its values."""
        self.commit()
        super().forget(store)

    def forget_clients(self) -> int:
        """Remove the sessions of clients and the history; see `DiskStore.forget_clients`."""
        self.commit()
        return super().forget_clients()

    def table(self, store: str) -> RetainedTable:
        """Return the rows of a store."""
        return self._tables.setdefault(store, RetainedTable(self, store))

    def start(self) -> None:
        """Begin to commit after each turn of the event loop; to be called on that loop."""
        self.commit()
        super().start()

    # --- for replicas and links ---

    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Encode | None = None,
        done: Done | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Note batches that the replicas have already written; see `DiskStore.put`."""
        with self._using:
            if self._failure is not None or self._closed:
                return
            if history := self.history.note(changes, now_ns=time.time_ns(), origin=origin):
                with self.writing():
                    self._clients.history += history
            rows = sum(map(stored_rows, changes))
            if not rows and session is None and done is None:
                return
            with self.writing():
                self._rows += rows
                if session is not None:
                    self.file.leave(store, session())
                if done is not None:
                    self._done.append(done)

    def put_sessions(self, records: dict[str, bytes | None], *, history_from: int, done: Done) -> None:
        """Write sessions of clients, with the transaction under way."""
        with self._using:
            if self._failure is not None or self._closed:
                return
            with self.writing():
                self._clients.add(ClientWrites(records=records, history_from=history_from))
                self._done.append(done)

    @property
    def database(self) -> sqlite3.Connection:
        """The connection of the event loop."""
        return self.file.database

    def id_of(self, store: str) -> int:
        """Return the number of a store. A new store needs a transaction."""
        return self.file.id_of(store)

    def put_values(self, store: str, values: Mapping[bytes, Update | None]) -> None:
        """Put in and remove values, in the transaction under way."""
        self.file.write(store, values)
        self._written += len(values)

    def new_pass(self) -> int:
        """Return a number for a pass that no other has."""
        self._passes += 1
        return self._passes

    def end_pass(self, number: int) -> None:
        """Remove the marks of a pass, with the next transactions."""
        with self.writing():
            self._passes_over.append(number)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn a failure into a `StoreError` that ends the node; before `start`, into one that tells of damage."""
        if self._failure is not None:
            raise self._failure
        with self._using:
            try:
                yield
            except (sqlite3.Error, ValueError, TypeError) as error:  # the last two: a damaged value
                if self._loop is None:
                    raise translated(self.path, error) from error
                raise self._fail(error) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Do the same inside a transaction, which is begun if none is open."""
        with self.reading():
            if not self.database.in_transaction:
                self.database.execute("BEGIN IMMEDIATE")
                if self._loop is not None:
                    self._loop.call_soon(self._commit)
            yield

    def commit(self) -> None:
        """Commit the transaction under way, if there is one.

        Raises:
            StoreError: It cannot be committed.
        """
        with self.reading():
            if self._closed or not self.database.in_transaction:
                return
            self._forget_marks()
            self.file.write_clients(self._clients)
            clients, self._clients = self._clients, ClientWrites()
            self.database.execute("COMMIT")
            self._tell_history(clients.history)
            self._rows_total += self._rows
            self._rows = 0
            self._transactions += 1

    async def wait_failed(self) -> None:
        """Wait until the disk fails.

        Raises:
            StoreError: It did.
        """
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    @property
    def waiting(self) -> int:
        """Number of updates that are not committed yet."""
        return self._rows

    def stats(self) -> StoreStats:
        """Return the figures of this moment."""
        stopped = self._loop is not None and not self._thread.is_alive() and not self._closing.is_set()
        alarm = "the thread that writes the file ended unexpectedly" if stopped else ""
        if self._failure is not None:
            alarm = self._failure.message
        return self._make_stats(committed=self._rows_total, waiting_bytes=0, alarm=alarm)

    def close(self, *, timeout_s: float) -> bool:
        """Commit what waits, and close the file; return whether everything is written.

        Args:
            timeout_s: Longest duration.
        """
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._file is None:
            self._lock.release()
            return True
        with self._using:
            with contextlib.suppress(StoreError):
                self.commit()
            self._file.close()
            self._closed = True
        self._scratch_path.unlink(missing_ok=True)
        self._lock.release()
        done = [one for _, each in self._unforced for one in each] + self._done
        if self._failure is None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_call, done)
        return self._failure is None

    # --- internal ---

    @property
    def _scratch_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-scratch")

    def _open(self) -> None:
        share = self._cache_bytes // _SCRATCH_SHARE
        self._file = RetainedFile(self.path, sync=self._sync, shared=True, cache_bytes=self._cache_bytes - share)
        with self.reading():
            self.database.execute("PRAGMA synchronous = NORMAL")
            self.database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES_LEFT}")
            attach_scratch(self.database, self._scratch_path, cache_bytes=share)

    def _fail(self, error: Exception) -> StoreError:
        """Note that the file is unusable, drop the open transaction, and return the error."""
        if self._failure is None:
            with contextlib.suppress(sqlite3.Error):
                self.database.execute("ROLLBACK")
            self._failure = StoreError(
                f"retained values cannot be read from or written to {self.path}: {error}",
                hint="Check the disk. Acknowledged messages are in the file; if it is damaged, a start sets it aside",
            )
            self._failed.set()
        return self._failure

    def _commit(self) -> None:
        """Commit the work of one turn of the event loop, and call those who wait for it."""
        done, self._done = self._done, []
        try:
            self.commit()
        except StoreError:  # `wait_failed` reports it; the callbacks must not run
            return
        if self._sync == "always":
            self._unforced.append((self._transactions, done))
            self._wake.set()
        else:
            _call(done)
            if self._sync == "interval" and self._transactions == self._forced + 1:  # else the next interval covers it
                self._wake.set()
        if self._written >= CHECKPOINT_ROWS:
            self._written = 0
            self._checkpoint_due.set()
            self._wake.set()
        if self._passes_over and self._forgetting is None and self._loop is not None:
            self._forgetting = self._loop.call_later(_RETRY_S, self._go_on)

    def _go_on(self) -> None:
        self._forgetting = None
        if self._failure is None and not self._closing.is_set():
            with contextlib.suppress(StoreError), self.writing():
                pass

    def _forget_marks(self) -> None:
        """Remove some marks of ended passes."""
        while self._passes_over:
            removed = self.database.execute(
                # Not "(pass, topic) IN": for that SQLite reads every mark of the pass.
                "DELETE FROM scratch.mark WHERE pass = ? AND topic <= (SELECT max(topic) FROM"
                " (SELECT topic FROM scratch.mark WHERE pass = ? ORDER BY topic LIMIT ?))",
                (self._passes_over[0], self._passes_over[0], FORGOTTEN_AT_ONCE),
            ).rowcount
            if removed == FORGOTTEN_AT_ONCE:
                return
            del self._passes_over[0]

    def _told(self, forced: int) -> None:
        """Call those who wait for transactions that are on the disk now."""
        ready = [done for number, done in self._unforced if number <= forced]
        self._unforced = [each for each in self._unforced if each[0] > forced]
        for done in ready:
            _call(done)

    # --- the thread ---

    def _run(self) -> None:
        database = sqlite3.connect(self.path, isolation_level=None)  # waits 5 s for a lock
        try:
            # Open from now on: later no descriptor may be left, because of clients.
            with self.path.with_name(f"{self.path.name}-wal").open("rb", buffering=0) as log:
                self._tend(database, log)
        except Exception as error:  # a bug too: else nothing would reach the disk any more, unnoticed
            self._call_on_loop(self._fail, error)
        finally:
            database.close()

    def _tend(self, database: sqlite3.Connection, log: io.FileIO) -> None:
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        force_at = 0.0
        while not self._closing.is_set():
            pending = self._sync != "off" and self._forced < self._transactions
            if pending and self._sync == "interval":
                force_at = force_at or time.monotonic() + self._sync_interval_s
            due_s = max(0.0, force_at - time.monotonic()) if pending else None
            self._wake.wait(_RETRY_S if self._held else due_s)
            self._wake.clear()
            if pending and (self._sync == "always" or time.monotonic() >= force_at):
                self._force(log)
                force_at = 0.0
            if self._held or self._checkpoint_due.is_set():
                self._checkpoint_due.clear()
                self._checkpoint(database)

    def _force(self, log: io.FileIO) -> None:
        """Force the write-ahead log to the disk. A checkpoint has already forced what left the log for the file."""
        number = self._transactions
        os.fsync(log)
        self._forced = number
        if self._sync == "always":
            self._call_on_loop(self._told, number)

    def _checkpoint(self, database: sqlite3.Connection) -> None:
        number = self._transactions
        busy, pages, copied = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        whole = not busy and pages == copied and number == self._transactions  # SQLite counted them at its begin
        if self._held and whole:
            self._held = False
            self._call_on_loop(self._hold, False)
        elif not self._held and pages > LOG_PAGES_MAX and not whole:
            self._held = True
            self._call_on_loop(self._hold, True)

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)


def _call(done: Sequence[Done]) -> None:
    for each in done:
        each()
