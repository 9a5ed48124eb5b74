"""What a log directory holds, and whether it holds together."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import LogError
from fanout.replog.files.node_lock import LastRun
from fanout.replog.files.sealing import seal
from fanout.replog.read.inspection import NodeCheck, PositionGap, stat, verify
from fanout.replog.write.writer import LogSettings, LogWriter
from tests.replog.files.test_sealing import make_segment
from tests.replog.rows import EPOCH, NOW_NS, ManualClock, make_changes, make_updates, sealed_paths


def write_log(directory: Path, *, epoch: int = EPOCH, batches: int = 3, **settings: Any) -> None:
    """Write a log of ten updates and an event per batch, ten seconds apart, a segment each, and seal it."""
    clock = ManualClock(NOW_NS)
    writer = LogWriter(
        directory,
        node="edge-1",
        role="tap",
        node_epoch=epoch,
        clock=clock,
        settings=LogSettings(**{"segment_bytes_max": 1} | settings),
    )
    writer.open()
    source = writer.source(link="plant")
    for number in range(batches):
        updates = [(*update[:5], clock.ns, *update[6:]) for update in make_updates(10, start=number * 10)]
        writer.append(make_changes(updates), source=source, link_epoch=7)
        writer.event("heartbeat", link="plant")
        assert writer.flush()
        clock.advance(10)
    assert writer.close()


def checked(directory: Path) -> NodeCheck:
    """Return the check of the only node."""
    [check] = verify(directory)
    return check


def test_figures_of_sealed_files(tmp_path: Path) -> None:
    """Rows, times and runs come from the footers of the files."""
    write_log(tmp_path)
    write_log(tmp_path, epoch=EPOCH + 1, batches=1)
    [figures] = stat(tmp_path)
    assert figures.last_run == LastRun(EPOCH + 1, os.getpid(), clean=True)
    assert (figures.node, figures.node_epochs) == ("edge-1", 2)
    assert (figures.update_rows, figures.event_rows, figures.missing_positions) == (40, 4, 0)
    assert (figures.first_us, figures.last_us) == (NOW_NS // 1000, NOW_NS // 1000 + 20_000_000)
    assert figures.sealed_files == 8
    assert figures.sealed_bytes == sum(path.stat().st_size for path in (tmp_path / "v1").rglob("*.parquet"))
    assert (figures.open_segments, figures.open_bytes, figures.torn_bytes) == (0, 0, 0)


def test_figures_of_open_segments(tmp_path: Path) -> None:
    """What is not sealed counts by what can be read of it; a node without rows is there, too."""
    segment = make_segment(tmp_path)
    segment.write_bytes(segment.read_bytes()[:-100])
    (tmp_path / "open" / "node=edge%202").mkdir()
    second, first = stat(tmp_path)
    assert second.node == "edge 2"
    assert (second.node_epochs, second.first_us, second.last_us, second.last_run) == (0, None, None, None)
    assert (first.open_segments, first.open_bytes) == (1, segment.stat().st_size)
    assert (first.update_rows, first.event_rows, first.missing_positions) == (10, 2, 0)
    assert first.first_us == first.last_us == NOW_NS // 1000
    assert first.torn_bytes > 0


def test_a_half_sealed_segment_counts_once(tmp_path: Path) -> None:
    """While a segment exists, the segment counts and not what it was sealed into."""
    segment = make_segment(tmp_path)
    data = segment.read_bytes()
    seal(segment, directory=tmp_path)
    segment.write_bytes(data)
    [figures] = stat(tmp_path)
    assert (figures.update_rows, figures.event_rows, figures.sealed_files) == (15, 3, 0)
    check = checked(tmp_path)
    assert (check.rows, check.files, check.sound) == (18, 1, True)


def test_missing_files_are_missing_positions(tmp_path: Path) -> None:
    """A file taken away leaves positions that no gap event explains."""
    write_log(tmp_path)
    sealed_paths(tmp_path, "updates")[1].unlink()
    [figures] = stat(tmp_path)
    assert figures.missing_positions == 10
    check = checked(tmp_path)
    assert check.gaps == [PositionGap(EPOCH, 12, 21, explained=False)]
    assert not check.sound
    assert (check.rows, check.files, check.problems) == (23, 5, [])


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.7])
def test_what_the_node_removed_is_no_damage(tmp_path: Path, share: float) -> None:
    """Gaps of files that retention removed are told as such, wherever it stopped."""
    write_log(tmp_path, batches=5)
    paths = [path for table in ("events", "updates") for path in sealed_paths(tmp_path, table)]
    limit = 1 + int(share * sum(path.stat().st_size for path in paths))
    write_log(tmp_path, epoch=EPOCH + 1, batches=2, keep_bytes_max=limit)
    assert not all(path.exists() for path in paths)
    check = checked(tmp_path)
    assert [gap for gap in check.gaps if not gap.removed] == []
    assert check.sound


def test_what_somebody_else_removed_is_damage(tmp_path: Path) -> None:
    """What the node noted covers its own oldest files alone."""
    write_log(tmp_path, batches=5)
    updates = sealed_paths(tmp_path, "updates")
    (tmp_path / "open" / "node=edge-1" / "removed.json").write_text(json.dumps({str(EPOCH): 2}))
    updates[0].unlink()
    updates[1].unlink()
    assert checked(tmp_path).sound
    updates[3].unlink()
    assert [gap.removed for gap in checked(tmp_path).gaps] == [True, True, False]


def test_a_gap_that_events_tell_of_is_explained(tmp_path: Path) -> None:
    """Dropped rows are no fault of the log when it says so itself."""
    writer = LogWriter(
        tmp_path, node="edge-1", role="tap", node_epoch=EPOCH, clock=ManualClock(),
        settings=LogSettings(queue_rows_max=10, flush_interval_s=60.0),
    )  # fmt: skip
    writer.open()
    source = writer.source(link="plant")
    for _ in range(3):
        writer.append(make_changes(make_updates(9)), source=source, link_epoch=7)
    lost = writer.stats().lost_rows_total
    assert lost == 18
    writer.close()
    check = checked(tmp_path)
    assert check.gaps == [PositionGap(EPOCH, 10, 27, explained=True)]
    assert check.sound
    [figures] = stat(tmp_path)
    assert figures.missing_positions == 18


def test_a_gap_event_explains_no_other_gap(tmp_path: Path) -> None:
    """Rows that went missing later are not excused by a gap that was told before."""
    write_log(tmp_path, batches=5, queue_rows_max=10)
    sealed_paths(tmp_path, "updates")[1].unlink()
    writer = LogWriter(
        tmp_path, node="edge-1", role="tap", node_epoch=EPOCH + 1, clock=ManualClock(),
        settings=LogSettings(queue_rows_max=10, flush_interval_s=60.0),
    )  # fmt: skip
    writer.open()
    for _ in range(2):
        writer.append(make_changes(make_updates(9)), source=writer.source(link="plant"), link_epoch=7)
    writer.close()
    assert checked(tmp_path).gaps == [
        PositionGap(EPOCH, 12, 21, explained=False),
        PositionGap(EPOCH + 1, 10, 18, explained=True),
    ]


def test_segments_without_rows_or_without_events_are_sound(tmp_path: Path) -> None:
    """A segment that was only begun, and one with rows of one table, hold together."""
    make_segment(tmp_path, node="a", frames=0)
    make_segment(tmp_path, node="b", events=False)
    assert [(check.node, check.rows) for check in verify(tmp_path)] == [("a", 0), ("b", 15)]
    assert [(figures.update_rows, figures.event_rows) for figures in stat(tmp_path)] == [(0, 0), (15, 0)]


def test_two_gap_events_explain_one_gap_together(tmp_path: Path) -> None:
    """Rows of two links that were lost one after the other leave one gap in the positions, told by two events."""
    writer = LogWriter(
        tmp_path, node="edge-1", role="tap", node_epoch=EPOCH, clock=ManualClock(),
        settings=LogSettings(queue_rows_max=10, flush_interval_s=60.0),
    )  # fmt: skip
    writer.open()
    for link in ("plant", "plant", "office"):
        writer.append(make_changes(make_updates(9)), source=writer.source(link=link), link_epoch=7)
    writer.close()
    assert checked(tmp_path).gaps == [PositionGap(EPOCH, 10, 27, explained=True)]


def test_rows_that_are_there_twice_are_a_problem(tmp_path: Path) -> None:
    """The same rows under another number are found."""
    write_log(tmp_path, batches=1)
    [path] = sealed_paths(tmp_path, "updates")
    shutil.copy(path, path.with_name(path.name.replace("000001", "000002")))
    check = checked(tmp_path)
    assert [problem.text for problem in check.problems] == [f"position 1 of epoch {EPOCH} is there more than once"]
    assert not check.sound


def test_damaged_files_are_problems(tmp_path: Path) -> None:
    """A flipped bit in a page, a torn file and one of other columns are named; the others are still read."""
    write_log(tmp_path, batches=4)
    flipped, torn, other, good = sealed_paths(tmp_path, "updates")
    data = bytearray(flipped.read_bytes())
    group = pq.read_metadata(flipped).row_group(0)
    digest = next(
        group.column(index) for index in range(group.num_columns) if group.column(index).path_in_schema == "digest"
    )
    data[digest.data_page_offset + digest.total_compressed_size - 3] ^= 1
    flipped.write_bytes(data)
    torn.write_bytes(torn.read_bytes()[:-20])
    pq.write_table(pa.table({"log_pos": [1, 2, 3]}), other)
    check = checked(tmp_path)
    assert [problem.path for problem in check.problems] == [flipped, torn, other]
    assert [problem.text.partition(":")[0] for problem in check.problems] == [
        "it cannot be read",
        "it cannot be read",
        "its columns are not those of this version",
    ]
    assert good.exists()
    assert check.rows == 14
    with pytest.raises(LogError, match=r"cannot be read.*fanout log verify"):
        stat(tmp_path)


def test_a_segment_put_aside_is_a_problem(tmp_path: Path) -> None:
    """What sealing could not read is not forgotten."""
    segment = make_segment(tmp_path)
    segment.write_bytes(b"something else")
    seal(segment, directory=tmp_path)
    check = checked(tmp_path)
    assert [problem.path for problem in check.problems] == [segment.with_suffix(".unreadable")]


@pytest.mark.parametrize("function", [stat, verify])
def test_a_directory_of_something_else_is_refused(tmp_path: Path, function: Any) -> None:
    """A wrong path is told."""
    with pytest.raises(LogError, match="is not the directory"):
        function(tmp_path)
