"""Equality of the nodes that replicate one selector: at the end by topic, over time by digest.

A *set* is a selector as several links replicate it from the same primary; its *members* are those links, and
the reference. Nothing is joined row by row: the values of all members meet in one grouping by topic.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.read.rows import whole

__all__ = ["VERDICTS", "digest_points", "digest_sum", "set_verdict", "speaks_for_set", "windows_of"]

VERDICTS = ("equal", "apart", "pending", "unknown")
"""Verdicts on a topic at the members of a set; see `ConvergenceSet`."""

_LOW: Final = 2**32 - 1


def set_verdict() -> Column:
    """Return the verdict on the topic of a row of `topic_states` at all members of its set: one of `VERDICTS`.

    Null when no member holds a value. The row also has reference_gap and node_gap (whether rows of the log may be
    missing), and of its set: group, set, with_reference (whether the reference is a member), gap_members (how many have
    a gap), judged_until_us.
    """
    members = whole("group", "topic", "set")
    with_reference = sf.col("with_reference")

    def of_reference(column: str) -> Column:
        return sf.when(with_reference, sf.col(column))

    def one(condition: Column) -> Column:
        return sf.coalesce((with_reference & condition).cast("int"), sf.lit(0))

    holders = sf.count("held_digest").over(members) + one(sf.col("wanted_digest").isNotNull())
    least = sf.least(sf.min("held_digest").over(members), of_reference("wanted_digest"))
    most = sf.greatest(sf.max("held_digest").over(members), of_reference("wanted_digest"))
    changed_us = sf.greatest(sf.max("held_changed_us").over(members), of_reference("wanted_changed_us"))
    unsure = sf.count_if(~sf.col("held_sure")).over(members) + one(~sf.col("wanted_sure"))
    # A member whose log has a gap and no row of the topic may have had one.
    with_gap = sf.count_if(sf.col("node_gap") & sf.col("held_sure").isNotNull()).over(members) + one(
        sf.col("reference_gap") & sf.col("wanted_sure").isNotNull()
    )
    return (
        sf.when(holders == 0, sf.lit(None))
        .when((unsure > 0) | (with_gap < sf.col("gap_members")), "unknown")
        .when((holders == sf.col("members")) & (least == most), "equal")
        .when(changed_us > sf.col("judged_until_us"), "pending")
        .otherwise("apart")
    )


def speaks_for_set() -> Column:
    """Return whether a row of `topic_states` is the one of its set that is counted for the topic."""
    return sf.col("target") == sf.min("target").over(whole("group", "topic", "set"))


def digest_sum(digest: Column) -> Column:
    """Return the sum of digests modulo 2**64, as nodes compute it, seen as signed.

    In two halves, since a sum that leaves the range of a long is an error in Spark.
    """
    low = sf.sum(digest.bitwiseAND(_LOW))
    high = sf.sum(sf.shiftright(digest, 32).bitwiseAND(_LOW)) + sf.shiftright(low, 32)
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
            sf.count(sf.lit(1)).alias("windows_compared"),
            sf.count_if(same).alias("windows_equal"),
            sf.max(sf.when(same, sf.col("window_us"))).alias("last_equal_us"),
        )
    )
