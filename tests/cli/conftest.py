"""Running commands: in this process, as a subprocess, and on a terminal."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what changes a command's behaviour from outside."""
    for name in list(os.environ):
        if name.startswith(("FANOUT_", "TTY_")) or name in {"COLUMNS", "FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm")  # Rich draws no progress where it is dumb, as without a terminal


@pytest.fixture
def runner() -> CliRunner:
    """Return typer's runner: a command in this process, its output captured, as in a pipe."""
    return CliRunner()


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Put the logging set-up back after a test that starts a node."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    uvicorn_level = logging.getLogger("uvicorn").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(uvicorn_level)
    structlog.reset_defaults()
