"""Figures by topic prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.transforms.prefixes import count_prefixes, count_windows, prefix_of
from fanout.reports.transforms.rows import small_frame
from tests.reports.frames import assert_unique, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_prefix_of_takes_whole_levels(spark: SparkSession) -> None:
    """A topic with fewer levels is its own prefix."""
    frame = small_frame(spark, [("a/b/c",), ("a",), ("/a/b",)], schema="topic string")
    found = frame.select(*(prefix_of(sf.col("topic"), depth=depth).alias(f"d{depth}") for depth in (1, 2))).collect()
    assert [tuple(row) for row in found] == [("a", "a/b"), ("a", "a"), ("", "/a")]


@pytest.mark.parametrize("repeats", [False, True])
def test_prefixes_count_what_was_expected_and_lacked(spark: SparkSession, repeats: bool) -> None:
    """Only settled updates of the covered span count, a repeated one once, and what a gap hides apart."""
    sequences = [("a/x/1", 1, 10), ("a/x/2", 2, 11), ("a/y", 3, 12), ("b", 4, 20), ("a/x/3", 5, 9), ("a/y", 6, 21)]
    rows = small_frame(
        spark,
        [(0, topic, "p", 1, sequence) for topic, sequence, _ in sequences],
        schema="target int, topic string, stamp_primary string, stamp_epoch bigint, sequence bigint",
    ).withColumns(
        {
            "origin": sf.timestamp_micros(
                sf.element_at(
                    sf.lit([us for _, _, us in sequences]).cast("array<bigint>"), sf.col("sequence").cast("int")
                )
            ),
            "covered_from_us": sf.lit(9),
            "settled_until_us": sf.lit(20),
        }
    )
    rows = rows.withColumn("applied", sf.col("origin"))
    absent = small_frame(
        spark,
        [(0, "a/x/2", 11, True), (0, "a/y", 12, False)],
        schema="target int, topic string, origin_us bigint, known boolean",
    )
    seen = rows.unionByName(rows) if repeats else rows
    counted = count_prefixes(seen, absent=absent, depth=2, repeats=repeats)
    assert_unique(counted, "target", "prefix")
    found = [(r["prefix"], r["expected"], r["missing"], r["unknown"]) for r in rows_of(counted, "prefix")]
    assert found == [("a/x", 2, 1, 0), ("a/y", 1, 0, 1), ("b", 1, 0, 0)]
    counted = count_windows(seen, absent=absent, window_us=4, repeats=repeats)
    assert_unique(counted, "target", "window_us")
    by_window = [(r["window_us"], r["expected"], r["missing"], r["unknown"]) for r in rows_of(counted, "window_us")]
    assert by_window == [(8, 2, 1, 0), (12, 1, 0, 1), (20, 1, 0, 0)]
