"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mosquitto import Mosquitto, find_mosquitto


def pytest_configure() -> None:
    """Let SIGTERM end a run as Ctrl-C does: fixtures are torn down, so that no server stays behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto with its default configuration; it is stopped after the test."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    server = Mosquitto(tmp_path)
    server.start()
    yield server
    server.stop()
