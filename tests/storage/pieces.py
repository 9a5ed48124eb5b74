"""Updates and stores for tests of what is on disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fanout.storage.file import RetainedFile

__all__ = ["FailingDisk", "contents", "opened"]


def opened(path: Path) -> RetainedFile:
    """Return the file at `path`, open."""
    return RetainedFile(path, sync="interval")


def contents(file: RetainedFile, store: str) -> dict[bytes, bytes]:
    """Return topics and payloads of a store."""
    return {update[0]: update[1] for piece in file.read(store) for update in piece}


class FailingDisk:
    """Lets each commit of a `RetainedFile` fail while it is `broken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, broken: bool) -> None:
        self.broken = broken
        commit = RetainedFile.commit

        def commit_or_fail(file: RetainedFile, writes: Any, sessions: Any, *, clients: Any, force: bool) -> None:
            if self.broken:
                raise sqlite3.OperationalError("database or disk is full")
            commit(file, writes, sessions, clients=clients, force=force)

        monkeypatch.setattr(RetainedFile, "commit", commit_or_fail)
