"""Sealing: a segment becomes Parquet files, whole or not at all, however often it is tried."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fanout.replica.update import Stamp
from fanout.replog.files import sealing
from fanout.replog.files.columns import EventRow, LogSource, RowEncoder
from fanout.replog.files.schema import UPDATES
from fanout.replog.files.sealing import node_of, open_directory, seal, sealed_path
from fanout.replog.files.segments import SegmentFile, SegmentIdentity, encode_rows
from tests.replog.rows import (
    EPOCH,
    NOW_NS,
    make_rows,
    make_update,
    make_updates,
    sealed_paths,
    sealed_rows,
    segment_rows,
)

PLACE = Path("node=edge-1/date=2023-11-14/hour=22")
NAME = f"{EPOCH}-000003.parquet"


def make_segment(directory: Path, *, frames: int = 3, events: bool = True, node: str = "edge-1") -> Path:
    """Write a segment of `frames` frames with five updates each, and perhaps an event."""
    place = open_directory(directory, node)
    place.mkdir(parents=True)
    identity = SegmentIdentity(node, "secondary", EPOCH, 3, NOW_NS // 1000)
    segment = SegmentFile.create(place, identity)
    encoder = RowEncoder(node=node, role="secondary", node_epoch=EPOCH)
    for number in range(frames):
        # Each frame brings names of its own, as links and stamping nodes come and go.
        source = LogSource(f"link{number}", ())
        first = number * 6 + 1
        updates = [
            *make_updates(4, start=number * 5),
            make_update(b"stamped", stamp=Stamp(f"p{number}", EPOCH, number, EPOCH)),
        ]
        event = EventRow(f"link{number}", 7, "heartbeat", NOW_NS, log_pos=first + 5)
        data = encode_rows(
            encoder.updates([make_rows(updates, source=source, first_log_pos=first)]),
            [encoder.events([event])] if events else [],
            first_log_pos=first,
            last_log_pos=first + 5,
        )
        segment.append(data, update_rows=5, event_rows=int(events), last_log_pos=first + 5)
    segment.close()
    return segment.path


def test_a_sealed_segment_has_exactly_its_rows(tmp_path: Path) -> None:
    """Both tables have the rows of the segment, at the places that its first frame names, and it is gone."""
    segment = make_segment(tmp_path)
    updates, events = segment_rows(segment), segment_rows(segment, "events")
    sealed = seal(segment, directory=tmp_path)
    files = [tmp_path / "v1" / table / PLACE / NAME for table in ("updates", "events")]
    assert list(sealed.files) == files
    assert {path for path in (tmp_path / "v1").rglob("*") if path.is_file()} == set(files)
    assert sealed_rows(tmp_path, "updates") == updates
    assert sealed_rows(tmp_path, "events") == events
    assert (sealed.update_rows, sealed.event_rows, sealed.last_log_pos) == (15, 3, 18)
    assert (sealed.torn_bytes, sealed.finished) == (0, True)
    assert not segment.exists()


def test_row_groups_have_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing writes a row group whenever enough rows have come together."""
    monkeypatch.setattr(sealing, "_ROW_GROUP_ROWS", 8)
    segment = make_segment(tmp_path)
    expected = segment_rows(segment)
    seal(segment, directory=tmp_path)
    [path] = sealed_paths(tmp_path, "updates")
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [10, 5]
    assert sealed_rows(tmp_path, "updates") == expected


def test_columns_are_encoded_for_what_they_hold(tmp_path: Path) -> None:
    """Counts and times are deltas, names are dictionaries, a digest is neither, and all of it is zstd."""
    seal(make_segment(tmp_path), directory=tmp_path)
    [path] = sealed_paths(tmp_path, "updates")
    group = pq.read_metadata(path).row_group(0)
    found = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in found["log_pos"].encodings
    assert "DELTA_BINARY_PACKED" in found["applied"].encodings
    assert "RLE_DICTIONARY" in found["node"].encodings
    assert "RLE_DICTIONARY" not in found["digest"].encodings
    assert {column.compression for column in found.values()} == {"ZSTD"}
    assert pq.ParquetFile(path).schema_arrow == UPDATES


def test_a_table_without_rows_has_no_file(tmp_path: Path) -> None:
    """A segment without events makes no file of events."""
    sealed = seal(make_segment(tmp_path, events=False), directory=tmp_path)
    assert [path.parts[-5] for path in sealed.files] == ["updates"]


