"""From connect to ready: each attempt of a link, from its `connecting` to its `live`.

An attempt starts when the link enters `connecting` and lasts until it does so again. Knows nothing of
updates.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.read.rows import is_within
from fanout.reports.read.schemas import STATE_CONNECTING, STATE_LIVE
from fanout.reports.read.scope import WHOLE, AskedWindow

__all__ = ["count_tear_downs", "link_attempts", "summarize_attempts"]


def link_attempts(events: DataFrame, *, window: AskedWindow = WHOLE) -> DataFrame:
    """Return one row for each attempt of a link to become ready.

    Args:
        events: The table.
        window: Attempts of which neither the begin, nor the end, nor a time between them is in it are left out; one
            that did not end ready is taken to be at its begin.

    Returns:
        Columns node, link, node_epoch, attempt (from 1), link_epoch, connecting_us, live_us (null when it did
        not become ready), ready_us (how long it took), topics (held when it did), evidence (what proved its
        selectors, sorted, joined by a comma).
    """
    connecting = (sf.col("event") == "state") & (sf.col("state") == STATE_CONNECTING)
    live = (sf.col("event") == "state") & (sf.col("state") == STATE_LIVE)
    in_order = (
        Window.partitionBy("node", "link", "node_epoch")
        .orderBy("log_pos")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    at_us = sf.unix_micros("at")
    attempts = (
        events.where(sf.col("event").isin("state", "complete") & (sf.col("link") != ""))
        .withColumn("attempt", sf.count_if(connecting).over(in_order))
        .where(sf.col("attempt") > 0)
        .groupBy("node", "link", "node_epoch", "attempt")
        .agg(
            sf.max("link_epoch").alias("link_epoch"),
            sf.min(sf.when(connecting, at_us)).alias("connecting_us"),
            sf.min(sf.when(live, at_us)).alias("live_us"),
            sf.min_by(sf.col("topics"), sf.when(live, sf.col("log_pos"))).alias("topics"),
            sf.array_join(
                sf.sort_array(sf.collect_set(sf.when(sf.col("event") == "complete", sf.col("evidence")))),
                ",",
            ).alias("evidence"),
        )
    )
    under_way = (sf.coalesce("live_us", "connecting_us") >= window.since_us) & (
        sf.col("connecting_us") < window.until_us
    )
    in_window = attempts if window.is_whole else attempts.where(under_way)
    return in_window.withColumn("ready_us", sf.col("live_us") - sf.col("connecting_us"))


def count_tear_downs(events: DataFrame, *, window: AskedWindow) -> DataFrame:
    """Return, for each link, how many times its replica was removed in a window."""
    torn = events.where((sf.col("event") == "tear_down") & is_within(sf.col("at"), window))
    return torn.groupBy("node", "link").agg(sf.count(sf.lit(1)).alias("tear_downs"))


def summarize_attempts(attempts: DataFrame) -> DataFrame:
    """Return, for each link, how often it connected and became ready, and how long that took."""
    ready = sf.col("live_us").isNotNull()
    return attempts.groupBy("node", "link").agg(
        sf.count(sf.lit(1)).alias("attempts"),
        sf.count_if(ready).alias("ready"),
        sf.min("live_us").alias("first_live_us"),
        sf.min_by("ready_us", "live_us").alias("first_ready_us"),
        sf.max_by("ready_us", "live_us").alias("last_ready_us"),
        sf.max("ready_us").alias("most_ready_us"),
        sf.max_by("topics", "live_us").alias("topics"),
        sf.max_by(sf.when(ready, sf.col("evidence")), "live_us").alias("evidence"),
    )
