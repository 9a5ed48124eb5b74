"""Results of `fanout report watch`, read for `/v1/lag`.

Owns the reading side of `lag.json` and `links.json`; `fanout.reports.keep.keeper` writes them. A file that is absent,
incomplete or of another version counts as no result and is no error, so a report cannot harm a node.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fanout.api.models import ReportedCompleteness, ReportedLag

__all__ = ["WatchResults"]

_LAG: Final = "lag.json"
_COMPLETENESS: Final = "links.json"
_VERSION: Final = 1
_BYTES_MAX: Final = 1024 * 1024
"""Largest file that is read; a larger one would block the event loop."""
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Found = TypeVar("Found")


class WatchResults:
    """The newest results; files are read again only after they were replaced.

    Args:
        directory: Directory of `fanout report watch --into`; None for no results.
        node: Node whose links are returned.
    """

    def __init__(self, directory: Path | None, *, node: str) -> None:
        self._lag = _ResultFile(directory, _LAG, lambda document: _lag(document, node=node))
        self._completeness = _ResultFile(directory, _COMPLETENESS, lambda document: _completeness(document, node=node))

    def lag(self) -> tuple[ReportedLag, ...] | None:
        """Return the lag of this node's links in the latest minute; None when there is no result."""
        return self._lag.read()

    def completeness(self) -> tuple[ReportedCompleteness, ...] | None:
        """Return the completeness of this node's links in the last minutes; None when there is no result."""
        return self._completeness.read()


class _ResultFile(Generic[Found]):
    """One of the files, with its parsed content."""

    def __init__(self, directory: Path | None, name: str, parse: Callable[[Any], Found]) -> None:
        self._path = None if directory is None else directory / name
        self._parse = parse
        # Identity of the file that was read last, (inode, time of change, size), and its content.
        self._read: tuple[int, int, int] | None = None
        self._found: Found | None = None

    def read(self) -> Found | None:
        """Return the content of the file; None when it is absent or this version cannot read it."""
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._read:
                self._read, self._found = seen, None
                if stat.st_size <= _BYTES_MAX:
                    document = json.loads(self._path.read_bytes())
                    if document["version"] == _VERSION:
                        self._found = self._parse(document)
        except OSError:
            self._read, self._found = None, None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            self._found = None
        return self._found


def _lag(document: Any, *, node: str) -> tuple[ReportedLag, ...]:
    return tuple(
        ReportedLag(
            link=one["link"],
            stamped_by=one["stamped_by"],
            minute=_UNIX_EPOCH + timedelta(microseconds=one["minute_us"]),
            updates=one["updates"],
            **{f"{name}_seconds": one[f"{name}_us"] / 1e6 for name in ("p50", "p95", "p99", "most")},
        )
        for one in document["links"]
        if one["node"] == node
    )


def _completeness(document: Any, *, node: str) -> tuple[ReportedCompleteness, ...]:
    of_all = {name: document[name] for name in ("since", "until", "computed")}
    return tuple(
        ReportedCompleteness(**of_all, **{name: one[name] for name in one if name != "node"})
        for one in document["links"]
        if one["node"] == node
    )
