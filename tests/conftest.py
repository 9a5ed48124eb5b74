"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.mosquitto import Mosquitto, find_mosquitto


def pytest_configure() -> None:
    """Let SIGTERM end a run as Ctrl-C does, and examples of Hypothesis take their time.

    So fixtures are torn down and no server stays behind; and what a property says of values does not fail because the
    machine is busy.
    """
    settings.register_profile("no-deadline", deadline=None)
    settings.load_profile("no-deadline")
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
