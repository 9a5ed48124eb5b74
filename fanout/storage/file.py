"""The file of retained values: an SQLite database that one process has open.

Owns its format and version, the integrity check when it is opened, and the setting aside of a damaged file.

Every change is one transaction in SQLite's write-ahead log, so a killed process leaves all of it or nothing. One
statement inserts all rows of a transaction, whatever their number: each statement takes the interpreter's lock anew,
and on a busy event loop that means waiting for it. `docs/decisions/0040-retained-values-on-disk.md` has the
measurements.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from fanout.errors import StoreError
from fanout.replica.history import HistoryBatch
from fanout.replica.update import Update
from fanout.storage.history import decode_batches, encode_batches
from fanout.storage.rows import decode_update, encode_value
from fanout.storage.wal_damage import find_wal_damage

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = [
    "CACHE_BYTES",
    "FORMAT",
    "ClientWrites",
    "FileDamagedError",
    "RetainedFile",
    "Sync",
    "Writes",
    "translated",
    "unusable",
]

FORMAT: Final = 3
"""Version of the format, stored as SQLite's `user_version`.

Version 1 could not hold values with more than 65,535 bytes of properties, version 2 no sessions of clients. They are
upgraded when they are opened.
"""

Sync: TypeAlias = Literal["off", "interval", "always"]
"""When a committed transaction is forced to the disk. Until then a power failure may undo it.

off:      when the system, or SQLite's own housekeeping, does it.
interval: at latest after the configured interval.
always:   before it counts as committed.
"""

CACHE_BYTES: Final = 64 * 1024 * 1024
"""Default size of SQLite's cache."""

Writes: TypeAlias = Mapping[str, Mapping[bytes, Update | None]]
"""For each store, the new value of each topic; None removes it."""

_APPLICATION: Final = 0x66616E6F  # "fano"
_CHECKPOINT_PAGES: Final = 8_000
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_ROWS_READ: Final = 4_096
STATEMENT_BYTES: Final = 64 * 1024 * 1024
"""Bytes after which a statement ends: SQLite refuses parameters of 1,000,000,000, and they are in memory twice."""
_SCHEMA: Final = (
    "CREATE TABLE store (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, session BLOB)",
    "CREATE TABLE retained (store INTEGER NOT NULL, topic BLOB NOT NULL, value BLOB NOT NULL,"
    " PRIMARY KEY (store, topic)) WITHOUT ROWID",
)
_CLIENTS_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS client_session (client_id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS history (position INTEGER PRIMARY KEY, batches BLOB NOT NULL)",
)
"""Data that clients need after a kill. `position` is the number of the last batch in a row."""
_PIECE: Final = "substr(:rows, json_extract(value, '$[{}]'), json_extract(value, '$[{}]'))"
_PUT: Final = (
    f"INSERT INTO retained SELECT :store, {_PIECE.format(0, 1)}, {_PIECE.format(2, 3)} FROM json_each(:places)"
    " WHERE true ON CONFLICT DO UPDATE SET value = excluded.value"
)
_REMOVE: Final = (
    f"DELETE FROM retained WHERE store = :store AND topic IN (SELECT {_PIECE.format(0, 1)} FROM json_each(:places))"
)


@dataclass(slots=True)
class ClientWrites:
    """Data that the sessions of clients need on disk."""

    history: list[HistoryBatch] = field(default_factory=list)
    """Batches that are dispatched."""
    records: dict[str, bytes | None] = field(default_factory=dict)
    """Sessions by Client Identifier; None for one that has ended."""
    history_from: int = 0
    """Number of the oldest batch that is needed still; 0 leaves the history as it is."""

    def __bool__(self) -> bool:
        """Return whether there is anything to write."""
        return bool(self.history or self.records or self.history_from)

    def add(self, later: ClientWrites) -> None:
        """Add what is to be written later."""
        self.history += later.history
        self.records |= later.records
        self.history_from = max(self.history_from, later.history_from)


class FileDamagedError(Exception):
    """The content of the file is not what a process of fanout wrote."""


