"""Lag as a histogram cube: exact ranks, mergeable, and bounded whatever the number of updates.

Two kinds of lag go through it, told apart by their key and never added up: the propagation time of a stamped
update (applied by the node's clock minus stamped by the stamping node's), and the round trip of a link's
heartbeat (one clock). Values are never clamped: a negative propagation time shows the least difference of two clocks.

A bucket is as wide as its values are great, so a clock that is seconds ahead would put every update into one. Cells are
divided a second time by the bucket of the time above an offset, the least time of the link. These buckets are as fine
as the times that updates took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.replog.files.schema import FLAG_DUPLICATE
from fanout.reports.compare.prefixes import prefix_of
from fanout.reports.read.rows import is_live, is_within, small_frame, whole
from fanout.reports.read.scope import WHOLE, AskedWindow
from fanout.reports.values.buckets import BUCKETS_PER_OCTAVE, ROUNDING

__all__ = [
    "KEY",
    "OTHERS",
    "PERCENTILES",
    "PREFIX_KEY",
    "SERIES_KEY",
    "Offsets",
    "add_up_cells",
    "add_up_others",
    "heartbeat_cells",
    "prefix_cells",
    "propagation_cells",
    "rank_percentiles",
    "with_series",
]

PERCENTILES = (50, 95, 99)
"""The percentiles of a report, in per cent."""

KEY = ("kind", "node", "link", "selector", "stamp_primary")
"""Key of a distribution. A heartbeat has no selector and no stamp, so its last two are empty."""

SERIES_KEY = ("series", *KEY, "window_us")
"""Key of a distribution, or of one window of a link's series."""

PREFIX_KEY = ("node", "link", "stamp_primary", "prefix")
"""Key of a distribution by topic prefix, over the selectors of a link."""

Offsets = Mapping[tuple[str, str, str], int]
"""Offsets by node, link and who stamped, in microseconds; those that are not in it are 0."""

NO_OFFSETS: Final[Offsets] = {}

_OFFSETS: Final = "node string, link string, stamp_primary string, offset_us bigint"

_CLOCKS_APART_US: Final = 3_600_000_000
"""Assumed greatest difference of clocks."""

OTHERS = "(others)"
"""Name of all stamping nodes that are too many to have figures each; no node can have this name."""


def propagation_cells(
    updates: DataFrame, *, window_us: int, asked: AskedWindow = WHOLE, offsets: Offsets = NO_OFFSETS
) -> DataFrame:
    """Return the cells (key, window of origin, bucket, offset bucket) of the propagation times.

    Args:
        updates: The rows of `updates`. Copies of retained values, rows without a stamp, rows published at the
            node
            itself and second copies of an update do not count.
        window_us: The width of the windows. If the stamping clock is more than an hour ahead of the node's, an update
            counts in the window in which it was applied. So no publisher can make a window far in the future.
        asked: Updates that stand at a time outside it do not count either.
        offsets: Above what buckets are counted from, apart from those of the times themselves.
    """
    rows = _propagation(updates, asked=asked, offsets=offsets).select(
        sf.lit("propagation").alias("kind"), *KEY[1:], sf.unix_micros("at").alias("at_us"), "lag_us", "offset_us"
    )
    return _cells(rows, window_us=window_us)


def prefix_cells(
    updates: DataFrame, *, depth: int, asked: AskedWindow = WHOLE, offsets: Offsets = NO_OFFSETS
) -> DataFrame:
    """Return the cells (`PREFIX_KEY`, bucket, offset bucket) of the same propagation times, and `offset_us`.

    Args:
        updates: See `propagation_cells`.
        depth: Number of topic levels in a prefix.
        asked: See there.
        offsets: See there.
    """
    rows = _propagation(updates, asked=asked, offsets=offsets)
    rows = rows.withColumn("prefix", prefix_of(sf.col("topic"), depth=depth))
    return rows.groupBy(*PREFIX_KEY, "offset_us", *_buckets()).agg(*_figures())


def _propagation(updates: DataFrame, *, asked: AskedWindow, offsets: Offsets) -> DataFrame:
    """Return the rows of updates whose propagation time is known.

    They have it as lag_us, when they count as at, and offset_us.
    """
    lag_us = sf.unix_micros("applied") - sf.unix_micros("origin")
    at = sf.when(lag_us < -_CLOCKS_APART_US, sf.col("applied")).otherwise(sf.col("origin"))
    rows = updates.where(
        # The first says no more than the second, but of bare columns, by which Parquet files can skip rows.
        (is_within(sf.col("applied"), asked) | is_within(sf.col("origin"), asked))
        & is_within(at, asked)
        & is_live()
        & sf.col("origin").isNotNull()
        & (sf.col("link") != "")
        & (sf.col("flags").bitwiseAND(FLAG_DUPLICATE) == 0)
    ).withColumns({"at": at, "lag_us": lag_us})
    return _with_offsets(rows, offsets)


def _with_offsets(rows: DataFrame, offsets: Offsets) -> DataFrame:
    """Return the rows with the column offset_us."""
    listed: list[tuple[object, ...]] = [(*place, offset_us) for place, offset_us in offsets.items()]
    known = sf.broadcast(small_frame(rows.sparkSession, listed, schema=_OFFSETS))
    rows = rows.join(known, on=["node", "link", "stamp_primary"], how="left")
    return rows.withColumn("offset_us", sf.coalesce("offset_us", sf.lit(0).cast("long")))


