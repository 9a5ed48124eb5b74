"""Damaged segments and missing files: what they cost is lost, told and nothing else."""

from __future__ import annotations

import json
import shutil
import zlib
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fanout.config import ShipConfig
from fanout.replog.files.columns import EventRow, LogSource, RowEncoder
from fanout.replog.files.sealing import open_directory, read_aside
from fanout.replog.files.segments import (
    Frame,
    FrameKind,
    SegmentFile,
    SegmentIdentity,
    SegmentReader,
    _encode,
    encode_rows,
)
from fanout.replog.read.inspection import NodeCheck, stat, verify
from fanout.replog.read.reading import stage
from fanout.replog.runs import Run, RunRecord, read_runs
from fanout.replog.settings import LogSettings
from fanout.replog.write.writer import LogWriter
from tests.replog.rows import (
    EPOCH,
    NOW_NS,
    ManualClock,
    make_changes,
    make_rows,
    make_updates,
    parquet_rows,
    sealed_paths,
    sealed_rows,
    segment_rows,
)
from tests.support.waiting import wait_until_blocking

TOKEN = "00112233445566aa"
IDENTITY = SegmentIdentity("edge-1", "tap", EPOCH, 1, NOW_NS // 1000, token=TOKEN)
NAME = IDENTITY.segment_name
SIZES = (30, 1, 200, 5, 60, 3)


def rows_frame(first: int, count: int, *, token: str = TOKEN, floor: int = 0) -> bytes:
    """Return a frame of updates and, at its end, an event."""
    encoder = RowEncoder(node="edge-1", role="tap", node_epoch=EPOCH)
    rows = make_rows(make_updates(count, start=first), source=LogSource("plant", ()), first_log_pos=first)
    event = EventRow("plant", 7, "heartbeat", NOW_NS, log_pos=first + count)
    return encode_rows(
        encoder.updates([rows]),
        [encoder.events([event])],
        first_log_pos=first,
        last_log_pos=first + count,
        token=token,
        floor=floor,
    )


def write_segment(directory: Path, *, close: bool) -> tuple[Path, list[int], list[set[int]]]:
    """Write a segment; return its path, where each frame begins and ends, and the positions in each frame."""
    directory.mkdir(parents=True, exist_ok=True)
    segment = SegmentFile.create(directory, IDENTITY)
    ends, positions = [0, segment.size], [set[int]()]
    first = 1
    for count in SIZES:
        segment.append(rows_frame(first, count), update_rows=count, event_rows=1, last_log_pos=first + count)
        ends.append(segment.size)
        positions.append(set(range(first, first + count + 1)))
        first += count + 1
    if close:
        segment.close()
        ends.append(segment.path.stat().st_size)
        positions.append(set())
    return segment.path, ends, positions


def rows_of(path: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of a segment by position."""
    return {row["log_pos"]: row for table in ("updates", "events") for row in segment_rows(path, table)}


def read(path: Path) -> SegmentReader:
    """Read a segment to its end."""
    with path.open("rb") as stream:
        reader = SegmentReader(stream)
        reader.skim()
    return reader


class Written:
    """A segment as it was written."""

    def __init__(self, directory: Path, *, close: bool) -> None:
        path, self.ends, self.positions = write_segment(directory, close=close)
        self.data = path.read_bytes()
        self.frames, reader = frames_of(path)
        self.copy = path
        """Where damaged copies go."""
        assert (len(self.frames), reader.finished, reader.damage) == (len(SIZES), close, [])


def frames_of(path: Path) -> tuple[list[Frame], SegmentReader]:
    """Return the frames of a segment, and what was found."""
    with path.open("rb") as stream:
        reader = SegmentReader(stream)
        return list(reader), reader


@pytest.fixture(scope="module", params=[True, False], ids=["closed", "killed"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Give a segment that was closed, and one that was not."""
    return Written(tmp_path_factory.mktemp("log"), close=request.param)


@settings(max_examples=400, deadline=None)
@given(place=st.floats(0, 1), filling=st.one_of(st.binary(min_size=1, max_size=300), st.just(bytes(900))))
def test_damage_costs_the_frames_that_it_touches(written: Written, place: float, filling: bytes) -> None:
    """Any range overwritten with anything: all other frames are read as they were written, and it is told."""
    data = written.data
    at = int(place * (len(data) - 1))
    changed = bytearray(data)
    changed[at : at + len(filling)] = filling[: len(data) - at]
    differs = [index for index in range(at, min(len(data), at + len(filling))) if changed[index] != data[index]]
    touched = {bisect_right(written.ends, index) - 1 for index in differs}
    written.copy.write_bytes(changed)
    found, reader = frames_of(written.copy)
    kept = [frame for number, frame in enumerate(written.frames, 1) if number not in touched]
    assert found == kept
    if found:
        assert reader.identity is not None
        assert (reader.identity.node, reader.identity.node_epoch, reader.identity.number) == ("edge-1", EPOCH, 1)
    if not touched:
        assert not reader.damage
        return
    assert reader.damage or (len(written.positions) - 1 in touched and reader.torn_bytes)
    of_kept = {position for frame in kept for position in range(frame.first_log_pos, frame.last_log_pos + 1)}
    told = {
        position
        for one in reader.damage
        for position in range(one.first_log_pos, (400 if one.last_log_pos is None else one.last_log_pos) + 1)
    }
    assert not told & of_kept
    if reader.damage:
        assert set().union(*written.positions) - of_kept <= told
    assert reader.good_bytes + reader.damaged_bytes + reader.torn_bytes == len(data)


@settings(max_examples=200, deadline=None)
@given(place=st.floats(0, 1), zeros=st.sampled_from([0, 2000]))
def test_a_cut_off_end_is_no_damage(written: Written, place: float, zeros: int) -> None:
    """A kill leaves the beginning of a frame, a power failure zeros behind it, too: the whole ones are read."""
    size = int(place * len(written.data))
    content = written.data[:size] + bytes(zeros)
    whole = max(end for end in written.ends if content.startswith(written.data[:end]))  # frames end in zeros
    written.copy.write_bytes(content)
    found, reader = frames_of(written.copy)
    count = written.ends.index(whole)
    assert found == written.frames[: max(0, count - 1)]
    if not reader.finished:
        assert (reader.damage, reader.torn_bytes) == ([], len(content) - whole)


def test_a_damaged_length_in_the_last_frame_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    """The length stands there twice, so a frame that seems to go on behind the file's end is known for what it is."""
    path, ends, _ = write_segment(tmp_path, close=False)
    data = bytearray(path.read_bytes())
    data[ends[-2] + 24 + 8 + 2] ^= 0x7F  # bytes of updates in the header
    path.write_bytes(data)
    [damage] = read(path).damage
    assert (damage.offset, damage.end, damage.last_log_pos) == (ends[-2], ends[-1], None)


def test_what_a_stranger_wrote_is_never_taken_for_a_frame(tmp_path: Path) -> None:
    """Whole frames inside a damaged one, as a topic or stamps could hold, are not read: they do not know the token."""
    forged = b"".join(
        (rows_frame(2, 3, token=""), rows_frame(2, 3, token="f" * 16), _encode(FrameKind.FINISHED, b"", token="0" * 16))
    )
    segment = SegmentFile.create(tmp_path, IDENTITY)
    begin = segment.size
    segment.append(
        _encode(FrameKind.ROWS, forged, update_rows=9, first_log_pos=1, last_log_pos=9, token=TOKEN),
        update_rows=9, event_rows=0, last_log_pos=9,
    )  # fmt: skip
    segment.append(rows_frame(10, 2), update_rows=2, event_rows=1, last_log_pos=12)
    for opened in (False, True):
        data = bytearray(segment.path.read_bytes())
        data[begin + 3] ^= 1
        if opened:  # so that the token is known from the name alone
            data[20] ^= 1
        copy = tmp_path / "copy"
        copy.mkdir(exist_ok=True)
        (copy / NAME).write_bytes(data)
        assert sorted(rows_of(copy / NAME)) == [10, 11, 12]
    # Without the name there is nobody to believe.
    (copy / NAME).rename(copy / "1-1.seg")
    assert rows_of(copy / "1-1.seg") == {}
    segment.close()


def test_of_a_segment_without_marks_the_beginning_is_read_and_the_rest_told(tmp_path: Path) -> None:
    """Segments of older versions cannot be read behind damage, which is still no torn end."""
    identity = SegmentIdentity("edge-1", "tap", EPOCH, 1, NOW_NS // 1000)
    segment = SegmentFile.create(tmp_path, identity)
    ends = [segment.size]
    for first in (1, 10, 20):
        segment.append(rows_frame(first, 5, token=""), update_rows=5, event_rows=1, last_log_pos=first + 5)
        ends.append(segment.size)
    segment.close()
    assert segment.path.name == f"{EPOCH}-000001.seg"
    assert len(rows_of(segment.path)) == 18
    data = bytearray(segment.path.read_bytes())
    data[ends[1] + 100] ^= 1
    segment.path.write_bytes(data)
    reader = read(segment.path)
    assert (reader.last_log_pos, reader.torn_bytes) == (6, 0)
    assert [(one.offset, one.end, one.first_log_pos, one.last_log_pos) for one in reader.damage] == [
        (ends[1], len(data), 7, None)
    ]


# Logs -----------------------------------------------------------------------------------------------------------


def make_log(directory: Path, *, epoch: int = EPOCH, batches: int = 5, end: str = "clean", **of_log: Any) -> None:
    """Write a log of ten updates and an event per batch, a frame each; end it cleanly, or as a kill does."""
    clock = ManualClock(NOW_NS + (epoch - EPOCH) * 1000)
    writer = LogWriter(
        directory, node="edge-1", role="tap", node_epoch=epoch, clock=clock,
        settings=LogSettings(fsync_interval_s=0.0, **of_log),
    )  # fmt: skip
    writer.open()
    source = writer.source(link="plant")
    for number in range(batches):
        updates = [(*update[:5], clock.ns, *update[6:]) for update in make_updates(10, start=number * 10)]
        writer.append(make_changes(updates), source=source, link_epoch=7)
        writer.event("heartbeat", link="plant")
        assert writer.flush()
        clock.advance(10)
    aside = directory.with_name(f"{directory.name}.killed")
    if end == "killed":
        wait_until_blocking(lambda: not writer.stats().unsealed_segments)
        shutil.copytree(directory, aside)
    assert writer.close()
    if end == "killed":
        shutil.rmtree(directory)
        aside.rename(directory)


def open_segment(directory: Path) -> Path:
    """Return the only open segment."""
    [path] = open_directory(directory, "edge-1").glob("*.seg")
    return path


def checked(directory: Path) -> NodeCheck:
    """Return the check of the only node."""
    [check] = verify(directory)
    return check


def gaps(directory: Path, reason: str) -> list[dict[str, Any]]:
    """Return the details of the gap events of a reason."""
    details = [json.loads(row["detail"]) for row in sealed_rows(directory, "events") if row["event"] == "gap"]
    return [detail for detail in details if detail["reason"] == reason]


def overwrite(path: Path, share: float) -> int:
    """Overwrite eight bytes at a share of a file; return where."""
    data = bytearray(path.read_bytes())
    at = int(len(data) * share)
    data[at : at + 8] = bytes(byte ^ 0x5A for byte in data[at : at + 8])
    path.write_bytes(data)
    return at


def test_a_damaged_open_segment_is_told_before_and_after_the_restart(tmp_path: Path) -> None:
    """Eight bytes cost one frame; check, figures, log, gap event and the bytes aside say so."""
    log = tmp_path / "log"
    make_log(log, end="killed")
    path = open_segment(log)
    assert checked(log).sound
    at = overwrite(path, 0.25)
    check = checked(log)
    assert not check.sound
    [problem] = check.problems
    assert problem.path == path
    assert "bytes at" in problem.text
    assert "rows 12 to 22 are lost (11)" in problem.text
    [figures] = stat(log)
    assert (figures.update_rows, figures.event_rows, figures.missing_positions) == (40, 4, 11)
    assert figures.damaged_bytes > 0
    data = path.read_bytes()
    with capture_logs() as lines:
        make_log(log, epoch=EPOCH + 1_000_000_000, batches=1)
    [line] = [one for one in lines if one["event"].startswith("segment damaged")]
    assert (line["log_level"], line["places"], line["lost_rows_at_most"], line["segment"]) == (
        "warning", 1, 11, path.name
    )  # fmt: skip
    recovered = [row for row in sealed_rows(log, "updates") if row["node_epoch"] == EPOCH]
    assert [row["log_pos"] for row in recovered] == [*range(1, 11), *range(23, 33), *range(34, 44), *range(45, 55)]
    [gap] = gaps(log, "damage")
    assert (gap["rows"], gap["first_log_pos"], gap["last_log_pos"], gap["node_epoch"]) == (11, 12, 22, EPOCH)
    assert (gap["first_us"], gap["last_us"]) == (NOW_NS // 1000, NOW_NS // 1000 + 20_000_000)
    [aside] = open_directory(log, "edge-1").glob("*.damaged")
    [damage] = read_aside(aside)
    assert damage.offset <= at < damage.end
    assert aside.read_bytes().endswith(data[damage.offset : damage.end])
    check = checked(log)
    assert [problem.path for problem in check.problems] == [aside]
    assert "rows 12 to 22 are lost" in check.problems[0].text
    assert [(gap.first, gap.last, gap.explained) for gap in check.gaps] == [(12, 22, True)]
    assert [one.missing_positions for one in stat(log)] == [11]
    aside.unlink()
    assert checked(log).sound
    aside.write_bytes(b"not JSON\n")
    assert "cannot be read" in checked(log).problems[0].text


def test_damage_at_the_end_of_a_killed_run_is_told(tmp_path: Path) -> None:
    """Nothing whole is behind it, so how much it cost is not known."""
    log = tmp_path / "log"
    make_log(log, end="killed")
    overwrite(open_segment(log), 0.99)
    assert "rows from 45 on may be lost" in checked(log).problems[0].text
    assert all(one.damaged_bytes for one in stat(log))
    make_log(log, epoch=EPOCH + 1_000_000_000, batches=1)
    [gap] = gaps(log, "damage")
    assert (gap["rows"], gap["first_log_pos"], gap["last_log_pos"]) == (None, 45, None)
    assert not checked(log).sound


def test_a_segment_that_the_disk_damages_while_the_node_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sealed is compared with what was written, and the damage is told with its bounds."""
    writer = LogWriter(tmp_path, node="edge-1", role="tap", node_epoch=EPOCH, clock=ManualClock())
    writer.open()
    for start in (0, 10, 20):
        writer.append(make_changes(make_updates(10, start=start)), source=writer.source(), link_epoch=7)
        assert writer.flush()
    overwrite(open_segment(tmp_path), 0.5)
    assert writer.close()
    assert writer.stats().lost_rows_total == 10
    assert "rows 11 to 20 are lost" in checked(tmp_path).problems[0].text


@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.parametrize("which", [0, 2, 4])
def test_a_removed_file_is_missed(tmp_path: Path, end: str, which: int) -> None:
    """A Parquet file of the beginning, middle or end of a run: the check says which rows, and the figures how many."""
    log = tmp_path / "log"
    make_log(log, end=end, segment_bytes_max=1)
    if end == "killed":
        make_log(log, epoch=EPOCH + 1_000_000_000, batches=1)
    assert checked(log).sound
    missing = next(one.missing_positions for one in stat(log))
    for table in ("updates", "events"):
        sealed_paths(log, table)[which].unlink()
        check = checked(log)
        assert not check.sound
        gap = next(gap for gap in check.gaps if not gap.explained)
        assert gap.node_epoch == EPOCH
        assert gap.first in (which * 11 + 1, (which + 1) * 11)
    assert [one.missing_positions for one in stat(log)] == [missing + 11]
    [problem] = check.problems
    assert problem.path.name == f"{EPOCH}-{which + 1:06d}"
    with capture_logs() as lines:
        make_log(log, epoch=EPOCH + 2_000_000_000, batches=1)
    [line] = [one for one in lines if one["event"] == "segments are missing"]
    assert (line["log_level"], line["segments"], line["first"]) == ("warning", 1, problem.path.name)


def test_a_removed_open_segment_is_missed(tmp_path: Path) -> None:
    """Before the next start and after it, though nothing is behind it."""
    log = tmp_path / "log"
    make_log(log, end="killed")
    open_segment(log).unlink()
    for _ in range(2):
        check = checked(log)
        assert [problem.path.name for problem in check.problems] == [f"{EPOCH}-000001"]
        assert [(gap.first, gap.last, gap.explained) for gap in check.gaps if gap.node_epoch == EPOCH] == [
            (1, 11, False)
        ]
        make_log(log, epoch=EPOCH + 1_000_000_000, batches=1) if not sealed_paths(log, "events") else None


def test_logs_of_older_versions_are_judged_by_their_positions(tmp_path: Path) -> None:
    """Without a record nothing is missed at the end; a damaged record is told and written anew."""
    make_log(tmp_path, segment_bytes_max=1)
    record = open_directory(tmp_path, "edge-1") / "runs.json"
    before = record.read_bytes()
    for path in sealed_paths(tmp_path, "updates")[-1:] + sealed_paths(tmp_path, "events")[-1:]:
        path.unlink()
    assert not checked(tmp_path).sound
    record.unlink()
    assert checked(tmp_path).sound
    record.write_bytes(before)
    overwrite(record, 0.5)
    assert [problem.path for problem in checked(tmp_path).problems] == [record]
    with capture_logs() as lines:
        make_log(tmp_path, epoch=EPOCH + 1_000_000_000, batches=1)
    assert "record of former runs is damaged" in " ".join(one["event"] for one in lines)
    assert checked(tmp_path).sound


def test_what_the_node_removed_or_shipped_is_not_missed(tmp_path: Path) -> None:
    """Retention leaves no complaint, of runs that are partly and wholly removed."""
    log = tmp_path / "log"
    for number in range(4):
        make_log(log, epoch=EPOCH + number * 1_000_000_000, segment_bytes_max=1)
    sizes = [path.stat().st_size for table in ("updates", "events") for path in sealed_paths(log, table)]
    for share in (0.6, 0.3, 0.01):
        number += 1
        keep, ship = 1 + int(share * sum(sizes)), ShipConfig(to=f"file://{tmp_path}/shipped")
        (tmp_path / "shipped").mkdir(exist_ok=True)
        make_log(log, epoch=EPOCH + number * 1_000_000_000, segment_bytes_max=1, keep_bytes_max=keep, ship=ship)
        check = checked(log)
        assert check.sound, (share, check)
        assert not check.problems
    assert not [row for row in sealed_rows(log, "updates") if row["node_epoch"] == EPOCH]
    assert EPOCH not in (read_runs(open_directory(log, "edge-1")) or {})


@pytest.mark.parametrize("content", [None, b"", b'{"node_epoch": 17#', b"\x00" * 60])
def test_a_lock_that_says_nothing_is_a_crash(tmp_path: Path, content: bytes | None) -> None:
    """Nobody knows how the last run ended, so it may have lost rows; a first start has no last run."""
    log = tmp_path / "log"
    make_log(log, end="killed")
    assert gaps(log, "crash") == []
    lock = open_directory(log, "edge-1") / "lock"
    lock.unlink() if content is None else lock.write_bytes(content)
    assert [problem.path for problem in checked(log).problems] == ([lock] if content else [])
    make_log(log, epoch=EPOCH + 1_000_000_000, batches=1)
    [gap] = gaps(log, "crash")
    assert (gap["node_epoch"], gap["first_log_pos"]) == (EPOCH, 56)
    assert checked(log).sound


def test_the_record_of_runs_is_bounded_and_survives_a_full_disk(tmp_path: Path) -> None:
    """The newest runs are kept; a disk that fails costs knowledge and nothing else."""
    record = RunRecord(tmp_path, node_epoch=0)
    record.runs = {epoch: Run("tap", 1, 1, 1) for epoch in range(1, 1001)}
    record.note(2000, Run("tap", 3, 30, 5, (2,)))
    runs = read_runs(tmp_path)
    assert runs is not None
    assert (len(runs), min(runs), runs[2000]) == (1000, 2, Run("tap", 3, 30, 5, (2,)))
    record.note(2000, Run("tap", 2, 20, 6))
    assert read_runs(tmp_path) == runs
    gone = RunRecord(tmp_path / "gone", node_epoch=0)
    gone.note(1, Run("tap", 1, 1, 1))
    assert gone.runs == {1: Run("tap", 1, 1, 1)}
    data = (tmp_path / "runs.json").read_bytes()
    document = json.loads(data)
    document["runs"][0][1] = "ta"
    assert document["crc"] == zlib.crc32(json.dumps(json.loads(data)["runs"]).encode())
    (tmp_path / "runs.json").write_text(json.dumps(document))
    assert read_runs(tmp_path) is None


@pytest.mark.parametrize(("frames", "lost"), [(0, None), (1, (101, 111))])
def test_a_damaged_beginning_of_a_later_segment_costs_no_rows_of_those_before(
    tmp_path: Path, frames: int, lost: tuple[int, int] | None
) -> None:
    """Each frame tells where its segment begins."""
    identity = SegmentIdentity("edge-1", "tap", EPOCH, 3, NOW_NS // 1000, token=TOKEN, floor=100)
    segment = SegmentFile.create(tmp_path, identity)
    ends = [segment.size]
    for first in (101, 112):
        segment.append(rows_frame(first, 10, floor=100), update_rows=10, event_rows=1, last_log_pos=first + 10)
        ends.append(segment.size)
    data = bytearray(segment.path.read_bytes())
    data[40 : ends[frames] - 1] = bytes(ends[frames] - 41)
    segment.path.write_bytes(data)
    reader = read(segment.path)
    assert reader.identity is not None
    assert (reader.identity.number, reader.identity.role) == (3, "tap")
    [damage] = reader.damage
    assert (damage.first_log_pos, damage.last_log_pos) == (lost or (101, 100))
    segment.close()


def test_a_lost_end_of_a_run_is_a_gap_for_reports(tmp_path: Path) -> None:
    """What is staged has a gap event in place of the last row, unless the node itself removed the files."""
    log = tmp_path / "log"
    make_log(log, segment_bytes_max=1)
    make_log(log, epoch=EPOCH + 1_000_000_000, batches=1)

    def staged_gaps(name: str) -> list[dict[str, Any]]:
        staged = stage([log], target=tmp_path / name)
        rows = parquet_rows([*staged.events])
        return [row for row in rows if row["event"] == "gap"]

    assert staged_gaps("whole") == []
    for table in ("updates", "events"):
        sealed_paths(log, table)[4].unlink()
    [gap] = staged_gaps("end")
    detail = json.loads(gap["detail"])
    assert (gap["node"], gap["role"], gap["link"], gap["node_epoch"], gap["log_pos"]) == (
        "edge-1",
        "tap",
        "",
        EPOCH,
        55,
    )
    assert detail == {
        "reason": "missing", "rows": 11, "events": 0, "node_epoch": EPOCH, "first_log_pos": 45, "last_log_pos": 55,
        "first_us": NOW_NS // 1000 + 30_000_000, "last_us": NOW_NS // 1000 + 40_000_000,
    }  # fmt: skip
    for path in (log / "v1").rglob(f"{EPOCH}-*.parquet"):
        path.unlink()
    [gap] = staged_gaps("all")
    assert json.loads(gap["detail"])["first_us"] == EPOCH
    (open_directory(log, "edge-1") / "removed.json").write_text(json.dumps({str(EPOCH): 5}))
    assert staged_gaps("removed") == []
