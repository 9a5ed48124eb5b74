"""The kept tables: what is old."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.reports.compare.rolling import WINDOW_US, drop_old
from fanout.reports.read.rows import small_frame
from tests.reports.frames import rows_of
from tests.reports.logs import at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_clock_that_is_years_ahead_makes_nothing_old(spark: SparkSession) -> None:
    """What is old, or of the future, goes by the heartbeats, which nodes time; without any by all windows."""
    propagation = [("propagation", at(0)), ("propagation", at(3600)), ("propagation", at(10**9))]
    heartbeats = [("heartbeat", at(0)), ("heartbeat", at(3600))]
    for cells, kept in (
        ([*propagation, *heartbeats], [at(3600), at(3600)]),
        (propagation, [at(10**9)]),
    ):
        table = small_frame(spark, cells, schema="kind string, window_us bigint")
        found = rows_of(drop_old("lag", table, keep_us=WINDOW_US), "window_us")
        assert [row["window_us"] for row in found] == kept
