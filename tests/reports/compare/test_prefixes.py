"""Figures by topic prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare.prefixes import (
    count_by_node,
    count_prefixes,
    count_windows,
    prefix_of,
    worst_prefixes,
)
from fanout.reports.read.rows import small_frame
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


def test_the_worst_prefixes_have_all_their_nodes(spark: SparkSession) -> None:
    """Selectors of a node are added up; prefixes are cut by what they lack in all; one bound makes a cell a bound."""
    counted = small_frame(
        spark,
        [
            *((target, "bad", 10, missing, 0) for target, missing in ((0, 1), (1, 2), (2, 0))),
            *((target, "doubtful", 10, 0, unknown) for target, unknown in ((0, 1), (2, 0))),
            *((target, "good", 10, 0, 0) for target in (0, 2)),
            (1, "doubtful", 0, 0, 0),
        ],
        schema="target int, prefix string, expected bigint, missing bigint, unknown bigint",
    )
    places = small_frame(
        spark, [(0, "a", True), (1, "a", False), (2, "b", True)], schema="target int, node string, proved boolean"
    )
    by_node = count_by_node(counted, places=places)
    assert_unique(by_node, "prefix", "node")
    found = rows_of(worst_prefixes(by_node, limit=2), "prefix", "node")
    assert [tuple(row[name] for name in ("prefix", "node", "expected", "missing", "unknown")) for row in found] == [
        *(("bad", "a", 20, 3, 0), ("bad", "b", 10, 0, 0)),
        *(("doubtful", "a", 10, 0, 1), ("doubtful", "b", 10, 0, 0)),
    ]
    assert [row["proved"] for row in found] == [False, True, True, True]
