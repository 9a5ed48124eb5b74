"""One Spark session for all tests of the reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fanout.reports.spark import session_settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For tables of a few rows, compiling a query and planning it again takes far longer than running it."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local session whose executors could not run Python if they had to."""
    settings = session_settings("local[2]", cores=1) | {
        **INTERPRETED,
        "spark.sql.shuffle.partitions": "2",
        "spark.pyspark.python": "/nonexistent",
        "spark.sql.debug.maxToStringFields": "1000",
    }
    options = os.environ.get("SPARK_SUBMIT_OPTS")
    # The simple compiler and collector halve the CPU time of such short runs.
    os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    try:
        with spark_session(master="local[2]", settings=settings) as session:
            yield session
    finally:
        if options is None:
            del os.environ["SPARK_SUBMIT_OPTS"]
        else:
            os.environ["SPARK_SUBMIT_OPTS"] = options


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """The same session with queries compiled and adapted, as they are outside of tests."""
    for name in INTERPRETED:
        spark.conf.unset(name)
    yield spark
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
