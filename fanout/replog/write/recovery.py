"""Recovery at a start: finds the segments that the last run of a node left, and the rows that it may have lost.

The sealer seals the segments. Only the process that holds the node's lock may use this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fanout.replog.files.node_lock import LastRun
from fanout.replog.files.sealing import open_directory, sealed_files
from fanout.replog.files.segments import Damage, SegmentReader, frame_times
from fanout.replog.runs import Run, missing_numbers
from fanout.replog.shipping.archive import read_removed
from fanout.replog.write.sealer import ClosedSegment
from fanout.replog.write.write_queue import Loss

__all__ = ["LeftOver", "crash_loss", "last_epoch", "left_over_segments", "missing_segments"]


@dataclass(frozen=True, slots=True)
class LeftOver:
    """A segment that the last run did not seal."""

    segment: ClosedSegment
    node_epoch: int | None
    """Epoch of its run; None when not even the first frame is whole."""
    torn_bytes: int
    """Bytes of an incomplete last frame."""
    damage: tuple[Damage, ...]
    """Other bytes that are no whole frames."""
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
            damage=tuple(reader.damage),
            last_ns=None if last is None else frame_times(last)[1] * 1000,
        )


def crash_loss(
    last_run: LastRun | None,
    left_over: list[LeftOver],
    *,
    sealed: tuple[int, int] | None,
    lost_until_ns: int | None,
    now_ns: int,
) -> Loss | None:
    """Return the possible loss at the end of the last run, or None when it stopped in good order.

    Rows that were not yet written when a process is killed leave no trace, so their number is unknown. The loss gives
    the position and the times between which they would be.

    Args:
        last_run: The last run as in the lock file.
        left_over: Its segments that are not sealed.
        sealed: The last position and time of its sealed files; None for no such files.
        lost_until_ns: Time of the newest row that it can have lost, by its last sign of life; None if unknown.
        now_ns: Time of this start.
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
    # The clock may have been set back: before the last sign of life, or between that and this start.
    first_ns = last_ns if lost_until_ns is None else min(last_ns, lost_until_ns)
    until_ns = now_ns if lost_until_ns is None else min(lost_until_ns, max(now_ns, last_ns))
    return Loss(
        reason="crash",
        link="",
        link_epoch=last_run.node_epoch,
        node_epoch=last_run.node_epoch,
        rows=None,
        first_log_pos=last_log_pos + 1,
        last_log_pos=None,
        first_ns=first_ns,
        last_ns=max(last_ns, until_ns),
    )


def missing_segments(directory: Path, *, node: str, runs: Mapping[int, Run]) -> list[str]:
    """Return the names of a node's segments that neither exist, nor are sealed, nor were removed by the node.

    Raises:
        OSError: A directory cannot be read.
    """
    if not runs:
        return []
    place = open_directory(directory, node)
    found: dict[int, set[int]] = {}
    for path in (*sealed_files(directory, node=node), *place.glob("*-*.*")):
        epoch, number = _place(path)
        found.setdefault(epoch, set()).add(number)
    removed = read_removed(place)
    return [
        f"{epoch}-{number:06d}"
        for epoch, run in runs.items()
        for number in missing_numbers(run, found=found.get(epoch, ()), removed=removed.get(epoch, 0))
    ]


def last_epoch(directory: Path, *, node: str, runs: Iterable[int], left_over: Iterable[LeftOver]) -> int | None:
    """Return the epoch of the newest run that left anything; None for no run."""
    epochs = [*runs, *(one.node_epoch or 0 for one in left_over)]
    epochs += [_place(path)[0] for path in sealed_files(directory, node=node)]
    return max(epochs, default=0) or None


def _place(path: Path) -> tuple[int, int]:
    epoch, number, *_ = (*path.stem.split("-"), "", "")
    return (int(epoch), int(number)) if epoch.isdecimal() and number.isdecimal() else (0, 0)
