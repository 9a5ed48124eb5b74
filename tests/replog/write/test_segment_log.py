"""The chain of segments of one run."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import structlog

from fanout.replog.alarms import Alarms
from fanout.replog.files import segments
from fanout.replog.files.columns import LogSource, RowEncoder
from fanout.replog.files.segments import SegmentIdentity, SegmentReader, encode_rows
from fanout.replog.runs import RunRecord
from fanout.replog.settings import LogSettings
from fanout.replog.write.sealer import ClosedSegment
from fanout.replog.write.segment_log import SegmentLog
from fanout.replog.write.write_queue import PendingRows
from tests.replog.files.test_segments import fail_after
from tests.replog.rows import EPOCH, ManualClock, make_rows, make_updates

TOKEN = "0123456789abcdef"


class Chain:
    """A chain of segments in a directory, with a clock that stands still."""

    def __init__(self, directory: Path, *, bytes_max: int = 10**9) -> None:
        self.clock = ManualClock()
        self.alarms = Alarms(structlog.get_logger())
        self.closed: list[ClosedSegment] = []
        self.log_pos = 0
        self.log = SegmentLog(
            directory,
            identity=SegmentIdentity("edge-1", "tap", EPOCH, number=0, opened_us=0, token=TOKEN),
            settings=LogSettings(segment_bytes_max=bytes_max, segment_age_max_s=60, fsync_interval_s=1),
            clock=self.clock,
            alarms=self.alarms,
            runs=RunRecord(directory, node_epoch=EPOCH),
            on_closed=self.closed.append,
        )

    def write(self, rows: int = 3) -> bool:
        """Write a frame of rows."""
        encoder = RowEncoder(node="edge-1", role="tap", node_epoch=EPOCH)
        first, last = self.log_pos + 1, self.log_pos + rows
        updates = [make_rows(make_updates(rows), source=LogSource("plant", ()), first_log_pos=first)]
        frame = encode_rows(encoder.updates(updates), [], first_log_pos=first, last_log_pos=last, token=TOKEN)
        written = self.log.write(
            frame, PendingRows(updates=updates, update_rows=rows, first_log_pos=first, last_log_pos=last)
        )
        if written:
            self.log_pos = last
        return written


def last_positions(closed: list[ClosedSegment]) -> list[tuple[int, bool]]:
    """Return, of closed segments, the last position that can be read and whether they end in good order."""
    found = []
    for segment in closed:
        with segment.path.open("rb") as stream:
            reader = SegmentReader(stream)
            reader.skim()
            found.append((reader.last_log_pos, reader.finished))
    return found


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    """A node that logs nothing has no segment."""
    chain = Chain(tmp_path)
    chain.log.tend(sync_now=True)
    chain.log.close()
    assert not list(tmp_path.iterdir())
    assert not chain.closed


def test_a_segment_is_closed_when_it_is_large(tmp_path: Path) -> None:
    """The size bounds a segment, give or take one frame."""
    chain = Chain(tmp_path, bytes_max=12_000)
    for _ in range(6):
        chain.write()
    assert [path.path.name for path in chain.closed] == [f"{EPOCH}-00000{number}-{TOKEN}.seg" for number in (1, 2)]
    assert [segment.last_log_pos for segment in chain.closed] == [9, 18]
    assert last_positions(chain.closed) == [(9, True), (18, True)]
    assert chain.log.synced_log_pos == 18
    assert (chain.closed[0].update_rows, chain.closed[0].event_rows) == (9, 0)


@pytest.mark.parametrize(("seconds", "closes"), [(59.0, False), (60.0, True)])
def test_a_segment_is_closed_when_it_is_old(tmp_path: Path, seconds: float, closes: bool) -> None:
    """The age bounds a segment, whether or not anything is written."""
    chain = Chain(tmp_path)
    chain.write()
    chain.clock.advance(seconds)
    chain.log.tend(sync_now=False)
    assert bool(chain.closed) == closes


def test_a_segment_is_closed_when_the_hour_ends(tmp_path: Path) -> None:
    """The rows of an hour lie in the directory of that hour, so that a closed hour stays closed."""
    chain = Chain(tmp_path)
    chain.clock.ns = (chain.clock.ns // 3_600_000_000_000 + 1) * 3_600_000_000_000 - 1
    chain.write()
    chain.log.tend(sync_now=False)
    assert not chain.closed
    chain.clock.ns += 1
    chain.log.tend(sync_now=False)
    chain.write()
    chain.log.close()
    hours = []
    for segment in chain.closed:
        with segment.path.open("rb") as stream:
            reader = SegmentReader(stream)
            reader.skim()
        assert reader.identity is not None
        hours.append(reader.identity.hour)
    assert hours == ["date=2023-11-14/hour=22", "date=2023-11-14/hour=23"]


def test_rows_are_synced_once_per_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait for the interval at most, are synced at once on demand, and not at all when there are none."""
    syncs: list[int] = []
    monkeypatch.setattr(segments, "_sync_data", syncs.append)
    chain = Chain(tmp_path)
    chain.write()
    chain.clock.advance(0.9)
    chain.log.tend(sync_now=False)
    assert (len(syncs), chain.log.written_log_pos, chain.log.synced_log_pos) == (0, 3, 0)
    chain.clock.advance(0.1)
    chain.log.tend(sync_now=False)
    chain.log.tend(sync_now=True)
    assert (len(syncs), chain.log.synced_log_pos, chain.log.last_sync_ns) == (1, 3, chain.clock.ns)
    chain.write()
    chain.log.tend(sync_now=True)
    assert (len(syncs), chain.log.synced_log_pos) == (2, 6)
    chain.log.close()


