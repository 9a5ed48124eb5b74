"""The thread that seals."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest
import structlog

from fanout.replog.alarms import Alarms
from fanout.replog.files.sealing import Sealed, seal
from fanout.replog.write.sealer import ClosedSegment, Sealer
from tests.replog.files.test_sealing import make_segment
from tests.replog.rows import sealed_rows
from tests.support.waiting import wait_until_blocking


class Watched:
    """A sealer that runs, with what it told."""

    def __init__(self, directory: Path) -> None:
        self.alarms = Alarms(structlog.get_logger())
        self.sealed: list[tuple[ClosedSegment, Sealed]] = []
        self.sealer = Sealer(
            directory,
            retry_interval_s=0.001,
            alarms=self.alarms,
            on_sealed=lambda segment, sealed: self.sealed.append((segment, sealed)),
        )
        self.sealer.start()


def test_segments_are_sealed_in_order(tmp_path: Path) -> None:
    """What is given is sealed, told of, and counted; closing waits for it."""
    one, two = make_segment(tmp_path, node="a"), make_segment(tmp_path, node="b")
    watched = Watched(tmp_path)
    segments = [ClosedSegment(path, 15, 3, 18) for path in (one, two)]
    for segment in segments:
        watched.sealer.put(segment)
    assert watched.sealer.close(timeout_s=20)
    assert [segment for segment, _ in watched.sealed] == segments
    assert watched.sealer.waiting == 0
    assert len(sealed_rows(tmp_path, "updates")) == 30


def test_a_failing_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm stands while the disk fails, and ends when sealing succeeds."""
    segment = ClosedSegment(make_segment(tmp_path), 15, 3, 18)
    tries: list[Path] = []
    alarms: list[str] = []

    def failing(path: Path, *, directory: Path) -> Sealed:
        tries.append(path)
        alarms.append(watched.alarms.text)
        if len(tries) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return seal(path, directory=directory)

    monkeypatch.setattr("fanout.replog.write.sealer.seal", failing)
    watched = Watched(tmp_path)
    watched.sealer.put(segment)
    assert watched.sealer.close(timeout_s=20)
    assert len(tries) == 4
    assert "No space left" in alarms[-1]
    assert watched.alarms.text == ""


def test_closing_ends_although_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be sealed in time stays for the next start."""

    def failing(path: Path, *, directory: Path) -> Sealed:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fanout.replog.write.sealer.seal", failing)
    path = make_segment(tmp_path)
    watched = Watched(tmp_path)
    watched.sealer.put(ClosedSegment(path, 15, 3, 18))
    wait_until_blocking(lambda: watched.alarms.text)
    assert not watched.sealer.close(timeout_s=0.01)
    assert watched.sealer.waiting == 1
    assert path.exists()


def test_a_segment_that_cannot_be_converted_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment whose rows this version cannot read stays where it is, with an alarm of its own."""
    bad, good = make_segment(tmp_path, node="a"), make_segment(tmp_path, node="b")

    def failing(path: Path, *, directory: Path) -> Sealed:
        if path == bad:
            raise pa.ArrowInvalid("other columns")
        return seal(path, directory=directory)

    monkeypatch.setattr("fanout.replog.write.sealer.seal", failing)
    watched = Watched(tmp_path)
    for path in (bad, good):
        watched.sealer.put(ClosedSegment(path, 15, 3, 18))
    assert not watched.sealer.close(timeout_s=20)
    assert [segment.path for segment, _ in watched.sealed] == [good]
    assert bad.exists()
    assert "other columns" in watched.alarms.text


def test_a_segment_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a bad sector: it is tried again after them, and its alarm stands."""
    bad, *good = (make_segment(tmp_path, node=node) for node in "abc")
    spoilt = {bad}

    def failing(path: Path, *, directory: Path) -> Sealed:
        if path in spoilt:
            raise OSError(errno.EIO, "Input/output error")
        return seal(path, directory=directory)

    monkeypatch.setattr("fanout.replog.write.sealer.seal", failing)
    watched = Watched(tmp_path)
    for path in (bad, *good):
        watched.sealer.put(ClosedSegment(path, 15, 3, 18))
    wait_until_blocking(lambda: watched.sealer.waiting == 1)
    assert [segment.path for segment, _ in watched.sealed] == good
    assert str(bad) in watched.alarms.text
    spoilt.clear()
    assert watched.sealer.close(timeout_s=20)
    assert (watched.sealed[-1][0].path, watched.alarms.text) == (bad, "")
