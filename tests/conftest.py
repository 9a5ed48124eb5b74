"""Fixtures for all tests, markers by directory, and which process runs what. CONTRIBUTING.md explains the use."""

from __future__ import annotations

import gc
import os
import re
import signal
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import fanout
from tests.support.examples import begin_long_run
from tests.support.mosquitto import Mosquitto, find_mosquitto

KINDS = {
    **dict.fromkeys(("acceptance", "bench", "cli", "probe"), "acceptance"),
    **dict.fromkeys(("api", "conformance", "durable", "fuzz", "link", "node", "oracle", "server", "spec"), "machine"),
}
"""The marker of a directory of tests; `unit` where none is named. What needs more has `broker` or `spark` instead."""

FIRST = ("link", "node", "probe", "api", "pool", "acceptance", "bench", "cli")
"""Directories that several processes begin with, apart from those with Spark.

Tests that mostly wait come beside Spark, which needs both processors; then those with the longest tests.
"""

PACKAGE = Path(fanout.__file__).parent

SECOND_SESSION = {"test_recent_files.py", "test_result_tables.py", "test_sections.py"}
"""Modules in folders of `tests/reports` that share the second of two JVMs with those beside the folders.

That is half of the time of all. The process with the longer half is the last to end: measure before you move one.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer to run what is long by nature."""
    parser.addoption(
        "--long", action="store_true", help="also run what is marked long, and all examples: before a release"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGTERM end a run as Ctrl-C does, in each process of it, and examples of Hypothesis take their time.

    So fixtures are torn down and no server stays behind; and what a property says of values does not fail because the
    machine is busy, nor by luck: examples are the same in each run but a long one.
    """
    _check_compiled()
    gc.disable()  # until all is collected: there is little to find in what grows to a million objects that stay
    is_long = config.getoption("--long")
    settings.register_profile(
        "steady", deadline=None, derandomize=not is_long, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("steady")
    if is_long:
        begin_long_run()
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell lets what it starts in the background ignore SIGINT
        signal.signal(number, signal.default_int_handler)


def _check_compiled() -> None:
    """Refuse to test a compiled module that is older than its source."""
    for extension in PACKAGE.rglob(f"*{sysconfig.get_config_var('EXT_SUFFIX')}"):  # of this Python
        source = extension.with_name(f"{extension.name.partition('.')[0].removesuffix('__mypyc')}.py")
        if not source.exists() or source.stat().st_mtime > extension.stat().st_mtime:
            raise pytest.UsageError(
                f"{extension} was compiled from another state of {source.name}: run scripts/setup to compile it again, "
                "or FANOUT_COMPILE=0 scripts/setup to do without"
            )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its kind, leave out the long ones, and begin with the longest in several processes.

    The modules with Spark come first. The others keep the order of the directories, in which the short ones are last.
    """
    for item in items:
        item.add_marker(kind := _kind_of(item))
        if kind == "spark" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))  # a report over random logs takes a minute beside four processes
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _turn_of(item.nodeid))


def pytest_collection_finish() -> None:
    """Set aside what was loaded and collected: each full collection of garbage would look through it again."""
    gc.freeze()
    gc.enable()


def _kind_of(item: pytest.Item) -> str:
    directory = Path(item.nodeid.partition("::")[0]).parts[1]
    kind = KINDS.get(directory, "unit")
    used = {mark.name for mark in item.iter_markers()} | set(getattr(item, "fixturenames", ()))
    if "spark" in used:
        return "spark"
    return "broker" if "mosquitto" in used and kind != "acceptance" else kind


def _turn_of(nodeid: str) -> int:
    if (group := _part_of(nodeid)).startswith("spark"):
        return int(group[-1]) - 2
    directory = Path(nodeid.partition("::")[0]).parts[1]
    return FIRST.index(directory) if directory in FIRST else len(FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each module to one process, as `--dist loadfile` does, but those with a JVM to two, each with one JVM."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import NodeManager

    NodeManager.EXIT_TIMEOUT = 30  # an interrupted process is told after 5 s; then it has to stop its servers
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = _part_of
    return scheduling


def _part_of(nodeid: str) -> str:
    module = nodeid.partition("::")[0]
    if not module.startswith("tests/reports/") or not _needs_jvm(module):
        return module
    path = Path(module)
    return f"spark {int(path.parent.name == 'reports' or path.name in SECOND_SESSION)}"


@cache
def _needs_jvm(module: str) -> bool:
    """Return whether tests of a module use a session of Spark in a JVM, by their fixtures' names; Sail is quick."""
    return re.search(r"\b(jvm|engine|compiled)\b", (PACKAGE.parent / module).read_text()) is not None


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto with its default configuration; it is stopped after the test."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    server = Mosquitto(tmp_path)
    server.start()
    yield server
    server.stop()
