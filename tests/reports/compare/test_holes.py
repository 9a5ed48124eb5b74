"""Missing updates one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare import holes
from fanout.reports.compare import sequence_bits as words
from fanout.reports.read.rows import small_frame
from tests.reports.frames import assert_unique, plan_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROW = (
    "target int, topic string, stamp_primary string, stamp_epoch bigint, sequence bigint, phase tinyint, "
    "origin timestamp, applied timestamp"
)


def test_missing_updates_are_listed_once_and_superseded_by_later_copies_only(jvm: SparkSession) -> None:
    """An update that a tap logged twice is listed once; a copy of an earlier value or another topic cures nothing."""
    published = [("t", 1, 5), ("t", 1, 5), ("t", 1, 6), ("u", 1, 69), ("t", 2, 1), ("v", 2, 2)]
    wanted = small_frame(jvm, [(0, t, "p", e, s, 0, None, None) for t, e, s in published], schema=ROW).withColumn(
        "applied", sf.timestamp_micros(sf.lit(1_000_000))
    )
    copied = [("t", 1, 5), ("t", 2, 1), ("u", 1, 68), ("w", 9, 9), ("v", 2, 2)]
    logged = small_frame(jvm, [(0, t, "p", e, s, 1, None, None) for t, e, s in copied], schema=ROW)
    copies = holes.latest_copies(logged)
    assert_unique(copies, "target", "primary", "topic")
    bits = [
        (0, "p", 1, 0, (1 << 5) | (1 << 6)),
        (0, "p", 1, 1, 1 << 5),
        (0, "p", 2, 0, (1 << 1) | (1 << 2)),
    ]
    merged = small_frame(jvm, bits, schema="target int, primary string, epoch bigint, word bigint, settled bigint")
    for name in ("applied", "reobtained", "conflated"):
        merged = merged.withColumn(name, sf.lit(0).cast("long"))
    merged = merged.withColumn("doubtful", sf.lit(1 << 2).cast("long"))
    found = rows_of(holes.absent_updates(wanted, words=merged, copies=copies), "epoch", "sequence")
    jvm.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        few, many = (holes.absent_updates(wanted, words=merged, copies=copies, few_holes=f) for f in (True, False))
        # With few holes no row of the reference is shuffled: only what is lost meets the copies by a shuffle.
        assert [plan_of(one).count("SortMergeJoin") for one in (few, many)] == [1, 2]
        assert rows_of(few, "epoch", "sequence") == rows_of(many, "epoch", "sequence") == found
    finally:
        jvm.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    assert [(r["topic"], r["epoch"], r["sequence"], r["superseded"], r["known"]) for r in found] == [
        ("t", 1, 5, True, True),
        ("t", 1, 6, True, True),
        ("u", 1, 69, False, True),
        ("t", 2, 1, False, True),
        ("v", 2, 2, False, False),
    ]
    assert {row["origin_us"] for row in found} == {1_000_000}
    assert_unique(merged, *words.KEY)
