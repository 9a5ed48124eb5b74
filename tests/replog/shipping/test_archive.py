"""Sealed files: shipped to a store, and removed here when they are old or many, but never unconfirmed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow.fs as pafs
import pytest
import structlog

from fanout.config import ShipConfig
from fanout.replog.alarms import Alarms
from fanout.replog.files.sealing import open_directory
from fanout.replog.runs import RunRecord
from fanout.replog.settings import ArchiveStats
from fanout.replog.shipping.archive import Archive, read_removed
from fanout.replog.shipping.object_store import ObjectStore
from fanout.replog.write.writer import LogSettings, LogWriter
from tests.replog.rows import EPOCH, NOW_NS, ManualClock, make_changes, make_updates
from tests.support.object_store import LocalS3, local_s3
from tests.support.waiting import wait_until_blocking

HOUR = "date=2023-11-14/hour=22"
"""That of `NOW_NS`."""


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    """A local S3 server."""
    with local_s3() as server:
        yield server


def sealed(
    log: Path, number: int, *, size: int = 10, hour: str = HOUR, node: str = "edge-1", table: str = "updates"
) -> Path:
    """Make a sealed file; what is in it does not matter here."""
    path = log / "v1" / table / f"node={node}" / hour / f"{EPOCH}-{number:06}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([number]) * size)
    os.utime(path, ns=(NOW_NS, NOW_NS))
    return path


class Tended:
    """An archive that runs."""

    def __init__(self, log: Path, settings: LogSettings, clock: ManualClock) -> None:
        open_directory(log, "edge-1").mkdir(parents=True, exist_ok=True)  # the writer holds the lock in it
        self.alarms = Alarms(structlog.get_logger())
        self.archive = Archive(
            log,
            node="edge-1",
            settings=settings,
            clock=clock,
            alarms=self.alarms,
            runs=RunRecord(open_directory(log, "edge-1"), node_epoch=1),
            logger=structlog.get_logger(),
        )
        self.archive.start()

    @property
    def stats(self) -> ArchiveStats:
        return self.archive.stats()

    def wait_shipped(self, count: int) -> None:
        """Wait until so many files were copied."""
        wait_until_blocking(lambda: self.stats.shipped_files_total == count, 30, what=lambda: str(self.stats))


@contextmanager
def tended(log: Path, clock: ManualClock | None = None, **settings: Any) -> Iterator[Tended]:
    """Tend a log for the `with` block; the store is tried again at once."""
    of_store = {key: settings.pop(key) for key in ("retry_max_s", "behind_max_s") if key in settings}
    if (to := settings.pop("ship_to", None)) is not None:
        settings["ship"] = ShipConfig(to=to, **{"retry_max_s": 0.02, **of_store})
    archive = Tended(log, LogSettings(**{"ship_retry_min_s": 0.005, **settings}), clock or ManualClock())
    try:
        yield archive
    finally:
        archive.archive.close(timeout_s=30)


def tended_once(log: Path, clock: ManualClock | None = None, **settings: float | str) -> ArchiveStats:
    """Return the figures after all was done that can be."""
    with tended(log, clock, **settings) as archive:
        pass
    return archive.stats


def names_below(place: Path) -> list[str]:
    """Return the files below a directory."""
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_files_are_shipped_to_s3_when_it_is_there(tmp_path: Path, s3: LocalS3) -> None:
    """A store that refuses is tried again; afterwards all is there, byte by byte, and waits no more."""
    first = sealed(tmp_path, 1, node="edge-1")
    sealed(tmp_path, 1, node="other")
    clock = ManualClock()
    clock.advance(5.0)
    with tended(tmp_path, clock, ship_to=s3.uri("late/logs"), behind_max_s=4.0) as archive:
        wait_until_blocking(lambda: archive.stats.failures_total > 1, 30)
        assert (archive.stats.waiting_files, archive.stats.shipped_files_total) == (1, 0)
        wait_until_blocking(lambda: archive.alarms.text, 30)
        assert "sealed files wait for s3://late/logs" in archive.alarms.text
        s3.make_bucket("late")
        archive.wait_shipped(1)
        archive.archive.add([second := sealed(tmp_path, 2)])
        archive.wait_shipped(2)
        wait_until_blocking(lambda: not archive.alarms.text, 30)
    assert (archive.stats.waiting_files, archive.stats.oldest_waiting_seconds) == (0, 0.0)
    assert (archive.stats.kept_files, archive.stats.shipped_bytes_total) == (2, 20)
    files, root = s3.open("late/logs")
    found = files.get_file_info(pafs.FileSelector(root, recursive=True))
    content = {
        info.path.removeprefix(f"{root}/"): files.open_input_file(info.path).read() for info in found if info.is_file
    }
    assert content == {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in (first, second)}


def test_a_restart_ships_only_what_the_store_has_not_whole(tmp_path: Path, s3: LocalS3) -> None:
    """What is confirmed is known from the store: a copy of another size is made again, a whole one is not."""
    s3.make_bucket("again")
    paths = [sealed(tmp_path, number) for number in (1, 2, 3)]
    where = s3.uri("again")
    assert tended_once(tmp_path, ship_to=where).shipped_files_total == 3
    assert tended_once(tmp_path, ship_to=where).shipped_files_total == 0
    files, root = s3.open("again")
    names = [f"{root}/{path.relative_to(tmp_path).as_posix()}" for path in paths]
    with files.open_output_stream(names[0]) as stream:
        stream.write(b"half")
    files.delete_file(names[1])
    stats = tended_once(tmp_path, ship_to=where)
    assert (stats.shipped_files_total, stats.waiting_files) == (2, 0)
    assert [files.open_input_file(name).read() for name in names] == [path.read_bytes() for path in paths]


def test_unconfirmed_files_stay_however_old_and_large(tmp_path: Path) -> None:
    """A directory that is not mounted confirms nothing, so nothing is removed; when it is back, both is done."""
    log, mounted = tmp_path / "log", tmp_path / "mounted"
    paths = [sealed(log, number) for number in (1, 2, 3)]
    clock = ManualClock()
    clock.advance(10 * 24 * 3600)
    with tended(log, clock, ship_to=f"file://{mounted}", keep_days=7.0, keep_bytes_max=1) as archive:
        wait_until_blocking(lambda: archive.stats.failures_total > 2, 30)
        assert all(path.exists() for path in paths)
        assert "is it mounted?" in archive.alarms.text
        assert archive.stats.oldest_waiting_seconds == pytest.approx(10 * 24 * 3600, abs=60)
        mounted.mkdir()
        wait_until_blocking(lambda: archive.stats.removed_files_total == 3, 30, what=lambda: str(archive.stats))
        wait_until_blocking(lambda: not archive.alarms.text, 30)
    assert names_below(mounted) == [str(path.relative_to(log)) for path in paths]
    assert (archive.stats.kept_files, archive.stats.kept_bytes) == (0, 0)
    assert not paths[0].parents[1].exists(), "the directory of the date is empty, hence gone"


def test_old_files_are_removed_by_their_hour(tmp_path: Path) -> None:
    """The hour in which a segment was opened decides, not when its file was copied or sealed; other nodes' stay."""
    old = sealed(tmp_path, 1, hour="date=2023-11-12/hour=21")
    young = sealed(tmp_path, 2, hour="date=2023-11-12/hour=23")
    others = sealed(tmp_path, 1, hour="date=2023-11-12/hour=21", node="other")
    (stray := old.with_name("notes.txt")).touch()
    stats = tended_once(tmp_path, keep_days=2.0)
    assert (stats.removed_files_total, stats.kept_files, stats.waiting_files) == (1, 1, 0)
    assert [path.exists() for path in (old, young, others, stray)] == [False, True, True, True]


