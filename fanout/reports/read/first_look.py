"""The first look at the logs: one pass over each table leaves a few rows per node, link and session.

These rows decide every comparison (`fanout.reports.read.survey`), so the heavy passes know their targets and spans
beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.read.schemas import PHASE_LIVE, STATE_LIVE

__all__ = ["count_blocks", "summarize_events", "summarize_updates"]


def summarize_updates(updates: DataFrame, *, sessions: DataFrame) -> DataFrame:
    """Return the columns of `UpdateSummary`, in few rows however many sessions and selectors a link had.

    Only sessions of a process with a proved snapshot are told apart. All others count as its earliest one, so their
    delays are a bound for each.

    Args:
        updates: The table.
        sessions: (node, link, link_epoch) of the sessions to tell apart; all three are the key.
    """
    origin_us, applied_us = sf.unix_micros("origin"), sf.unix_micros("applied")
    place = ("node", "link", "link_epoch")
    key = ("node", "role", "node_epoch", "link", "live", "stamp_primary")
    by_session = (
        updates.withColumn("live", sf.col("phase") == PHASE_LIVE)
        .groupBy(*key, "link_epoch")
        .agg(
            sf.collect_set("selector").alias("selectors"),
            sf.count(sf.lit(1)).alias("rows"),
            sf.min("log_pos").alias("first_pos"),
            sf.max("log_pos").alias("last_pos"),
            sf.min(applied_us).alias("first_us"),
            sf.max(applied_us).alias("last_us"),
            sf.min(origin_us).alias("first_origin_us"),
            sf.max(origin_us).alias("last_origin_us"),
            sf.min(applied_us - origin_us).alias("delay_us_min"),
        )
    )
    told = by_session.join(sf.broadcast(sessions.withColumn("apart", sf.lit(True))), on=list(place), how="left")
    apart = sf.when(sf.col("apart"), sf.col("link_epoch")).alias("session")
    folded = told.groupBy(*key, apart).agg(
        sf.min("link_epoch").alias("link_epoch"),
        sf.array_distinct(sf.flatten(sf.collect_list("selectors"))).alias("selectors"),
        sf.sum("rows").alias("rows"),
        *(sf.min(name).alias(name) for name in ("first_pos", "first_us", "first_origin_us", "delay_us_min")),
        *(sf.max(name).alias(name) for name in ("last_pos", "last_us", "last_origin_us")),
    )
    return folded.drop("session")


def summarize_events(events: DataFrame) -> DataFrame:
    """Return the events of each process and link in few rows, which the functions of `reading` tell apart.

    One row has all of a `life`: from when the link is live to the next time; 0 before that. Each selector that was
    proved complete has a row of its own (`selector`), and so has each `start`, `gap`, and `audit` that found a
    difference (`event`, with its `detail`). All events `alarm` and `skipped` of one message or reason are one row, with
    the newest detail and their number (`times`).
    """
    at_us, event = sf.unix_micros("at"), sf.col("event")
    is_state = event == "state"
    live = is_state & (sf.col("state") == STATE_LIVE)
    of_link = Window.partitionBy("node", "link").orderBy("node_epoch", "log_pos")
    so_far = of_link.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = of_link.rowsBetween(Window.unboundedPreceding, -1)
    found = sum((_number(f"$.{name}") for name in ("changed", "removed", "kept")), start=sf.lit(0))
    differs = (found > 0) | sf.coalesce(sf.get_json_object("detail", "$.loss") == "true", sf.lit(False))
    rows = events.withColumns(
        {
            "life": sf.count_if(live).over(so_far),
            "state_now": sf.last(sf.when(is_state, sf.col("state")), ignorenulls=True).over(so_far),
            "proved_us": sf.last(sf.when(live | (event == "audit"), at_us), ignorenulls=True).over(before),
            "detailed": event.isin("start", "gap") | ((event == "audit") & differs),
        }
    )
    complete, told, detailed = event == "complete", event.isin("alarm", "skipped"), sf.col("detailed")
    heard = (event == "heartbeat") & (sf.col("state_now") == STATE_LIVE)
    about = sf.coalesce(sf.get_json_object("detail", "$.message"), sf.get_json_object("detail", "$.reason"))
    times = sf.coalesce(sf.get_json_object("detail", "$.messages").cast("long"), _number("$.suppressed") + 1)
    # A link says this once it is answered: "" of a broker that is no fanout node, null where it cannot know.
    upstream = sf.when(is_state, sf.get_json_object("detail", "$.primary_node"))
    return rows.groupBy(
        "node",
        "role",
        "node_epoch",
        "link",
        sf.when(complete, sf.col("selector")).alias("selector"),
        sf.when(detailed, sf.col("log_pos")).alias("detail_pos"),
        sf.when(told, sf.concat("event", sf.lit(" "), about)).alias("about"),
        sf.when(~(complete | detailed | told), sf.col("life")).alias("life"),
    ).agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.min("log_pos").alias("first_pos"),
        sf.max("log_pos").alias("last_pos"),
        sf.min(at_us).alias("first_us"),
        sf.max(at_us).alias("last_us"),
        sf.min_by("link_epoch", at_us).alias("link_epoch"),
        sf.min(sf.when(live, at_us)).alias("live_us"),
        sf.min(sf.when(live, sf.col("link_epoch"))).alias("live_epoch"),
        sf.min(sf.when(is_state & ~live, at_us)).alias("left_us"),
        sf.max(sf.when(heard, at_us - sf.coalesce("lag_us", sf.lit(0)))).alias("heard_us"),
        sf.max("proved_us").alias("proved_us"),
        sf.count_if(event == "tear_down").alias("tear_downs"),
        sf.max(sf.when(event == "tear_down", sf.col("log_pos"))).alias("tear_down_pos"),
        sf.max(sf.when(event == "stop", at_us)).alias("stop_us"),
        sf.collect_set(upstream).alias("upstreams"),
        sf.max(sf.when(detailed | told, event)).alias("event"),
        sf.max_by(sf.when(detailed | told, sf.col("detail")), "log_pos").alias("detail"),
        sf.sum(sf.when(told, times)).alias("times"),
    )


def count_blocks(
    updates: DataFrame, *, events: DataFrame, since: Mapping[str, tuple[int, int]], bits: int
) -> DataFrame:
    """Return number and times of the rows in each block of 2**bits positions of these nodes' processes that has any.

    Args:
        updates: The table `updates`.
        events: The table `events`.
        since: The nodes, each with the (node epoch, position) of its first update. Rows of that process from there on
            are counted as `later` too.
        bits: The size of a block.

    Returns:
        The columns of `PositionBlock`; (node, node_epoch, block) is the key.
    """

    def rows(table: DataFrame, time: str) -> DataFrame:
        at_us: Column = sf.unix_micros(time)
        return table.where(sf.col("node").isin(list(since))).select(
            "node", "node_epoch", sf.shiftright("log_pos", bits).alias("block"), at_us.alias("at_us"), "log_pos"
        )

    later = reduce(
        or_,
        (
            (sf.col("node") == node) & (sf.col("node_epoch") == epoch) & (sf.col("log_pos") >= pos)
            for node, (epoch, pos) in since.items()
        ),
    )
    both = rows(updates, "applied").unionByName(rows(events, "at"))
    return both.groupBy("node", "node_epoch", "block").agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.count_if(later).alias("later"),
        sf.min("at_us").alias("first_us"),
        sf.max("at_us").alias("last_us"),
    )


def _number(path: str) -> Column:
    """Return a number of an event's detail; 0 where there is none."""
    return sf.coalesce(sf.get_json_object("detail", path).cast("long"), sf.lit(0))
