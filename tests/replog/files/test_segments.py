"""Segments: what is appended is read back, and of a damaged file the exact prefix of whole frames."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

import pytest

from fanout.errors import LogError
from fanout.replog.files.columns import EventRow, LogSource, RowEncoder
from fanout.replog.files.sealing import open_directory
from fanout.replog.files.segments import FrameKind, SegmentFile, SegmentIdentity, SegmentReader, _encode, encode_rows
from fanout.replog.read.reading import stage
from fanout.replog.write.writer import LogWriter
from tests.replog.rows import EPOCH, NOW_NS, ManualClock, make_rows, make_updates, segment_rows

IDENTITY = SegmentIdentity(node="edge-1", role="secondary", node_epoch=EPOCH, number=1, opened_us=NOW_NS // 1000)
SOURCE = LogSource("plant", ())


def frame(first: int, count: int, *, event: bool = False) -> bytes:
    """Return a frame of updates, with an event behind them."""
    encoder = RowEncoder(node="edge-1", role="secondary", node_epoch=EPOCH)
    batches = encoder.updates([make_rows(make_updates(count, start=first), source=SOURCE, first_log_pos=first)])
    last = first + count - 1
    events = []
    if event:
        last += 1
        events.append(encoder.events([EventRow("plant", 7, "heartbeat", NOW_NS, log_pos=last)]))
    return encode_rows(batches, events, first_log_pos=first, last_log_pos=last)


FRAMES = [frame(1, 40, event=True), frame(42, 1), frame(50, 300), frame(350, 20, event=True)]
LAST = [41, 42, 349, 370]
ROWS = [(40, 1), (1, 0), (300, 0), (20, 1)]
"""Updates and events of each frame."""


def write(directory: Path, *, close: bool = True) -> tuple[Path, list[int]]:
    """Write a segment; return its path and where each of its frames ends."""
    segment = SegmentFile.create(directory, IDENTITY)
    ends = [segment.size]
    for data, last, (updates, events) in zip(FRAMES, LAST, ROWS, strict=True):
        segment.append(data, update_rows=updates, event_rows=events, last_log_pos=last)
        ends.append(segment.size)
    if close:
        segment.close()
    return segment.path, ends


def whole_frames(path: Path) -> tuple[list[int], SegmentReader]:
    """Return the last positions of the frames that can be read."""
    with path.open("rb") as stream:
        reader = SegmentReader(stream)
        return [frame.last_log_pos for frame in reader], reader


def test_frames_are_read_back(tmp_path: Path) -> None:
    """A closed segment gives all its rows, its identity, and that it was closed."""
    path, _ = write(tmp_path)
    last, reader = whole_frames(path)
    assert (last, reader.identity, reader.finished, reader.torn_bytes) == (LAST, IDENTITY, True, 0)
    assert (reader.update_rows, reader.event_rows) == (361, 2)
    assert (reader.first_log_pos, reader.last_log_pos) == (1, 370)
    assert [row["log_pos"] for row in segment_rows(path)] == [*range(1, 41), 42, *range(50, 370)]
    assert [row["log_pos"] for row in segment_rows(path, "events")] == [41, 370]
    assert path.name == f"{EPOCH}-000001.seg"


def test_the_last_frame_tells_what_the_segment_holds(tmp_path: Path) -> None:
    """Counts and positions stand at the end; where whole frames are missing in between, it is not the end of this."""
    path, ends = write(tmp_path)
    data = path.read_bytes()
    assert struct.unpack("<IIqq", data[ends[-1] :][16:40]) == (361, 2, 1, 370)
    path.write_bytes(data[: ends[1]] + data[ends[-1] :])
    last, reader = whole_frames(path)
    assert (last, reader.finished, reader.damaged_bytes) == (LAST[:1], False, len(data) - ends[-1])


def test_the_last_frame_is_found(tmp_path: Path) -> None:
    """Skimming a segment gives its last rows, and nothing for an empty one."""
    path, _ = write(tmp_path, close=False)
    with path.open("rb") as stream:
        last = SegmentReader(stream).skim()
    assert last is not None
    assert last.first_log_pos == 350
    path.write_bytes(b"")
    with path.open("rb") as stream:
        assert SegmentReader(stream).skim() is None


def test_a_segment_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """Its rows could mean something else, and its identity have more; a writer that starts leaves it as it is."""
    place = open_directory(tmp_path, "edge-1")
    place.mkdir(parents=True)
    identity = json.dumps(asdict(IDENTITY) | {"schema_version": 2, "of_version_2": True}).encode()
    path = place / f"{EPOCH}-000001.seg"
    path.write_bytes(_encode(FrameKind.OPENED, identity) + FRAMES[0])
    data = path.read_bytes()
    starts = [
        LogWriter(tmp_path, node="edge-1", role="tap", node_epoch=EPOCH + later, clock=ManualClock()).open
        for later in (1, 2)
    ]
    for refused in (lambda: whole_frames(path), lambda: stage([tmp_path], target=tmp_path / "staged"), *starts):
        with pytest.raises(LogError, match="seg has version 2 of the replication log, and this fanout reads 1"):
            refused()
    assert [one.name for one in place.iterdir() if one.suffix != ".seg"] == ["lock"]
    assert path.read_bytes() == data


def damaged(data: bytes, ends: list[int]) -> Iterator[tuple[bytes, int]]:
    """Return damaged copies of a segment, each with the place of its first damaged byte."""
    chosen = random.Random(1)
    cuts = {*range(60), *(end + step for end in ends for step in range(-3, 4))}
    cuts |= {chosen.randrange(len(data)) for _ in range(400)}
    for cut in sorted(cuts):
        if cut < len(data):
            yield data[:cut], cut
            for tail in (bytes(chosen.choice([1, 44, 500, 5000])), chosen.randbytes(chosen.choice([1, 44, 500]))):
                # What is written over may happen to be what was there.
                pairs = zip(tail, data[cut:], strict=False)
                yield data[:cut] + tail, cut + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    # A flipped bit, in every byte of every header and anywhere in the bodies.
    flips = {start + step for start in [0, *ends] for step in range(44)}
    flips |= {chosen.randrange(len(data)) for _ in range(600)}
    for place in sorted(flips):
        if place < len(data):
            yield data[:place] + bytes([data[place] ^ (1 << chosen.randrange(8))]) + data[place + 1 :], place


def test_any_damage_leaves_the_exact_prefix_of_whole_frames(tmp_path: Path) -> None:
    """Torn, zero-filled, overwritten or flipped: what is before the damage is read, and nothing behind it."""
    path, ends = write(tmp_path)
    data = path.read_bytes()
    ends.append(len(data))
    copy = tmp_path / "copy"
    tried = 0
    for content, place in damaged(data, ends):
        good = max([0, *(end for end in ends if end <= place)])
        copy.write_bytes(content)
        last, reader = whole_frames(copy)
        assert reader.good_bytes == good
        assert last == [position for position, end in zip(LAST, ends[1:], strict=False) if end <= good]
        assert (reader.identity is None) == (good == 0)
        assert reader.finished == (good == len(data))
        tried += 1
    assert tried > 1500


def test_a_frame_that_goes_back_in_the_log_ends_the_segment(tmp_path: Path) -> None:
    """A frame written twice is read once."""
    path, _ = write(tmp_path, close=False)
    with path.open("ab") as file:
        file.write(FRAMES[1])
    assert whole_frames(path)[0] == LAST


@pytest.mark.parametrize(
    "data",
    [
        FRAMES[0],
        _encode(FrameKind.FINISHED, b""),
        _encode(FrameKind.OPENED, b'{"node": "a", "colour": "red"}'),
        _encode(FrameKind.OPENED, b"{"),
    ],
    ids=["rows", "finished", "other fields", "no JSON"],
)
def test_a_segment_without_its_first_frame_has_nothing(tmp_path: Path, data: bytes) -> None:
    """Rows of nobody, or of a format of another version, are not read."""
    path = tmp_path / "copy"
    path.write_bytes(data + FRAMES[1])
    last, reader = whole_frames(path)
    assert (last, reader.identity, reader.good_bytes) == ([], None, 0)


@pytest.mark.parametrize("data", [_encode(FrameKind.OPENED, b"{}"), _encode(FrameKind(3), b"")[:5] + b"\0" * 39])
def test_nothing_is_read_behind_a_frame_out_of_place(tmp_path: Path, data: bytes) -> None:
    """A second first frame ends the segment."""
    path, ends = write(tmp_path, close=False)
    with path.open("ab") as file:
        file.write(data + FRAMES[1])
    assert whole_frames(path)[1].good_bytes == ends[-1]


def test_reading_stops_at_the_length_at_the_start(tmp_path: Path) -> None:
    """A segment that grows while it is read ends where it ended when the reading began."""
    segment = SegmentFile.create(tmp_path, IDENTITY)
    segment.append(FRAMES[0], update_rows=40, event_rows=1, last_log_pos=41)
    with segment.path.open("rb") as stream:
        reader = SegmentReader(stream)
        segment.append(FRAMES[1], update_rows=1, event_rows=0, last_log_pos=42)
        assert [frame.last_log_pos for frame in reader] == [41]
    segment.close()


def test_a_segment_is_not_made_twice(tmp_path: Path) -> None:
    """An existing segment is never written over."""
    path, _ = write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        SegmentFile.create(tmp_path, IDENTITY)
    assert path.read_bytes() == before


def test_a_failed_creation_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the first frame leaves nothing behind."""
    monkeypatch.setattr(os, "write", fail_after(5))
    with pytest.raises(OSError, match="No space"):
        SegmentFile.create(tmp_path, IDENTITY)
    assert not list(tmp_path.iterdir())


