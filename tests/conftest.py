"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.mosquitto import Mosquitto, find_mosquitto

REPORTS = "tests/reports/"


def pytest_configure() -> None:
    """Let SIGTERM end a run as Ctrl-C does, in each process of it, and examples of Hypothesis take their time.

    So fixtures are torn down and no server stays behind; and what a property says of values does not fail because the
    machine is busy.
    """
    settings.register_profile("no-deadline", deadline=None)
    settings.load_profile("no-deadline")
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell lets what it starts in the background ignore SIGINT
        signal.signal(number, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the reports in a run of several processes.

    They are the longest part, and one process has all of them, hence one JVM; the others keep the order of the
    directories, in which the short ones are last.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _part_of(item.nodeid) != REPORTS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each module to one process, as `--dist loadfile` does, but all reports to the same one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import NodeManager

    NodeManager.EXIT_TIMEOUT = 30  # an interrupted process is told after 5 s; then it has to stop its servers
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = _part_of
    return scheduling


def _part_of(nodeid: str) -> str:
    return REPORTS if nodeid.startswith(REPORTS) else nodeid.partition("::")[0]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto with its default configuration; it is stopped after the test."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    server = Mosquitto(tmp_path)
    server.start()
    yield server
    server.stop()
