"""Queries in threads end with the first error."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.session.query_threads import query_threads
from tests.support.waiting import wait_until_blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_an_error_ends_the_queries_of_other_threads(jvm: SparkSession) -> None:
    """A query that would run for hours is cancelled, the error goes on, and the session is as good as before."""
    endless = jvm.range(10**15).selectExpr("sum(id % 7) AS total")
    tracker = jvm.sparkContext.statusTracker()
    begun: list[Future[Any]] = []
    failed_at: list[float] = []

    def fail_beside_it() -> None:
        with query_threads(jvm, 1, name="endless") as pool:
            begun.append(pool.submit(endless.take, 1))
            wait_until_blocking(lambda: tracker.getActiveJobsIds() != [], what="the query")
            failed_at.append(time.monotonic())
            raise RuntimeError("of a section")

    with pytest.raises(RuntimeError, match="of a section"):
        fail_beside_it()
    assert time.monotonic() - failed_at[0] < 60
    assert "cancelled" in str(begun[0].exception(0))
    assert tracker.getActiveJobsIds() == []
    assert jvm.range(3).count() == 3
