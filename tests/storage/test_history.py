"""Bytes of the history of messages: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fanout.errors import StoreError
from fanout.replica.history import HistoryBatch, MessageHistory, Origin
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Stamp, Update
from fanout.storage.file import ClientWrites, FileDamagedError
from fanout.storage.history import decode_batches, encode_batches
from tests.storage.pieces import opened
from tests.storage.replicas import direct_store
from tests.support.updates import update as value

STAMP = Stamp("first-é", 2**63, 2**64 - 1, 5)
FULL: Update = (b"t" * 65_535, bytes(range(256)), 2, False, b"\x23" * 70_000, 2**63, 2**64 - 1, 2**64 - 1, STAMP)
EMPTY: Update = (b"t", b"", 0, True, b"", 0, 0, 0, None)
BATCHES = [
    HistoryBatch(1, 2**63, None, [EMPTY, FULL]),
    HistoryBatch(2, 0, Origin(""), [EMPTY]),
    HistoryBatch(3, 0, Origin("i" * 65_535), [EMPTY]),
    HistoryBatch(2**63 - 1, 1, Origin("ü" * 1000, (1, 65_535)), [FULL, EMPTY, FULL]),
    HistoryBatch(2**63 - 1, 1, Origin("c", tuple(range(1, 65_536))), []),
    HistoryBatch(2**63, 1, None, []),
]


def test_what_is_written_is_read() -> None:
    """Every field at its limits, with and without what may be absent."""
    assert list(decode_batches(encode_batches(BATCHES))) == BATCHES
    assert list(decode_batches(b"")) == []


def test_every_end_in_the_middle_is_refused() -> None:
    """No batch is made of half its bytes."""
    small = [HistoryBatch(1, 2, Origin("c", (7, 8)), [EMPTY, (b"topic", b"x", 1, False, b"p", 1, 2, 3, STAMP)])]
    data = encode_batches(small)
    for end in range(1, len(data)):
        with pytest.raises(ValueError, match="ends in the middle"):
            list(decode_batches(data[:end]))


def test_only_what_a_session_may_wait_for_gets_a_number() -> None:
    """Batches of messages at QoS 0, and those that come while there is no session, get none."""
    history, replica = MessageHistory(), Replica()

    def changes(*qos: int) -> list[Changes]:
        updates: list[Update] = [(b"t", b"x", each, False, b"", 1, 0, 0, None) for each in qos]
        return [replica.apply(updates, phase=Phase.LIVE)]

    assert history.note(changes(1), now_ns=1) == []
    history.is_wanted = True
    assert history.note(changes(0, 0), now_ns=1) == []
    (noted,) = history.note(changes(0, 2), now_ns=7, origin=Origin("c"))
    assert (noted.position, noted.dispatched_ns, noted.origin, len(noted.updates)) == (1, 7, Origin("c"), 2)
    assert (history.position, history.updates) == (1, 2)


def test_the_file_keeps_what_is_needed(tmp_path: Path) -> None:
    """Records are replaced and removed by Client Identifier; of the history what is older than needed goes."""
    file = opened(tmp_path / "r")
    file.commit({}, {}, clients=ClientWrites(BATCHES[:2], {"a": b"1", "b": b"2"}), force=False)
    file.commit({}, {}, clients=ClientWrites([HistoryBatch(5, 1, None, [EMPTY])], {"a": b"3", "b": None}), force=True)
    file.commit({}, {}, clients=ClientWrites(history_from=3), force=False)
    file.close()
    file = opened(tmp_path / "r")
    assert file.client_records() == {"a": b"3"}
    assert [batch.position for batch in file.history()] == [5]
    assert file.history_position() == 5
    assert file.forget_clients() == 1
    assert (file.client_records(), list(file.history()), file.history_position()) == ({}, [], 0)
    file.close()


def test_a_file_of_a_format_without_sessions_gets_room_for_them(tmp_path: Path) -> None:
    """Its values stay."""
    file = opened(tmp_path / "r")
    file.commit({"a": {b"t": value(b"t")}}, {}, force=False)
    file.close()
    database = sqlite3.connect(tmp_path / "r")
    for statement in ("DROP TABLE client_session", "DROP TABLE history", "PRAGMA user_version = 2"):
        database.execute(statement)
    database.commit()
    database.close()
    file = opened(tmp_path / "r")
    assert [topic for piece in file.read("a") for topic, *_ in piece] == [b"t"]
    file.commit({}, {}, clients=ClientWrites(records={"c": b"1"}), force=False)
    assert file.client_records() == {"c": b"1"}
    file.close()


def test_damage_of_the_history_is_told(tmp_path: Path) -> None:
    """It is not taken for its end."""
    file = opened(tmp_path / "r")
    file.commit({}, {}, clients=ClientWrites(BATCHES[:2]), force=False)
    file.database.execute("UPDATE history SET batches = substr(batches, 1, 20)")
    with pytest.raises(FileDamagedError, match="ends in the middle"):
        list(file.history())
    file.close()


def test_a_mark_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """The error names the file, as on a disk that was full at the start."""
    storage = direct_store(tmp_path / "r", sync="off")
    storage.open(now_ns=1)
    (tmp_path / "r-told").mkdir()
    with pytest.raises(StoreError, match="r-told cannot be used: is a directory"):
        storage.begin_history(0)
    storage.close(timeout_s=1)
