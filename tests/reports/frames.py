"""Frames for the tests of transforms, from literal logs, without any file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fanout.reports.read.reading import Tables
from fanout.reports.read.rows import small_frame
from fanout.reports.read.schemas import EVENTS, UPDATES
from fanout.reports.session.query_threads import is_remote
from tests.reports.logs import NodeLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def tables_of(spark: SparkSession, logs: Iterable[NodeLog]) -> Tables:
    """Return the two tables that hold these logs."""
    logs = list(logs)
    updates = [tuple(row[name] for name in UPDATES.names) for log in logs for row in log.updates]
    events = [tuple(row[name] for name in EVENTS.names) for log in logs for row in log.events]
    return Tables(small_frame(spark, updates, schema=UPDATES), small_frame(spark, events, schema=EVENTS))


def rows_of(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    """Return a frame's rows by column name, sorted by some of the columns."""
    rows = [row.asDict() for row in frame.collect()]
    return sorted(rows, key=lambda row: tuple(row[name] for name in order))


def assert_unique(frame: DataFrame, *key: str) -> int:
    """Assert that no two rows of a frame agree in all of a join's key; return how many there are."""
    rows = frame.select(*key).collect()
    assert len(rows) == len(set(rows)), f"{key} is not unique"
    return len(rows)


def plan_of(frame: DataFrame) -> str:
    """Return the physical plan of a frame as text."""
    return "" if is_remote(frame.sparkSession) else str(frame._jdf.queryExecution().executedPlan().toString())
