"""Expected and missing updates by topic prefix, or by window of time.

Not by words: the sequences of one word lie under many prefixes, so words by prefix would hardly be fewer than rows. The
reference's rows are counted instead, and of the nodes only what they lack.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.sequence_bits import is_expected, origin_us

__all__ = ["count_by_node", "count_prefixes", "count_windows", "prefix_of", "worst_prefixes"]


def prefix_of(topic: Column, *, depth: int) -> Column:
    """Return the first `depth` levels of a topic."""
    return sf.substring_index(topic, "/", depth)


def count_prefixes(rows: DataFrame, *, absent: DataFrame, depth: int, repeats: bool) -> DataFrame:
    """Return, for each target and prefix, how many updates were expected, missing and unknown.

    Args:
        rows: Stamped reference rows by target, with the target's spans.
        absent: `absent_updates`.
        depth: How many topic levels make a prefix.
        repeats: Whether the reference may hold an update more than once, as a tap or a union may; a primary does not.
    """
    prefix = prefix_of(sf.col("topic"), depth=depth)
    return _count_parts(
        rows.withColumn("prefix", prefix), absent=absent.withColumn("prefix", prefix), part="prefix", repeats=repeats
    )


def count_windows(rows: DataFrame, *, absent: DataFrame, window_us: int, repeats: bool) -> DataFrame:
    """Return the same for each target and window of time, as `window_us`, its begin.

    Args:
        rows: As for `count_prefixes`.
        absent: As for `count_prefixes`.
        window_us: The width of the windows.
        repeats: As for `count_prefixes`; an update counts in the window in which the reference first has it.
    """
    return _count_parts(
        rows.withColumn("window_us", _window_of(origin_us(), window_us)),
        absent=absent.withColumn("window_us", _window_of(sf.col("origin_us"), window_us)),
        part="window_us",
        repeats=repeats,
    )


def _count_parts(rows: DataFrame, *, absent: DataFrame, part: str, repeats: bool) -> DataFrame:
    expected = rows.where(is_expected())
    if repeats:
        expected = expected.groupBy("target", "stamp_primary", "stamp_epoch", "sequence").agg(sf.min(part).alias(part))
    nothing = sf.lit(0).cast("long")
    wanted = expected.groupBy("target", part).agg(sf.count(sf.lit(1)).alias("expected"))
    lacked = absent.groupBy("target", part).agg(
        sf.count_if("known").alias("missing"), sf.count_if(~sf.col("known")).alias("unknown")
    )
    return (
        wanted.select("target", part, "expected", nothing.alias("missing"), nothing.alias("unknown"))
        .unionByName(lacked.select("target", part, nothing.alias("expected"), "missing", "unknown"))
        .groupBy("target", part)
        .agg(*(sf.sum(name).alias(name) for name in ("expected", "missing", "unknown")))
    )


def count_by_node(counted: DataFrame, *, places: DataFrame) -> DataFrame:
    """Return, for each prefix and node, the counts of its selectors, and whether all of them are proved.

    Args:
        counted: `count_prefixes`.
        places: The node of each target, and whether the reference shows every update that it had to get (`proved`).
    """
    return (
        counted.join(sf.broadcast(places), on="target", how="inner")
        .groupBy("prefix", "node")
        .agg(
            *(sf.sum(name).alias(name) for name in ("expected", "missing", "unknown")),
            sf.bool_and(sf.col("proved") | (sf.col("expected") == 0)).alias("proved"),
        )
    )


def worst_prefixes(by_node: DataFrame, *, limit: int) -> DataFrame:
    """Return the rows of the prefixes that lack most, over all nodes, with every node of each.

    Args:
        by_node: `count_by_node`.
        limit: The most prefixes.
    """
    lacking = by_node.groupBy("prefix").agg(*(sf.sum(name).alias(name) for name in ("missing", "unknown")))
    worst = lacking.orderBy(sf.desc("missing"), sf.desc("unknown"), "prefix").limit(limit).select("prefix")
    return by_node.join(sf.broadcast(worst), on="prefix", how="left_semi")


def _window_of(at_us: Column, window_us: int) -> Column:
    return at_us - sf.pmod(at_us, sf.lit(window_us).cast("long"))
