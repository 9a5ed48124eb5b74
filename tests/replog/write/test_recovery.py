"""What the last run left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.replog.files.columns import EventRow, RowEncoder
from fanout.replog.files.node_lock import LastRun
from fanout.replog.files.segments import SegmentFile, SegmentIdentity, encode_rows
from fanout.replog.write.recovery import crash_loss, left_over_segments
from tests.replog.files.test_segments import write
from tests.replog.rows import EPOCH, NOW_NS


def test_left_over_segments_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    """Epochs and numbers are compared as numbers, and torn ends are measured."""
    for epoch, number in ((900, 1), (1000, 10), (1000, 9)):
        identity = SegmentIdentity("edge-1", "tap", epoch, number, NOW_NS // 1000)
        SegmentFile.create(tmp_path, identity).close()
    path, ends = write(tmp_path)
    path.write_bytes(path.read_bytes()[: ends[3] + 10])
    (tmp_path / "zzz.seg").write_bytes(b"")
    found = list(left_over_segments(tmp_path))
    assert [one.node_epoch for one in found] == [None, 900, 1000, 1000, EPOCH]
    assert [one.segment.path.stem.partition("-")[2] for one in found[2:]] == ["000009", "000010", "000001"]
    last = found[-1]
    assert (last.segment.update_rows, last.segment.last_log_pos, last.torn_bytes) == (341, 349, 10)
    assert last.last_ns == NOW_NS
    assert found[1].last_ns is None


def test_the_newest_row_may_be_an_event(tmp_path: Path) -> None:
    """The time of the last row is that of either table."""
    identity = SegmentIdentity("edge-1", "tap", EPOCH, 1, NOW_NS // 1000)
    segment = SegmentFile.create(tmp_path, identity)
    event = EventRow("", EPOCH, "heartbeat", NOW_NS + 7_000, log_pos=1)
    rows = RowEncoder(node="edge-1", role="tap", node_epoch=EPOCH).events([event])
    segment.append(
        encode_rows([], [rows], first_log_pos=1, last_log_pos=1), update_rows=0, event_rows=1, last_log_pos=1
    )
    segment.close()
    assert [one.last_ns for one in left_over_segments(tmp_path)] == [NOW_NS + 7_000]


@pytest.mark.parametrize("last_run", [None, LastRun(EPOCH, 1, clean=True)])
def test_a_good_end_loses_nothing(last_run: LastRun | None) -> None:
    """Neither a first start nor one after a stop in good order has anything to tell."""
    assert crash_loss(last_run, [], sealed=None, lost_until_ns=NOW_NS, now_ns=NOW_NS) is None


def test_a_crash_may_have_lost_what_came_after_the_last_row(tmp_path: Path) -> None:
    """The number is unknown; the positions and times begin behind the last row that was recovered."""
    write(tmp_path, close=False)
    left_over = list(left_over_segments(tmp_path))
    loss = crash_loss(
        LastRun(EPOCH, 1, clean=False), left_over, sealed=(99, NOW_NS + 9), lost_until_ns=None, now_ns=NOW_NS + 5
    )
    assert loss is not None
    assert (loss.reason, loss.rows, loss.node_epoch) == ("crash", None, EPOCH)
    assert (loss.first_log_pos, loss.last_log_pos) == (371, None)
    assert (loss.first_ns, loss.last_ns) == (NOW_NS, NOW_NS + 5)


def test_a_crash_between_two_segments_lost_what_came_after_the_sealed_rows(tmp_path: Path) -> None:
    """Segments of other epochs say nothing about the one that crashed; without any row it lost all since its start."""
    write(tmp_path, close=False)
    left_over = list(left_over_segments(tmp_path))
    last_run = LastRun(EPOCH + 1, 1, clean=False)
    loss = crash_loss(last_run, left_over, sealed=(400, NOW_NS - 7), lost_until_ns=None, now_ns=NOW_NS)
    assert loss is not None
    assert (loss.first_log_pos, loss.first_ns, loss.last_ns) == (401, NOW_NS - 7, NOW_NS)
    loss = crash_loss(last_run, left_over, sealed=None, lost_until_ns=None, now_ns=NOW_NS)
    assert loss is not None
    assert (loss.first_log_pos, loss.first_ns) == (1, (EPOCH + 1) * 1000)


@pytest.mark.parametrize(
    ("lost_until_s", "now_s", "span_s"),
    [
        (1.0, 60.0, (0.0, 1.0)),
        (31.0, 60.0, (0.0, 31.0)),
        (31.0, 30.5, (0.0, 30.5)),
        (1.0, -60.0, (0.0, 0.0)),
        (-40.0, 60.0, (-40.0, 0.0)),
        (None, -60.0, (0.0, 0.0)),
    ],
    ids=["busy", "idle", "back at once", "set back while down", "set back before the crash", "no sign, set back"],
)
def test_a_sign_of_life_bounds_when_rows_were_lost(
    lost_until_s: float | None, now_s: float, span_s: tuple[float, float]
) -> None:
    """Rows were lost until the sign says, never later than this start, however the clock was set."""

    def ns(seconds: float) -> int:
        return NOW_NS + int(seconds * 1e9)

    loss = crash_loss(
        LastRun(EPOCH, 1, clean=False),
        [],
        sealed=(400, NOW_NS),
        lost_until_ns=None if lost_until_s is None else ns(lost_until_s),
        now_ns=ns(now_s),
    )
    assert loss is not None
    assert (loss.first_ns, loss.last_ns) == (ns(span_s[0]), ns(span_s[1]))
