"""Which sealed files are in which batch of the kept tables: the checkpoint of `fanout report watch`.

Owns the directory's layout and the order of writing that makes each file count exactly once: a batch's tables are
written first, under a number that no commit names, and only then its commit appears, by a rename. What a killed run
left under that number is overwritten by the next. A *base* is a batch that holds everything before it, so that older
ones can go. Knows files, not Spark.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fanout.errors import ReportError
from fanout.replog.files.schema import SCHEMA_VERSION

__all__ = [
    "Batch",
    "Ledger",
    "Seen",
    "checked_text",
    "identity",
    "new_files",
    "parse_checked",
    "publish_text",
    "sync_directory",
]

_FORMAT: Final = 1
_NAME: Final = re.compile(r"(\d+)-(\d+)")


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

    def count_by_table(self) -> dict[str, int]:
        """Return how many files of each table of the log are in it."""
        counts = Counter[str]()
        for process, numbers in self._numbers.items():
            counts[process.split("/", 1)[0]] += len(numbers)
        return dict(counts)

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


@dataclass(frozen=True, slots=True)
class Batch:
    """What is committed: the numbers of the batches that hold it, oldest first, and the files in them."""

    numbers: tuple[int, ...] = ()
    seen: Seen = field(default_factory=Seen)
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows of each table of the log the files held."""

    @property
    def next_number(self) -> int:
        """The number under which the next batch is written."""
        return self.numbers[-1] + 1 if self.numbers else 1


class Ledger:
    """The directory that holds the kept tables.

    Args:
        directory: A local directory; made when it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._commits = directory / "commits"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes away for the `with` block.

        Raises:
            ReportError: Another process has it, or the directory cannot be written.
        """
        with contextlib.ExitStack() as stack:
            with self._writing():
                self._commits.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((self.directory / "lock").open("w"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise ReportError(
                        f"{self.directory} is being kept by another process", hint="One `fanout report watch` is enough"
                    ) from error
            yield

    def read(self) -> Batch:
        """Return what is committed.

        Raises:
            ReportError: A commit is of another format.
        """
        numbers: list[int] = []
        seen, rows = Seen(), Counter[str]()
        for path in sorted(self._commits.glob("*.json")):
            try:
                commit = parse_checked(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ReportError(
                    f"{path} cannot be read: {error}", hint="Give an empty directory: the tables are made anew"
                ) from error
            if (commit["format"], commit["log_schema"]) != (_FORMAT, SCHEMA_VERSION):
                raise ReportError(
                    f"{path} was written by another version", hint="Give an empty directory: the tables are made anew"
                )
            if commit["base"]:
                numbers, seen, rows = [], Seen(), Counter[str]()
            numbers.append(commit["batch"])
            seen.add_ranges(commit["files"])
            rows.update(commit["rows"])
        return Batch(tuple(numbers), seen, rows)

    def commit(self, number: int, *, files: Iterable[str], rows: Mapping[str, int]) -> None:
        """Make a batch whose tables are written count.

        Args:
            number: Its number.
            files: The sealed files in it.
            rows: How many rows they held, by table of the log.
        """
        added = Seen()
        for path in files:
            added.add(path)
        self._write(number, base=False, seen=added, rows=rows)

    def commit_base(self, number: int, *, before: Batch) -> None:
        """Make a batch whose tables hold everything before it count in place of that, and remove that."""
        self._write(number, base=True, seen=before.seen, rows=before.rows)
        # From here on nothing reads what is older; what a kill leaves of it is removed with the next base.
        with self._writing():
            for path in self._commits.glob("*.json"):
                if int(path.stem) < number:
                    path.unlink()
            for path in self.directory.glob("*/batch=*"):
                if int(path.name.removeprefix("batch=")) < number:
                    shutil.rmtree(path)

    def table_path(self, table: str, number: int) -> str:
        """Return where a batch's part of a table lies."""
        return str(self.directory / table / f"batch={number}")

    def publish(self, name: str, text: str) -> None:
        """Replace one of the files that others read."""
        with self._writing():
            publish_text(self.directory / name, text)

    def withdraw(self, name: str) -> None:
        """Remove one of the files that others read, if it is there."""
        with self._writing():
            (self.directory / name).unlink(missing_ok=True)

    def _write(self, number: int, *, base: bool, seen: Seen, rows: Mapping[str, int]) -> None:
        commit = {
            "format": _FORMAT,
            "log_schema": SCHEMA_VERSION,
            "batch": number,
            "base": base,
            "files": seen.to_ranges(),
            "rows": dict(rows),
        }
        with self._writing():
            publish_text(self._commits / f"{number:012}.json", checked_text(commit))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ReportError(
                f"{self.directory} cannot be written: {error.strerror}", hint="Give a directory that this user may use"
            ) from error


def new_files(paths: Sequence[str], *, seen: Seen, limit: int) -> list[str]:
    """Return files that are in no batch yet, at most so many, each once however many copies there are."""
    found: dict[tuple[str, int], str] = {}
    for path in paths:
        if path not in seen:
            found.setdefault(identity(path), path)
        if len(found) == limit:
            break
    return list(found.values())


def identity(path: str) -> tuple[str, int]:
    """Return (table/node=N/node epoch, number) of a sealed file, wherever its log lies.

    Raises:
        ReportError: The path is not that of a sealed file.
    """
    parts = Path(path).parts
    match = _NAME.fullmatch(Path(path).stem)
    if match is None or len(parts) < 5:
        raise ReportError(f"{path} is no sealed file of a replication log", hint="Give log directories")
    return f"{parts[-5]}/{parts[-4]}/{match[1]}", int(match[2])


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