def test_the_oldest_files_are_removed_when_they_are_too_many_bytes(tmp_path: Path) -> None:
    """As many as have to go, also while the node runs."""
    paths = [sealed(tmp_path, number, size=100) for number in range(1, 6)]
    with tended(tmp_path, keep_bytes_max=250) as archive:
        wait_until_blocking(lambda: archive.stats.removed_files_total == 3, 30)
        assert [path.exists() for path in paths] == [False, False, False, True, True]
        archive.archive.add([sealed(tmp_path, 6, size=240)])
        wait_until_blocking(lambda: archive.stats.removed_files_total == 5, 30)
        assert archive.stats.kept_bytes == 240


def test_of_a_segment_the_updates_are_removed_first(tmp_path: Path) -> None:
    """Events alone are the beginning of a log that reports take for removed; updates alone would be one with a hole."""
    files = [sealed(tmp_path, 2, table=table) for table in ("events", "updates")]
    with tended(tmp_path, keep_bytes_max=15) as archive:
        wait_until_blocking(lambda: archive.stats.removed_files_total == 1, 30)
        assert [path.exists() for path in files] == [True, False]
        archive.archive.add([sealed(tmp_path, 3, table=table) for table in ("events", "updates")])
        wait_until_blocking(lambda: archive.stats.removed_files_total == 3, 30)
        assert [path.exists() for path in files] == [False, False]
        assert archive.stats.kept_files == 1
        assert (tmp_path / "v1" / "events" / "node=edge-1" / HOUR / f"{EPOCH}-000003.parquet").exists()


