"""The file of retained values: what is read again, who may open it, and what is found to be damaged."""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.errors import StoreError
from fanout.storage import file as module
from fanout.storage.file import FORMAT, FileDamagedError, RetainedFile, Sync
from tests.storage.pieces import contents, opened
from tests.support.updates import update as value


@pytest.mark.parametrize("sync", ["off", "interval", "always"])
def test_random_changes_are_those_of_a_dictionary(tmp_path: Path, sync: Sync) -> None:
    """Whatever is set and removed, in transactions of any size: the file holds what a dictionary does."""
    choice = random.Random(7)
    file = RetainedFile(tmp_path / "r", sync=sync)
    held: dict[bytes, bytes] = {}
    for _ in range(40):
        batch = {}
        for _ in range(choice.randrange(1, 60)):
            topic = b"plant/%d" % choice.randrange(200) * choice.randrange(1, 20)
            payload = choice.randbytes(choice.randrange(0, 3000))
            batch[topic] = value(topic, payload) if payload else None
            held.pop(topic, None)
            if payload:
                held[topic] = payload
        file.commit({"a": batch}, {}, force=choice.random() < 0.1)
    assert contents(file, "a") == held
    file.close()


def test_a_process_that_is_killed_leaves_what_it_committed(tmp_path: Path) -> None:
    """The write-ahead log is read again: nothing needs the file to be closed."""
    file = opened(tmp_path / "r")
    file.commit({"a": {b"t": value(b"t")}}, {}, force=False)
    left = tmp_path / "left"
    left.mkdir()
    for each in tmp_path.glob("r*"):
        shutil.copy(each, left)
    file.close()
    again = opened(left / "r")
    assert contents(again, "a") == {b"t": b"1"}
    again.close()


def test_only_one_opens_it(tmp_path: Path) -> None:
    """A second one is refused, and told what to do."""
    file = opened(tmp_path / "r")
    with pytest.raises(StoreError, match="is in use by another process") as refused:
        opened(tmp_path / "r")
    assert "node.id" in refused.value.hint
    file.close()
    opened(tmp_path / "r").close()


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A file of a later version is left alone."""
    opened(tmp_path / "r").close()
    database = sqlite3.connect(tmp_path / "r")
    database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}"):
        opened(tmp_path / "r")
    assert (tmp_path / "r").exists()


def test_a_file_of_the_first_format_is_read_and_becomes_one_of_this(tmp_path: Path) -> None:
    """Its values are there, as that version wrote them; that version does not read it any more."""
    opened(tmp_path / "r").close()
    database = sqlite3.connect(tmp_path / "r")
    topic, payload, qos, _, properties, received_ns, expires_ns, digest, _ = value(b"t", b"old")
    head = struct.pack("<BQQQHB", qos, received_ns, expires_ns, digest, len(properties), 0)
    database.execute("INSERT INTO store (name) VALUES ('a')")
    database.execute("INSERT INTO retained VALUES (1, ?, ?)", (topic, head + properties + payload))
    database.execute("PRAGMA user_version = 1")
    database.commit()
    database.close()
    file = opened(tmp_path / "r")
    assert list(file.read("a")) == [[value(b"t", b"old")]]
    assert file.database.execute("PRAGMA user_version").fetchone() == (FORMAT,)
    file.close()


def test_long_properties_and_large_values_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Properties beyond 65,535 bytes are kept; what is more than one statement may have is written with several."""
    monkeypatch.setattr(module, "STATEMENT_BYTES", 100_000)
    file = opened(tmp_path / "r")
    long = {b"p/%d" % n: (b"p/%d" % n, b"1", 1, True, bytes(90_018), 1, 0, n, None) for n in range(4)}
    many = {b"v/%03d" % n: value(b"v/%03d" % n, bytes(9_000)) for n in range(50)}
    statements: list[str] = []
    file.database.set_trace_callback(statements.append)
    file.commit({"a": {**long, **many}}, {}, force=False)
    assert sum("INSERT INTO retained" in each for each in statements) == 7
    statements.clear()
    monkeypatch.setattr(module, "STATEMENT_BYTES", 40)
    file.commit({"a": dict.fromkeys(many)}, {}, force=False)
    assert sum("DELETE FROM retained" in each for each in statements) > 1
    file.database.set_trace_callback(None)
    assert {update[0]: update for piece in file.read("a") for update in piece} == long
    file.close()


def test_a_database_of_somebody_else_is_no_file_of_ours(tmp_path: Path) -> None:
    """It counts as damaged, so that it is renamed and not written to."""
    database = sqlite3.connect(tmp_path / "r")
    database.execute("CREATE TABLE theirs (a)")
    database.close()
    with pytest.raises(FileDamagedError, match="not made by fanout"):
        opened(tmp_path / "r")


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """The error names the key."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be used: file exists\.") as refused:
        opened(tmp_path / "file" / "r")
    assert "node.data_directory" in refused.value.hint
    with pytest.raises(StoreError, match="cannot be used"):
        opened(tmp_path)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_damaged(tmp_path: Path, keep: float) -> None:
    """What is missing is found when the file is opened."""
    path = tmp_path / "r"
    file = opened(path)
    file.commit({"a": {b"%d" % n: value(b"%d" % n, b"x" * 100) for n in range(2000)}}, {}, force=False)
    file.close()
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(FileDamagedError):
        opened(path)


def test_a_damaged_file_is_renamed_with_what_belongs_to_it(tmp_path: Path) -> None:
    """Nothing of it is overwritten."""
    for suffix in ("", "-wal"):
        (tmp_path / f"r{suffix}").write_text(f"damaged{suffix}")
    with capture_logs() as told:
        logger = structlog.get_logger()
        aside = RetainedFile.set_aside(tmp_path / "r", "no header", now_ns=1_700_000_000_000_000_000, logger=logger)
    assert [(line["reason"], line["file"]) for line in told] == [("no header", str(aside))]
    assert aside.name == "r.damaged-1700000000000"
    assert aside.read_text() == "damaged"
    assert aside.with_name(aside.name + "-wal").read_text() == "damaged-wal"
    assert not (tmp_path / "r").exists()
    with pytest.raises(StoreError, match="cannot be used"):
        RetainedFile.set_aside(tmp_path / "r", "gone", now_ns=1, logger=logger)


@pytest.mark.parametrize("damage", ["x'01'", "'text'", "CAST(x'ff' AS TEXT)"])
def test_a_value_that_is_none_is_damage(tmp_path: Path, damage: str) -> None:
    """What SQLite cannot know, the encoding does."""
    file = opened(tmp_path / "r")
    file.commit({"a": {b"t": value(b"t")}}, {}, force=False)
    file.close()
    database = sqlite3.connect(tmp_path / "r")
    database.execute(f"UPDATE retained SET value = {damage}")
    database.commit()
    database.close()
    file = opened(tmp_path / "r")
    with pytest.raises(FileDamagedError, match=r"a value cannot be read|decode"):
        contents(file, "a")
    file.close()
