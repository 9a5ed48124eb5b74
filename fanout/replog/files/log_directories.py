"""Log directories: told from other directories, and found below one that holds the logs of several nodes.

Owns the bounds of that search, and the messages for a place without a log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from fanout.errors import LogError, system_reason
from fanout.replog.files.schema import SCHEMA_VERSION, refuse_version

__all__ = ["DEPTH_MAX", "DIRECTORIES_MAX", "find_logs", "is_log", "refuse_later", "shared_nodes"]

DEPTH_MAX: Final = 8
"""Levels below the given directory that are searched."""
DIRECTORIES_MAX: Final = 10_000
"""Directories that are searched."""

_PARTS: Final = (f"v{SCHEMA_VERSION}/updates", f"v{SCHEMA_VERSION}/events", "open")
_VERSION: Final = re.compile("v([0-9]{1,4})")
_TABLES: Final = frozenset({"updates", "events"})
_GIVE: Final = "Give the value of log.directory of a node, or a directory above the logs of several"
_LEADS_NOWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def is_log(directory: Path) -> bool:
    """Return whether a directory is that of a log, which may be empty.

    Raises:
        OSError: It cannot be looked at.
        LogError: A later version wrote it: what this one could read of it would be a part.
    """
    *tables, segments = (directory / part for part in _PARTS)
    refuse_later(str(directory), _names_in(directory) or (), lambda name: _names_in(directory / name) or ())
    if any(table.is_dir() for table in tables):
        return True
    names = _names_in(segments)
    return names is not None and (not names or any(name.startswith("node=") for name in names))


def find_logs(given: Path) -> tuple[Path, ...]:
    """Return the directory itself if it is that of a log, otherwise the directories of logs below it, in order.

    The search ends at each log, `DEPTH_MAX` levels down, and at hidden directories. It follows symbolic links, and
    enters no directory twice.

    Raises:
        LogError: There is no log, a directory cannot be read, or there are more than `DIRECTORIES_MAX`.
    """
    with _reading():
        if is_log(given):
            return (given,)
        if not given.is_dir():
            raise _no_directory(given)
        if found := sorted(_logs_below(given)):
            return tuple(found)
        if not _names_in(given):
            raise LogError(
                f"{given} is empty", hint="Is the disk mounted, and the copy made? A node makes its log when it starts"
            )
    raise LogError(f"{given} is not the directory of a replication log, and none is below it", hint=_GIVE)


def shared_nodes(logs: Sequence[Path]) -> Mapping[str, Sequence[Path]]:
    """Return the directories `node=...` that several logs have, each with these logs.

    Raises:
        LogError: A log cannot be read.
    """
    found: dict[str, list[Path]] = defaultdict(list)
    for log in logs:
        with _reading():
            names = {name for part in _PARTS for name in _names_in(log / part) or ()}
        for name in sorted(names):
            if name.startswith("node="):
                found[name].append(log)
    return {name: places for name, places in found.items() if len(places) > 1}


def refuse_later(place: str, names: Iterable[str], names_in: Callable[[str], Iterable[str]]) -> None:
    """Refuse a directory with tables of a later version of the log: what this one could read would be a part.

    Args:
        place: The directory, for the message.
        names: Names in it.
        names_in: Returns the names in a directory in it.

    Raises:
        LogError: It has such tables.
    """
    for name in names:
        later = _VERSION.fullmatch(name)
        if later and int(later[1]) > SCHEMA_VERSION and not _TABLES.isdisjoint(names_in(name)):
            refuse_version(place, int(later[1]))


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(
            f"{error.filename} cannot be read: {system_reason(error)}",
            hint="Give the log directories themselves, or run this as a user who may read it",
        ) from error


def _no_directory(given: Path) -> LogError:
    if given.exists():
        return LogError(f"{given} is a file, and not a directory", hint=_GIVE)
    if any(sign in str(given) for sign in "*?["):
        return LogError(
            f"{given} is a pattern, and no directory has that name",
            hint="Write it without quotes, so that the shell fills it in. If you did, no directory matches it",
        )
    return LogError(f"{given} does not exist", hint=_GIVE)


def _logs_below(root: Path) -> Iterator[Path]:
    walked: set[tuple[int, int]] = set()
    level = [*_not_walked([root], walked)]
    for _ in range(DEPTH_MAX):
        level = [place for above in level for place in _not_walked(_directories_in(above), walked)]
        if len(walked) > DIRECTORIES_MAX:
            raise LogError(
                f"{root} has more than {DIRECTORIES_MAX:,} directories below it",
                hint="Give the log directories themselves, or a directory nearer to them",
            )
        logs = {place for place in level if is_log(place)}
        yield from logs
        level = [place for place in level if place not in logs]


def _directories_in(place: Path) -> Iterator[Path]:
    """Yield the directories in a directory, and the symbolic links, in order."""
    with os.scandir(place) as entries:
        names = [one.name for one in entries if one.is_dir(follow_symlinks=False) or one.is_symlink()]
    yield from (place / name for name in sorted(names) if not name.startswith("."))


def _not_walked(places: Iterable[Path], walked: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the directories that have not been walked, and note them, until there are too many."""
    for place in places:
        if len(walked) > DIRECTORIES_MAX:
            return
        try:
            found = os.stat(place)
        except OSError as error:
            if error.errno not in _LEADS_NOWHERE:  # gone since it was listed, or a link to nothing or to itself
                raise
            continue
        if stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in walked:
            walked.add((found.st_dev, found.st_ino))
            yield place


def _names_in(directory: Path) -> list[str] | None:
    """Return the names in a directory; None if there is no such directory."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
