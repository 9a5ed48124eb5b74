"""Where sealed files are shipped to, and fetched from: a prefix of an object store, or a directory that is mounted.

Owns how a copy gets its name: whole or not at all. An object of a store appears when its upload is complete; in a
file system it is written under a name that begins with a dot, and renamed. Owns too whether a directory is mounted, for
what is copied to the disk underneath is in no store. Credentials come from where the client of the store looks for them
(its environment, its files, the machine's role), never from here. Knows nothing of which files there are.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from fanout.replog.files.segments import sync_directory

__all__ = ["STORE_ERRORS", "ObjectStore"]

STORE_ERRORS: Final = (OSError, pa.ArrowException)
"""What the methods of a store raise when it cannot be used at the moment."""


class ObjectStore:
    """A place for files, by relative names with "/" in them.

    Nothing is opened before the first use, and again after a failure: finding out the region of a bucket may itself
    need the network. Methods wait for the network. A directory must be there, and what is mounted there, or above it,
    at its first use must still be at each later one.

    Args:
        uri: As `pyarrow.fs` reads it, such as `s3://bucket/prefix?region=eu-west-1` or `file:///mnt/logs`.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._opened: tuple[pafs.FileSystem, str] | None = None
        self._mounted_at: str | None = None
        """Where the file system of a directory is mounted; None before its first use, and of others."""

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

    def get(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            STORE_ERRORS: The store cannot be used, or has no such file.
        """
        files, root = self._open()
        with files.open_input_stream(f"{root}/{name}", compression=None) as stream:
            return stream.read()

    def put(self, name: str, content: bytes) -> None:
        """Store a file, in place of what is there under this name, and check that the store has all of it.

        Raises:
            STORE_ERRORS: The store cannot be used, or shows another size than was written.
        """
        files, root = self._open()
        path = f"{root}/{name}"
        if isinstance(files, pafs.S3FileSystem | pafs.GcsFileSystem):
            # All in one piece: closing a stream after half of the writes would publish half of the file.
            with files.open_output_stream(path) as stream:
                stream.write(content)
        else:
            self._put_by_rename(files, path, content)
        self._open()  # else a copy counts that went elsewhere, because the directory was unmounted meanwhile
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
            files.delete_file(path)  # unlike a rename in a local directory, others do not replace
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

        Copies would fill another disk otherwise, count as confirmed, and be hidden by the next mount. The device is not
        compared: a share may have another number each time that it is mounted.
        """
        try:
            os.scandir(root).close()  # unlike stat(), it makes an automounter mount it
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{root} is not a directory; is it mounted?") from None
        if self._mounted_at is None:
            place = os.path.realpath(root)
            while not os.path.ismount(place):
                place = os.path.dirname(place)
            self._mounted_at = place
        elif not os.path.ismount(self._mounted_at):
            raise FileNotFoundError(f"nothing is mounted at {self._mounted_at} any more; mount it again")
