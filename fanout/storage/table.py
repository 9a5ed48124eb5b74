"""Rows of one store in the file, for a replica that is not in memory: look-up, search and writes, by the batch.

Owns the SQL statements, and two tables that only the running process needs: expiries, and the topics that a pass has
brought. These are in a scratch file that every process creates anew.

A statement takes any number of topics as one byte string and a JSON list of places in it, which SQLite walks. A place
is one number: the offset times 2**20, plus the length. A Topic Name with its prefix is shorter than 2**20 bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from fanout.replica.topic_tree import TopicSearch
from fanout.replica.update import Update
from fanout.storage.rows import decode_update

__all__ = ["RetainedTable", "Rows", "attach_scratch"]

_PIECE_TOPICS: Final = 512
"""Topics in one step of a search."""
_READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes of values after which a step ends, so that large values come in small pieces."""
_SCRATCH: Final = (
    "PRAGMA scratch.journal_mode = OFF",
    "PRAGMA scratch.synchronous = OFF",
    "PRAGMA scratch.locking_mode = EXCLUSIVE",
    "CREATE TABLE scratch.expiring (store INTEGER NOT NULL, expires INTEGER NOT NULL, topic BLOB NOT NULL,"
    " PRIMARY KEY (store, expires, topic)) WITHOUT ROWID",
    "CREATE TABLE scratch.mark (pass INTEGER NOT NULL, topic BLOB NOT NULL, flags INTEGER NOT NULL,"
    " PRIMARY KEY (pass, topic)) WITHOUT ROWID",
)
_BITS: Final = 20
_MASK: Final = 2**_BITS - 1
_ABOVE_ALL: Final = b"\xff"
"""Sorts after every topic, and after all with the same beginning: UTF-8 never has this byte."""
_TOPIC: Final = f"substr(?, place.value >> {_BITS}, place.value & {_MASK})"
_SELECT: Final = (
    "SELECT retained.topic, retained.value FROM json_each(?) AS place CROSS JOIN retained"
    f" ON retained.store = ? AND retained.topic = {_TOPIC}"
)
_MARKS: Final = (
    "SELECT mark.topic, mark.flags FROM json_each(?) AS place CROSS JOIN scratch.mark AS mark"
    f" ON mark.pass = ? AND mark.topic = {_TOPIC}"
)
_MARK: Final = (
    f"INSERT INTO scratch.mark SELECT ?, {_TOPIC}, ? FROM json_each(?) AS place WHERE true"
    " ON CONFLICT DO UPDATE SET flags = excluded.flags"
)
_UNMARK: Final = f"DELETE FROM scratch.mark WHERE pass = ? AND topic IN (SELECT {_TOPIC} FROM json_each(?) AS place)"
_EXPIRING: Final = "INSERT OR IGNORE INTO scratch.expiring VALUES (?, ?, ?)"
_NOT_EXPIRING: Final = "DELETE FROM scratch.expiring WHERE store = ? AND expires = ? AND topic = ?"
_TOPICS: Final = "SELECT topic FROM retained WHERE store = ? AND topic >= ? AND topic < ? ORDER BY topic LIMIT ?"
_LAST_TOPIC: Final = (
    "SELECT topic FROM retained WHERE store = ? AND topic >= ? AND topic < ? ORDER BY topic DESC LIMIT 1"
)
_NTH_TOPIC: Final = (
    "SELECT topic FROM retained WHERE store = ? AND topic >= ? AND topic < ? ORDER BY topic LIMIT 1 OFFSET ?"
)
_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM retained WHERE store = ? AND topic >= ? AND topic < ? LIMIT ?)"
_STEP_MAX: Final = 1_000
"""Largest number of topics that `spread` steps over: some 0.1 ms."""
_ROOTS_MAX: Final = 1_000
"""Number of stretches for which `spread` remembers where it was."""
_KEY_BYTES: Final = 8
"""Number of bytes of a topic, after what all topics of a stretch have in common, that place it in the stretch."""
_UNMARKED: Final = (
    "SELECT topic, NOT EXISTS"
    " (SELECT 1 FROM scratch.mark WHERE pass = ? AND mark.topic = retained.topic AND flags & 1)"
    " FROM retained WHERE store = ? AND topic >= ? AND topic < ? ORDER BY topic LIMIT ?"
)
_MARKED: Final = "SELECT topic, flags FROM scratch.mark WHERE pass = ? AND topic >= ? ORDER BY topic LIMIT ?"


class Rows(Protocol):
    """The part of a store that a table needs."""

    @property
    def database(self) -> sqlite3.Connection:
        """The connection of the event loop."""

    def id_of(self, store: str) -> int:
        """Return the number of a store. A new store needs a transaction."""

    def reading(self) -> AbstractContextManager[None]:
        """Turn a failure into the error that ends the process."""

    def writing(self) -> AbstractContextManager[None]:
        """Do the same inside a transaction."""

    def put_values(self, store: str, values: Mapping[bytes, Update | None]) -> None:
        """Put in and remove values."""

    def new_pass(self) -> int:
        """Return a number for a pass that no other has."""

    def end_pass(self, number: int) -> None:
        """Remove the marks of a pass, now or later."""


