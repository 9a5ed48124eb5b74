"""What the last run of a node left behind: its segments, and whether it may have lost rows.

Owns the reading of left-over segments at a start; sealing them is the sealer's work. Only the process that
holds the node's lock may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fanout.replog.backlog import Loss
from fanout.replog.node_lock import LastRun
from fanout.replog.sealer import ClosedSegment
from fanout.replog.segments import Frame, SegmentReader

__all__ = ["LeftOver", "crash_loss", "left_over_segments"]


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A segment that the last run did not seal."""

    segment: ClosedSegment
    node_epoch: int | None
    """None when not even its first frame is whole."""
    torn_bytes: int
    """Bytes behind the last whole frame."""
    last_ns: int | None
    """Time of its newest row, Unix time in nanoseconds; None when it has none."""


def left_over_segments(directory: Path) -> Iterator[LeftOver]:
    """Read the segments in a node's open directory, in the order in which they were written.

    Raises:
        OSError: One cannot be read.
    """
    for path in sorted(directory.glob("*.seg"), key=_place):
        with path.open("rb") as stream:
            reader = SegmentReader(stream)
            last = reader.skim()
        yield LeftOver(
            segment=ClosedSegment(path, reader.update_rows, reader.event_rows, reader.last_log_pos),
            node_epoch=reader.identity.node_epoch if reader.identity else None,
            torn_bytes=reader.torn_bytes,
            last_ns=None if last is None else _newest_ns(last),
        )


def crash_loss(
    last_run: LastRun | None, left_over: list[LeftOver], *, sealed: tuple[int, int] | None, now_ns: int
) -> Loss | None:
    """Return what the last run may have lost at its end, or None when it stopped in good order.

    Rows that were appended and not yet written when a process is killed leave no trace, so their number is
    unknown; the answer says between which position and times they would be.

    Args:
        last_run: What the lock says of it.
        left_over: What it did not seal.
        sealed: The last position and time of what it did seal; None when that is nothing.
        now_ns: The time of this start.
    """
    if last_run is None or last_run.clean:
        return None
    # Nothing of a run is older than its epoch. Between two segments it has sealed rows alone.
    ends = [(0, last_run.node_epoch * 1000)]
    ends += [] if sealed is None else [sealed]
    ends += [
        (one.segment.last_log_pos, one.last_ns)
        for one in left_over
        if one.node_epoch == last_run.node_epoch and one.last_ns is not None
    ]
    last_log_pos, last_ns = max(ends)
    return Loss(
        reason="crash",
        link="",
        link_epoch=last_run.node_epoch,
        node_epoch=last_run.node_epoch,
        rows=None,
        first_log_pos=last_log_pos + 1,
        last_log_pos=None,
        first_ns=last_ns,
        last_ns=now_ns,
    )


def _place(path: Path) -> tuple[int, int]:
    epoch, _, number = path.stem.partition("-")
    return (int(epoch), int(number)) if epoch.isdecimal() and number.isdecimal() else (0, 0)


def _newest_ns(frame: Frame) -> int:
    newest_us = 0
    for stream, column in ((frame.updates, "applied"), (frame.events, "at")):
        if stream:
            times = pa.ipc.open_stream(stream).read_all()[column].cast(pa.int64())
            newest_us = max(newest_us, max(filter(None, times.to_pylist()), default=0))
    return newest_us * 1000
