"""Entries of directories on the disk."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["free_bytes", "sync_directory"]


def free_bytes(directory: Path) -> int | None:
    """Return the bytes that this user may still write to the disk of a directory; it may block while the disk hangs.

    None if the directory cannot be asked, as while its file system is not mounted.
    """
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def sync_directory(directory: Path) -> None:
    """Put the entries of a directory on the disk: a new or renamed file is not durable without it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
