"""The last result of `fanout report watch`, read for `/v1/lag`.

Owns the reading side of `lag.json` (`fanout.reports.watching.keeper` writes it). A file that is not there, not whole
or of another version is no result and no error: a report must never harm a node.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from fanout.api.models import ReportedLag

__all__ = ["KeptReport"]

_NAME: Final = "lag.json"
_VERSION: Final = 1
_BYTES_MAX: Final = 1024 * 1024
"""A larger file is not read: it would hold the event loop."""
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class KeptReport:
    """Reads the result again only when the file was replaced.

    Args:
        directory: Where `fanout report watch --into` keeps it; None reads nothing.
        node: Whose links to return.
    """

    def __init__(self, directory: Path | None, *, node: str) -> None:
        self._path = None if directory is None else directory / _NAME
        self._node = node
        # The file that was read last: (inode, time of change, size), and what it said.
        self._read: tuple[int, int, int] | None = None
        self._found: tuple[ReportedLag, ...] | None = None

    def lag(self) -> tuple[ReportedLag, ...] | None:
        """Return what it says of this node's links; None when there is no result."""
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._read:
                self._read, self._found = seen, None
                if stat.st_size <= _BYTES_MAX:
                    self._found = _parse(json.loads(self._path.read_bytes()), node=self._node)
        except OSError:
            self._read, self._found = None, None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            self._found = None
        return self._found


def _parse(document: Any, *, node: str) -> tuple[ReportedLag, ...] | None:
    if document["version"] != _VERSION:
        return None
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
