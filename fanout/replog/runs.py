"""Record of a node's runs: how far the log of each reached, so that a file that disappears later is missed.

Owns `open/node=N/runs.json`. The record is written when the first rows of a segment are on the disk and when a segment
is closed, never before, so it may know less than there is and never more. A run without a record, as of an older
version, is judged by its positions alone. Runs whose last file the node itself removed are forgotten.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fanout.runtime.directories import sync_directory
from fanout.runtime.regular_files import open_regular

__all__ = ["Run", "RunRecord", "missing_numbers", "read_runs"]

_NAME: Final = "runs.json"
_RUNS_MAX: Final = 1000
"""Number of runs in the record, the newest."""


@dataclass(frozen=True, slots=True)
class Run:
    """End of the log of one run."""

    role: str
    segments: int
    """The highest number of a segment that has rows."""
    last_log_pos: int
    """The highest position of a row."""
    noted_us: int
    """Time of the note, Unix time in microseconds; the row is not newer."""
    empty: tuple[int, ...] = ()
    """Numbers of segments without rows."""


class RunRecord:
    """The record of the node that writes its log; methods may be called from any thread.

    A failing disk does not hold up the log: the record knows less until it is written again.
    """

    def __init__(self, place: Path, *, node_epoch: int) -> None:
        self.runs: dict[int, Run] = {}
        """By node epoch."""
        self.damaged = False
        """True if the file could not be read."""
        self._path = place / _NAME
        self._node_epoch = node_epoch
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the record of former runs.

        Raises:
            OSError: The file cannot be read.
        """
        runs = read_runs(self._path.parent)
        self.damaged = runs is None
        self.runs = runs or {}

    def note(self, node_epoch: int, run: Run) -> None:
        """Note how far a run reached; an older note changes nothing."""
        with self._lock:
            known = self.runs.get(node_epoch)
            if known is not None:
                if run.segments <= known.segments and run.last_log_pos <= known.last_log_pos:
                    return
                run = replace(
                    run,
                    empty=tuple(sorted({*run.empty, *known.empty})),
                    segments=max(run.segments, known.segments),
                    last_log_pos=max(run.last_log_pos, known.last_log_pos),
                )
            self.runs = dict(sorted((self.runs | {node_epoch: run}).items())[-_RUNS_MAX:])
            self._write()

    def note_empty(self, node_epoch: int, number: int) -> None:
        """Note that a segment of a known run has no rows."""
        with self._lock:
            known = self.runs.get(node_epoch)
            if known is not None and number not in known.empty:
                self.runs = self.runs | {node_epoch: replace(known, empty=(*known.empty, number))}
                self._write()

    def forget(self, node_epoch: int) -> None:
        """Forget a run whose last file was removed on purpose, unless it is the present run."""
        with self._lock:
            if node_epoch in self.runs and node_epoch != self._node_epoch:
                self.runs = {epoch: run for epoch, run in self.runs.items() if epoch != node_epoch}
                self._write()

    def _write(self) -> None:
        listed = [
            [epoch, run.role, run.segments, run.last_log_pos, run.noted_us, run.empty]
            for epoch, run in self.runs.items()
        ]
        aside = self._path.with_name(f".{_NAME}.unfinished")
        with contextlib.suppress(OSError):
            with aside.open("w") as file:
                json.dump({"runs": listed, "crc": _crc(listed)}, file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._path)
            sync_directory(self._path.parent)


def read_runs(place: Path) -> dict[int, Run] | None:
    """Return the runs in the record of a node's open directory; None when it is damaged.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with open_regular(place / _NAME) as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        document = json.loads(data)
        if document["crc"] != _crc(document["runs"]):
            return None
        return {
            epoch: Run(role, segments, last_log_pos, noted_us, tuple(empty))
            for epoch, role, segments, last_log_pos, noted_us, empty in document["runs"]
        }
    except (ValueError, TypeError, KeyError):
        return None


def missing_numbers(run: Run, *, found: Collection[int], removed: int) -> list[int]:
    """Return the numbers of segments of a run that neither exist nor were removed by the node itself.

    Args:
        run: Record of the run.
        found: Numbers of its existing segments, sealed or not.
        removed: Highest number whose files the node removed.
    """
    return [
        number for number in range(removed + 1, run.segments + 1) if number not in found and number not in run.empty
    ]


def _crc(listed: object) -> int:
    return zlib.crc32(json.dumps(listed).encode())
