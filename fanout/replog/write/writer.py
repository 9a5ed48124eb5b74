"""Log writer: writes one node's replication log.

Owns the node's part of a log directory while the node runs: its lock, the threads that write and seal, the segments,
and the figures. Appending belongs to the event loop and costs it a lock and a few references per batch. The node
decides which updates are logged and what an event says.

`write_queue.py` has the overflow policy, `segments.py` what survives a crash, `sealing.py` the layout of files.

When the disk fails (full, broken), the node goes on: the writer tries the same rows again every `retry_interval_s`, the
queue fills up, rows that do not fit are dropped and counted, an alarm stands in the figures, and once the disk is back
a gap event says what is missing.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from fanout.errors import LogError
from fanout.installation import hidden
from fanout.replica.update import Changes
from fanout.replog.alarms import Alarms
from fanout.replog.files.columns import EventRow, LoggedSelector, LogSource, RowEncoder, StampTotals
from fanout.replog.files.node_lock import LastRun, NodeLock
from fanout.replog.files.schema import event_names
from fanout.replog.files.sealing import Sealed, last_row, last_sealed, open_directory
from fanout.replog.files.segments import Damage, SegmentIdentity, encode_rows
from fanout.replog.runs import RunRecord
from fanout.replog.settings import LogSettings, LogStats
from fanout.replog.shipping.archive import Archive
from fanout.replog.write.recovery import LeftOver, crash_loss, last_epoch, left_over_segments, missing_segments
from fanout.replog.write.sealer import ClosedSegment, Sealer
from fanout.replog.write.segment_log import SegmentLog
from fanout.replog.write.write_queue import Loss, PendingRows, WriteQueue
from fanout.runtime.system_clock import Clock

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["LogSettings", "LogStats", "LogWriter"]


_FRAMES_AT_ONCE = 8
"""Number of frames that are merged into one when the queue is that long.

A frame takes the interpreter's lock about eight times. On a busy event loop each time costs a switch interval (5 ms),
so only larger frames let the writer catch up.
"""


_DAMAGE_TOLD_MAX = 64
"""Gap events for the damage of one segment; the last covers all the rest."""

_SIGN_INTERVAL_S = 0.5
"""Pause between signs of life, while every row is written as it should."""

_SIGN_LATE_S = 1.0
"""Time for which a sign of life holds beyond the flush interval; less than the interval plus a slow write is not
enough.
"""

_YIELD_S = 20e-6
_YIELD_INTERVAL_S = 0.002
"""Length of the pauses that the event loop makes for the writer while much is queued, and their least distance.

