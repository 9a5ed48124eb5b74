"""The file of sessions: whole or refused, at every byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout.errors import StoreError
from fanout.storage.file import FileDamagedError
from fanout.storage.sessions_file import read_records, remove_file, set_aside, write_records, written_ns

RECORDS = [b"first", b"", b"\xff" * 300]


def read(path: Path) -> tuple[int | None, list[bytes]]:
    """Return the time and the records."""
    return written_ns(path), list(read_records(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the file is to be."""
    return tmp_path / "data" / "sessions-edge-1"


def test_what_was_written_is_read(path: Path) -> None:
    """Records come back in order with the time; only this user may read them; a second file takes the first's place."""
    assert written_ns(path) is None
    for records, now_ns in ((RECORDS, 17), ([], 18)):
        assert write_records(path, iter(records), now_ns=now_ns) == len(records)
        assert read(path) == (now_ns, records)
    assert path.stat().st_mode & 0o777 == 0o600
    remove_file(path)
    assert written_ns(path) is None
    assert os.listdir(path.parent) == []


def test_no_part_of_the_file_is_taken_for_all_of_it(path: Path) -> None:
    """Wherever it was cut off, and whichever byte was changed, the file is damaged."""
    write_records(path, RECORDS, now_ns=17)
    whole = path.read_bytes()
    cut_off = (whole[:length] for length in range(len(whole)))
    changed = (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole)))
    for content in (*cut_off, *changed, whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(FileDamagedError):
            read(path)


def test_a_damaged_file_is_kept_beside(path: Path) -> None:
    """It has another name then."""
    write_records(path, RECORDS, now_ns=17)
    aside = set_aside(path, now_ns=5_000_000)
    assert aside.name == "sessions-edge-1.damaged-5"
    assert list(read_records(aside)) == RECORDS
    assert written_ns(path) is None


def test_a_file_that_cannot_be_written_leaves_the_old_one(path: Path) -> None:
    """A writer that fails in the middle changes nothing; an unusable place is an error that names it."""
    write_records(path, RECORDS, now_ns=17)

    def broken() -> object:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="no space left"):
        write_records(path, broken(), now_ns=18)  # type: ignore[arg-type]  # a generator
    assert os.listdir(path.parent) == [path.name]
    assert read(path) == (17, RECORDS)
    below = path / "below"
    with pytest.raises(StoreError, match="file exists") as caught:
        write_records(below, RECORDS, now_ns=18)
    assert "data_directory" in caught.value.hint
    with pytest.raises(StoreError, match="not a directory"):
        written_ns(below)
    with pytest.raises(StoreError, match="no such file"):
        list(read_records(path.with_name("other")))
