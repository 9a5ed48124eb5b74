"""Sets of sealed files, by the process that wrote them and their number, and documents that list them.

Knows files, not Spark.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fanout.errors import ReportError

__all__ = [
    "Seen",
    "checked_text",
    "identity",
    "is_sealed",
    "parse_checked",
    "publish_text",
    "sync_directory",
]

_PATH: Final = re.compile(
    r"(?P<table>updates|events)/(?P<node>node=[^/]*)/date=[^/]*/hour=[^/]*/(?P<node_epoch>\d+)-(?P<number>\d+)\.parquet$"
)


class Seen:
    """A set of sealed files, as numbers of one process of one node and table; written down as ranges."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = defaultdict(set)

    def add(self, path: str) -> None:
        """Add one file."""
        process, number = identity(path)
        self._numbers[process].add(number)

    def __contains__(self, path: str) -> bool:
        process, number = identity(path)
        return number in self._numbers.get(process, ())

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values()))

    def overlaps(self, other: Seen) -> bool:
        """Return whether a file is in both."""
        return any(numbers & other._numbers.get(process, set()) for process, numbers in self._numbers.items())

    def to_ranges(self) -> dict[str, list[list[int]]]:
        """Return [first, last] of each run of numbers by process."""
        ranges: dict[str, list[list[int]]] = {}
        for process, numbers in sorted(self._numbers.items()):
            found: list[list[int]] = []
            for number in sorted(numbers):
                if found and number == found[-1][1] + 1:
                    found[-1][1] = number
                else:
                    found.append([number, number])
            ranges[process] = found
        return ranges

    def add_ranges(self, ranges: dict[str, list[list[int]]]) -> None:
        """Add what `to_ranges` returned."""
        for process, runs in ranges.items():
            for first, last in runs:
                self._numbers[process].update(range(first, last + 1))


def identity(path: str) -> tuple[str, int]:
    """Return (table/node=N/node epoch, number) of a sealed file, wherever its log lies.

    Raises:
        ReportError: The path is not that of a sealed file.
    """
    if (match := _PATH.search(path)) is None:
        raise ReportError(f"{path} is no sealed file of a replication log", hint="Give log directories")
    return f"{match['table']}/{match['node']}/{match['node_epoch']}", int(match["number"])


def is_sealed(path: str) -> bool:
    """Return whether a path on this machine is that of a sealed file, or of one made as nodes make them."""
    return "://" not in path and _PATH.search(path) is not None


def checked_text(document: Mapping[str, object]) -> str:
    """Return a document as JSON with a checksum of the rest as its key `crc`."""
    return json.dumps({**document, "crc": zlib.crc32(json.dumps(document).encode())})


def parse_checked(text: bytes) -> Any:
    """Return a document of `checked_text`, or of an older version, which has no checksum.

    Raises:
        ValueError: It is no JSON, or not what was written.
    """
    document = json.loads(text)
    if isinstance(document, dict) and "crc" in document:
        found = document.pop("crc")
        if found != zlib.crc32(json.dumps(document).encode()):
            raise ValueError("it is not what was written")
    return document


def publish_text(path: Path, text: str) -> None:
    """Write a file aside, force it to disk, and rename it, so that it is whole or not there."""
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the entries of a directory on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
