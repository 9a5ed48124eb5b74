"""Expected and missing updates by topic prefix.

Not by words: the sequences of one word lie under many prefixes, so words by prefix would hardly be fewer than rows. The
reference's rows are counted instead, and of the nodes only what they lack.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.transforms.words import is_expected

__all__ = ["count_prefixes", "prefix_of"]


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
    expected = rows.where(is_expected())
    if repeats:
        expected = expected.dropDuplicates(["target", "stamp_primary", "stamp_epoch", "sequence"])
    prefix = prefix_of(sf.col("topic"), depth=depth).alias("prefix")
    nothing = sf.lit(0).cast("long")
    wanted = expected.groupBy("target", prefix).agg(sf.count(sf.lit(1)).alias("expected"))
    lacked = absent.groupBy("target", prefix).agg(
        sf.count_if("known").alias("missing"), sf.count_if(~sf.col("known")).alias("unknown")
    )
    return (
        wanted.select("target", "prefix", "expected", nothing.alias("missing"), nothing.alias("unknown"))
        .unionByName(lacked.select("target", "prefix", nothing.alias("expected"), "missing", "unknown"))
        .groupBy("target", "prefix")
        .agg(*(sf.sum(name).alias(name) for name in ("expected", "missing", "unknown")))
    )