def fail_after(count: int) -> object:
    """Return an `os.write` that writes so many bytes and then finds the disk full."""
    write = os.write
    left = count

    def limited(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(descriptor, data[:left])
        left -= done
        return done

    return limited


def test_a_failed_append_leaves_no_part_of_its_frame(tmp_path: Path) -> None:
    """After a full disk the next frame is appended right behind the last whole one."""
    segment = SegmentFile.create(tmp_path, IDENTITY)
    segment.append(FRAMES[0], update_rows=40, event_rows=1, last_log_pos=41)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", fail_after(100))
        with pytest.raises(OSError, match="No space"):
            segment.append(FRAMES[1], update_rows=1, event_rows=0, last_log_pos=42)
    assert segment.path.stat().st_size == segment.size
    assert not segment.damaged
    assert (segment.update_rows, segment.event_rows, segment.last_log_pos) == (40, 1, 41)
    segment.append(FRAMES[1], update_rows=1, event_rows=0, last_log_pos=42)
    segment.close()
    last, reader = whole_frames(segment.path)
    assert (last, reader.finished) == ([41, 42], True)


def test_a_segment_whose_torn_frame_cannot_be_removed_is_damaged(tmp_path: Path) -> None:
    """Nothing may be appended behind a torn frame, so such a segment is closed without its last frame."""
    segment = SegmentFile.create(tmp_path, IDENTITY)
    segment.append(FRAMES[0], update_rows=40, event_rows=1, last_log_pos=41)

    def truncate(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", fail_after(100))
        patch.setattr(os, "ftruncate", truncate)
        with pytest.raises(OSError, match="No space"):
            segment.append(FRAMES[1], update_rows=1, event_rows=0, last_log_pos=42)
    assert segment.damaged
    segment.close()
    last, reader = whole_frames(segment.path)
    assert (last, reader.torn_bytes, reader.finished) == ([41], 100, False)


def test_a_failed_sync_damages_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync a later success would prove nothing."""
    segment = SegmentFile.create(tmp_path, IDENTITY)
    segment.sync()

    def sync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fanout.replog.files.segments._sync_data", sync)
    with pytest.raises(OSError, match="Input/output"):
        segment.sync()
    assert segment.damaged
    segment.close()
    assert not whole_frames(segment.path)[1].finished


def test_names_follow_from_the_identity() -> None:
    """A segment's name and hour are those of its first frame, in UTC."""
    assert IDENTITY.name == f"{EPOCH}-000001"
    assert IDENTITY.hour == "date=2023-11-14/hour=22"
