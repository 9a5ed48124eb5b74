"""Parquet files that a report reads, and the user's names for their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fanout.errors import LogError, ReportError
from fanout.replog.files.log_directories import find_logs
from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.runtime.regular_files import files_below

__all__ = ["LogFiles"]


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The input of a report: files or directories of each table, as paths or as URIs that Spark can read."""

    updates: tuple[str, ...]
    events: tuple[str, ...]
    directories: tuple[str, ...]
    """Input as the report names it: the log directories, and URIs as the user gave them."""
    sealed_only: bool = True
    """True if unsealed rows of any node are missing."""
    counts: tuple[int, int] | None = None
    """Number of files of each table as given, if small ones are in a copy here; None where they are the same."""

    @classmethod
    def of_files(
        cls,
        *,
        updates: Sequence[Path | str],
        events: Sequence[Path | str],
        directories: Sequence[Path | str],
        sealed_only: bool = True,
    ) -> LogFiles:
        """Return the input for files that were staged from log directories.

        Args:
            updates: Parquet files of the table `updates`.
            events: Parquet files of the table `events`.
            directories: The log directories that they were staged from.
            sealed_only: True if one of these is a copy, without the segments that nodes have not sealed yet.
        """
        return cls(_texts(updates), _texts(events), _texts(directories), sealed_only)

    @classmethod
    def in_directories(cls, directories: Sequence[Path | str]) -> LogFiles:
        """Return the input for the sealed files in log directories, or under URIs such as `s3a://bucket/logs`.

        Args:
            directories: Each holds `v1/updates` and `v1/events`, or is a local one above such. A local file that is in
                several of them counts once.

        Raises:
            ReportError: A local directory holds no replication log.
        """
        roots: dict[str, None] = {}
        files: tuple[dict[str, str], dict[str, str]] = ({}, {})
        try:
            for given in _texts(directories):
                roots |= dict.fromkeys([given] if "://" in given else map(str, find_logs(Path(given))))
            for root in roots:
                for table, found in zip(("updates", "events"), files, strict=True):
                    place = f"{root.rstrip('/')}/v{SCHEMA_VERSION}/{table}"
                    paths = [place] if "://" in root else sorted(files_below(place, suffix=".parquet"))
                    for path in paths:
                        found.setdefault(path if "://" in root else path.removeprefix(place), path)
        except LogError as error:
            raise ReportError(error.message, hint=error.hint) from error
        except OSError as error:
            raise ReportError(
                f"{error.filename} cannot be read: {error.strerror}",
                hint="Check the permissions; take away what is no file of the log",
            ) from error
        updates, events = (tuple(found.values()) for found in files)
        return cls(updates, events, tuple(roots))

    @property
    def given(self) -> tuple[int, int]:
        """Number of files of each table as given."""
        return self.counts or (len(self.updates), len(self.events))

    def bytes_at_most(self, limit: int) -> bool:
        """Return whether the files are local and not larger than a limit together."""
        total = 0
        for path in (*self.updates, *self.events):
            if "://" in path or not Path(path).is_file():
                return False
            total += Path(path).stat().st_size
        return total <= limit


def _texts(paths: Sequence[Path | str]) -> tuple[str, ...]:
    return tuple(str(path) for path in paths)