A thread that releases the interpreter's lock for microseconds, as each system call of a busy event loop does, can keep
another thread from ever getting it: that thread wakes too late each time and waits anew. Only a real pause lets it in.
"""


class LogWriter:
    """Writes one node's replication log.

    Made closed. `open` and `close` wait for the disk: call them from a thread, not from the event loop.
    `append` and `event` never wait for it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        role: str,
        node_epoch: int,
        clock: Clock,
        settings: LogSettings | None = None,
        logger: FilteringBoundLogger | None = None,
    ) -> None:
        """Prepare; nothing is opened before `open`.

        Args:
            directory: The log's directory; several nodes may share it.
            node: The node's identifier.
            role: "primary", "secondary" or "tap".
            node_epoch: Start of the node, Unix time in microseconds; unique per node.
            clock: The time.
            settings: Bounds and intervals; None means the defaults.
            logger: Takes alarms and recoveries; None means structlog's default.
        """
        self._settings = settings or LogSettings()
        self._directory = directory
        self._node = node
        self._node_epoch = node_epoch
        self._clock = clock
        self._logger: FilteringBoundLogger = (logger or structlog.get_logger()).bind(node=node)
        self._alarms = Alarms(self._logger)
        self._encoder = RowEncoder(node=node, role=role, node_epoch=node_epoch)
        self._queue = WriteQueue(
            node_epoch=node_epoch,
            rows_max=self._settings.queue_rows_max,
            bytes_max=self._settings.queue_bytes_max,
            events_max=self._settings.queue_events_max,
            now_ns=clock.now_ns,
        )
        place = open_directory(directory, node)
        self._lock = NodeLock(place / "lock", node=node, node_epoch=node_epoch)
        self._runs = RunRecord(place, node_epoch=node_epoch)
        self._token = secrets.token_hex(8)
        self._sealer = Sealer(
            directory,
            retry_interval_s=self._settings.retry_interval_s,
            alarms=self._alarms,
            on_sealed=self._sealed,
        )
        self._archive = (
            Archive(
                directory,
                node=node,
                settings=self._settings,
                clock=clock,
                alarms=self._alarms,
                runs=self._runs,
                logger=self._logger,
            )
            if self._settings.archives
            else None
        )
        self._segments = SegmentLog(
            place,
            identity=SegmentIdentity(node, role, node_epoch, number=0, opened_us=0, token=self._token),
            settings=self._settings,
            clock=clock,
            alarms=self._alarms,
            runs=self._runs,
            on_closed=self._sealer.put,
        )
        self._totals = StampTotals()
        self._accepting = False
        # Set by the event loop when a frame is full, and by callers that want the thread at once.
        self._wake = threading.Event()
        self._woken = False
        self._yield_rows = self._settings.queue_rows_max // 8
        self._yield_at = 0.0  # monotonic time of the machine
        self._closing = threading.Event()
        self._close_by = 0.0  # monotonic time of the machine; meaningful once `_closing` is set
        self._flush_to = 0
        self._progress = threading.Condition()
        _hide_pandas()
        self._thread = threading.Thread(target=self._run, name="fanout-log-writer", daemon=True)
        self._gave_up = False
        self._rows_total = 0
        self._events_total = 0
        self._sealed_total = 0
        self._recovered = (0, 0, 0)  # segments, rows, torn bytes

    def open(self) -> None:
        """Lock the node's part of the directory, recover the last run's segments, and start to write.

        Raises:
            LogError: Another process writes this node's log, the directory cannot be used, or a later version of
                fanout left a segment, which stays as it is.
        """
        self._lock.acquire()
        place = open_directory(self._directory, self._node)
        try:
            self._runs.load()
            left_over = list(left_over_segments(place))
            last_run = self._lock.last_run or self._unknown_run(left_over)
            missing = missing_segments(self._directory, node=self._node, runs=self._runs.runs)
        except LogError:
            self._lock.release(clean=False)
            raise
        except (OSError, pa.ArrowException) as error:
            self._lock.release(clean=False)
            raise LogError(
                f"segments of the last run in {place} cannot be read: {error}",
                hint="Check the disk, or move the segment away",
            ) from error
        for one in left_over:
            self._logger.info(
                "segment recovered",
                segment=one.segment.path.name,
                rows=one.segment.update_rows,
                torn_bytes=one.torn_bytes,
            )
            # Reported here, because sealing may take longer than this run.
            self._damaged(one.segment, one.damage, one.node_epoch or 0)
            self._sealer.put(one.segment)
        self._recovered = (
            len(left_over),
            sum(one.segment.update_rows for one in left_over),
            sum(one.torn_bytes for one in left_over),
        )
        if self._runs.damaged:
            self._logger.warning("the record of former runs is damaged: missing files of them may go unnoticed")
        if missing:
            self._logger.warning("segments are missing", segments=len(missing), first=missing[0], last=missing[-1])
        loss = crash_loss(
            last_run,
            left_over,
            sealed=last_sealed(self._directory, node=self._node, node_epoch=last_run.node_epoch) if last_run else None,
            lost_until_ns=self._lock.lost_until_ns,
            now_ns=self._clock.now_ns(),
        )
        if loss is not None:
            self._queue.lose(loss)
        self._sealer.start()
        self._thread.start()
        if self._archive is not None:
            self._archive.start()
        self._accepting = True

    def change(self, settings: LogSettings) -> None:
        """Take other intervals and sizes of segments; the bounds of the queue and the archive stay as they are."""
        self._settings = self._segments.settings = settings

    def source(
        self, *, link: str = "", selectors: Sequence[LoggedSelector] = (), former: LogSource | None = None
    ) -> LogSource:
        """Return the source of updates that every `append` takes.

        Args:
            link: The link's name; empty for what is published at this node.
            selectors: The link's selectors, which give the column `selector` and the prefix to take off.
            former: Source of the link until now, whose stamps this one remembers; None for none.
        """
        return LogSource(link, selectors, totals=self._totals, former=former)

    def append(
        self,
        changes: Changes,
        *,
        source: LogSource,
        link_epoch: int | None = None,
        flags: Sequence[int] | None = None,
    ) -> None:
        """Log the changes of a batch.

        Only references are taken, so `changes`, its lists and `flags` must not change afterwards. It never waits for
        the disk. While more than an eighth of the queue is full it makes short pauses, because a saturated event loop
        would keep the writer's thread from running.

        Args:
            changes: The batch.
            source: Source of the batch.
            link_epoch: Epoch of the link's session; None means the node's epoch (for a source without a
                link).
            flags: FLAG_* of each update, added to those that follow from its stamp; None for none.

        Raises:
            LogError: The log is not open.
        """
        if not self._accepting:
            raise self._not_open()
        queue = self._queue
        queue.put(
            changes,
            source=source,
            link_epoch=self._node_epoch if link_epoch is None else link_epoch,
            flags=flags,
        )
        rows = queue.rows
        if rows >= self._settings.frame_rows and not self._woken:
            self._woken = True
            self._wake.set()
        if rows >= self._yield_rows and time.monotonic() >= self._yield_at:
            time.sleep(_YIELD_S)
            self._yield_at = time.monotonic() + _YIELD_INTERVAL_S

    def event(
        self,
        event: str,
        *,
        link: str = "",
        link_epoch: int | None = None,
        selector: str = "",
        state: str = "",
        evidence: str = "",
        topics: int = 0,
        digest: int = 0,
        lag_us: int | None = None,
        detail: str = "",
    ) -> None:
        """Log an event; the arguments are the columns of `schema.EVENTS`.

        Args:
            event: One of `schema.event_names`.
            link: Name of the link; empty for the whole node.
            link_epoch: Epoch of the link's session; None means the node's epoch.
            selector: Filter of the selector; empty for the whole link.
            state: The state entered.
            evidence: Evidence of a complete snapshot.
            topics: Retained topics held after the event.
            digest: Digest over them, unsigned.
            lag_us: Round trip of a heartbeat in microseconds.
            detail: Text for a person, or JSON.

        Raises:
            LogError: The log is not open.
        """
        assert event in event_names, event
        if not self._accepting:
            raise self._not_open()
        self._queue.put_event(
            EventRow(
                link=link,
                link_epoch=self._node_epoch if link_epoch is None else link_epoch,
                event=event,
                at_ns=self._clock.now_ns(),
                selector=selector,
                state=state,
                evidence=evidence,
                topics=topics,
                digest=digest,
                lag_us=lag_us,
                detail=detail,
            )
        )

    def flush(self, *, timeout_s: float = 10.0) -> bool:
        """Wait until everything appended so far is on the disk; not to be called on the event loop.

        Args:
            timeout_s: Longest wait.

        Returns:
            True if it is.
        """
        target = self._queue.log_pos
        with self._progress:
            self._flush_to = max(self._flush_to, target)
            self._wake.set()
            return self._progress.wait_for(lambda: self._segments.synced_log_pos >= target, timeout_s)

    def close(self, *, timeout_s: float = 10.0) -> bool:
        """Write and seal everything, ship it if time is left, and release the directory.

        Args:
            timeout_s: Longest duration.

        Returns:
            True if everything is sealed. The next start seals the rest; rows that are not written are counted as lost.
        """
        if not self._accepting:
            return True
        self._accepting = False
        end = time.monotonic() + timeout_s
        self._close_by = end - timeout_s / 4  # deadline for a failing disk, to leave time for the rest
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        sealed = self._sealer.close(timeout_s=max(end - time.monotonic(), 0))
        if self._thread.is_alive():  # blocked by the disk; the lock goes with the process
            return False
        if self._archive is not None:
            self._archive.close(timeout_s=max(end - time.monotonic(), 0))
        self._lock.release(clean=not self._gave_up and not self._queue.untold)
        return sealed and not self._gave_up

    def stats(self) -> LogStats:
        """Return the figures of this moment."""
        queue, segments = self._queue, self._segments
        return LogStats(
            log_pos=queue.log_pos,
            written_log_pos=segments.written_log_pos,
            synced_log_pos=segments.synced_log_pos,
            rows_total=self._rows_total,
            events_total=self._events_total,
            lost_rows_total=queue.lost_rows_total,
            lost_events_total=queue.lost_events_total,
            queued_rows=queue.rows,
            queued_bytes=queue.bytes,
            written_bytes_total=segments.written_bytes_total,
            sealed_segments_total=self._sealed_total,
            unsealed_segments=self._sealer.waiting,
            last_sync_ns=segments.last_sync_ns,
            disk_free_bytes=segments.disk_free_bytes,
            duplicates_total=self._totals.duplicates,
            stale_total=self._totals.overtaken,
            recovered_segments=self._recovered[0],
            recovered_rows=self._recovered[1],
            recovered_torn_bytes=self._recovered[2],
            alarm=self._alarm,
            archive=None if self._archive is None else self._archive.stats(),
        )

    def _unknown_run(self, left_over: Sequence[LeftOver]) -> LastRun | None:
        """Return the last run when the lock says nothing of it: one that may have lost rows; None for a first start."""
        node_epoch = last_epoch(self._directory, node=self._node, runs=self._runs.runs, left_over=left_over)
        if node_epoch is None:
            return None
        self._logger.warning("the end of the last run is not known: taken for a crash", node_epoch=node_epoch)
        return LastRun(node_epoch, 0, clean=False)

    @property
    def _alarm(self) -> str:
        if self._accepting and not self._thread.is_alive():
            return "the writer ended unexpectedly"
        if self._archive is not None and self._archive.ended:
            return "the thread that ships and removes sealed files ended unexpectedly"
        return self._alarms.text

    def _not_open(self) -> LogError:
        return LogError("the replication log is not open", hint="Append only between open and close")

    # From here on: the writer's thread, and the sealer's in `_sealed`.

    def _run(self) -> None:
        flush_at = sign_at = 0.0
        closing = False
        while not closing:
            self._wake.wait(self._settings.flush_interval_s)
            self._wake.clear()
            self._woken = False
            closing = self._closing.is_set()
            asked = self._flush_to > self._segments.synced_log_pos
            now = time.monotonic()
            everything = closing or asked or now >= flush_at
            if everything:
                flush_at = now + self._settings.flush_interval_s
            # Rows that come meanwhile wait for their own turn, or this would go on for ever.
            started_ns, target = self._clock.now_ns(), self._queue.log_pos
            while not self._gave_up and (everything or self._queue.rows >= self._settings.frame_rows):
                pending = self._queue.take(_FRAMES_AT_ONCE * self._settings.frame_rows)
                if pending is None:
                    break
                self._write(pending)
                everything = everything and (closing or pending.last_log_pos < target)
            self._segments.tend(sync_now=asked)
            if now >= sign_at and self._segments.written_log_pos >= target:
                # All rows from before `started_ns` are written. The next sign comes within the time that is given.
                self._lock.sign(started_ns + int((self._settings.flush_interval_s + _SIGN_LATE_S) * 1e9))
                sign_at = now + _SIGN_INTERVAL_S
            with self._progress:
                self._progress.notify_all()
        if self._gave_up:
            self._queue.abandon()
        self._segments.close()

    def _write(self, pending: PendingRows) -> None:
        """Write rows, with as many tries as it takes; count them as lost when they cannot be encoded."""
        try:
            updates = self._encoder.updates(pending.updates)
            events = [self._encoder.events(pending.events)] if pending.events else []
            frame = encode_rows(
                updates,
                events,
                first_log_pos=pending.first_log_pos,
                last_log_pos=pending.last_log_pos,
                token=self._token,
                floor=self._segments.floor,
            )
        except Exception as error:
            # A bug, or a value that its column cannot hold. The log goes on without these rows and says so.
            self._alarms.begin("encode", f"{pending.update_rows} rows could not be encoded: {error!r}")
            self._queue.lose_rows(pending, "encoding")
            self._segments.skip(pending.last_log_pos)
            return
        self._alarms.end("encode")
        while not self._segments.write(frame, pending):
            self._queue.disk_fails = True
            self._lock.sign(0)
            # While closing, the time that is left is all there is; else the queue fills up and says so.
            left_s = self._close_by - time.monotonic() if self._closing.is_set() else None
            if left_s is not None and left_s <= 0:
                self._gave_up = True
                return
            pause_s = self._settings.retry_interval_s
            if left_s is None:
                self._closing.wait(pause_s)
            else:
                time.sleep(min(pause_s, left_s))
        self._queue.disk_fails = False
        self._rows_total += pending.update_rows
        self._events_total += len(pending.events)
        self._queue.done(pending)

    def _sealed(self, segment: ClosedSegment, sealed: Sealed) -> None:
        """Compare the sealed rows with the written ones: a disk may lose data."""
        self._sealed_total += 1
        if self._archive is not None:
            self._archive.add(sealed.files)
        node_epoch = sealed.identity.node_epoch if sealed.identity else self._node_epoch
        if sealed.identity and not sealed.files:
            self._runs.note_empty(node_epoch, sealed.identity.number)
        if node_epoch == self._node_epoch:
            self._damaged(segment, sealed.damage, node_epoch)
        rows = segment.update_rows - sealed.update_rows
        events = segment.event_rows - sealed.event_rows
        if (rows or events) and segment.last_log_pos > sealed.last_log_pos:
            last = None
            with contextlib.suppress(OSError, pa.ArrowException):
                last = last_row(sealed.files)
            self._queue.lose(
                Loss(
                    "disk",
                    link="",
                    link_epoch=self._node_epoch,
                    node_epoch=node_epoch,
                    rows=rows,
                    events=events,
                    first_log_pos=sealed.last_log_pos + 1,
                    last_log_pos=segment.last_log_pos,
                    first_ns=node_epoch * 1000 if last is None else last[1],
                    last_ns=self._clock.now_ns(),
                )
            )

    def _damaged(self, segment: ClosedSegment, damage: Sequence[Damage], node_epoch: int) -> None:
        """Tell of bytes of a segment that are not what was written to it."""
        if not damage:
            return
        known = [one.positions for one in damage]
        self._logger.warning(
            "segment damaged: whole frames are kept, bad bytes are set aside",
            segment=segment.path.name,
            places=len(damage),
            damaged_bytes=sum(one.size for one in damage),
            lost_rows_at_most=None if None in known else sum(filter(None, known)),
            first_bad_byte=damage[0].offset,
        )
        told, rest = damage[: _DAMAGE_TOLD_MAX - 1], damage[_DAMAGE_TOLD_MAX - 1 :]
        spans = [(one, one) for one in told] + ([(rest[0], rest[-1])] if rest else [])
        for first, last in spans:
            if last.last_log_pos is not None and last.last_log_pos < first.first_log_pos:
                continue  # no row is lost
            rows = None if last.last_log_pos is None else last.last_log_pos - first.first_log_pos + 1
            self._queue.lose(
                Loss(
                    "damage",
                    link="",
                    link_epoch=self._node_epoch,
                    node_epoch=node_epoch,
                    rows=rows,
                    first_log_pos=first.first_log_pos,
                    last_log_pos=last.last_log_pos,
                    first_ns=node_epoch * 1000 if first.first_us is None else first.first_us * 1000,
                    last_ns=self._clock.now_ns() if last.last_us is None else last.last_us * 1000,
                )
            )


def _hide_pandas() -> None:
    """Let Arrow look for pandas in vain, once and for all; it is installed where reports are.

    Else Arrow imports it for the first array that is made of a list: that takes half a second, in which the writer's
    thread holds up the event loop, and 40 MB.
    """
    with hidden("pandas"):
        pa.array([None], pa.null())
