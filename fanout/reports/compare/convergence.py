"""Whether the nodes that replicate one selector hold the same values: at the end by topic, over time by digest.

A *set* is a selector as several links replicate it from the same primary; its *members* are those links, and
the reference. Nothing is joined row by row: the values of all members meet in one grouping by topic.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

__all__ = [
    "compare_members",
    "count_members",
    "count_verdicts",
    "digest_points",
    "digest_sum",
    "windows_of",
]

_LOW: int = 2**32 - 1


def compare_members(values: DataFrame, *, sets: DataFrame) -> DataFrame:
    """Return the verdict on each (set, topic): `equal`, `apart`, `pending` or `unknown`.

    Args:
        values: The last value of each topic in the log of each member: set, member, topic, digest (null when
            removed), changed_us, sure, gap (whether the member's log has one); (member, topic) is the key.
        sets: set, members, gap_members (how many have a gap), settled_until_us; `set` is the key.

    Returns:
        Columns set, topic, verdict; topics of which no member holds a value are left out.
    """
    by_topic = (
        values.groupBy("set", "topic")
        .agg(
            sf.count("digest").alias("holders"),
            sf.min("digest").alias("least"),
            sf.max("digest").alias("most"),
            sf.max("changed_us").alias("changed_us"),
            sf.count_if(~sf.col("sure")).alias("unsure"),
            sf.count_if(sf.col("gap")).alias("with_gap"),
        )
        .where(sf.col("holders") > 0)
        .join(sf.broadcast(sets), on="set", how="inner")
    )
    # A member whose log has a gap and no row of the topic may have had one.
    doubtful = (sf.col("unsure") > 0) | (sf.col("with_gap") < sf.col("gap_members"))
    equal = (sf.col("holders") == sf.col("members")) & (sf.col("least") == sf.col("most"))
    verdict = (
        sf.when(doubtful, "unknown")
        .when(equal, "equal")
        .when(sf.col("changed_us") > sf.col("settled_until_us"), "pending")
        .otherwise("apart")
    )
    return by_topic.select("set", "topic", verdict.alias("verdict"))


def count_verdicts(verdicts: DataFrame) -> DataFrame:
    """Return, for each set, how many topics got each verdict."""
    return verdicts.groupBy("set").agg(
        *(
            sf.count_if(sf.col("verdict") == verdict).alias(verdict)
            for verdict in ("equal", "apart", "pending", "unknown")
        )
    )


def count_members(values: DataFrame) -> DataFrame:
    """Return, for each member, how many topics it holds and their digest."""
    held = values.where(sf.col("digest").isNotNull())
    return held.groupBy("member").agg(sf.count(sf.lit(1)).alias("topics"), digest_sum(sf.col("digest")).alias("digest"))


def digest_sum(digest: Column) -> Column:
    """Return the sum of digests modulo 2**64, as nodes compute it, seen as signed.

    In two halves, since a sum that leaves the range of a long is an error in Spark.
    """
    low = sf.sum(digest.bitwiseAND(_LOW))
    high = sf.sum(sf.shiftrightunsigned(digest, 32)) + sf.shiftrightunsigned(low, 32)
    return sf.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(_LOW))


def digest_points(events: DataFrame, *, places: DataFrame, window_us: int) -> DataFrame:
    """Return the last digest that each member logged of its own values in each window.

    Args:
        events: The rows of `events`.
        places: member, set, node, link, selector; `whole` says whether the link has no other selector, so that
            events of the whole link speak of it too. (node, link, selector) is the key.
        window_us: The width of the windows.

    Returns:
        Columns set, member, window_us, at_us, topics, digest; (member, window_us) is the key.
    """
    at_us = sf.unix_micros("at")
    speaks = events.where(
        (sf.col("event") == "complete") | (sf.col("event").isin("heartbeat", "state") & (sf.col("link") != ""))
    ).select(
        "node",
        "link",
        sf.col("selector").alias("of"),
        at_us.alias("at_us"),
        "node_epoch",
        "log_pos",
        "topics",
        "digest",
    )
    order = sf.struct("node_epoch", "log_pos")
    return (
        speaks.join(sf.broadcast(places), on=["node", "link"], how="inner")
        .where((sf.col("of") == sf.col("selector")) | ((sf.col("of") == "") & sf.col("whole")))
        .groupBy(
            "set", "member", (sf.col("at_us") - sf.pmod("at_us", sf.lit(window_us).cast("long"))).alias("window_us")
        )
        .agg(*(sf.max_by(name, order).alias(name) for name in ("at_us", "topics", "digest")))
    )


def windows_of(points: DataFrame) -> DataFrame:
    """Return, for each set, in how many windows at least two members spoke, and in how many all said the same."""
    same = (sf.col("least") == sf.col("most")) & (sf.col("fewest") == sf.col("topics"))
    return (
        points.groupBy("set", "window_us")
        .agg(
            sf.count(sf.lit(1)).alias("spoke"),
            sf.min("digest").alias("least"),
            sf.max("digest").alias("most"),
            sf.min("topics").alias("fewest"),
            sf.max("topics").alias("topics"),
        )
        .where(sf.col("spoke") > 1)
        .groupBy("set")
        .agg(
            sf.count(sf.lit(1)).alias("compared"),
            sf.count_if(same).alias("equal"),
            sf.max(sf.when(same, sf.col("window_us"))).alias("last_equal_us"),
        )
    )
