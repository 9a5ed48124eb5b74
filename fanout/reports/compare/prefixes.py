"""Expected and missing updates by topic prefix, and the worst of them.

Not by words: the sequences of one word lie under many prefixes, so words by prefix would hardly be fewer than rows. The
reference's rows are counted instead, and of the nodes only what they lack.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

__all__ = ["count_by_node", "count_prefixes", "prefix_of", "window_of", "worst_prefixes"]


def prefix_of(topic: Column, *, depth: int) -> Column:
    """Return the first `depth` levels of a topic."""
    return sf.substring_index(topic, "/", depth)


def count_prefixes(expected: DataFrame, *, losses: DataFrame | None, depth: int) -> DataFrame:
    """Return, for each target and prefix, how many updates were expected, missing and unknown, and since when.

    Args:
        expected: `fanout.reports.compare.losses.expected_updates`.
        losses: `fanout.reports.compare.losses.count_losses`; None when nothing is lacking.
        depth: How many topic levels make a prefix.
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


def window_of(at_us: Column, window_us: int) -> Column:
    """Return the begin of the window that a time lies in."""
    return at_us - sf.pmod(at_us, sf.lit(window_us).cast("long"))