def heartbeat_cells(events: DataFrame, *, window_us: int, asked: AskedWindow = WHOLE) -> DataFrame:
    """Return the cells (key, window, bucket, offset bucket) of the heartbeats' round trips; their offset is 0."""
    rows = events.where(
        is_within(sf.col("at"), asked)
        & (sf.col("event") == "heartbeat")
        & sf.col("lag_us").isNotNull()
        & (sf.col("link") != "")
    ).select(
        sf.lit("heartbeat").alias("kind"),
        "node",
        "link",
        sf.lit("").alias("selector"),
        sf.lit("").alias("stamp_primary"),
        sf.unix_micros("at").alias("at_us"),
        "lag_us",
        sf.lit(0).cast("long").alias("offset_us"),
    )
    return _cells(rows, window_us=window_us)


def add_up_cells(cells: DataFrame, *, key: Sequence[str]) -> DataFrame:
    """Return cells with this key; the sum of a cell is null when it is not known of a part, or too great."""
    return cells.groupBy(*key).agg(*_totals())


def with_series(cells: DataFrame, *, from_us: int) -> DataFrame:
    """Return each cell once as part of its distribution and, of propagation times, once as part of its link's series.

    `SERIES_KEY` is the key: that of a distribution has no window, and that of a series no selector.

    Args:
        cells: The cells of `KEY`.
        from_us: Series have no windows up to this.
    """
    series = sf.col("series")
    both = cells.withColumn("series", sf.explode(sf.array(sf.lit(False), sf.lit(True))))
    shown = both.where(~series | ((sf.col("kind") == "propagation") & (sf.col("window_us") > from_us)))
    return shown.withColumns(
        {
            "selector": sf.when(series, "").otherwise(sf.col("selector")),
            "window_us": sf.when(series, sf.col("window_us")).otherwise(0),
        }
    )


def rank_percentiles(cells: DataFrame, *, key: Sequence[str]) -> DataFrame:
    """Return, for each key, rows, least_us, most_us, sum_us, octaves, and where its percentiles are.

    Each of p50, p95 and p99 is a bucket; the value of that rank lies between p50_least_us and p50_most_us, and so on.
    `octaves` is (octave, rows in it), in order; octave -1 is everything below one microsecond.
    """
    buckets = add_up_cells(cells, key=[*key, "bucket", "offset_bucket"])
    upto = (
        Window.partitionBy(*key)
        .orderBy("bucket", "offset_bucket")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    ranked = buckets.withColumn("total", sf.sum("rows").over(whole(*key))).withColumn("upto", sf.sum("rows").over(upto))
    # Cells of one offset do not overlap, so the least of each column is that of the first cell that reaches the rank.
    places = {
        f"p{percent}{suffix}": sf.when(_reaches(percent), sf.col(column))
        for percent in PERCENTILES
        for suffix, column in (("", "bucket"), ("_least_us", "least_us"), ("_most_us", "most_us"))
    }
    octave = sf.floor(sf.greatest(sf.col("bucket"), sf.lit(-1)) / BUCKETS_PER_OCTAVE)
    counted = ranked.groupBy(*key, octave.alias("octave")).agg(
        *_totals(), *(sf.min(place).alias(name) for name, place in places.items())
    )
    return counted.groupBy(*key).agg(
        *_totals(),
        *(sf.min(name).alias(name) for name in places),
        sf.sort_array(sf.collect_list(sf.struct("octave", "rows"))).alias("octaves"),
    )


def add_up_others(cells: DataFrame, *, publishers: Sequence[str]) -> DataFrame:
    """Return the cells with one name, `OTHERS`, for whoever stamped beside these; keys then come several times."""
    apart = (sf.col("kind") != "propagation") | sf.col("stamp_primary").isin(list(publishers))
    return cells.withColumn("stamp_primary", sf.when(apart, sf.col("stamp_primary")).otherwise(sf.lit(OTHERS)))


def bucket(value_us: Column) -> Column:
    """Return the bucket of a value; see `fanout.reports.values.buckets`."""
    size = sf.floor(sf.log2(sf.abs(value_us)) * BUCKETS_PER_OCTAVE + ROUNDING)
    return sf.when(value_us > 0, size).when(value_us == 0, sf.lit(-1).cast("long")).otherwise(-2 - size)


def _cells(rows: DataFrame, *, window_us: int) -> DataFrame:
    start = sf.col("at_us") - sf.pmod(sf.col("at_us"), sf.lit(window_us).cast("long"))
    return rows.groupBy(*KEY, start.alias("window_us"), *_buckets()).agg(*_figures())


def _buckets() -> list[Column]:
    lag_us = sf.col("lag_us")
    return [bucket(lag_us).alias("bucket"), bucket(lag_us - sf.col("offset_us")).alias("offset_bucket")]


def _figures() -> list[Column]:
    return [
        sf.count(sf.lit(1)).alias("rows"),
        sf.min("lag_us").alias("least_us"),
        sf.max("lag_us").alias("most_us"),
        # Null, not wrong, where a publisher's clock stands in 1970 and sends much.
        sf.try_sum("lag_us").alias("sum_us"),
    ]


def _totals() -> list[Column]:
    """Return the figures of several cells together."""
    known = sf.count("sum_us") == sf.count(sf.lit(1))
    return [
        sf.sum("rows").alias("rows"),
        sf.min("least_us").alias("least_us"),
        sf.max("most_us").alias("most_us"),
        sf.when(known, sf.try_sum("sum_us")).alias("sum_us"),
    ]


def _reaches(percent: int) -> Column:
    # The rank is ceil(total * percent / 100), in whole numbers.
    return sf.col("upto") * 100 >= sf.col("total") * percent
