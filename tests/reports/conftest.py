"""One Spark session for all tests of the reports, and nodes that leave logs for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from fanout.reports.read import reading
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

HEAP = "-Xms2g -Xmn1g -XX:MetaspaceSize=256m"
"""Room for what a few reports allocate: half of a small heap is taken by joins that nobody uses any more."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local session whose executors could not run Python if they had to."""
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


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """The same session with queries compiled and adapted, as they are outside of tests."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    yield spark
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every other test read its few rows as if they were many: in several tasks, with shuffles between them."""
    if crc32(request.node.nodeid.encode()) % 2:
        monkeypatch.setattr(reading, "ONE_TASK_BYTES", 0)


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
