"""Reading logs that may still be written."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from fanout.errors import LogError
from fanout.replog.files.sealing import open_directory, seal
from fanout.replog.read import reading
from fanout.replog.read.reading import StagedLog, log_parts, stage
from fanout.replog.write.writer import LogSettings, LogWriter
from fanout.runtime.regular_files import open_regular
from tests.replog.files.test_sealing import make_segment
from tests.replog.rows import (
    EPOCH,
    NOW_NS,
    ManualClock,
    make_changes,
    make_updates,
    parquet_rows,
    segment_rows,
)
from tests.support.unreadable import forbid


def staged_positions(staged: StagedLog) -> list[int]:
    """Return the positions of all rows of a staged log, sorted."""
    return sorted(row["log_pos"] for row in [*parquet_rows(staged.updates), *parquet_rows(staged.events)])


def files_below(directory: Path) -> list[Path]:
    """Return all files below a directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_sealed_files_are_named_and_open_segments_converted(tmp_path: Path) -> None:
    """The lists have everything once; nothing in the log is changed."""
    log, target = tmp_path / "log", tmp_path / "target"
    seal(make_segment(log, node="a"), directory=log)
    segment = make_segment(log, node="b")
    updates, events = segment_rows(segment), segment_rows(segment, "events")
    before = files_below(log)
    staged = stage([log], target=target)
    assert files_below(log) == before
    assert [target in path.parents for path in staged.updates] == [False, True]
    assert [target in path.parents for path in staged.events] == [False, True]
    assert parquet_rows(staged.updates[1:]) == updates
    assert parquet_rows(staged.events[1:]) == events
    assert (staged.open_segments, staged.torn_bytes) == (1, 0)


@pytest.mark.parametrize("sealed_table", ["updates", "events"])
def test_a_table_that_is_sealed_already_is_not_converted_again(tmp_path: Path, sealed_table: str) -> None:
    """Between the two renames of a sealing, or after a crash there, each table is read once."""
    log, target = tmp_path / "log", tmp_path / "target"
    segment = make_segment(log)
    data = segment.read_bytes()
    [path] = [path for path in seal(segment, directory=log).files if sealed_table not in path.parts]
    path.unlink()
    segment.write_bytes(data)
    staged = stage([log], target=target)
    assert staged_positions(staged) == list(range(1, 19))
    assert len(staged.updates) == len(staged.events) == 1
    assert len(files_below(target)) == 1


@pytest.mark.parametrize("opened", [False, True])
def test_a_segment_that_is_sealed_while_it_is_listed_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """Sealed after it was opened, or between its listing and its opening: its rows are there once either way."""
    log, target = tmp_path / "log", tmp_path / "target"
    segment = make_segment(log)
    real = open_regular

    def sealing_open(path: Path) -> object:
        monkeypatch.undo()
        file = real(path) if opened else None
        seal(segment, directory=log)
        return file or real(path)

    monkeypatch.setattr("fanout.replog.read.reading.open_regular", sealing_open)
    assert staged_positions(stage([log], target=target)) == list(range(1, 19))
    assert not segment.exists()
    assert not target.exists()


