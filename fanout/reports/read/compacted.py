"""Compacted logs as a report reads them: which files count, and which sealed files are in them.

Owns the manifest, which alone says what a compacted directory holds; `fanout.reports.keep.compaction` writes it. A file
that the manifest does not name does not count, whatever lies there. Knows neither pyspark nor what is in the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fanout.errors import ReportError
from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.reports.read.sealed_files import Seen, checked_text, parse_checked, publish_text

__all__ = ["MANIFEST", "TABLES", "Compacted", "read_compacted", "without_compacted"]

MANIFEST: Final = "compacted.json"
"""The file that makes a directory one of compacted logs."""

TABLES: Final = ("updates", "events")

_FORMAT: Final = 1


@dataclass(slots=True)
class Compacted:
    """What a manifest says."""

    directory: Path
    generation: int = 0
    """How many runs changed the directory."""
    files: dict[str, list[str]] = field(default_factory=lambda: {table: [] for table in TABLES})
    """Of each table the files that count, relative to the directory."""
    superseded: list[str] = field(default_factory=list)
    """Files that counted before the last run, which a report may still be reading."""
    seen: Seen = field(default_factory=Seen)
    """The sealed files whose rows are in these files."""

    def paths(self, table: str) -> list[str]:
        """Return the files of a table that count."""
        return [str(self.directory / file) for file in self.files[table]]

    def write(self) -> None:
        """Put the manifest in the place of the former one, durably.

        Raises:
            OSError: It cannot be written.
        """
        document = {
            "format": _FORMAT,
            "log_schema": SCHEMA_VERSION,
            "generation": self.generation,
            "files": self.files,
            "superseded": self.superseded,
            "sealed": self.seen.to_ranges(),
        }
        publish_text(self.directory / MANIFEST, checked_text(document))


def read_compacted(directory: Path | str) -> Compacted | None:
    """Return what a directory of compacted logs holds, or None when it is none.

    Raises:
        ReportError: Its manifest cannot be read, or is of another version.
    """
    path = Path(directory) / MANIFEST
    try:
        document: dict[str, Any] = parse_checked(path.read_bytes())
        if (document["format"], document["log_schema"]) != (_FORMAT, SCHEMA_VERSION):
            raise ReportError(
                f"{path} was written by another version", hint="Compact the logs anew, into another place"
            )
        found = Compacted(Path(directory), document["generation"], document["files"], document["superseded"])
        found.seen.add_ranges(document["sealed"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{path} cannot be read: {error}", hint="Compact the logs anew, into another place"
        ) from error
    return found


def without_compacted(paths: Iterable[Path | str], compacted: Collection[Compacted]) -> list[str]:
    """Return the sealed files whose rows are in none of these; a URI is not looked into."""
    texts = list(map(str, paths))
    if not compacted:
        return texts
    return [path for path in texts if "://" in path or not any(path in one.seen for one in compacted)]
