"""The first look at the logs: one pass over each table leaves a few rows per node, link and session.

Everything that decides what is compared with what is read off these rows (`fanout.reports.survey`), so that
the heavy passes know their targets and spans beforehand.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.schemas import PHASE_LIVE

__all__ = ["list_details", "summarize_completes", "summarize_events", "summarize_updates"]


def summarize_updates(updates: DataFrame) -> DataFrame:
    """Return the columns of `UpdateSummary`."""
    origin_us, applied_us = sf.unix_micros("origin"), sf.unix_micros("applied")
    return updates.groupBy(
        "node",
        "role",
        "node_epoch",
        "link",
        "link_epoch",
        "selector",
        (sf.col("phase") == PHASE_LIVE).alias("live"),
        "stamp_primary",
    ).agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.min("log_pos").alias("first_pos"),
        sf.max("log_pos").alias("last_pos"),
        sf.min(applied_us).alias("first_us"),
        sf.max(applied_us).alias("last_us"),
        sf.min(origin_us).alias("first_origin_us"),
        sf.max(origin_us).alias("last_origin_us"),
        sf.min(applied_us - origin_us).alias("delay_us_min"),
    )


def summarize_events(events: DataFrame) -> DataFrame:
    """Return the columns of `EventSummary`."""
    at_us = sf.unix_micros("at")
    # What a link reports of a CONNECT that was answered; a broker that is no fanout node gives null.
    upstream = sf.when(sf.col("event") == "state", sf.get_json_object("detail", "$.primary_node"))
    return events.groupBy("node", "role", "node_epoch", "link").agg(
        sf.count(sf.lit(1)).alias("rows"),
        sf.min("log_pos").alias("first_pos"),
        sf.max("log_pos").alias("last_pos"),
        sf.min(at_us).alias("first_us"),
        sf.max(at_us).alias("last_us"),
        sf.count_if(sf.col("event") == "tear_down").alias("tear_downs"),
        sf.max(sf.when(sf.col("event") == "tear_down", sf.col("log_pos"))).alias("tear_down_pos"),
        sf.max(sf.when(sf.col("event") == "stop", at_us)).alias("stop_us"),
        sf.sort_array(sf.collect_set(upstream)).alias("upstreams"),
    )


def summarize_completes(events: DataFrame) -> DataFrame:
    """Return the columns of `CompleteSummary`."""
    return (
        events.where(sf.col("event") == "complete")
        .groupBy("node", "node_epoch", "link", "link_epoch", "selector")
        .agg(sf.min(sf.unix_micros("at")).alias("first_us"))
    )


def list_details(events: DataFrame) -> DataFrame:
    """Return the events whose detail a report reads: `start` and `gap`."""
    return events.where(sf.col("event").isin("start", "gap")).select(
        "event", "node", "link", "node_epoch", sf.unix_micros("at").alias("at_us"), "detail"
    )