def test_a_segment_newer_than_the_first_listing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing may show a new segment and not the one before it; so nothing newer than the first one counts."""
    segment = make_segment(tmp_path)
    newer = segment.with_name(f"{EPOCH}-000005.seg")
    real = reading._segments
    listings = 0

    def segments(directory: Path) -> object:
        nonlocal listings
        listings += 1
        if listings == 2:
            shutil.copy(segment, newer)
        return real(directory)

    monkeypatch.setattr(reading, "_segments", segments)
    with log_parts(tmp_path) as parts:
        assert [name.number for name in parts] == [3]
    with log_parts(tmp_path) as parts:
        assert [name.number for name in parts] == [3, 5]


def test_the_same_segment_in_two_directories_is_read_once(tmp_path: Path) -> None:
    """Copies of a log may overlap; what is sealed anywhere is taken from there."""
    one, two, target = tmp_path / "one", tmp_path / "two", tmp_path / "target"
    make_segment(one)
    shutil.copytree(one, two)
    seal(next(open_directory(two, "edge-1").glob("*.seg")), directory=two)
    for directories in ([one, two], [two, one], [one, one]):
        staged = stage(directories, target=target)
        assert staged_positions(staged) == list(range(1, 19))
        shutil.rmtree(target, ignore_errors=True)


def test_the_whole_frames_of_a_torn_segment_are_read(tmp_path: Path) -> None:
    """What a crash left is read up to its last whole frame, before any node recovers it."""
    segment = make_segment(tmp_path / "log")
    segment.write_bytes(segment.read_bytes()[:-100])
    staged = stage([tmp_path / "log"], target=tmp_path / "target")
    assert staged_positions(staged) == list(range(1, 13))
    assert staged.torn_bytes > 0
    segment.write_bytes(b"fLog")
    assert stage([tmp_path / "log"], target=tmp_path / "target").updates == ()


def test_files_of_other_names_are_not_read(tmp_path: Path) -> None:
    """Only what the writer names is part of the log."""
    segment = make_segment(tmp_path)
    segment.rename(segment.with_name("notes.seg"))
    place = tmp_path / "v1" / "updates" / "node=edge-1" / "date=2023-11-14" / "hour=22"
    place.mkdir(parents=True)
    (place / "notes.parquet").write_bytes(b"")
    assert stage([tmp_path], target=tmp_path / "target") == StagedLog((), (), 0, 0)


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """A wrong path is told, not taken for an empty log."""
    with pytest.raises(LogError, match=r"nowhere is not the directory of a replication log\..*log\.directory"):
        stage([tmp_path / "nowhere"], target=tmp_path / "target")


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A failing disk is told with its own words."""
    segment = make_segment(tmp_path)
    segment.unlink()
    segment.mkdir()
    with pytest.raises(LogError, match="cannot be read"):
        stage([tmp_path], target=tmp_path / "target")


@pytest.mark.parametrize("place", ["open", "open/node=edge-1", "v1/events/node=edge-1"])
def test_a_directory_that_may_not_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Without a word the rows in it would be missing from every report."""
    seal(make_segment(tmp_path), directory=tmp_path)
    assert (tmp_path / place).is_dir()
    forbid(tmp_path / place, monkeypatch)
    with pytest.raises(LogError, match=f"Permission denied: '{tmp_path / place}'"):
        stage([tmp_path], target=tmp_path / "target")


def test_reading_while_a_node_writes_and_seals(tmp_path: Path) -> None:
    """Every reading has an unbroken prefix of the log, each row once, with all that was written before it began."""
    writer = LogWriter(
        tmp_path / "log",
        node="edge-1",
        role="tap",
        node_epoch=EPOCH,
        clock=ManualClock(NOW_NS),
        settings=LogSettings(flush_interval_s=0.002, segment_bytes_max=100_000),
    )
    writer.open()
    source = writer.source(link="plant")
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.001):
            writer.append(make_changes(make_updates(20)), source=source, link_epoch=7)
            writer.event("heartbeat", link="plant")

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        previous = converted = stagings = 0
        while writer.stats().sealed_segments_total < 6:
            written = writer.stats().written_log_pos
            staged = stage([tmp_path / "log"], target=tmp_path / f"target{stagings}")
            positions = staged_positions(staged)
            assert positions == list(range(1, len(positions) + 1))
            assert len(positions) >= max(written, previous)
            previous = len(positions)
            converted += staged.open_segments
            stagings += 1
    finally:
        stop.set()
        producer.join()
        assert writer.close(timeout_s=60)
    assert converted
    final = stage([tmp_path / "log"], target=tmp_path / "target")
    assert staged_positions(final) == list(range(1, writer.stats().log_pos + 1))
    assert final.open_segments == 0
    assert sorted(os.listdir(open_directory(tmp_path / "log", "edge-1"))) == ["lock", "runs.json"]
