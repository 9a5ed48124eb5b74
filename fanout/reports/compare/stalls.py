"""Topics that stopped at a node: the reference has a settled update that is newer than all that the node got.

Both sides are reduced to one row for each (target, topic) before they meet, so no row of one log is joined with
a row of another. What is newer is said by the time of stamping, or without stamps by the time of logging; two nodes
log one update at different times, so that without stamps it is newer by more than the settle horizon.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.sequence_bits import origin_us, stamped
from fanout.reports.read.rows import is_live
from fanout.reports.read.schemas import CHANGE_REMOVED, PHASE_LIVE
from fanout.reports.read.scope import Scope

__all__ = [
    "VERDICTS",
    "comparable",
    "count_stalls",
    "judge_topics",
    "lacking_updates",
    "newest_at_node",
    "newest_expected",
    "newest_late",
    "with_others",
]

VERDICTS = ("current", "stalled", "pending", "unknown")
"""What a topic can be at a node; see `StallFigures`."""


def comparable(scope: Scope) -> Column:
    """Return whether a row with the column `group` speaks in the terms of its group: stamped by it, or unstamped."""
    unstamped = [sf.col("group") == group.id for group in scope.groups if group.basis == "unstamped"]
    return stamped(scope) | reduce(or_, unstamped, sf.lit(False))


def newest_expected(rows: DataFrame) -> DataFrame:
    """Return, for each (target, topic), the newest update that the node had to get.

    Args:
        rows: The rows of the reference by target, with the target's spans.

    Returns:
        Columns target, topic, settled_us (null when all are too young), expected_us.
    """
    settled = origin_us() <= sf.col("settled_until_us")
    return (
        rows.where(_covered())
        .groupBy("target", "topic")
        .agg(sf.max(sf.when(settled, origin_us())).alias("settled_us"), sf.max(origin_us()).alias("expected_us"))
    )


def newest_at_node(rows: DataFrame) -> DataFrame:
    """Return, for each (target, topic), the newest update that the node got in any way, as `held_us`.

    A retained copy counts, with the time of the update that it is a copy of, or without a stamp of the copy. A
    removal that no message caused does not, nor does an update that is newer than the window that was asked for.

    Args:
        rows: The nodes' rows by target, with the target's spans.
    """
    return (
        rows.where(_came() & (origin_us() <= sf.col("held_until_us")))
        .groupBy("target", "topic")
        .agg(sf.max(origin_us()).alias("held_us"))
    )


def newest_late(rows: DataFrame, *, published: DataFrame) -> DataFrame:
    """Return, for each (target, topic), the newest update that may have come behind the window, as `held_us`.

    It waited while the link was away, and has no stamp, so that its value alone tells what it may be.

    Args:
        rows: The nodes' rows by target without stamps, with the target's spans and `multisets.journeys`.
        published: The rows of the reference by target, with the target's spans.
    """
    key = ["target", "topic", "digest"]
    late = rows.where(_came() & (origin_us() > sf.col("held_until_us")) & (origin_us() <= sf.col("got_until_us")))
    return (
        published.where(_covered())
        .join(late.select(*key), on=key, how="left_semi")
        .groupBy("target", "topic")
        .agg(sf.max(origin_us()).alias("held_us"))
    )


def judge_topics(expected: DataFrame, *, held: DataFrame, targets_frame: DataFrame) -> DataFrame:
    """Return the verdict on each (target, topic) that the reference has an update of.

    Args:
        expected: `newest_expected`.
        held: `newest_at_node`, and `newest_late`.
        targets_frame: The targets' spans; `target` is the key.

    Returns:
        Columns target, topic, settled_us, held_us, after_us (after when an update is lacking), verdict.
    """
    nothing = sf.lit(None).cast("long")
    after_us = sf.greatest("held_us", "covered_from_us") + sf.col("tolerance_us")
    both = (
        expected.select("target", "topic", "settled_us", "expected_us", nothing.alias("held_us"))
        .unionByName(
            held.select("target", "topic", nothing.alias("settled_us"), nothing.alias("expected_us"), "held_us")
        )
        .groupBy("target", "topic")
        .agg(*(sf.max(name).alias(name) for name in ("settled_us", "expected_us", "held_us")))
        .where(sf.col("expected_us").isNotNull())
        .join(sf.broadcast(targets_frame), on="target", how="inner")
        .withColumn("after_us", after_us)
    )
    behind = sf.coalesce(sf.col("after_us") < sf.col("settled_us"), sf.lit(False))
    lost = sf.exists(
        "gaps", lambda gap: (gap["after_us"] < sf.col("settled_us")) & (gap["until_us"] > sf.col("after_us"))
    )
    verdict = (
        sf.when(behind & lost, "unknown")
        .when(behind, "stalled")
        .when(sf.col("after_us") < sf.col("expected_us"), "pending")
        .otherwise("current")
    )
    return both.select("target", "topic", "settled_us", "held_us", "after_us", verdict.alias("verdict"))


def with_others(verdicts: DataFrame, *, groups: DataFrame) -> DataFrame:
    """Return the stalled topics, each with how many links stalled on it and how many have its newest update.

    Args:
        verdicts: `judge_topics`.
        groups: (target, group); `target` is the key.

    Returns:
        The columns of `judge_topics` without the verdict, and group, stalled_links, current_links.
    """
    grouped = verdicts.join(sf.broadcast(groups), on="target", how="inner")
    stalled = grouped.where(sf.col("verdict") == "stalled").drop("verdict")
    others = grouped.groupBy("group", "topic").agg(
        sf.count_if(sf.col("verdict") == "stalled").alias("stalled_links"),
        # Pending: what it lacks is young, so it has the newest settled update.
        sf.count_if(sf.col("verdict").isin("current", "pending")).alias("current_links"),
    )
    return stalled.join(others, on=["group", "topic"], how="inner")


def lacking_updates(stalled: DataFrame, *, rows: DataFrame, few: bool) -> DataFrame:
    """Return the stalled topics with what the reference logged of each after the newest that the node has.

    Args:
        stalled: `with_others`; (target, topic) is the key.
        rows: The rows of the reference by target, with the target's spans.
        few: Whether the stalled topics fit into the memory of every executor. They then go to the rows, of which there
            are many more, and which Spark would shuffle if it guessed wrong.

    Returns:
        The columns of `with_others`, and lacking (of several sources the one that saw most), first_us.
    """
    behind = stalled.select("target", "topic", "after_us")
    late = (
        rows.where(is_live() & (origin_us() <= sf.col("settled_until_us")))
        .select("target", "topic", "node", "link", origin_us().alias("at_us"))
        .join(sf.broadcast(behind) if few else behind, on=["target", "topic"], how="inner")
        .where(sf.col("at_us") > sf.col("after_us"))
        .groupBy("target", "topic", "node", "link")
        .agg(sf.count(sf.lit(1)).alias("lacking"), sf.min("at_us").alias("first_us"))
        .groupBy("target", "topic")
        .agg(sf.max("lacking").alias("lacking"), sf.min("first_us").alias("first_us"))
    )
    return stalled.join(late, on=["target", "topic"], how="inner")


def count_stalls(verdicts: DataFrame, *, stalled: DataFrame) -> DataFrame:
    """Return, for each target, the topics by verdict, those that stopped there alone, and the longest time behind.

    Args:
        verdicts: `judge_topics`.
        stalled: `with_others`.
    """
    nothing = sf.lit(0).cast("long")
    behind_us = sf.when(sf.col("held_us").isNotNull(), sf.col("settled_us") - sf.col("held_us"))
    return (
        verdicts.select(
            "target",
            *((sf.col("verdict") == verdict).cast("long").alias(verdict) for verdict in VERDICTS),
            nothing.alias("alone"),
            sf.lit(None).cast("long").alias("behind_us"),
        )
        .unionByName(
            stalled.select(
                "target",
                *(nothing.alias(verdict) for verdict in VERDICTS),
                (sf.col("current_links") > 0).cast("long").alias("alone"),
                behind_us.alias("behind_us"),
            )
        )
        .groupBy("target")
        .agg(*(sf.sum(name).alias(name) for name in (*VERDICTS, "alone")), sf.max("behind_us").alias("most_behind_us"))
    )


def _covered() -> Column:
    """Return whether a row of the reference is an update that the target had to get."""
    return is_live() & (origin_us() > sf.col("covered_from_us")) & (origin_us() <= sf.col("covered_until_us"))


def _came() -> Column:
    """Return whether a node's row says that it got something: a removal that no message caused does not."""
    return (sf.col("phase") == PHASE_LIVE) | (sf.col("change") != CHANGE_REMOVED)
