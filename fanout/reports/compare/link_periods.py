"""The periods of links: attempts to become ready, and epochs.

An *attempt* starts when the link enters `connecting` and lasts until it does so again; an *epoch* is what names it
in the log, the life of one MQTT session. Both are described by the same events. Only the table of events is read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.read.rows import is_within, whole
from fanout.reports.read.schemas import STATE_CONNECTING, STATE_DOWN, STATE_LIVE
from fanout.reports.read.scope import WHOLE, AskedWindow

__all__ = ["latest_periods", "link_periods", "summarize_periods"]

_PROCESS = ("node", "link", "node_epoch")
_KEY = (*_PROCESS, "kind", "number")


def link_periods(events: DataFrame, *, ends: DataFrame, settle_us: int, window: AskedWindow = WHOLE) -> DataFrame:
    """Return one row for each attempt and each epoch of each link.

    Args:
        events: The rows of `events`.
        ends: (node, end_us, open_epoch): when each node's log ends, and its process that has not stopped, or null;
            `node` is the key.
        settle_us: Epochs that began later than this before the end and are not ready are pending. So is the newest
            of a link, however long it takes, while its process goes on.
        window: Window of the report.

    Returns:
        node, link, node_epoch, kind (`attempt` or `epoch`), number (an attempt's from 1, or the link epoch), which
        are the key; begin_us; live_us (null when it did not become live), ready_us (how long that took), entered_live;
        selectors (how many were proved complete), topics (held when it became live), evidence (what proved its
        selectors, sorted, joined by a comma); tear_downs, and torn (those within the window); last_us; verdict of an
        epoch; shown, whether it is of the window: an epoch from its begin to its last event, an attempt until it was
        ready, and one that never was at its begin. Epochs of which no begin is known are not shown.
    """
    at_us, state = sf.unix_micros("at"), sf.col("event") == "state"
    connecting, live = (state & (sf.col("state") == one) for one in (STATE_CONNECTING, STATE_LIVE))
    torn, complete = sf.col("event") == "tear_down", sf.col("event") == "complete"
    # `connecting` and `down` still name the epoch before, and a tear-down ends one.
    outside = torn | (state & sf.col("state").isin(STATE_CONNECTING, STATE_DOWN))
    so_far = Window.partitionBy(*_PROCESS).orderBy("log_pos").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    since_us = sf.last(sf.when(connecting | torn, at_us), ignorenulls=True).over(so_far)
    of_both = sf.inline(
        sf.array(
            sf.struct(sf.lit("attempt").alias("kind"), sf.col("attempt").alias("number")),
            sf.struct(sf.lit("epoch").alias("kind"), sf.col("link_epoch").alias("number")),
        )
    )
    changes = (
        events.where((state | complete | torn) & (sf.col("link") != ""))
        .withColumns({"since_us": since_us, "attempt": sf.count_if(connecting).over(so_far)})
        .select(*_PROCESS, "log_pos", "at", "event", "state", "selector", "evidence", "topics", "since_us", of_both)
        .where((sf.col("kind") == "epoch") | (sf.col("number") > 0))
    )
    # While nothing changes, heartbeats say that the epoch goes on. They are many, and need none of the above.
    beats = (
        events.where((sf.col("event") == "heartbeat") & (sf.col("link") != ""))
        .groupBy(*_PROCESS, sf.lit("epoch").alias("kind"), sf.col("link_epoch").alias("number"))
        .agg(sf.max("at").alias("at"))
        .withColumns({"event": sf.lit("heartbeat"), "state": sf.lit("")})
    )
    is_epoch = sf.col("kind") == "epoch"
    begins = sf.when(is_epoch, ~outside & (state | complete)).otherwise(connecting)
    begun_us = sf.when(is_epoch, sf.coalesce("since_us", at_us)).otherwise(at_us)
    periods = (
        changes.unionByName(beats, allowMissingColumns=True)
        .groupBy(*_KEY)
        .agg(
            sf.min(sf.when(begins, begun_us)).alias("begin_us"),
            sf.min(sf.when(live, at_us)).alias("live_us"),
            sf.count_if(live).alias("entered_live"),
            sf.size(sf.collect_set(sf.when(complete, sf.col("selector")))).cast("long").alias("selectors"),
            sf.min_by("topics", sf.when(live, sf.col("log_pos"))).alias("topics"),
            sf.array_join(sf.sort_array(sf.collect_set(sf.when(complete, sf.col("evidence")))), ",").alias("evidence"),
            sf.count_if(torn).alias("tear_downs"),
            sf.count_if(torn & is_within(sf.col("at"), window)).alias("torn"),
            sf.max(at_us).alias("last_us"),
        )
        .withColumn("ready_us", sf.col("live_us") - sf.col("begin_us"))
        .join(sf.broadcast(ends), on="node", how="inner")
    )
    until_us = sf.when(is_epoch, sf.col("last_us")).otherwise(sf.coalesce("live_us", "begin_us"))
    shown = (sf.col("begin_us") < window.until_us) & (until_us >= window.since_us)
    young = sf.col("begin_us") > sf.col("end_us") - settle_us
    newest = sf.max(sf.when(sf.col("begin_us").isNotNull(), sf.col("number"))).over(whole(*_PROCESS, "kind"))
    goes_on = (
        (sf.col("node_epoch") == sf.col("open_epoch")) & (sf.col("number") == newest) & (sf.col("tear_downs") == 0)
    )
    verdict = sf.when(sf.col("live_us").isNotNull(), "ready").when(young | goes_on, "pending").otherwise("never")
    return periods.withColumns({"verdict": verdict, "shown": sf.coalesce(shown, sf.lit(False))}).drop(
        "end_us", "open_epoch"
    )


def summarize_periods(periods: DataFrame) -> DataFrame:
    """Return, for each link and kind, how many periods are shown, how they ended, and how long they took.

    `torn` is of all periods: how often the link's replica was removed within the window.
    """
    shown = sf.col("shown")
    live_us = sf.when(shown, sf.col("live_us"))
    latest = sf.when(
        live_us.isNotNull(),
        sf.when(sf.col("kind") == "epoch", sf.struct("node_epoch", "number")).otherwise(
            sf.struct(sf.col("live_us").alias("node_epoch"), "number")
        ),
    )
    return periods.groupBy("node", "link", "kind").agg(
        sf.count_if(shown).alias("shown"),
        *(
            sf.count_if(shown & (sf.col("verdict") == verdict)).alias(verdict)
            for verdict in ("ready", "never", "pending")
        ),
        sf.sum(sf.when(shown, sf.col("tear_downs"))).alias("tear_downs"),
        sf.sum("torn").alias("torn"),
        sf.min(live_us).alias("first_live_us"),
        sf.min_by("ready_us", live_us).alias("first_ready_us"),
        sf.min(sf.when(shown, sf.col("ready_us"))).alias("least_ready_us"),
        sf.max(sf.when(shown, sf.col("ready_us"))).alias("most_ready_us"),
        sf.max_by("ready_us", latest).alias("last_ready_us"),
        sf.max_by("topics", latest).alias("topics"),
        sf.coalesce(sf.max_by("evidence", latest), sf.lit("")).alias("evidence"),
    )


def latest_periods(periods: DataFrame, *, limit: int) -> DataFrame:
    """Return the epochs that began last, and the attempts that were ready last, so many, each kind in its order."""
    shown = periods.where("shown")
    epochs = shown.where(sf.col("kind") == "epoch").orderBy(sf.desc("begin_us"), *_PROCESS, "number").limit(limit)
    ready = shown.where((sf.col("kind") == "attempt") & sf.col("live_us").isNotNull())
    return epochs.unionAll(ready.orderBy(sf.desc("live_us"), *_PROCESS, "number").limit(limit))
