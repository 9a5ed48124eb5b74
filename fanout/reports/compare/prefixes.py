"""Expected and missing updates by topic prefix, and the worst of them.

Not by words: the sequences of one word lie under many prefixes, so words by prefix would hardly be fewer than rows. The
reference's rows are counted instead, and of the nodes only the missing ones.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.read.rows import whole

__all__ = ["count_prefixes", "prefix_of", "window_of", "worst_prefixes"]


def prefix_of(topic: Column, *, depth: int) -> Column:
    """Return the first `depth` levels of a topic."""
    return sf.substring_index(topic, "/", depth)


def count_prefixes(expected: DataFrame, *, losses: DataFrame | None, depth: int) -> DataFrame:
    """Return, for each target and prefix, how many updates were expected, missing and unknown, and since when.

    Args:
        expected: `fanout.reports.compare.losses.expected_updates`.
        losses: `fanout.reports.compare.losses.count_losses`; None when nothing is lacking.
        depth: Number of topic levels in a prefix.
    """
    key, counts, times = ("target", "prefix"), ("missing", "unknown"), ("first_us", "last_us")
    wanted = (
        expected.withColumn("prefix", prefix_of(sf.col("topic"), depth=depth))
        .groupBy(*key)
        .agg(sf.count(sf.lit(1)).alias("expected"))
    )
    nothing, never = sf.lit(0).cast("long"), sf.lit(None).cast("long")
    none = dict.fromkeys(counts, nothing) | dict.fromkeys(times, never)
    both = wanted.withColumns(none)
    if losses is not None:
        lacked = losses.where(sf.col("scope") == "prefix").select(*key, nothing.alias("expected"), *counts, *times)
        both = both.unionByName(lacked)
    return both.groupBy(*key).agg(
        *(sf.sum(name).alias(name) for name in ("expected", *counts)),
        *(sf.max(name).alias(name) for name in times),
    )


def worst_prefixes(counted: DataFrame, *, limit: int) -> DataFrame:
    """Return the rows of the targets that lack most of a prefix, and all rows of the prefixes that lack most in all.

    Args:
        counted: `count_prefixes`.
        limit: The most of either.

    Returns:
        Its columns; rank, of a row, and prefix_rank, of its prefix, the worst first, from 1; rows and prefixes: how
        many there are.
    """
    nothing = sf.lit(0)
    of_prefix = Window.partitionBy("prefix")
    summed = counted.withColumns(
        {f"{name}_in_all": sf.sum(name).over(of_prefix) for name in ("missing", "unknown")}
    ).withColumn("all", nothing)
    rows_in_order = Window.partitionBy("all").orderBy(sf.desc("missing"), sf.desc("unknown"), "prefix", "target")
    in_order = Window.partitionBy("all").orderBy(sf.desc("missing_in_all"), sf.desc("unknown_in_all"), "prefix")
    everywhere = whole("all")
    ranked = summed.withColumns(
        {"rank": sf.row_number().over(rows_in_order), "prefix_rank": sf.dense_rank().over(in_order)}
    ).withColumns({"rows": sf.count(nothing).over(everywhere), "prefixes": sf.max("prefix_rank").over(everywhere)})
    return ranked.where((sf.col("rank") <= limit) | (sf.col("prefix_rank") <= limit))


def window_of(at_us: Column, window_us: int) -> Column:
    """Return the begin of the window that a time lies in."""
    return at_us - sf.pmod(at_us, sf.lit(window_us).cast("long"))
