"""Object store for sealed files: a prefix of a bucket, or a mounted directory.

Owns that a copy appears whole or not at all. An object appears when its upload is complete; in a file system the copy
is written under a name that begins with a dot, and renamed. Owns also the check that a directory is mounted, because a
copy on the disk underneath would be in no store. Credentials come from the environment, the files or the machine's
role, as the client of the store looks for them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from fanout.runtime.directories import sync_directory

__all__ = ["STORE_ERRORS", "ObjectStore"]

STORE_ERRORS: Final = (OSError, pa.ArrowException)
"""Errors of the methods of a store that cannot be used at the moment."""


class ObjectStore:
    """Files by relative names with "/" in them.

    The store is opened at the first use, and again after a failure, because looking up the region of a bucket needs
    the network. Methods wait for the network. A directory must exist, with the same mount at each use as at the
    first.

    Args:
        uri: As `pyarrow.fs` reads it, such as `s3://bucket/prefix?region=eu-west-1` or `file:///mnt/logs`.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._opened: tuple[pafs.FileSystem, str] | None = None
        self._mounted_at: str | None = None
        """Mount point of a directory; None before its first use, and for other stores."""

    def sizes(self, directory: str) -> dict[str, int]:
        """Return the size of every file below a directory by its name; none when there is no such directory.

        Raises:
            STORE_ERRORS: The store cannot be used.
        """
        files, root = self._open()
        selector = pafs.FileSelector(f"{root}/{directory}", allow_not_found=True, recursive=True)
        return {
            info.path.removeprefix(f"{root}/"): info.size
            for info in files.get_file_info(selector)
            if info.type == pafs.FileType.File
        }

    def directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory, in order; "" is the place of the URI.

        Raises:
            STORE_ERRORS: The store cannot be used.
        """
        files, root = self._open()
        selector = pafs.FileSelector(f"{root}/{directory}".rstrip("/"), allow_not_found=True)
        found = (info for info in files.get_file_info(selector) if info.type == pafs.FileType.Directory)
        return sorted(info.path.rstrip("/").removeprefix(f"{root}/") for info in found)

    def get(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            STORE_ERRORS: The store cannot be used, or has no such file.
        """
        files, root = self._open()
        with files.open_input_stream(f"{root}/{name}", compression=None) as stream:
            return stream.read()

    def put(self, name: str, content: bytes) -> None:
        """Store a file, replacing one of the same name, and check its size in the store.

        Raises:
            STORE_ERRORS: The store cannot be used, or shows another size than was written.
        """
        files, root = self._open()
        path = f"{root}/{name}"
        if isinstance(files, pafs.S3FileSystem | pafs.GcsFileSystem):
            # One write: closing a stream after half of the writes would publish half of the file.
            with files.open_output_stream(path) as stream:
                stream.write(content)
        else:
            self._put_by_rename(files, path, content)
        self._open()  # else a copy counts that went to the disk under a directory that was unmounted meanwhile
        size = files.get_file_info(path).size
        if size != len(content):
            raise OSError(f"{name} has {size} bytes in the store instead of {len(content)}")

    def _put_by_rename(self, files: pafs.FileSystem, path: str, content: bytes) -> None:
        parent, _, name = path.rpartition("/")
        aside = f"{parent}/.{name}.unfinished"
        files.create_dir(parent, recursive=True)
        with files.open_output_stream(aside) as stream:
            stream.write(content)
        local = isinstance(files, pafs.LocalFileSystem)
        if local:
            with Path(aside).open("rb") as file:
                os.fsync(file.fileno())
        elif files.get_file_info(path).type == pafs.FileType.File:
            files.delete_file(path)  # only a rename in a local directory replaces
        files.move(aside, path)
        if local:
            sync_directory(Path(parent))

    def _open(self) -> tuple[pafs.FileSystem, str]:
        if self._opened is None:
            files, root = pafs.FileSystem.from_uri(self.uri)
            self._opened = files, root.rstrip("/")
        files, root = self._opened
        if isinstance(files, pafs.LocalFileSystem):
            self._check_directory(root)
        return self._opened

    def _check_directory(self, root: str) -> None:
        """Raise OSError unless the directory is there, and mounted as it was at its first use.

        Otherwise copies would fill another disk, count as confirmed, and be hidden by the next mount. The device number
        is not compared, because a share may get another one with each mount.
        """
        try:
            os.scandir(root).close()  # unlike stat(), this triggers an automounter
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{root} is not a directory; is it mounted?") from None
        if self._mounted_at is None:
            place = os.path.realpath(root)
            while not os.path.ismount(place):
                place = os.path.dirname(place)
            self._mounted_at = place
        elif not os.path.ismount(self._mounted_at):
            raise FileNotFoundError(f"nothing is mounted at {self._mounted_at} any more; mount it again")
