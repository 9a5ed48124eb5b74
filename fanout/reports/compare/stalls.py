"""Topics that stopped at a node: the reference has a settled update that is newer than all that the node got.

The time of stamping tells which value is newer, or without stamps the time of logging. Two nodes log one update at
different times, so without stamps a newer value is newer by more than the settle horizon.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.sequence_bits import origin_us, stamped
from fanout.reports.read.rows import explode_targets, is_live, source_rows, target_rows, whole
from fanout.reports.read.schemas import CHANGE_REMOVED, PHASE_LIVE, PHASE_UNSURE, SIDE_NODE, SIDE_REFERENCE
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


def newest_late(updates: DataFrame, *, scope: Scope) -> DataFrame:
    """Return, for each (target, topic) without stamps, the newest update of the window that came, as `held_us`.

    One that waited while the link was away may be logged after the window. Its row names the reference's row that it
    is of.

    Args:
        updates: `CountedUpdates.updates`.
        scope: The scope by which they were counted.
    """
    targets = scope.targets_of("unstamped")
    named = ["stamp_primary", "stamp_epoch", "sequence"]
    seen = source_rows(updates.where(sf.col("side") == SIDE_REFERENCE), scope=scope)
    published = explode_targets(seen, scope=scope, targets=targets)
    logged = target_rows(
        updates.where((sf.col("side") == SIDE_NODE) & (sf.col("phase") != PHASE_UNSURE)), scope=scope, targets=targets
    )
    return (
        published.select("target", "topic", *named, sf.unix_micros("applied").alias("at_us"))
        .where(sf.col("at_us") <= min(scope.window.last_us, max(target.covered_until_us for target in targets)))
        .join(logged.select("target", *named), on=["target", *named], how="left_semi")
        .groupBy("target", "topic")
        .agg(sf.max("at_us").alias("held_us"))
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
    """Return the number of links of a group with rows of the same topic that meet a condition."""
    return sf.count_if(condition).over(whole("group", "topic"))


def lacking_updates(stalled: DataFrame, *, rows: DataFrame, few: bool) -> DataFrame:
    """Return the stalled topics, with the updates that the reference logged after the node's newest one.

    Args:
        stalled: The stalled rows of `topic_states`; (target, topic) is the key.
        rows: The comparable rows of the reference, with their group.
        few: True if the stalled topics fit into the memory of every executor. They are then broadcast to the rows,
            which are many more, and which Spark might shuffle.

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
