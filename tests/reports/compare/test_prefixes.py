"""Figures by topic prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare.prefixes import count_prefixes, prefix_of, worst_prefixes
from fanout.reports.read.rows import small_frame
from tests.reports.frames import assert_rows, assert_unique

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_COUNTED = "target int, prefix string, expected bigint, missing bigint, unknown bigint"


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
    assert_rows(
        counted,
        [(0, "a/x", 2, 1, 0, 11, 11), (0, "a/y", 1, 0, 1, None, None), (0, "b", 1, 0, 0, None, None)],
        schema=f"{_COUNTED}, first_us bigint, last_us bigint",
    )
    whole = count_prefixes(expected, losses=None, depth=1)
    assert_rows(whole, [(0, "a", 3, 0, 0), (0, "b", 1, 0, 0)], schema=_COUNTED)


def test_the_worst_prefixes_have_the_rows_of_all_targets(spark: SparkSession) -> None:
    """Prefixes are cut by what they lack in all, and rows by what each lacks; both are counted whole."""
    rows: list[tuple[object, ...]] = [
        *((target, "bad", 10, missing, 0) for target, missing in ((0, 4), (1, 1), (2, 0))),
        *((target, "doubtful", 10, 0, unknown) for target, unknown in ((0, 1), (2, 0))),
        *((target, "spread", 10, 3, 0) for target in (0, 2)),
    ]
    worst = worst_prefixes(small_frame(spark, rows, schema=_COUNTED), limit=1)
    assert_rows(
        worst,
        [(0, "spread", 2, 1, 7, 3), (2, "spread", 3, 1, 7, 3), (0, "bad", 1, 2, 7, 3)],
        schema="target int, prefix string, rank int, prefix_rank int, rows bigint, prefixes int",
    )
