"""Regular files only: opening a named pipe waits for somebody who writes, and a symbolic link may lead back."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["files_below", "irregularity", "open_regular", "require_regular"]

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def irregularity(path: Path | str) -> str:
    """Return why a path is no regular file, for the end of a sentence; "" if it is one.

    Raises:
        OSError: There is nothing, or it cannot be looked at.
    """
    return _irregularity(os.stat(path).st_mode)


def require_regular(path: Path | str) -> None:
    """Check that a path is a regular file, without opening it.

    Raises:
        OSError: It is none, there is nothing, or it cannot be looked at.
    """
    if reason := irregularity(path):
        raise OSError(errno.EINVAL, reason, str(path))


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading; never wait.

    Raises:
        OSError: It is none, there is nothing, or it cannot be opened.
    """
    require_regular(path)  # to open a device may change something
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if reason := _irregularity(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, reason, str(path))
    return file


def files_below(root: Path | str, *, suffix: str) -> Iterator[str]:
    """Yield the files below a directory that have a suffix, those with a "." or "_" in front left out.

    Symbolic links are followed; a directory that is reached again has been walked.

    Raises:
        OSError: A directory cannot be read, or such a file is not a regular one.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # gone since it was listed, or never there
            raise error

    walked: set[tuple[int, int]] = set()
    for place, directories, names in os.walk(root, onerror=failed, followlinks=True):
        found = os.stat(place)
        if (found.st_dev, found.st_ino) in walked:
            directories.clear()
            continue
        walked.add((found.st_dev, found.st_ino))
        for name in names:
            if name.endswith(suffix) and not name.startswith((".", "_")):
                require_regular(f"{place}/{name}")
                yield f"{place}/{name}"


def _irregularity(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    kind = next((kind for is_it, kind in _KINDS if is_it(mode)), "of an unknown kind")
    return f"it is {kind}, and not a regular file"
