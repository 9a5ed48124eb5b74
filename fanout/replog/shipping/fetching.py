"""What nodes shipped, brought to a local disk: the copy in an object store becomes a log directory again.

Owns which objects those are (their names say so; whatever else lies there is passed over) and how a failure is told.
Which of them are wanted is the caller's business, and so is removing the copy. Knows nothing of their rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from fanout.errors import LogError
from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.replog.files.sealing import TABLES, table_directory
from fanout.replog.shipping.object_store import STORE_ERRORS, ObjectStore

__all__ = ["check_uri", "fetch", "is_store", "names_in"]

_SCHEMES: Final = ("s3://", "gs://")
"""Stores that `log.ship.to` takes and Spark cannot read by itself."""
_AT_ONCE: Final = 8
"""Files on the way at a time: most of what one takes is waiting for the store."""
_NAME: Final = re.compile(
    rf"v{SCHEMA_VERSION}/({'|'.join(TABLES)})/node=[^/]+/date=\d{{4}}-\d\d-\d\d/hour=\d\d/\d+-\d+\.parquet"
)


def is_store(place: str) -> bool:
    """Tell whether a place is a URI of a store that `fetch` reads."""
    return place.startswith(_SCHEMES)


def check_uri(uri: str) -> None:
    """Refuse what no try can read.

    Raises:
        LogError: The URI of a store has credentials in it.
    """
    if "@" in uri.removeprefix("s3://").removeprefix("gs://").partition("/")[0]:  # said without it: it is a secret
        raise LogError(
            "a URI has credentials in it",
            hint="Leave them out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use the machine's role",
        )


def names_in(uri: str) -> list[str]:
    """Return the names of the sealed files in a store, below its URI and in order.

    Raises:
        LogError: The store cannot be read, or holds no log.
    """
    check_uri(uri)
    try:
        found = sorted(filter(_NAME.fullmatch, ObjectStore(uri).sizes(f"v{SCHEMA_VERSION}")))
    except STORE_ERRORS as error:
        raise _unreadable(uri, error) from error
    if not found:
        raise LogError(
            f"there is no replication log in {uri}",
            hint="Give what the nodes have in log.ship.to; is it the right prefix?",
        )
    return found


def fetch(
    uri: str,
    *,
    target: Path,
    wanted: Callable[[str], bool] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Copy sealed files from a store to a directory, which then is a log directory, and return it.

    Args:
        uri: What the nodes have in `log.ship.to`.
        target: A directory; made when it is not there.
        wanted: Says of a file, by its name below the URI, whether it is copied; None copies all.
        tell: Is told how far it is; None tells nobody.

    Raises:
        LogError: The store cannot be read, holds no log, or the directory cannot be written.
    """
    names = [name for name in names_in(uri) if wanted is None or wanted(name)]
    store = ObjectStore(uri)
    try:
        for directory in {table_directory(target, table) for table in TABLES} | {
            (target / name).parent for name in names
        }:
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
