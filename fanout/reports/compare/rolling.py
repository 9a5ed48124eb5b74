"""The tables that `fanout report watch` keeps: what a batch of files adds to each, and how parts are merged.

Every table is an aggregate that merges by adding up (or a list that merges by appending), so that a batch is computed
from its own files alone and the order of batches does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare import lag
from fanout.reports.compare.prefixes import prefix_of
from fanout.reports.read.rows import conflated
from fanout.reports.read.schemas import EVENTS, PHASE_LIVE

__all__ = [
    "MERGES",
    "TABLES",
    "WINDOW_US",
    "delta_events",
    "delta_lag",
    "delta_traffic",
    "drop_old",
    "is_no_future",
    "newest_window",
]

WINDOW_US: Final = 60_000_000
"""The width of the windows of time in which lag and traffic are kept."""

TABLES: Final = ("lag", "traffic", "events")
"""The tables, by the names of their directories."""

_AHEAD_US_MAX: Final = 86_400_000_000
"""How far the clocks of nodes may differ: a day."""

_TRAFFIC_KEY: Final = ("node", "link", "prefix", "publisher", "window_us")
_LAG_KEY: Final = (*lag.KEY, "window_us", "bucket")


def delta_lag(updates: DataFrame, events: DataFrame) -> DataFrame:
    """Return the lag cells of a batch."""
    cells = lag.propagation_cells(updates, window_us=WINDOW_US).unionByName(
        lag.heartbeat_cells(events, window_us=WINDOW_US)
    )
    return cells.drop("offset_bucket", "sum_us")  # no offset holds for every batch


def delta_traffic(updates: DataFrame) -> DataFrame:
    """Return updates and bytes of a batch by node, link, first topic level, publishing node and window."""
    at_us = sf.unix_micros("applied")
    return (
        updates.where((sf.col("phase") == PHASE_LIVE) & ~conflated())
        .groupBy(
            "node",
            "link",
            prefix_of(sf.col("topic"), depth=1).alias("prefix"),
            sf.col("stamp_primary").alias("publisher"),
            (at_us - sf.pmod(at_us, sf.lit(WINDOW_US).cast("long"))).alias("window_us"),
        )
        .agg(sf.count(sf.lit(1)).alias("updates"), sf.sum(sf.col("payload_bytes").cast("long")).alias("payload_bytes"))
    )


def delta_events(events: DataFrame) -> DataFrame:
    """Return a batch's events, of the heartbeats only the last of each epoch: it says how far the log, and it, goes."""
    beats = events.where(sf.col("event") == "heartbeat")
    whole = sf.struct(*EVENTS.names)
    last = (
        beats.groupBy("node", "node_epoch", "link", "link_epoch")
        .agg(sf.max_by(whole, "log_pos").alias("row"))
        .select("row.*")
    )
    return events.where(sf.col("event") != "heartbeat").unionByName(last.select(*EVENTS.names)).select(*EVENTS.names)


def drop_old(name: str, table: DataFrame, *, keep_us: int) -> DataFrame:
    """Return a kept table without what is older than so long before its newest row.

    Events of a node's latest process stay: a link may have been live for longer than anything is kept. Lag cells that
    an earlier version put into windows of the future go too.
    """
    time_us = sf.unix_micros("at") if name == "events" else sf.col("window_us")
    newest = table.agg((newest_window() if name == "lag" else sf.max(time_us)).alias("newest_us"))
    recent = time_us >= sf.col("newest_us") - keep_us
    if name == "lag":
        recent &= is_no_future(sf.col("newest_us"))
    bounded = table.crossJoin(sf.broadcast(newest))
    if name == "events":
        latest = table.groupBy("node").agg(sf.max("node_epoch").alias("latest_epoch"))
        bounded = bounded.join(sf.broadcast(latest), on="node", how="inner")
        recent |= sf.col("node_epoch") == sf.col("latest_epoch")
    return bounded.where(recent).select(*table.columns)


def newest_window() -> Column:
    """Return the newest window of lag cells: that of the heartbeats, which go by the clocks of nodes.

    Windows of propagation times go by the clocks that stamped. One that is years ahead must not make all else old.
    """
    of_heartbeats = sf.max(sf.when(sf.col("kind") == "heartbeat", sf.col("window_us")))
    return sf.coalesce(of_heartbeats, sf.max("window_us"))


def is_no_future(newest_us: Column | int) -> Column:
    """Return whether a lag cell's window is not later than the newest by more than the clocks of nodes may differ."""
    return sf.col("window_us") <= newest_us + sf.lit(_AHEAD_US_MAX).cast("long")


def _merge_lag(parts: DataFrame) -> DataFrame:
    return parts.groupBy(*_LAG_KEY).agg(
        sf.sum("rows").alias("rows"), sf.min("least_us").alias("least_us"), sf.max("most_us").alias("most_us")
    )


def _merge_traffic(parts: DataFrame) -> DataFrame:
    return parts.groupBy(*_TRAFFIC_KEY).agg(*(sf.sum(name).alias(name) for name in ("updates", "payload_bytes")))


MERGES: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "lag": _merge_lag,
    "traffic": _merge_traffic,
    "events": delta_events,
}
"""How the parts of each table become one."""
