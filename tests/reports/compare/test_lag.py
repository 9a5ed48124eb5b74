"""The lag cube."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare import lag
from fanout.reports.read.rows import small_frame
from fanout.reports.read.scope import AskedWindow
from fanout.reports.values.buckets import bucket_of, bucket_value_us, cumulative
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import SECOND, NodeLog, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_buckets_of_spark_and_of_python_are_the_same(spark: SparkSession) -> None:
    """The Column expression puts every value, powers of two and their neighbours too, where Python does."""
    values = {0, 1, 2, 3, *(2**k + d for k in range(2, 42) for d in (-1, 0, 1))}
    values |= {random.Random(3).randrange(1, 10**9) for _ in range(200)}
    values |= {-value for value in values}
    frame = small_frame(spark, [(value,) for value in sorted(values)], schema="value bigint")
    for row in frame.select("value", lag.bucket(sf.col("value")).alias("bucket")).collect():
        assert row["bucket"] == bucket_of(row["value"]), row


def test_percentiles_have_exact_ranks_and_clocks_are_not_clamped(spark: SparkSession) -> None:
    """A percentile is within 2.2 % of the value of that rank, at a cliff too; a negative least is kept."""
    rng = random.Random(5)
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    delays: dict[str, list[int]] = {"a": [], "b": []}
    for number in range(900):
        topic_filter = "a" if number % 3 else "b"
        # A cliff beside p99, and a clock that is behind.
        delay = rng.randrange(8_000_000, 9_000_000) if number % 111 == 0 else rng.randrange(-50, 20_000)
        delays[topic_filter].append(delay)
        row = hub.publish(at(number / 10), number + 1, "t", "x")
        edge.apply(row, link="up", selector=topic_filter, delay_us=delay)
        edge.apply(row, link="up", selector=topic_filter, delay_us=delay + 60 * SECOND, flags=2)
        edge.apply(row, link="up", selector=topic_filter, delay_us=10**9, phase=1)
    edge.update(at(95), "own", "x")
    edge.event("heartbeat", at(1), link="up", lag_us=512)
    edge.event("heartbeat", at(2))
    tables = tables_of(spark, [hub, edge])
    cells = lag.propagation_cells(tables.updates, window_us=10 * SECOND).unionByName(
        lag.heartbeat_cells(tables.events, window_us=10 * SECOND)
    )
    assert_unique(cells, *lag.KEY, "window_us", "bucket")
    ranked = rows_of(lag.rank_percentiles(cells, key=lag.KEY), "kind", "selector")
    assert [(row["kind"], row["selector"]) for row in ranked] == [
        ("heartbeat", ""),
        ("propagation", "a"),
        ("propagation", "b"),
    ]
    assert (ranked[0]["rows"], ranked[0]["least_us"], ranked[0]["most_us"], ranked[0]["p50"]) == (1, 512, 512, 144)
    for row in ranked[1:]:
        values = sorted(delays[row["selector"]])
        assert (row["rows"], row["least_us"], row["most_us"]) == (len(values), values[0], values[-1])
        for percent in lag.PERCENTILES:
            true = values[-(-len(values) * percent // 100) - 1]
            shown = bucket_value_us(row[f"p{percent}"], least_us=row["least_us"], most_us=row["most_us"])
            assert abs(shown - true) <= 0.0221 * abs(true) + 1
        for bound, below in cumulative(map(tuple, row["octaves"])):
            assert below == sum(value < bound for value in values)


def test_windows_are_of_the_time_of_stamping(spark: SparkSession) -> None:
    """A late update counts in the window in which it was stamped; one from the future in that of its arrival."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    edge.apply(hub.publish(at(9.5), 1, "t", "x"), link="up", selector="#", delay_us=70 * SECOND)
    edge.apply(hub.publish(at(10.5), 2, "t", "x"), link="up", selector="#", delay_us=5)
    edge.apply(hub.publish(at(10**9), 3, "t", "x"), link="up", selector="#", delay_us=(21 - 10**9) * SECOND)
    cells = lag.propagation_cells(tables_of(spark, [edge]).updates, window_us=10 * SECOND)
    assert [(row["window_us"], row["most_us"]) for row in rows_of(cells, "window_us")] == [
        (at(0), 70 * SECOND),
        (at(10), 5),
        (at(20), (21 - 10**9) * SECOND),
    ]
    updates = tables_of(spark, [edge]).updates
    for asked, expected in (
        (AskedWindow(at(9.5), at(10.5)), [at(0)]),
        (AskedWindow(at(10), at(21)), [at(10)]),
        (AskedWindow(since_us=at(21)), [at(20)]),
    ):
        cells = lag.propagation_cells(updates, window_us=10 * SECOND, asked=asked)
        assert [row["window_us"] for row in rows_of(cells, "window_us")] == expected


def test_an_offset_makes_the_cells_of_a_clock_that_is_ahead_fine(spark: SparkSession) -> None:
    """They are as fine as those of a right clock, and other links keep theirs."""
    hub, right, ahead = NodeLog("hub", "primary"), NodeLog("right"), NodeLog("ahead")
    for number in range(200):
        row = hub.publish(at(number / 100), number + 1, f"t/{number % 2}", "x")
        right.apply(row, link="up", selector="#", delay_us=100 + number**2)
        ahead.apply(row, link="up", selector="#", delay_us=100 + number**2 + 3 * SECOND)
    ahead.update(at(1), "own", "x", link="up", selector="#")  # without a stamp
    updates = tables_of(spark, [hub, right, ahead]).updates
    offsets = {("ahead", "up", "hub"): 3 * SECOND, ("ahead", "up", "other"): 1}
    for cells in (
        lag.propagation_cells(updates, window_us=10 * SECOND, offsets=offsets),
        lag.prefix_cells(updates, depth=2, offsets=offsets),
    ):
        assert_unique(cells, "node", *({"prefix"} & set(cells.columns)), "bucket", "offset_bucket")
        by_node = {name: rows_of(cells.where(sf.col("node") == name), "least_us") for name in ("right", "ahead")}
        as_if_right = [
            (row["offset_bucket"], row["rows"], row["least_us"] - 3 * SECOND, row["most_us"] - 3 * SECOND)
            for row in by_node["ahead"]
        ]
        assert len({row["bucket"] for row in by_node["ahead"]}) < 3
        fine = [(row["bucket"], row["rows"], row["least_us"], row["most_us"]) for row in by_node["right"]]
        assert sorted(as_if_right) == sorted(fine)
        assert all(row["bucket"] == row["offset_bucket"] for row in by_node["right"])


def test_the_sum_of_what_is_too_great_is_not_known(spark: SparkSession) -> None:
    """A publisher's clock in 1970 makes no wrong mean of it; the sums of others stay exact."""
    edge = NodeLog("edge")
    for number in range(3):
        edge.apply(NodeLog("hub").publish(at(number), number + 1, "t", "x"), link="up", selector="#", delay_us=7)
    cells = lag.propagation_cells(tables_of(spark, [edge]).updates, window_us=10 * SECOND)
    huge = cells.withColumn("sum_us", sf.lit(2**62)).unionByName(cells.withColumn("sum_us", sf.lit(2**62)))
    unknown = cells.unionByName(cells.withColumn("sum_us", sf.lit(None).cast("long")))
    assert [row["sum_us"] for row in rows_of(lag.rank_percentiles(cells, key=lag.KEY), "node")] == [21]
    for one in (huge, unknown):
        assert [row["sum_us"] for row in rows_of(lag.rank_percentiles(one, key=lag.KEY), "node")] == [None]
