"""Segment log: the chain of segments of one run; decides when a segment is begun, synced and closed.

Belongs to the writer's thread; others only read its figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fanout.replog.alarms import Alarms
from fanout.replog.files.segments import SegmentFile, SegmentIdentity
from fanout.replog.runs import Run, RunRecord
from fanout.replog.settings import LogSettings
from fanout.replog.write.sealer import ClosedSegment
from fanout.replog.write.write_queue import PendingRows
from fanout.runtime.directories import free_bytes
from fanout.runtime.system_clock import Clock

__all__ = ["SegmentLog"]

_HOUR_US = 3_600_000_000


class SegmentLog:
    """Writes frames, one segment after the other."""

    def __init__(
        self,
        directory: Path,
        *,
        identity: SegmentIdentity,
        settings: LogSettings,
        clock: Clock,
        alarms: Alarms,
        runs: RunRecord,
        on_closed: Callable[[ClosedSegment], None],
    ) -> None:
        """Begin with no segment; the first write makes one.

        Args:
            directory: The existing directory of segments.
            identity: Identity of the segment before the first one, with the random token in the marks of all.
            settings: Size and age at which a segment is closed, and how long written rows may wait to be synced.
            clock: The time.
            alarms: Gets the faults.
            runs: Record of how far the log reaches.
            on_closed: Called with each closed segment.
        """
        self.written_log_pos = 0
        """Rows up to here were written or skipped."""
        self.synced_log_pos = 0
        """Rows up to here are on the disk or were skipped."""
        self.floor = 0
        """The last position with a row in the segments before this one."""
        self.written_bytes_total = 0
        self.last_sync_ns = 0
        self.disk_free_bytes: int | None = None
        """Space for this user on the disk of the segments, as of the last sync; None before, and if it is not known."""
        self._directory = directory
        self._identity = identity
        self.settings = settings
        """Bounds and intervals; may be replaced."""
        self._clock = clock
        self._alarms = alarms
        self._runs = runs
        self._empty: list[int] = []
        self._on_closed = on_closed
        self._segment: SegmentFile | None = None
        self._opened = 0.0  # monotonic
        self._unsynced_since: float | None = None  # monotonic; None when everything written is synced

    def write(self, frame: bytes, pending: PendingRows) -> bool:
        """Append a frame; return False when the disk failed and the caller should try again later."""
        try:
            segment = self._segment or self._begin()
            segment.append(
                frame,
                update_rows=pending.update_rows,
                event_rows=len(pending.events),
                last_log_pos=pending.last_log_pos,
            )
        except OSError as error:
            self._alarms.begin("write", f"the replication log cannot be written: {error}; it is tried again")
            if self._segment is not None and self._segment.damaged:
                self._finish()
            return False
        self._alarms.end("write")
        self.written_bytes_total += len(frame)
        self.written_log_pos = pending.last_log_pos
        if self._unsynced_since is None:
            self._unsynced_since = self._clock.monotonic()
        if segment.size >= self.settings.segment_bytes_max:
            self._finish()
        return True

    def skip(self, log_pos: int) -> None:
        """Pass over rows that will never be written."""
        self.written_log_pos = log_pos
        if self._unsynced_since is None:
            self.synced_log_pos = log_pos

    def tend(self, *, sync_now: bool) -> None:
        """Sync when it is due, and close an old segment.

        Args:
            sync_now: True to sync even before it is due.
        """
        if self._segment is None:
            return
        now = self._clock.monotonic()
        opened_us = self._segment.identity.opened_us
        if now - self._opened >= self.settings.segment_age_max_s or self._now_us() // _HOUR_US != opened_us // _HOUR_US:
            self._finish()
        elif self._unsynced_since is not None and (
            sync_now or now - self._unsynced_since >= self.settings.fsync_interval_s
        ):
            try:
                self._segment.sync()
            except OSError as error:
                self._alarms.begin("sync", f"the replication log cannot be synced: {error}")
                self._finish()
            else:
                self._synced()
                self._note(self._segment)

    def close(self) -> None:
        """Close the segment that is open, if any."""
        if self._segment is not None:
            self._finish()

    def _begin(self) -> SegmentFile:
        identity = replace(self._identity, number=self._identity.number + 1, opened_us=self._now_us(), floor=self.floor)
        self._segment = SegmentFile.create(self._directory, identity)
        self._identity = identity
        self._opened = self._clock.monotonic()
        return self._segment

    def _finish(self) -> None:
        """Close the segment and hand it over for sealing, which reads it back, synced or not."""
        segment = self._segment
        assert segment is not None
        self._segment = None
        self._unsynced_since = None
        try:
            segment.close()
        except OSError as error:
            # Its rows may not be on the disk, and do not count as synced. Sealing, the next step, reads them back,
            # writes and syncs other files, and counts missing rows as lost.
            self._alarms.begin("sync", f"{segment.path} could not be synced: {error}")
        else:
            if not segment.damaged:
                self._synced()
                self._note(segment)
        if segment.last_log_pos:
            self.floor = segment.last_log_pos
        else:
            self._empty.append(segment.identity.number)
        self._on_closed(ClosedSegment(segment.path, segment.update_rows, segment.event_rows, segment.last_log_pos))

    def _note(self, segment: SegmentFile) -> None:
        """Record how far the rows on the disk reach: at the first rows of a segment, and when it is closed."""
        known = self._runs.runs.get(self._identity.node_epoch)
        number = segment.identity.number
        if segment.last_log_pos and (known is None or known.segments < number or self._segment is None):
            run = Run(self._identity.role, number, segment.last_log_pos, self._now_us(), tuple(self._empty))
            self._runs.note(self._identity.node_epoch, run)

    def _synced(self) -> None:
        self._alarms.end("sync")
        self._unsynced_since = None
        self.synced_log_pos = self.written_log_pos
        self.last_sync_ns = self._clock.now_ns()
        self.disk_free_bytes = free_bytes(self._directory)

    def _now_us(self) -> int:
        return self._clock.now_ns() // 1000