def test_the_beginning_of_a_run_goes_last(tmp_path: Path) -> None:
    """Its `start` event says what the links of all later rows are, so it stays as long as there are such."""
    begin, events, updates = (
        sealed(tmp_path, number, table=table) for number, table in ((1, "events"), (2, "events"), (1, "updates"))
    )
    clock = ManualClock()
    with tended(tmp_path, clock, keep_bytes_max=15) as archive:
        wait_until_blocking(lambda: archive.stats.removed_files_total == 2, 30)
        assert [path.exists() for path in (begin, events, updates)] == [True, False, False]
    clock.advance(3 * 24 * 3600)
    assert tended_once(tmp_path, clock, keep_days=2.0).removed_files_total == 1
    assert not begin.exists()


def test_a_file_that_cannot_be_removed_is_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays counted, and is tried again with the next file."""
    sealed(tmp_path, 1)

    def unlink(path: Path, *, missing_ok: bool) -> None:
        raise PermissionError(13, "Permission denied")

    with tended(tmp_path, keep_bytes_max=15) as archive:
        with monkeypatch.context() as failing:
            failing.setattr(Path, "unlink", unlink)
            archive.archive.add([sealed(tmp_path, 2)])
            wait_until_blocking(lambda: "Permission denied" in archive.alarms.text, 30)
        assert archive.stats.removed_files_total == 0
        archive.archive.add([sealed(tmp_path, 3)])
        wait_until_blocking(lambda: archive.stats.removed_files_total == 2, 30)
        assert archive.alarms.text == ""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_freed_and_what_was_removed_is_told_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The record of what is removed needs room, which only the removal makes: the log would stay full for ever."""
    paths = [sealed(tmp_path, number) for number in (1, 2, 3)]
    open_file, full = Path.open, True

    def open_path(path: Path, mode: str = "r") -> IO[Any]:
        if path.name == ".removed.json.unfinished" and (full or paths[0].exists()):
            raise OSError(code, os.strerror(code))
        return open_file(path, mode)

    monkeypatch.setattr(Path, "open", open_path)
    place = open_directory(tmp_path, "edge-1")
    with tended(tmp_path, keep_bytes_max=25) as archive:
        wait_until_blocking(lambda: archive.stats.removed_files_total == 1, 30, what=lambda: archive.alarms.text)
        wait_until_blocking(lambda: os.strerror(code) in archive.alarms.text, 30)
        assert read_removed(place) == {}, "others took the room that became free"
        full = False
        archive.archive.add([])
        wait_until_blocking(lambda: read_removed(place) == {EPOCH: 1}, 30)
        wait_until_blocking(lambda: archive.alarms.text == "", 30)
        archive.archive.add([sealed(tmp_path, 4)])
        wait_until_blocking(lambda: read_removed(place) == {EPOCH: 2}, 30)
    assert [path.exists() for path in paths] == [False, False, True]


