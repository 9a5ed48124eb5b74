"""Fetching: copies the sealed files that nodes shipped from an object store to a local log directory.

Owns the selection of objects by name, other objects being ignored, and the texts of failures. The caller chooses among
them and removes the copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from fanout.errors import LogError
from fanout.replog.files.log_directories import DEPTH_MAX, refuse_later
from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.replog.files.sealing import TABLES
from fanout.replog.shipping.object_store import STORE_ERRORS, ObjectStore

__all__ = ["check_uri", "fetch", "is_store"]

_SCHEMES: Final = ("s3://", "gs://")
"""Schemes of `log.ship.to` that Spark cannot read by itself."""
_AT_ONCE: Final = 8
"""Files copied at a time; each spends most of its time waiting for the store."""
_LISTED_MAX: Final = 1_000
"""Directories of a store in which logs are searched; each is a request."""
_NAME: Final = re.compile(
    rf"v{SCHEMA_VERSION}/({'|'.join(TABLES)})/node=[^/]+/date=\d{{4}}-\d\d-\d\d/hour=\d\d/\d+-\d+\.parquet"
)


def is_store(place: str) -> bool:
    """Tell whether a text is a URI of a store that `fetch` reads."""
    return place.startswith(_SCHEMES)


def check_uri(uri: str) -> None:
    """Refuse a URI that cannot be read.

    Raises:
        LogError: The URI of a store has credentials in it.
    """
    host = uri.removeprefix("s3://").removeprefix("gs://").partition("/")[0]
    if "@" in host:  # the message leaves it out: it is a secret
        raise LogError(
            "a URI has credentials in it",
            hint="Leave them out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use the machine's role",
        )


def _names_in(uri: str) -> list[str]:
    """Return the names of the sealed files of the log at a URI, otherwise of the logs below it, in order.

    Raises:
        LogError: The store cannot be read, or holds no log.
    """
    check_uri(uri)
    store = ObjectStore(uri)
    try:
        found = [name for log in _logs_below(store) for name in _names_of(store, log)]
    except STORE_ERRORS as error:
        raise _unreadable(uri, error) from error
    if not found:
        raise LogError(
            f"there is no replication log in {uri}",
            hint="Give what the nodes have in log.ship.to; is it the right prefix?",
        )
    return found


def _names_of(store: ObjectStore, log: str) -> list[str]:
    """Return the names of the sealed files of a log, given as the start of these names."""
    names = store.sizes(f"{log}v{SCHEMA_VERSION}")
    return sorted(name for name in names if _NAME.fullmatch(name.removeprefix(log)))


def _directories(store: ObjectStore, place: str) -> list[str]:
    """Return the names of the directories in one of a store.

    Raises:
        LogError: A later version of fanout wrote a log there.
    """
    found = store.directories(place)
    refuse_later(
        f"{place.rstrip('/')} in {store.uri}" if place else store.uri,
        [name.removeprefix(place) for name in found],
        lambda name: [inner.rpartition("/")[2] for inner in store.directories(f"{place}{name}")],
    )
    return found


def _logs_below(store: ObjectStore) -> Iterator[str]:
    """Yield the start of the names of each log below the URI of a store.

    Raises:
        LogError: There are more than `_LISTED_MAX` directories.
        STORE_ERRORS: The store cannot be used.
    """
    level, listed = [""], 0
    for _ in range(DEPTH_MAX + 1):
        below: list[str] = []
        for place in level:
            if (listed := listed + 1) > _LISTED_MAX:
                raise LogError(
                    f"{store.uri} has more than {_LISTED_MAX:,} directories below it",
                    hint="Give the logs themselves: what the nodes have in log.ship.to",
                )
            inside = _directories(store, place)
            if f"{place}v{SCHEMA_VERSION}" in inside:
                yield place
            else:
                below += [f"{name}/" for name in inside]
        level = below


def fetch(
    uri: str,
    *,
    target: Path,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Copy sealed files from a store to a directory, which then is a log directory or has several below it; return it.

    Args:
        uri: The value of `log.ship.to` of the nodes, or one above several.
        target: A directory; created if it does not exist.
        tell: Gets the progress; None for nobody.

    Raises:
        LogError: The store cannot be read, holds no log, or the directory cannot be written.
    """
    names = _names_in(uri)
    store = ObjectStore(uri)
    try:
        for directory in {(target / name).parent for name in names}:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target, error) from error

    def copy(name: str) -> None:
        try:
            content = store.get(name)
        except STORE_ERRORS as error:
            raise _unreadable(uri, error) from error
        try:
            (target / name).write_bytes(content)
        except OSError as error:
            raise _unwritable(target, error) from error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fanout-fetch") as threads:
        for number, _ in enumerate(threads.map(copy, names), 1):
            if tell is not None:
                tell(f"fetching {uri}: {number:,} of {len(names):,} files")
    return target


def _unreadable(uri: str, error: Exception) -> LogError:
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    return LogError(
        f"{uri} cannot be read: {said}",
        hint="Check the URI, the network, and the credentials where the store's clients look for them",
    )


def _unwritable(target: Path, error: OSError) -> LogError:
    return LogError(
        f"the copy in {target} cannot be written: {error.strerror}",
        hint="Name a directory with room in the environment variable TMPDIR",
    )
