"""The epochs of links: how each began, when it held everything, on what evidence, and what was torn down.

Only the table of events is read; the rows of an epoch are those that name it. Knows nothing of updates.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.read.schemas import STATE_CONNECTING, STATE_DOWN, STATE_LIVE

__all__ = ["link_epochs", "summarize_epochs"]


def link_epochs(events: DataFrame, *, ends: DataFrame, settle_us: int) -> DataFrame:
    """Return one row for each epoch of each link: (node, link, node_epoch, link_epoch) is the key.

    Args:
        events: The rows of `events`.
        ends: (node, end_us, open_epoch): when each node's log ends, and its process that has not stopped, or null;
            `node` is the key.
        settle_us: Epochs that began later than this before the end and are not ready are pending. So is the newest
            of a link, however long it takes, while its process goes on.

    Returns:
        Beside the key: begin_us, live_us, ready_us, entered_live, selectors, topics, evidence, tear_downs,
        last_us, verdict.
    """
    at_us, state = sf.unix_micros("at"), sf.col("event") == "state"
    live = state & (sf.col("state") == STATE_LIVE)
    torn = sf.col("event") == "tear_down"
    # `connecting` and `down` still name the epoch before, and a tear-down ends one.
    outside = state & sf.col("state").isin(STATE_CONNECTING, STATE_DOWN)
    starts = (state & (sf.col("state") == STATE_CONNECTING)) | torn
    so_far = (
        Window.partitionBy("node", "link", "node_epoch")
        .orderBy("log_pos")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    complete = sf.col("event") == "complete"
    epochs = (
        events.where(sf.col("event").isin("state", "complete", "tear_down") & (sf.col("link") != ""))
        .withColumn("since_us", sf.last(sf.when(starts, at_us), ignorenulls=True).over(so_far))
        .groupBy("node", "link", "node_epoch", "link_epoch")
        .agg(
            sf.min(sf.when(~outside & ~torn, sf.coalesce("since_us", at_us))).alias("begin_us"),
            sf.min(sf.when(live, at_us)).alias("live_us"),
            sf.count_if(live).alias("entered_live"),
            sf.size(sf.collect_set(sf.when(complete, sf.col("selector")))).cast("long").alias("selectors"),
            sf.min_by("topics", sf.when(live, sf.col("log_pos"))).alias("topics"),
            sf.array_join(sf.sort_array(sf.collect_set(sf.when(complete, sf.col("evidence")))), ",").alias("evidence"),
            sf.count_if(torn).alias("tear_downs"),
            sf.max(at_us).alias("last_us"),
        )
        .where(sf.col("begin_us").isNotNull())
    )
    # While nothing changes, heartbeats say that the epoch goes on. They are many, and need none of the above.
    key = ["node", "link", "node_epoch", "link_epoch"]
    beats = events.where(sf.col("event") == "heartbeat").groupBy(*key).agg(sf.max(at_us).alias("beat_us"))
    young = sf.col("begin_us") > sf.col("end_us") - settle_us
    newest = sf.max("link_epoch").over(
        Window.partitionBy("node", "link", "node_epoch").rowsBetween(
            Window.unboundedPreceding, Window.unboundedFollowing
        )
    )
    goes_on = (
        (sf.col("node_epoch") == sf.col("open_epoch")) & (sf.col("link_epoch") == newest) & (sf.col("tear_downs") == 0)
    )
    verdict = sf.when(sf.col("live_us").isNotNull(), "ready").when(young | goes_on, "pending").otherwise("never")
    return (
        epochs.join(beats, on=key, how="left")
        .withColumn("last_us", sf.greatest("last_us", "beat_us"))
        .join(sf.broadcast(ends), on="node", how="inner")
        .withColumn("ready_us", sf.col("live_us") - sf.col("begin_us"))
        .withColumn("verdict", verdict)
        .drop("end_us", "open_epoch", "beat_us")
    )


def summarize_epochs(epochs: DataFrame) -> DataFrame:
    """Return, for each link, how many epochs it had, how they ended, and how long they took."""
    latest = sf.when(sf.col("verdict") == "ready", sf.struct("node_epoch", "link_epoch"))
    return epochs.groupBy("node", "link").agg(
        sf.count(sf.lit(1)).alias("epochs"),
        *(sf.count_if(sf.col("verdict") == verdict).alias(verdict) for verdict in ("ready", "never", "pending")),
        sf.sum("tear_downs").alias("tear_downs"),
        sf.min("ready_us").alias("least_ready_us"),
        sf.max("ready_us").alias("most_ready_us"),
        sf.max_by("ready_us", latest).alias("last_ready_us"),
        sf.max_by("topics", latest).alias("topics"),
        sf.max_by("evidence", latest).alias("evidence"),
    )
