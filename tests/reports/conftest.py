"""One Spark session for all tests of the reports, and nodes that leave logs for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanout.reports.session.sail import sail_server
from fanout.reports.spark import SHORT_RUN_SETTINGS, session_settings, spark_session
from tests.reports.logs import NodeLog, at, selector, write
from tests.support.nodes import Nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For tables of a few rows, compiling a query and planning it again takes far longer than running it."""

REMOTE = "SPARK_CONNECT_MODE_ENABLED"
"""Variable by which pyspark knows that columns and frames are for Spark Connect, in the whole process."""

HEAP = "-Xms2g -Xmn1g -XX:MetaspaceSize=256m"
"""Room for what a few reports allocate: half of a small heap is taken by joins that nobody uses any more."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell pyspark which of the two sessions a test is for, before its fixtures are made."""
    names = [*getattr(item, "fixturenames", ()), *getattr(getattr(item, "callspec", None), "params", {}).values()]
    if "spark" in names and "jvm" not in names:
        os.environ[REMOTE] = "1"
    else:
        os.environ.pop(REMOTE, None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Leave no trace of a session in the environment, which processes of other tests get."""
    os.environ.pop(REMOTE, None)


@pytest.fixture(scope="session")
def jvm() -> Iterator[SparkSession]:
    """A small session of Spark in a JVM, whose executors could not run Python if they had to."""
    settings = session_settings("local[2]", cores=1) | {
        **INTERPRETED,
        "spark.sql.shuffle.partitions": "2",
        "spark.buffer.pageSize": "256k",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": HEAP,
        "spark.sql.debug.maxToStringFields": "1000",
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_SUBMIT_OPTS", SHORT_RUN_SETTINGS["spark.driver.extraJavaOptions"])
        # A driver that is plain Python reads this, not the setting `spark.pyspark.python`.
        environment.setenv("PYSPARK_PYTHON", "/nonexistent")
        with spark_session(master="local[2]", settings=settings) as session:
            for name in ("callSite.short", "callSite.long"):  # else Spark walks the stack for each step of each query
                session.sparkContext.setLocalProperty(name, "test")
            yield session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of Sail, which reports take unless they are told otherwise."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # as `spark_session` does
    with sail_server() as (url, settings):
        session = SparkSession.builder.remote(url).create()
        for key, value in ({"spark.sql.session.timeZone": "UTC"} | settings).items():
            session.conf.set(key, value)
        yield session
        os.environ[REMOTE] = "1"  # it is taken away here
        session.stop()


@pytest.fixture(scope="module", params=["jvm", "spark"])
def engine(request: pytest.FixtureRequest) -> SparkSession:
    """Each of the two sessions: what is true of reports is so whichever runs them."""
    found: SparkSession = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def compiled(jvm: SparkSession) -> Iterator[SparkSession]:
    """Spark in a JVM with queries compiled and adapted, as they are outside of tests."""
    for name in INTERPRETED:
        jvm.conf.unset(name)
    yield jvm
    for name, value in INTERPRETED.items():
        jvm.conf.set(name, value)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log directory of a primary and a secondary that lost one update of ten."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    hub.start(at(0))
    edge.start(at(0), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]})
    edge.ready(at(1), "up", "#")
    for number in range(10):
        row = hub.publish(at(2 + number), number + 1, f"t/{number}", "x")
        if number:
            edge.apply(row, link="up", selector="#")
    hub.event("stop", at(60))
    edge.event("stop", at(60))
    return write(tmp_path / "log", [hub, edge])


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Return where to get nodes; afterwards they are stopped and checked."""
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.end()