class RetainedTable(TopicSearch):
    """The rows of one store."""

    __slots__ = ("_rows", "_store", "_went_to", "name")

    def __init__(self, rows: Rows, name: str) -> None:
        """Prepare; the file may still be closed.

        Args:
            rows: The file.
            name: The store.
        """
        self.name = name
        self._rows = rows
        self._store: int | None = None
        self._went_to: dict[bytes, bytes] = {}
        """Beginning of each stretch to where `spread` goes on in it."""

    def __contains__(self, topic: bytes) -> bool:
        """Return True if a topic has a value."""
        return bool(self.topics(topic, topic + b"\0", 1))

    @property
    def store(self) -> int:
        """Number of the store."""
        if self._store is None:
            with self._rows.writing():
                self._store = self._rows.id_of(self.name)
        return self._store

    def renew(self) -> None:
        """Note that the file was replaced."""
        self._store = None

    # --- values ---

    def select(self, topics: Sequence[bytes]) -> list[Update]:
        """Return the values of those of `topics`, none of them twice, that have one, in that order."""
        store = self.store
        with self._rows.reading():
            rows = self._rows.database.execute(_SELECT, (_places(topics), store, b"".join(topics)))
            return [decode_update(topic, value) for topic, value in rows]

    def match_values(self, topic_filter: bytes) -> Iterator[list[Update]]:
        """Yield the values whose topics a Topic Filter matches, in pieces, as `TopicSearch.match` does."""
        for topics in self.match(topic_filter):
            yield from self._values_of(topics) if topics else ([],)  # an empty piece keeps a long search in steps

    def pieces(self) -> Iterator[list[Update]]:
        """Yield every value, in the order of their topics; they may change meanwhile."""
        for topics in self._pieces(b"", None):
            yield from self._values_of(topics)

    def topics(self, low: bytes, high: bytes | None, count: int) -> list[bytes]:
        """Return the first topics from `low` on and below `high`, up to `count`."""
        bounds = self.store, low, _ABOVE_ALL if high is None else high, count
        with self._rows.reading():
            return [row[0] for row in self._rows.database.execute(_TOPICS, bounds)]

    def first(self, low: bytes, high: bytes | None) -> bytes | None:
        """Return the first topic from `low` on and below `high`; None when there is none."""
        return next(iter(self.topics(low, high, 1)), None)

    def count_between(self, low: bytes, high: bytes, *, most: int) -> int:
        """Return the number of topics of a stretch, up to `most`; see `TopicSearch.count_between`."""
        with self._rows.reading():
            row = self._rows.database.execute(_COUNT, (self.store, low, high, most)).fetchone()
        count: int = row[0]
        return count

    def spread(self, root: bytes, fractions: Sequence[float]) -> list[bytes]:
        """Return topics at fractions of a stretch; see `TopicSearch.spread`.

        The file does not number its rows. So every second place is a fraction of the way between the bytes of the first
        topic and those of the last one, which neglects topics that are close together; the others continue in order
        where the last call ended, by up to a thousand topics.
        """
        high = root + _ABOVE_ALL
        first = self.first(root, high)
        if first is None:
            return []
        last = self._last(root, high)
        common = first[
            : next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
        ]
        low, end = (int.from_bytes(each[len(common) :][:_KEY_BYTES].ljust(_KEY_BYTES, b"\0")) for each in (first, last))
        found: list[bytes] = []
        for number, fraction in enumerate(fractions):
            if number % 2:
                found.append(self._go_on(root, high, int(fraction * _STEP_MAX)) or first)
            else:
                place = common + (low + int(fraction * (end - low))).to_bytes(_KEY_BYTES)
                found.append(self.first(place.rstrip(b"\0"), high) or last)
        return found

    def _last(self, low: bytes, high: bytes) -> bytes:
        """Return the last topic from `low` on and below `high`; there must be one."""
        with self._rows.reading():
            (last,) = self._rows.database.execute(_LAST_TOPIC, (self.store, low, high)).fetchone()
        topic: bytes = last
        return topic

    def _go_on(self, root: bytes, high: bytes, step: int) -> bytes | None:
        """Return the topic that is `step` topics, or fewer at the end, after the last one below `root`."""
        low = self._went_to.pop(root, root)
        while True:
            with self._rows.reading():
                row = self._rows.database.execute(_NTH_TOPIC, (self.store, low, high, step)).fetchone()
            if row is not None:
                topic: bytes = row[0]
                self._went_to[root] = topic + b"\0"
                if len(self._went_to) > _ROOTS_MAX:
                    del self._went_to[next(iter(self._went_to))]
                return topic
            if not step:
                return None
            step //= 4

    def write(self, values: Mapping[bytes, Update | None]) -> None:
        """Put in and remove values."""
        with self._rows.writing():
            self._rows.put_values(self.name, values)

    def _values_of(self, topics: list[bytes]) -> Iterator[list[Update]]:
        store = self.store
        while topics:
            found: list[Update] = []
            size, rest = 0, 0
            with self._rows.reading():
                rows = self._rows.database.execute(_SELECT, (_places(topics), store, b"".join(topics)))
                for topic, value in rows:
                    found.append(decode_update(topic, value))
                    size += len(value)
                    if size >= _READ_BYTES_MAX:
                        rest = topics.index(topic) + 1
                        break
                rows.close()  # an unfinished statement keeps the write-ahead log from being reset
            topics = topics[rest:] if rest else []
            yield found

    def _pieces(self, low: bytes, high: bytes | None) -> Iterator[list[bytes]]:
        while piece := self.topics(low, high, _PIECE_TOPICS):
            low = piece[-1] + b"\0"  # no topic lies between: U+0000 occurs in none [MQTT-4.7.3-2]
            yield piece

    # --- expiry ---

    def change_expiries(self, removed: Collection[tuple[int, bytes]], added: Collection[tuple[int, bytes]]) -> None:
        """Remove and add expiries; each is (expires_ns, topic)."""
        store = self.store
        with self._rows.writing():
            # Not one statement with "IN": SQLite would read all that expires at the same time as each of these.
            self._rows.database.executemany(_NOT_EXPIRING, ((store, *entry) for entry in removed))
            self._rows.database.executemany(_EXPIRING, ((store, *entry) for entry in added))

    def next_expiry(self) -> int | None:
        """Return the earliest expiry; None for none."""
        store = self.store
        with self._rows.reading():
            row = self._rows.database.execute(
                "SELECT min(expires) FROM scratch.expiring WHERE store = ?", (store,)
            ).fetchone()
        return None if row is None else row[0]

    def expired(self, now_ns: int, count: int) -> list[bytes]:
        """Return up to `count` expired topics, the earliest first."""
        store = self.store
        with self._rows.reading():
            rows = self._rows.database.execute(
                "SELECT topic FROM scratch.expiring WHERE store = ? AND expires <= ? ORDER BY expires LIMIT ?",
                (store, now_ns, count),
            )
            return [row[0] for row in rows]

    # --- passes ---

    def begin_pass(self) -> int:
        """Return the number of a new pass, without marks."""
        return self._rows.new_pass()

    def end_pass(self, number: int) -> None:
        """Forget the marks of a pass."""
        self._rows.end_pass(number)

    def marks(self, number: int, topics: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Return those of `topics` that have a mark in a pass, with it."""
        with self._rows.reading():
            return self._rows.database.execute(_MARKS, (_places(topics), number, b"".join(topics))).fetchall()

    def mark(self, number: int, flags: int, topics: Sequence[bytes]) -> None:
        """Mark topics in a pass; 0 removes the mark."""
        with self._rows.writing():
            joined, places = b"".join(topics), _places(topics)
            if flags:
                self._rows.database.execute(_MARK, (number, joined, flags, places))
            else:
                self._rows.database.execute(_UNMARK, (number, joined, places))

    def marked(self, number: int, flag: int) -> list[bytes]:
        """Return every topic whose mark in a pass has a flag."""
        with self._rows.reading():
            rows = self._rows.database.execute(
                "SELECT topic FROM scratch.mark WHERE pass = ? AND flags & ?", (number, flag)
            )
            return [row[0] for row in rows]

    def marked_pieces(self, number: int, flag: int) -> Iterator[list[bytes]]:
        """Yield the topics whose mark in a pass has a flag, in order; a piece covers some hundred marks."""
        low = b""
        while True:
            with self._rows.reading():
                rows = self._rows.database.execute(_MARKED, (number, low, _PIECE_TOPICS)).fetchall()
            if not rows:
                return
            low = rows[-1][0] + b"\0"
            yield [topic for topic, flags in rows if flags & flag]

    def unmarked(self, number: int, root: bytes) -> Iterator[list[bytes]]:
        """Yield the topics that begin with `root` and do not have the flag 1 in a pass, in order.

        A piece covers some hundred topics and may be empty.
        """
        store = self.store
        low, high = root, root + _ABOVE_ALL
        while True:
            with self._rows.reading():
                rows = self._rows.database.execute(_UNMARKED, (number, store, low, high, _PIECE_TOPICS)).fetchall()
            if not rows:
                return
            low = rows[-1][0] + b"\0"
            yield [topic for topic, is_unmarked in rows if is_unmarked]


def attach_scratch(database: sqlite3.Connection, path: Path, *, cache_bytes: int) -> None:
    """Attach a new, empty scratch file."""
    path.unlink(missing_ok=True)
    database.execute("ATTACH DATABASE ? AS scratch", (str(path),))
    for statement in _SCRATCH:
        database.execute(statement)
    database.execute(f"PRAGMA scratch.cache_size = -{cache_bytes // 1024}")


def _offsets(topics: Iterable[bytes]) -> list[int]:
    places: list[int] = []
    at = 1  # SQLite counts from 1
    for topic in topics:
        length = len(topic)
        places.append(at << _BITS | length)
        at += length
    return places


def _places(topics: Iterable[bytes]) -> str:
    return str(_offsets(topics))
