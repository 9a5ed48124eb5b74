"""Entries of directories on the disk."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["free_bytes", "sync_directory"]


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user may still write to the disk of a directory; it may block while the disk hangs."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def sync_directory(directory: Path) -> None:
    """Put the entries of a directory on the disk: a new or renamed file is not durable without it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
