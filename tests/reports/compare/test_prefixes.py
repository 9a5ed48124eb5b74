"""Figures by topic prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare.prefixes import (
    count_by_node,
    count_prefixes,
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


def test_prefixes_count_what_was_expected_and_lacked(spark: SparkSession) -> None:
    """A prefix that lacks nothing has no times."""
    expected = small_frame(
        spark,
        [(0, topic, 0) for topic in ("a/x/1", "a/x/2", "a/y", "b")],
        schema="target int, topic string, at_us bigint",
    )
    lacking: list[tuple[object, ...]] = [
        ("prefix", 0, "a/x", 1, 0, 11, 11),
        ("prefix", 0, "a/y", 0, 1, None, None),
        ("target", 0, None, 1, 1, 11, 11),
    ]
    losses = small_frame(
        spark,
        lacking,
        schema="scope string, target int, prefix string, missing bigint, unknown bigint, first_us bigint, "
        "last_us bigint",
    )
    counted = count_prefixes(expected, losses=losses, depth=2)
    assert_unique(counted, "target", "prefix")
    names = ("prefix", "expected", "missing", "unknown", "first_us", "last_us")
    assert [tuple(row[name] for name in names) for row in rows_of(counted, "prefix")] == [
        ("a/x", 2, 1, 0, 11, 11),
        ("a/y", 1, 0, 1, None, None),
        ("b", 1, 0, 0, None, None),
    ]
    whole = rows_of(count_prefixes(expected, losses=None, depth=1), "prefix")
    assert [(row["prefix"], row["expected"], row["missing"]) for row in whole] == [("a", 3, 0), ("b", 1, 0)]


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