def test_files_that_are_gone_or_cannot_be_read_do_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that somebody removed is forgotten; one that the disk does not give is tried again behind the others."""
    log, store = tmp_path / "log", tmp_path / "store"
    gone, broken, whole = (sealed(log, number) for number in (1, 2, 3))
    read, reads = Path.read_bytes, 0

    def read_bytes(path: Path) -> bytes:
        nonlocal reads
        if path == broken and (reads := reads + 1) < 3:
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with tended(log, ship_to=f"file://{store}") as archive:
        wait_until_blocking(lambda: archive.stats.failures_total > 0, 30)
        gone.unlink()
        store.mkdir()
        archive.wait_shipped(2)
        wait_until_blocking(lambda: archive.stats.waiting_files == 0, 30)
    assert names_below(store) == [str(path.relative_to(log)) for path in (broken, whole)]
    assert reads == 3


def test_what_is_no_directory_of_the_log_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """A day or an hour that there is not: its files are left alone."""
    for hour in ("date=2026-13-01/hour=22", "date=2023-11-14/hour=99"):
        sealed(tmp_path, 1, hour=hour)
    sealed(tmp_path, 2)
    (tmp_path / "store").mkdir()
    with tended(tmp_path, ship_to=(tmp_path / "store").as_uri()) as archive:
        archive.wait_shipped(1)
        assert archive.alarms.text == ""


def test_a_disk_that_cannot_be_read_is_an_alarm_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shipped or removed meanwhile; afterwards all is."""
    sealed(tmp_path, 1)
    found = Archive._found

    def failing(self: Archive) -> list[Path]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Archive, "_found", failing)
    (tmp_path / "store").mkdir()
    with tended(tmp_path, ship_to=(tmp_path / "store").as_uri()) as archive:
        wait_until_blocking(lambda: "sealed files are not tended: OSError(5" in archive.alarms.text, 30)
        assert not archive.archive.ended
        monkeypatch.setattr(Archive, "_found", found)
        archive.wait_shipped(1)
        wait_until_blocking(lambda: not archive.alarms.text, 30)
    assert not archive.archive.ended


def test_a_thread_that_ended_is_an_alarm_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ended it: nobody would ship or remove anything any more."""
    monkeypatch.setattr(Archive, "_tend", lambda self: None)
    writer = LogWriter(
        tmp_path / "log",
        node="edge-1",
        role="tap",
        node_epoch=EPOCH,
        clock=ManualClock(),
        settings=LogSettings(ship=ShipConfig(to=(tmp_path / "store").as_uri())),
    )
    writer.open()
    wait_until_blocking(lambda: "the thread that ships and removes sealed files" in writer.stats().alarm, 30)
    assert writer.close(timeout_s=30)


def test_closing_does_not_wait_for_a_store_that_fails(tmp_path: Path) -> None:
    """What is not shipped waits for the next start."""
    path = sealed(tmp_path, 1)
    with tended(tmp_path, ship_to=f"file://{tmp_path}/nowhere", ship_retry_min_s=3600.0, retry_max_s=3600.0) as archive:
        wait_until_blocking(lambda: archive.stats.failures_total, 30)
    assert path.exists()
    assert (archive.stats.waiting_files, archive.stats.failures_total) == (1, 1)


def test_a_copy_that_the_store_shows_otherwise_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is asked for after each copy."""
    log, store = tmp_path / "log", tmp_path / "store"
    store.mkdir()
    path = sealed(log, 1)
    whole, puts = ObjectStore._put_by_rename, 0

    def half_at_first(to: ObjectStore, files: pafs.FileSystem, name: str, content: bytes) -> None:
        nonlocal puts
        puts += 1
        whole(to, files, name, content[: 4 if puts == 1 else None])

    monkeypatch.setattr(ObjectStore, "_put_by_rename", half_at_first)
    with tended(log, ship_to=f"file://{store}") as archive:
        archive.wait_shipped(1)
    assert (puts, archive.stats.failures_total) == (2, 1)
    assert (store / path.relative_to(log)).read_bytes() == path.read_bytes()


def test_a_log_ships_what_it_seals(tmp_path: Path) -> None:
    """Files left by the last run, those of this one, and the last at the stop: all are copied, and in the figures."""
    log, store = tmp_path / "log", tmp_path / "store"
    store.mkdir()
    shipped = 0
    for run in range(2):
        clock = ManualClock()
        ship = ShipConfig(to=f"file://{store}") if run else None
        writer = LogWriter(
            log,
            node="edge-1",
            role="tap",
            node_epoch=EPOCH + run,
            clock=clock,
            settings=LogSettings(flush_interval_s=0.005, segment_bytes_max=1, ship=ship),
        )
        writer.open()
        for number in range(3):
            writer.append(make_changes(make_updates(5, start=5 * number)), source=writer.source())
            assert writer.flush(timeout_s=60)
        writer.event("stop")
        assert writer.close(timeout_s=60)
        stats = writer.stats().archive
        shipped = stats.shipped_files_total if stats is not None else 0
    assert names_below(store / "v1") == names_below(log / "v1")
    assert shipped == len(names_below(store)) >= 7
    for name in names_below(store):
        assert (store / name).read_bytes() == (log / name).read_bytes()
