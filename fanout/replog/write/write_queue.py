"""Write queue: rows that were appended to the replication log and are not written yet.

Owns the count `log_pos`, the bounds of the queue between the event loop and the writer's thread, and the record of lost
rows. The event loop puts references into it and does nothing else.

Overflow policy: a batch that does not fit is dropped whole, and so is every batch after it until the queue has drained
to half of its bounds. Then one `gap` event for each link that lost rows is queued, and appending goes on. Events have a
bound of their own, far above what changes of state and heartbeats need, so they are logged through an overflow. Dropped
rows keep their positions.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fanout.replica.update import RECEIVED_NS, Changes, Update
from fanout.replog.files.columns import EventRow, LogSource, UpdateRows

__all__ = ["Loss", "PendingRows", "WriteQueue"]

_ROW_BYTES = 200
"""Estimated size of a queued update without payload and properties: its tuple, topic and numbers."""


@dataclass(slots=True)
class Loss:
    """Rows of one link that were not logged."""

    reason: str
    link: str
    link_epoch: int
    node_epoch: int
    rows: int | None = 0
    """Updates; None when unknown."""
    events: int = 0
    first_log_pos: int | None = None
    last_log_pos: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None

    def add(self, *, rows: int, events: int, log_pos: tuple[int, int], time_ns: tuple[int, int]) -> None:
        """Count more rows, which follow those counted before."""
        self.rows = (self.rows or 0) + rows
        self.events += events
        if self.first_log_pos is None:
            self.first_log_pos, self.first_ns = log_pos[0], time_ns[0]
        self.last_log_pos, self.last_ns = log_pos[1], time_ns[1]

    def detail(self) -> str:
        """Return the `detail` of the gap event, as `schema.event_names` describes it."""
        return json.dumps(
            {
                "reason": self.reason,
                "rows": self.rows,
                "events": self.events,
                "node_epoch": self.node_epoch,
                "first_log_pos": self.first_log_pos,
                "last_log_pos": self.last_log_pos,
                "first_us": None if self.first_ns is None else self.first_ns // 1000,
                "last_us": None if self.last_ns is None else self.last_ns // 1000,
            }
        )


@dataclass(slots=True)
class PendingRows:
    """Rows that the writer took: all between two log positions, except dropped ones."""

    updates: list[UpdateRows] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    update_rows: int = 0
    charge: int = 0
    first_log_pos: int = 0
    last_log_pos: int = 0


_Queued: TypeAlias = tuple[UpdateRows, int] | EventRow
"""A batch of updates with its estimated size, or an event."""


class WriteQueue:
    """A bounded queue of rows between one producer and one consumer, which may be different threads."""

    def __init__(
        self, *, node_epoch: int, rows_max: int, bytes_max: int, events_max: int, now_ns: Callable[[], int]
    ) -> None:
        self.log_pos = 0
        """The last position assigned."""
        self.rows = 0
        """Updates that were put and are not `done`."""
        self.bytes = 0
        """Their estimated size; payloads and properties are measured by a sample."""
        self.events = 0
        """Events that were put and are not `done`."""
        self.dropping = False
        """True if batches are refused until the queue has drained."""
        self.disk_fails = False
        """Set by the writer while it cannot write; rows dropped meanwhile are counted as lost by the disk."""
        self.lost_rows_total = 0
        self.lost_events_total = 0
        self._node_epoch = node_epoch
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._events_max = events_max
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._queue: deque[_Queued] = deque()  # in order of log_pos
        self._overflow = "queue"  # reason of the overflow: "queue" or "disk"
        # Losses without a gap event yet, by link, reason, and whether they are an overflow: rows that a disk lost from
        # the front form another span. Losses of damaged segments, and of several runs, stay apart.
        self._losses: dict[tuple[object, ...], Loss] = {}

    @property
    def untold(self) -> bool:
        """True if there are losses without a gap event."""
        return bool(self._losses)

    def put(self, changes: Changes, *, source: LogSource, link_epoch: int, flags: Sequence[int] | None) -> None:
        """Queue a batch of updates, or drop it whole when there is no room."""
        updates = changes.updates
        count = len(updates)
        if not count:
            return
        assert len(changes.kinds) == count
        assert flags is None or len(flags) == count
        charge = _charge(updates, count)
        with self._lock:
            if self.dropping:
                self._resume()
            first = self.log_pos + 1
            self.log_pos += count
            # An empty queue takes a batch of any size, or a large one could never be logged.
            if self.rows and (self.rows + count > self._rows_max or self.bytes + charge > self._bytes_max):
                self.dropping = True
            if self.dropping:
                self.lost_rows_total += count
                self._loss(self._overflow_reason(), source.link, link_epoch).add(
                    rows=count,
                    events=0,
                    log_pos=(first, self.log_pos),
                    time_ns=(updates[0][RECEIVED_NS], updates[-1][RECEIVED_NS]),
                )
                return
            rows = UpdateRows(source, link_epoch, changes.phase, updates, changes.kinds, flags, first)
            self._queue.append((rows, charge))
            self.rows += count
            self.bytes += charge

    def put_event(self, event: EventRow) -> None:
        """Queue an event and assign its position, or drop it when there is no room."""
        with self._lock:
            if self.dropping:
                self._resume()
            if self.events < self._events_max:
                self._push(event)
                return
            self.log_pos += 1
            self.lost_events_total += 1
            self._loss(self._overflow_reason(), event.link, event.link_epoch).add(
                rows=0, events=1, log_pos=(self.log_pos, self.log_pos), time_ns=(event.at_ns, event.at_ns)
            )

    def take(self, rows_max: int) -> PendingRows | None:
        """Take rows from the front, or None when there are none.

        Args:
            rows_max: Updates to take at most; events among and after them are included.
        """
        with self._lock:
            self._resume()
            queue = self._queue
            if not queue:
                return None
            pending = PendingRows()
            while queue:
                entry = queue[0]
                if isinstance(entry, EventRow):
                    pending.events.append(entry)
                    first = last = entry.log_pos
                else:
                    room = rows_max - pending.update_rows
                    if not room:
                        break
                    rows, charge = entry
                    if len(rows.updates) > room:
                        rows, rest = _split(rows, room)
                        queue[0], charge = (rest, charge), 0
                    pending.updates.append(rows)
                    pending.charge += charge
                    pending.update_rows += len(rows.updates)
                    first = rows.first_log_pos
                    last = first + len(rows.updates) - 1
                pending.first_log_pos = pending.first_log_pos or first
                pending.last_log_pos = last
                if queue[0] is entry:
                    queue.popleft()
            return pending

    def done(self, pending: PendingRows) -> None:
        """Free the room of rows that were taken."""
        with self._lock:
            self.rows -= pending.update_rows
            self.bytes -= pending.charge
            self.events -= len(pending.events)

    def lose(self, loss: Loss) -> None:
        """Count rows that were lost after the queue; a gap event follows as soon as there is room."""
        with self._lock:
            self.lost_rows_total += loss.rows or 0
            self.lost_events_total += loss.events
            place = loss.first_log_pos if loss.reason == "damage" else None
            known = self._losses.setdefault((loss.link, loss.reason, False, loss.node_epoch, place), loss)
            if known is not loss:
                known.rows = None if known.rows is None or loss.rows is None else known.rows + loss.rows
                known.events += loss.events
                known.last_log_pos, known.last_ns = loss.last_log_pos, loss.last_ns

    def lose_rows(self, pending: PendingRows, reason: str) -> None:
        """Count taken rows as lost, and free their room."""
        for rows in pending.updates:
            last = rows.first_log_pos + len(rows.updates) - 1
            loss = Loss(reason, rows.source.link, rows.link_epoch, self._node_epoch)
            loss.add(
                rows=len(rows.updates),
                events=0,
                log_pos=(rows.first_log_pos, last),
                time_ns=(rows.updates[0][RECEIVED_NS], rows.updates[-1][RECEIVED_NS]),
            )
            self.lose(loss)
        for event in pending.events:
            if event.event == "gap":  # a gap event that cannot be logged must not cause another
                self.lost_events_total += 1
                continue
            loss = Loss(reason, event.link, event.link_epoch, self._node_epoch)
            loss.add(rows=0, events=1, log_pos=(event.log_pos,) * 2, time_ns=(event.at_ns,) * 2)
            self.lose(loss)
        self.done(pending)

    def abandon(self) -> None:
        """Count all rows that are not done as lost, without a gap event: no log is left for one."""
        with self._lock:
            self.lost_rows_total += self.rows
            self.lost_events_total += self.events
            self._queue.clear()
            self.rows = self.bytes = self.events = 0

    def _loss(self, reason: str, link: str, link_epoch: int) -> Loss:
        loss = self._losses.setdefault((link, reason, True), Loss(reason, link, link_epoch, self._node_epoch))
        loss.link_epoch = link_epoch
        return loss

    def _overflow_reason(self) -> str:
        """Return the reason of the overflow: "disk" for a queue that a failing disk filled, until it has drained."""
        if self.disk_fails:
            self._overflow = "disk"
        return self._overflow

    def _resume(self) -> None:
        """Queue the gap events, unless the queue is above its low mark after an overflow."""
        if self.dropping:
            if self.rows > self._rows_max // 2 or self.bytes > self._bytes_max // 2:
                return
            self.dropping = False
        self._overflow = "queue"
        if self._losses:
            at_ns = self._now_ns()
            for loss in self._losses.values():
                self._push(EventRow(loss.link, loss.link_epoch, "gap", at_ns=at_ns, detail=loss.detail()))
            self._losses.clear()

    def _push(self, event: EventRow) -> None:
        self.log_pos += 1
        self._queue.append(event._replace(log_pos=self.log_pos))
        self.events += 1


def _charge(updates: list[Update], count: int) -> int:
    """Return the estimated size of a batch in bytes.

    Payloads and properties are measured by a sample of 8 to 15 updates: measuring all costs 50 ns per update on the
    event loop.
    """
    stride = count // 8
    sample = updates[count % stride :: stride] if stride else updates
    sample_bytes = 0
    for update in sample:
        sample_bytes += len(update[1]) + len(update[4])
    return count * _ROW_BYTES + sample_bytes * count // len(sample)


def _split(rows: UpdateRows, count: int) -> tuple[UpdateRows, UpdateRows]:
    """Split a batch after its first `count` rows."""
    flags = rows.flags
    return (
        rows._replace(updates=rows.updates[:count], kinds=rows.kinds[:count], flags=flags and flags[:count]),
        rows._replace(
            updates=rows.updates[count:],
            kinds=rows.kinds[count:],
            flags=flags and flags[count:],
            first_log_pos=rows.first_log_pos + count,
        ),
    )
