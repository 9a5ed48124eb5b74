"""Missing updates one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.transforms import holes, words
from tests.reports.frames import assert_unique, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROW = (
    "target int, topic string, stamp_primary string, stamp_epoch bigint, sequence bigint, phase tinyint, "
    "origin timestamp, applied timestamp"
)


def test_missing_updates_are_listed_once_and_superseded_by_later_copies_only(spark: SparkSession) -> None:
    """An update that a tap logged twice is listed once; a copy of an earlier value, or of another topic, is no cure."""
    published = [("t", 1, 5), ("t", 1, 5), ("t", 1, 6), ("u", 1, 69), ("t", 2, 1), ("v", 2, 2)]
    wanted = spark.createDataFrame([(0, t, "p", e, s, 0, None, None) for t, e, s in published], schema=ROW).withColumn(
        "applied", sf.timestamp_micros(sf.lit(1_000_000))
    )
    copied = [("t", 1, 5), ("t", 2, 1), ("u", 1, 68), ("w", 9, 9), ("v", 2, 2)]
    logged = spark.createDataFrame([(0, t, "p", e, s, 1, None, None) for t, e, s in copied], schema=ROW)
    copies = holes.latest_copies(logged)
    assert_unique(copies, "target", "primary", "topic")
    bits = [
        (0, "", "p", 1, 0, (1 << 5) | (1 << 6)),
        (0, "", "p", 1, 1, 1 << 5),
        (0, "", "p", 2, 0, (1 << 1) | (1 << 2)),
    ]
    merged = spark.createDataFrame(
        bits, schema="target int, prefix string, primary string, epoch bigint, word bigint, settled bigint"
    )
    for name in ("applied", "reobtained", "conflated", "doubtful"):
        merged = merged.withColumn(name, sf.lit(0).cast("long"))
    found = rows_of(holes.missing_updates(wanted, words=merged, copies=copies, depth=0), "epoch", "sequence")
    assert [(r["topic"], r["epoch"], r["sequence"], r["superseded"]) for r in found] == [
        ("t", 1, 5, True),
        ("t", 1, 6, True),
        ("u", 1, 69, False),
        ("t", 2, 1, False),
        ("v", 2, 2, False),
    ]
    assert {row["origin_us"] for row in found} == {1_000_000}
    assert_unique(merged, *words.KEY)
