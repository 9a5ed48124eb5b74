"""Archive: ships the sealed files of a node to a store, and removes those that need not be kept here any longer.

Owns the thread that does both, oldest files first, and the state of each file: its size, its age, and whether the store
has confirmed it. The store is asked by names and sizes, so a restart needs no record. A file that is not confirmed is
never removed. Only this node's own files are touched.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import random
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fanout.config import ShipConfig
from fanout.replog.alarms import Alarms
from fanout.replog.files.sealing import TABLES, open_directory, table_directory
from fanout.replog.runs import RunRecord
from fanout.replog.settings import ArchiveStats, LogSettings
from fanout.replog.shipping.object_store import STORE_ERRORS, ObjectStore
from fanout.runtime.directories import sync_directory
from fanout.runtime.regular_files import open_regular
from fanout.runtime.system_clock import Clock

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["Archive", "read_removed"]

_IDLE_S: Final = 60.0
"""Time between checks for files that are too old, when no new file comes."""
_RECORD: Final = "removed.json"
"""File beside the node's lock with what the node removed, for `fanout log verify`."""
_HOUR_NS: Final = 3_600_000_000_000
_DAY_NS: Final = 24 * _HOUR_NS
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_PLACE: Final = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A sealed file in the directory."""

    size: int
    end_ns: int
    """End of the hour of its directory: nothing in it began later."""
    run: int
    """The node epoch."""
    begins: bool
    """True if it has the run's `start` event, from which reports learn the links and selectors of later rows."""