def test_skipped_rows_hold_nothing_up(tmp_path: Path) -> None:
    """Rows that will never be written count as passed, once those before them are on the disk."""
    chain = Chain(tmp_path)
    chain.log.skip(2)
    assert (chain.log.written_log_pos, chain.log.synced_log_pos) == (2, 2)
    chain.log_pos = 2
    chain.write()
    chain.log.skip(9)
    assert (chain.log.written_log_pos, chain.log.synced_log_pos) == (9, 2)
    chain.log.close()
    assert chain.log.synced_log_pos == 9


def test_a_full_disk_is_tried_again_in_the_same_segment(tmp_path: Path) -> None:
    """A frame that was not written is written whole when there is room, and the alarm ends."""
    chain = Chain(tmp_path)
    chain.write()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.write", fail_after(10))
        assert not chain.write()
        assert not chain.write()
    assert "No space left" in chain.alarms.text
    assert chain.write()
    assert chain.alarms.text == ""
    chain.log.close()
    assert last_positions(chain.closed) == [(6, True)]


def test_a_full_disk_at_a_new_segment_uses_up_no_number(tmp_path: Path) -> None:
    """When not even the first frame fits, the next try makes the same segment."""
    chain = Chain(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.write", fail_after(0))
        assert not chain.write()
    assert chain.write()
    chain.log.close()
    assert [segment.path.name for segment in chain.closed] == [f"{EPOCH}-000001-{TOKEN}.seg"]


def test_a_segment_with_a_torn_frame_is_given_up(tmp_path: Path) -> None:
    """When a torn frame cannot be taken away, the next frame goes to a new segment."""
    chain = Chain(tmp_path)
    chain.write()

    def truncate(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.write", fail_after(10))
        patch.setattr("os.ftruncate", truncate)
        assert not chain.write()
    assert chain.write()
    chain.log.close()
    assert last_positions(chain.closed) == [(3, False), (6, True)]


def test_a_failed_sync_gives_the_segment_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose sync failed are not called synced; their segment is closed, to be sealed from what can be read."""
    chain = Chain(tmp_path)
    chain.write()

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_sync_data", fail)
        chain.log.tend(sync_now=True)
    assert chain.log.synced_log_pos == 0
    assert "Input/output error" in chain.alarms.text
    assert [segment.update_rows for segment in chain.closed] == [3]
    chain.write()
    chain.log.tend(sync_now=True)
    assert (chain.log.synced_log_pos, chain.alarms.text) == (6, "")
    chain.log.close()
    assert last_positions(chain.closed) == [(3, False), (6, True)]


def test_a_failed_close_hands_the_segment_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment whose last frame does not fit any more is sealed all the same."""
    chain = Chain(tmp_path)
    chain.write()
    with monkeypatch.context() as patch:
        patch.setattr("os.write", fail_after(10))
        chain.log.close()
    assert last_positions(chain.closed) == [(3, False)]
    assert "No space left" in chain.alarms.text
