"""A directory that may not be read, also for a test that runs as root."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

__all__ = ["forbid"]


def forbid(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make listing a directory fail as it does without permission."""
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:
        if Path(path) == directory:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
