"""Sealer: the thread that seals segments, one after the other, in the order in which they were closed.

Owns the retry when the disk fails: a segment that could not be sealed is tried again after the others. The thread runs
at normal priority: one of low priority would keep the interpreter's lock while it is not scheduled, and the event loop
would wait for it. Nearly all of its work is done in C without that lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fanout.replog.alarms import Alarms
from fanout.replog.files.sealing import Sealed, seal

__all__ = ["ClosedSegment", "Sealer"]


_RETRY_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that is not written any more."""

    path: Path
    update_rows: int
    """Rows that were written to it, or found in it."""
    event_rows: int
    last_log_pos: int


class Sealer:
    """Seals segments until it is closed."""

    def __init__(
        self,
        directory: Path,
        *,
        retry_interval_s: float,
        alarms: Alarms,
        on_sealed: Callable[[ClosedSegment, Sealed], None],
    ) -> None:
        """Prepare the thread.

        Args:
            directory: The log's directory.
            retry_interval_s: First pause after the disk failed; it doubles up to a minute.
            alarms: Gets the faults.
            on_sealed: Called in this thread for each sealed segment.
        """
        self._directory = directory
        self._retry_interval_s = retry_interval_s
        self._alarms = alarms
        self._on_sealed = on_sealed
        # Each is changed by one thread only.
        self._put_total = 0
        self._sealed_total = 0
        self._segments: queue.SimpleQueue[ClosedSegment | None] = queue.SimpleQueue()
        self._failing: set[Path] = set()
        """Segments that could not be sealed so far; the alarm stands while there is one."""
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanout-log-sealer", daemon=True)

    @property
    def waiting(self) -> int:
        """Segments that are not sealed yet."""
        return self._put_total - self._sealed_total

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, segment: ClosedSegment) -> None:
        """Queue a segment."""
        self._put_total += 1
        self._segments.put(segment)

    def close(self, *, timeout_s: float) -> bool:
        """Seal the queued segments until the time is up, and end the thread.

        Returns:
            True if all are sealed. The next start of the node seals the rest.
        """
        self._segments.put(None)
        self._thread.join(timeout_s)
        self._give_up.set()
        return not self._thread.is_alive() and not self.waiting

    def _run(self) -> None:
        pause_s = self._retry_interval_s
        while (segment := self._segments.get()) is not None or not self._segments.empty():
            if segment is not None and self._seal(segment):
                pause_s = self._retry_interval_s
                continue
            self._segments.put(segment)  # behind the others, which one that cannot be read must not hold up
            if segment is not None:
                if self._give_up.wait(pause_s):
                    return
                # Each try reads and writes as far as the disk allows, so tries must not follow closely.
                pause_s = min(pause_s * 2, _RETRY_MAX_S)

    def _seal(self, segment: ClosedSegment) -> bool:
        """Seal one segment; return False to try again."""
        try:
            sealed = seal(segment.path, directory=self._directory)
        except OSError as error:
            self._failing.add(segment.path)
            self._alarms.begin("seal", f"{segment.path} cannot be sealed: {error}; it is tried again")
            return False
        except Exception as error:
            # The frames fit their CRC but this version cannot read them. The segment stays, and the log goes on; the
            # next start tries again.
            self._failing.discard(segment.path)
            self._alarms.begin(f"seal {segment.path.name}", f"{segment.path} cannot be sealed: {error!r}")
            return True
        self._failing.discard(segment.path)
        if not self._failing:
            self._alarms.end("seal")
        self._on_sealed(segment, sealed)
        self._sealed_total += 1
        return True