class Archive:
    """Ships and removes the sealed files of one node until it is closed.

    Args:
        directory: The log's directory.
        node: The node's identifier.
        settings: Retention, and the store.
        clock: The time.
        alarms: Gets faults: files that wait too long or cannot be removed.
        runs: Record of runs; those without files are forgotten.
        logger: Gets a line when shipping begins to fail, and one when it works again.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        settings: LogSettings,
        clock: Clock,
        alarms: Alarms,
        runs: RunRecord,
        logger: FilteringBoundLogger,
    ) -> None:
        self._directory = directory
        self._node = f"node={quote(node, safe='')}"
        self._record = open_directory(directory, node) / _RECORD
        self._settings = settings
        self._ship = settings.ship or ShipConfig(to="")  # without a store nothing waits for one
        self._store = None if settings.ship is None else ObjectStore(settings.ship.to)
        self._clock = clock
        self._alarms = alarms
        self._runs = runs
        self._logger = logger
        self._added: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanout-log-archive", daemon=True)
        # Owned by the thread; others only read the numbers.
        self._kept: dict[Path, _Kept] = {}  # oldest first, except files sealed late
        self._kept_bytes = 0
        self._kept_by_run: Counter[int] = Counter()
        self._waiting: dict[Path, int] = {}  # not confirmed by the store -> time of sealing
        self._oldest_ns = 0  # of these; 0 for none
        self._compared: set[Path] = set()  # directories of a date whose copies in the store are known
        self._failures = 0  # since the last success
        self._error = ""  # the last of them
        self._removed: dict[int, int] = {}  # by run: highest number whose files were removed
        self._untold = False  # whether the record is incomplete because the disk is full
        self._removed_total = 0
        self._shipped_total = 0
        self._shipped_bytes_total = 0
        self._failures_total = 0

    def start(self) -> None:
        """Start the thread, which first looks for files of former runs."""
        self._thread.start()

    def add(self, files: Iterable[Path]) -> None:
        """Add files that were sealed."""
        for path in sorted(files, key=_order):
            self._added.put(path)
        self._wake.set()

    def close(self, *, timeout_s: float) -> None:
        """Ship waiting files until the time is up or shipping fails, and end the thread.

        The next start of the node ships the rest.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        self._give_up.set()

    @property
    def ended(self) -> bool:
        """True if the thread has ended without `close`, which is a bug."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._closing.is_set()

    def stats(self) -> ArchiveStats:
        """Return the figures of this moment."""
        oldest_ns = self._oldest_ns
        return ArchiveStats(
            kept_files=len(self._kept),
            kept_bytes=self._kept_bytes,
            removed_files_total=self._removed_total,
            shipped_files_total=self._shipped_total,
            shipped_bytes_total=self._shipped_bytes_total,
            waiting_files=len(self._waiting) + self._added.qsize() if self._store is not None else 0,
            oldest_waiting_seconds=max(0.0, (self._clock.now_ns() - oldest_ns) / 1e9) if oldest_ns else 0.0,
            failures_total=self._failures_total,
        )

    # --- the thread ---

    def _run(self) -> None:
        while not self._give_up.is_set():
            try:
                self._tend()
                return
            except Exception as error:
                # A failing disk, or a bug. The thread begins anew with what it knows; logging goes on meanwhile.
                self._alarms.begin("archive", f"sealed files are not tended: {error!r}")
            if self._closing.wait(self._ship.retry_max_s):
                return

    def _tend(self) -> None:
        """List the files, then ship and remove until closed."""
        for path in self._found():
            self._note(path)
        self._removed = read_removed(self._record.parent) | self._removed
        for run in self._removed:
            if run not in self._kept_by_run:  # the node ended between removing the last file and forgetting the run
                self._forget_run(run)
        while not self._give_up.is_set():
            while not self._added.empty():
                self._note(self._added.get())
            self._remove_old()
            if self._store is not None and self._waiting:
                if self._ship_next(self._store):
                    self._succeeded()
                elif self._closing.is_set() or self._closing.wait(self._pause_s()):
                    return
            elif self._closing.is_set():
                return
            else:
                self._wake.wait(_IDLE_S)
                self._wake.clear()
            self._look_at_age()
            self._alarms.end("archive")

    def _found(self) -> list[Path]:
        """Return the node's sealed files, oldest first."""
        tables = [table_directory(self._directory, table) / self._node for table in TABLES]
        found = [path for table in tables for path in table.glob("date=*/hour=*/*.parquet")]
        return sorted(found, key=_order)

    def _note(self, path: Path) -> None:
        place = _PLACE.fullmatch("/".join(path.parts[-3:]))
        if place is None or path in self._kept:
            return
        try:
            stat = path.stat()
        except OSError:  # removed meanwhile by another program
            return
        try:
            begin = datetime.fromisoformat(place[1]).replace(hour=int(place[2]), tzinfo=UTC)
        except ValueError:  # not a directory of the log
            return
        self._kept[path] = _Kept(
            stat.st_size,
            end_ns=int(begin.timestamp()) * 1_000_000_000 + _HOUR_NS,
            run=int(place[3]),
            begins=path.parts[-5] == "events" and int(place[4]) == 1,
        )
        self._kept_bytes += stat.st_size
        self._kept_by_run[int(place[3])] += 1
        if self._store is not None:
            self._waiting[path] = stat.st_mtime_ns

    def _remove_old(self) -> None:
        self._remove_due()
        if self._untold:
            self._tell_removed(self._removed)

    def _remove_due(self) -> None:
        if not self._kept or not self._is_due(next(iter(self._kept.values()))):
            return
        for path, kept in list(self._kept.items()):
            if not self._is_due(kept):
                break
            # Unconfirmed files stay. If the disk is full then, new rows are counted as lost in a gap event, and logged
            # rows are safe.
            if path in self._waiting or (kept.begins and self._kept_by_run[kept.run] > 1):
                continue
            if not self._remove(path, kept):
                break

    def _is_due(self, kept: _Kept) -> bool:
        days, bytes_max = self._settings.keep_days, self._settings.keep_bytes_max
        too_old = bool(days) and self._clock.now_ns() - kept.end_ns > days * _DAY_NS
        return too_old or bool(bytes_max and self._kept_bytes > bytes_max)

    def _remove(self, path: Path, kept: _Kept) -> bool:
        number = int(path.stem.partition("-")[2])
        try:
            if number > self._removed.get(kept.run, 0):
                # Recorded first, so that a check of the log never takes it for damage.
                self._tell_removed({**self._removed, kept.run: number})
            path.unlink(missing_ok=True)
        except OSError as error:
            self._alarms.begin("remove", f"{path} cannot be removed: {error}")
            return False
        self._alarms.end("remove")
        self._forget(path)
        if kept.run not in self._kept_by_run:
            self._forget_run(kept.run)
        self._removed_total += 1
        if self._clock.now_ns() - kept.end_ns > _HOUR_NS:  # no file is sealed into it any more
            with contextlib.suppress(OSError):  # there are files in it
                path.parent.rmdir()
                path.parent.parent.rmdir()
        return True

    def _forget_run(self, run: int) -> None:
        """Forget a run whose files the node has all removed."""
        known = self._runs.runs.get(run)
        if known is not None and self._removed.get(run, 0) >= known.segments:
            self._runs.forget(run)

    def _tell_removed(self, removed: dict[int, int]) -> None:
        """Write the record of removed files, or note that it is due when the disk is full.

        Removing makes room on a full disk, so it does not wait for the record. A check of the log would report damage
        only if the node ended before the record is written.
        """
        removed = {run: number for run, number in removed.items() if run in self._kept_by_run or run in self._runs.runs}
        aside = self._record.with_name(f".{_RECORD}.unfinished")
        try:
            with aside.open("w") as file:
                json.dump(removed, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._record)
            sync_directory(
                self._record.parent
            )  # before the files go: a missing file that is not noted counts as damage
        except OSError as error:
            if error.errno not in _NO_ROOM and not self._untold:
                raise
            self._alarms.begin("record", f"{self._record} cannot be written: {error}")
            self._untold = True
        else:
            self._alarms.end("record")
            self._untold = False
        self._removed = removed

    def _ship_next(self, store: ObjectStore) -> bool:
        """Make one step: compare a date with the store, or ship a file; return False when that failed."""
        path = next(iter(self._waiting))
        date = path.parent.parent
        try:
            if date not in self._compared:
                self._compare(store, date)
                self._compared.add(date)
                return True
            content = self._read(path)
            if content is not None:
                store.put(self._name(path), content)
        except STORE_ERRORS as error:
            self._failed(error)
            return False
        if content is not None:
            self._shipped_total += 1
            self._shipped_bytes_total += len(content)
            del self._waiting[path]
        return True

    def _compare(self, store: ObjectStore, date: Path) -> None:
        sizes = store.sizes(self._name(date))
        for path in [path for path in self._waiting if path.parent.parent == date]:
            if sizes.get(self._name(path)) == self._kept[path].size:
                del self._waiting[path]

    def _read(self, path: Path) -> bytes | None:
        """Return a file's content, or None when it is gone."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            self._forget(path)
            return None
        except OSError:
            # Other files are shipped first; this one is retried after them.
            self._waiting[path] = self._waiting.pop(path)
            raise

    def _name(self, path: Path) -> str:
        return path.relative_to(self._directory).as_posix()

    def _forget(self, path: Path) -> None:
        kept = self._kept.pop(path)
        self._kept_bytes -= kept.size
        self._kept_by_run[kept.run] -= 1
        if not self._kept_by_run[kept.run]:
            del self._kept_by_run[kept.run]
        self._waiting.pop(path, None)

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._failures_total += 1
        self._error = _first_line(error)
        if self._failures == 1:
            self._logger.warning("shipping the replication log failed", to=self._ship.to, problem=self._error)

    def _succeeded(self) -> None:
        if self._failures:
            self._logger.info("shipping the replication log goes on", failures=self._failures)
        self._failures = 0

    def _pause_s(self) -> float:
        longest_s = min(self._settings.ship_retry_min_s * (1 << min(self._failures, 20)), self._ship.retry_max_s)
        return longest_s * random.uniform(0.5, 1.0)  # nodes that lost a store together do not return together

    def _look_at_age(self) -> None:
        self._oldest_ns = min(self._waiting.values(), default=0)
        age_s = self.stats().oldest_waiting_seconds
        if age_s > self._ship.behind_max_s:
            why = f": {self._error}" if self._failures else ""
            self._alarms.begin(
                "ship",
                f"sealed files wait for {self._ship.to}: {len(self._waiting)}, the oldest {age_s:.0f} s{why}",
            )
        else:
            self._alarms.end("ship")


def read_removed(place: Path) -> dict[int, int]:
    """Return the highest removed number of each run, from a node's open directory."""
    try:
        with open_regular(place / _RECORD) as file:
            return {int(run): int(number) for run, number in json.load(file).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _order(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return a sort key by age; updates of a segment go before its events, which mean nothing without them."""
    return path.parts[-3:], path.parts[-5] == "events"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