class RetainedFile:
    """The file, open."""

    def __init__(self, path: Path, *, sync: Sync, shared: bool = False, cache_bytes: int = CACHE_BYTES) -> None:
        """Open the file, or create it; all of it is checked.

        Args:
            path: The file.
            sync: See `Sync`.
            shared: True if this process opens it more than once; then the caller locks other processes out.
            cache_bytes: Size of SQLite's cache.

        Raises:
            StoreError: Another process has it open, this user may not, or another version made it.
            FileDamagedError: It is damaged; `set_aside` moves it.
        """
        self.path = path
        self._sync = sync
        self._shared = shared
        self._cache_bytes = cache_bytes
        self._synchronous = ""
        self._ids: dict[str, int] = {}
        self.wal_damage = ""
        """Damage of the write-ahead log, whose end is missing then; empty for none."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Used by one thread at a time: the one that opens it, then the writer.
            self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        except (OSError, sqlite3.Error) as error:
            raise unusable(path, error) from error
        try:
            self._prepare()
        except BaseException as error:
            self.database.close()
            if isinstance(error, sqlite3.Error):
                raise translated(path, error) from error
            raise

    @staticmethod
    def set_aside(path: Path, reason: str, *, now_ns: int, logger: FilteringBoundLogger) -> Path:
        """Rename a damaged file with its write-ahead log, overwriting nothing; return its new path.

        Raises:
            StoreError: It cannot be renamed.
        """
        aside = path.with_name(f"{path.name}.damaged-{now_ns // 1_000_000}")
        try:
            path.rename(aside)  # first: a new file deletes a write-ahead log that it finds, an old one would replay it
            with contextlib.suppress(FileNotFoundError):
                path.with_name(f"{path.name}-wal").rename(aside.with_name(f"{aside.name}-wal"))
        except OSError as error:
            raise unusable(path, error) from error
        logger.error(
            "file of retained values is damaged, set aside",
            reason=reason,
            file=str(aside),
            hint="Replicas are fetched again; retained values of this node's own topics are lost. Check the disk",
        )
        return aside

    def sessions(self) -> dict[str, bytes | None]:
        """Return the session of each store, None for a store without one.

        Raises:
            FileDamagedError: The file cannot be read.
        """
        with _reading(self.path):
            return dict(self.database.execute("SELECT name, session FROM store"))

    def read(self, store: str) -> Iterator[list[Update]]:
        """Yield the values of a store, some thousand at a time, in the order of their topics.

        Raises:
            FileDamagedError: The file cannot be read.
        """
        with _reading(self.path):
            rows = self.database.execute(
                "SELECT topic, value FROM retained WHERE store = ? ORDER BY topic", (self._ids.get(store, 0),)
            )
            while piece := rows.fetchmany(_ROWS_READ):
                try:
                    yield [decode_update(topic, value) for topic, value in piece]
                except (ValueError, TypeError) as error:  # TypeError: text where bytes should be
                    raise FileDamagedError(f"a value cannot be read: {error}") from error

    def forget(self, store: str) -> None:
        """Remove a store with all its values."""
        with self.database:
            self.database.execute("BEGIN")
            self.database.execute("DELETE FROM retained WHERE store = ?", (self._ids.get(store, 0),))
            self.database.execute("DELETE FROM store WHERE name = ?", (store,))
        self._ids.pop(store, None)

    def commit(
        self, writes: Writes, sessions: Mapping[str, bytes | None], *, clients: ClientWrites | None = None, force: bool
    ) -> None:
        """Make changes in one transaction.

        Args:
            writes: The values.
            sessions: New sessions of stores.
            clients: Changes that the sessions of clients need; None for none.
            force: True to wait until these and all earlier changes are on the disk.

        Raises:
            sqlite3.Error: Nothing was changed.
        """
        database = self.database
        synchronous = "FULL" if force or self._sync == "always" else "NORMAL"
        if synchronous != self._synchronous:
            database.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        database.execute("BEGIN IMMEDIATE")
        try:
            for store, values in writes.items():
                self.write(store, values)
            for store, session in sessions.items():
                self.leave(store, session)
            if clients is not None:
                self.write_clients(clients)
            if force:  # SQLite forces only a transaction with a change
                database.execute(f"PRAGMA user_version = {FORMAT}")
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            self._read_ids()
            raise

    def id_of(self, store: str) -> int:
        """Return the number of a store; a new store is created in the transaction under way."""
        if store not in self._ids:
            made = self.database.execute("INSERT INTO store (name) VALUES (?) RETURNING id", (store,)).fetchone()
            self._ids[store] = made[0]
        return self._ids[store]

    def write(self, store: str, values: Mapping[bytes, Update | None]) -> None:
        """Put in and remove values of a store, in the transaction under way."""
        self._write(self.id_of(store), values)

    def leave(self, store: str, session: bytes | None) -> None:
        """Set the session of a store, in the transaction under way."""
        self.database.execute("UPDATE store SET session = ? WHERE id = ?", (session, self.id_of(store)))

    def write_clients(self, writes: ClientWrites) -> None:
        """Write what the sessions of clients need, in the transaction under way."""
        execute = self.database.execute
        if writes.history:
            execute(
                "INSERT INTO history (position, batches) VALUES (?, ?)",
                (writes.history[-1].position, encode_batches(writes.history)),
            )
        kept = [(client_id, record) for client_id, record in writes.records.items() if record is not None]
        ended = [(client_id,) for client_id, record in writes.records.items() if record is None]
        if kept:
            self.database.executemany("INSERT OR REPLACE INTO client_session VALUES (?, ?)", kept)
        if ended:
            self.database.executemany("DELETE FROM client_session WHERE client_id = ?", ended)
        if writes.history_from:
            execute("DELETE FROM history WHERE position < ?", (writes.history_from,))

    def client_records(self) -> dict[str, bytes]:
        """Return the records of the sessions of clients.

        Raises:
            FileDamagedError: The file cannot be read.
        """
        with _reading(self.path):
            return dict(self.database.execute("SELECT client_id, record FROM client_session"))

    def history_position(self) -> int:
        """Return the number of the last batch of the history; 0 when there is none."""
        (position,) = self.database.execute("SELECT coalesce(max(position), 0) FROM history").fetchone()
        return int(position)

    def history(self) -> Iterator[HistoryBatch]:
        """Yield the batches of the history, in order.

        Raises:
            FileDamagedError: The file cannot be read.
        """
        with _reading(self.path):
            for (batches,) in self.database.execute("SELECT batches FROM history ORDER BY position"):
                try:
                    yield from decode_batches(batches)
                except (ValueError, TypeError) as error:
                    raise FileDamagedError(f"the history of messages cannot be read: {error}") from error

    def forget_clients(self) -> int:
        """Remove the sessions of clients and the history; return how many sessions there were."""
        with self.database:
            self.database.execute("BEGIN")
            count = self.database.execute("DELETE FROM client_session").rowcount
            self.database.execute("DELETE FROM history")
        return count

    @property
    def size_bytes(self) -> int:
        """Size of the file and of its write-ahead log."""
        size = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                size += self.path.with_name(self.path.name + suffix).stat().st_size
        return size

    def close(self) -> None:
        """Close the file, with all committed transactions on the disk."""
        with contextlib.suppress(sqlite3.Error):  # then the next process reads the write-ahead log
            self.database.execute("PRAGMA synchronous = FULL")
        with contextlib.suppress(sqlite3.Error):
            self.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.database.close()

    def _prepare(self) -> None:
        database = self.database
        if not self._shared:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("BEGIN EXCLUSIVE")  # takes the lock, which is held until the end unless the file is shared
        database.execute("COMMIT")
        _, frames, _ = database.execute("PRAGMA wal_checkpoint").fetchone()
        self.wal_damage = find_wal_damage(self.path.with_name(f"{self.path.name}-wal"), valid_frames=frames)
        database.execute("PRAGMA journal_size_limit = 0")  # so that the log ends where it was written last
        database.execute(f"PRAGMA cache_size = -{self._cache_bytes // 1024}")
        database.execute(f"PRAGMA wal_autocheckpoint = {0 if self._shared else _CHECKPOINT_PAGES}")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            database.execute("BEGIN")
            version = (f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {FORMAT}")
            for statement in (*_SCHEMA, *_CLIENTS_SCHEMA, *version):
                database.execute(statement)
            database.execute("COMMIT")
        elif application != _APPLICATION:
            raise FileDamagedError("it was not made by fanout")
        elif found in (1, 2):
            database.execute("BEGIN")
            for statement in (*_CLIENTS_SCHEMA, f"PRAGMA user_version = {FORMAT}"):
                database.execute(statement)
            database.execute("COMMIT")
        elif found != FORMAT:
            raise StoreError(
                f"the file of retained values {self.path} has format {found}, and this fanout reads {FORMAT}",
                hint="Start the version that wrote it, or move the file away: replicas are then fetched again, and"
                " retained values of this node's own topics are lost",
            )
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise FileDamagedError(str(verdict))
        self._read_ids()

    def _read_ids(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._ids = dict(self.database.execute("SELECT name, id FROM store"))

    def _write(self, store: int, values: Mapping[bytes, Update | None]) -> None:
        pieces: list[bytes] = []
        places: list[str] = []
        removed: list[bytes] = []
        removed_places: list[str] = []
        at = removed_at = 1  # SQLite counts from 1
        for topic in sorted(values):  # each page of the file is written once
            update = values[topic]
            length = len(topic)
            if update is None:
                removed.append(topic)
                removed_places.append(f"[{removed_at},{length}]")
                removed_at += length
            else:
                value = encode_value(update)
                pieces += (topic, value)
                places.append(f"[{at},{length},{at + length},{len(value)}]")
                at += length + len(value)
            if at > STATEMENT_BYTES or removed_at > STATEMENT_BYTES:
                self._execute(_PUT, store, pieces, places)
                self._execute(_REMOVE, store, removed, removed_places)
                at = removed_at = 1
        self._execute(_PUT, store, pieces, places)
        self._execute(_REMOVE, store, removed, removed_places)

    def _execute(self, statement: str, store: int, pieces: list[bytes], places: list[str]) -> None:
        """Execute a statement for the collected rows, if there are any, and clear them."""
        if pieces:
            parameters = {"store": store, "rows": b"".join(pieces), "places": f"[{','.join(places)}]"}
            self.database.execute(statement, parameters)
            pieces.clear()
            places.clear()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) is None:  # Python, not SQLite: not UTF-8
            raise FileDamagedError(str(error)) from error
        raise translated(path, error) from error


def translated(path: Path, error: Exception) -> Exception:
    """Return the exception to raise for an error of SQLite, or of a value that cannot be read."""
    if not isinstance(error, sqlite3.Error):
        return FileDamagedError(f"a value cannot be read: {error}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGE:
        return FileDamagedError(str(error))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"the file of retained values {path} is in use by another process",
            hint="Stop that process, or give this node another node.id or node.data_directory",
        )
    return unusable(path, error)


def unusable(path: Path, error: Exception) -> StoreError:
    """Return the error for a file that cannot be opened or written."""
    reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
    return StoreError(
        f"the file of retained values {path} cannot be used: {reason}",
        hint="Check the key node.data_directory, and that this user may write there",
    )