@pytest.mark.parametrize("steps_done", range(4))
def test_sealing_again_after_a_crash_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_done: int
) -> None:
    """Killed after any number of its renames and removals, sealing is done again with the same outcome."""
    segment = make_segment(tmp_path)
    updates, events = segment_rows(segment), segment_rows(segment, "events")

    class Killed(BaseException):
        pass

    done = 0

    def step(original: str) -> None:
        real = getattr(Path, original)

        def counted(self: Path, *arguments: object, **keywords: object) -> object:
            nonlocal done
            if done == steps_done:
                raise Killed
            done += 1
            return real(self, *arguments, **keywords)

        monkeypatch.setattr(Path, original, counted)

    step("rename")
    step("unlink")
    with pytest.raises(Killed) if steps_done < 3 else contextlib.nullcontext():
        seal(segment, directory=tmp_path)
    monkeypatch.undo()
    if segment.exists():
        seal(segment, directory=tmp_path)
    assert sealed_rows(tmp_path, "updates") == updates
    assert sealed_rows(tmp_path, "events") == events
    assert len([path for path in (tmp_path / "v1").rglob("*.parquet") if path.is_file()]) == 2


def test_what_a_killed_process_left_unfinished_is_written_over(tmp_path: Path) -> None:
    """A half-written file is never read, and the next sealing of the segment takes its place."""
    segment = make_segment(tmp_path)
    expected = segment_rows(segment)
    place = tmp_path / "v1" / "updates" / PLACE
    place.mkdir(parents=True)
    (place / f".{NAME}.unfinished").write_bytes(b"x" * 100_000)
    assert not sealed_paths(tmp_path, "updates")
    seal(segment, directory=tmp_path)
    assert sealed_rows(tmp_path, "updates") == expected
    assert [path.name for path in place.iterdir()] == [NAME]


def test_a_full_disk_leaves_nothing_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a file cannot be written the segment stays, no part of a file does, and a second try succeeds."""
    segment = make_segment(tmp_path)
    expected = segment_rows(segment)

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(OSError, match="No space"):
            seal(segment, directory=tmp_path)
    assert segment.exists()
    assert not [path for path in (tmp_path / "v1").rglob("*") if path.is_file()]
    seal(segment, directory=tmp_path)
    assert sealed_rows(tmp_path, "updates") == expected


def test_a_torn_segment_is_sealed_up_to_its_last_whole_frame(tmp_path: Path) -> None:
    """The rows before the tear are sealed, and the loss is told."""
    segment = make_segment(tmp_path)
    data = segment.read_bytes()
    segment.write_bytes(data[: len(data) - 100])
    expected = segment_rows(segment)
    sealed = seal(segment, directory=tmp_path)
    assert sealed_rows(tmp_path, "updates") == expected
    assert (sealed.update_rows, sealed.finished) == (10, False)
    assert sealed.torn_bytes > 0


def test_a_segment_without_rows_is_removed(tmp_path: Path) -> None:
    """Neither an empty file nor one that only has its first frame makes Parquet files."""
    segment = make_segment(tmp_path, frames=0)
    assert seal(segment, directory=tmp_path).files == ()
    segment.write_bytes(b"")
    assert seal(segment, directory=tmp_path).identity is None
    assert not list(segment.parent.iterdir())
    assert not (tmp_path / "v1").exists()


def test_a_segment_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    """What may be the work of another version is put aside, not removed."""
    segment = make_segment(tmp_path)
    data = b"other" + segment.read_bytes()
    segment.write_bytes(data)
    assert seal(segment, directory=tmp_path).identity is None
    assert not segment.exists()
    assert segment.with_suffix(".unreadable").read_bytes() == data


@pytest.mark.parametrize("node", ["edge 1", "a/b", "ö=%", ".."])
def test_any_node_identifier_makes_one_directory(tmp_path: Path, node: str) -> None:
    """Whatever a node is called, its files lie in one directory below the log's, from which the name is read back."""
    seal(make_segment(tmp_path, node=node), directory=tmp_path)
    [path] = sealed_paths(tmp_path, "updates")
    assert path == sealed_path(tmp_path, "updates", SegmentIdentity(node, "secondary", EPOCH, 3, NOW_NS // 1000))
    assert node_of(path.parts[-4]) == node
    assert len(path.relative_to(tmp_path).parts) == 6
    assert {row["node"] for row in sealed_rows(tmp_path, "updates")} == {node}
