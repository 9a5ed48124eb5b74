"""Topics that stopped at a node: the reference has a settled update that is newer than all that the node got.

The time of stamping tells which value is newer, or without stamps the time of logging. Two nodes log one update at
different times, so without stamps a newer value is newer by more than the settle horizon.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.compare.sequence_bits import origin_us, stamped
from fanout.reports.read.rows import is_live
from fanout.reports.read.schemas import CHANGE_REMOVED, PHASE_LIVE
from fanout.reports.read.scope import Scope

__all__ = [
    "STALLED",
    "VERDICTS",
    "after_us",
    "came",
    "comparable",
    "lacking_updates",
    "links_where",
    "newest_late",
    "stall_verdict",
]

VERDICTS = ("current", "stalled", "pending", "unknown")
"""Verdicts on a topic at a node; see `StallFigures`."""
STALLED = (
    *("group", "target", "node", "link", "selector", "topic", "settled_us", "held_us", "after_us"),
    *("stalled_links", "current_links"),
)
"""Columns of a topic that stopped at a node."""


def comparable(scope: Scope) -> Column:
    """Return whether a row with the column `group` speaks in the terms of its group: stamped by it, or unstamped."""
    unstamped = [sf.col("group") == group.id for group in scope.groups if group.basis == "unstamped"]
    return stamped(scope) | reduce(or_, unstamped, sf.lit(False))


def came() -> Column:
    """Return whether a node's row says that it got something: a removal that no message caused does not."""
    return (sf.col("phase") == PHASE_LIVE) | (sf.col("change") != CHANGE_REMOVED)


def newest_late(rows: DataFrame, *, published: DataFrame) -> DataFrame:
    """Return, for each (target, topic), the newest update that may have come behind the window, as `held_us`.

    It waited while the link was away, and has no stamp, so that its value alone tells what it may be.

    Args:
        rows: The nodes' rows by target without stamps, with the target's spans and `journeys.journeys`.
        published: The rows of the reference by target, with the target's spans.
    """
    key = ["target", "topic", "digest"]
    late = rows.where(came() & (origin_us() > sf.col("held_until_us")) & (origin_us() <= sf.col("got_until_us")))
    return (
        published.where(_covered())
        .join(late.select(*key), on=key, how="left_semi")
        .groupBy("target", "topic")
        .agg(sf.max(origin_us()).alias("held_us"))
    )


def after_us() -> Column:
    """Return the time after which an update of a row of `topic_states` is lacking."""
    return sf.greatest("held_us", "covered_from_us") + sf.col("tolerance_us")


def stall_verdict() -> Column:
    """Return the verdict on a row of `topic_states` with `after_us`; null when the node did not have to get any update.

    The row also has the target's gaps.
    """
    behind = sf.coalesce(sf.col("after_us") < sf.col("settled_us"), sf.lit(False))
    lost = sf.exists(
        "gaps", lambda gap: (gap["after_us"] < sf.col("settled_us")) & (gap["until_us"] > sf.col("after_us"))
    )
    return (
        sf.when(sf.col("expected_us").isNull(), sf.lit(None))
        .when(behind & lost, "unknown")
        .when(behind, "stalled")
        .when(sf.col("after_us") < sf.col("expected_us"), "pending")
        .otherwise("current")
    )


def links_where(condition: Column) -> Column:
    """Return of how many links the rows of the same topic meet a condition; they have their group."""
    topic = Window.partitionBy("group", "topic")
    return sf.count_if(condition).over(topic.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing))


def lacking_updates(stalled: DataFrame, *, rows: DataFrame, few: bool) -> DataFrame:
    """Return the stalled topics with what the reference logged of each after the newest that the node has.

    Args:
        stalled: The stalled rows of `topic_states`; (target, topic) is the key.
        rows: The comparable rows of the reference, with their group.
        few: True if the stalled topics fit into the memory of every executor. They then go to the rows, of which there
            are many more, and which Spark would shuffle if it guessed wrong.

    Returns:
        The columns of `STALLED`, and lacking (of several sources the one that saw most), first_us.
    """
    behind = stalled.select(*STALLED)
    source = sf.struct("node", "link").alias("source")
    logged = rows.where(is_live()).select("group", "topic", source, origin_us().alias("at_us"))
    both = logged.join(sf.broadcast(behind) if few else behind, on=["group", "topic"], how="inner")
    lacked = both.where((sf.col("at_us") > sf.col("after_us")) & (sf.col("at_us") <= sf.col("settled_us")))
    by_source = lacked.groupBy(*STALLED, "source").agg(
        sf.count(sf.lit(1)).alias("lacking"), sf.min("at_us").alias("first_us")
    )
    return by_source.groupBy(*STALLED).agg(sf.max("lacking").alias("lacking"), sf.min("first_us").alias("first_us"))


def _covered() -> Column:
    """Return whether a row of the reference is an update that the target had to get."""
    return is_live() & (origin_us() > sf.col("covered_from_us")) & (origin_us() <= sf.col("covered_until_us"))
