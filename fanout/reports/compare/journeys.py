"""Rows without stamps of either side that may be updates of the other side in a span of time.

A link that was away gets what was kept for it when it is back, however late: up to a heartbeat that came back, in front
of which everything had come.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.read.reading import Tables
from fanout.reports.read.rows import (
    explode_targets,
    small_frame,
    source_rows,
    target_rows,
    targets_frame,
)
from fanout.reports.read.scope import NEVER_US, Scope, Target

__all__ = ["journeys", "rows_by_value"]


def rows_by_value(tables: Tables, *, scope: Scope, targets: tuple[Target, ...]) -> tuple[DataFrame, DataFrame]:
    """Return the rows of the reference, and those of the nodes, by target and with the target's spans and `journeys`.

    Args:
        tables: The logs.
        scope: The scope of the report.
        targets: The targets without stamps.
    """
    spans = targets_frame(tables.updates.sparkSession, scope)
    spans = spans.where(sf.col("target").isin([target.id for target in targets]))
    spans = spans.join(sf.broadcast(journeys(tables.events, spans=spans, scope=scope)), on="target", how="inner")
    sources = source_rows(tables.updates, scope=scope)
    published, logged = (
        rows.join(sf.broadcast(spans), on="target", how="inner")
        for rows in (
            explode_targets(sources, scope=scope, targets=targets),
            target_rows(tables.updates, scope=scope, targets=targets),
        )
    )
    return published, logged


def journeys(events: DataFrame, *, spans: DataFrame, scope: Scope) -> DataFrame:
    """Return which rows of either side may be updates that the other side has in a target's span.

    A link that was away gets what was kept for it when it is back, however late, be it the node's or the reference's. A
    heartbeat that came back proves that everything in front of it has come, and a link that holds everything gets
    nothing that is older.

    Args:
        events: The rows of `events`.
        spans: `rows.targets_frame`.
        scope: The scope of the report.

    Returns:
        One row for each target: target, seen_after_us, seen_until_us, got_after_us, got_until_us.
    """
    links: list[tuple[object, ...]] = [
        (target.id, target.node, target.link, target.held_from_us, False) for target in scope.targets
    ]
    links += (
        (target.id, source.node, source.link, scope.groups[target.group].from_us, True)
        for target in scope.targets
        for source in scope.sources
        if source.group == target.group and source.link
    )
    places = small_frame(
        events.sparkSession, links, schema="target int, node string, link string, held_from_us bigint, above boolean"
    )
    span = sf.broadcast(spans.select("target", "covered_from_us", "settled_until_us"))
    place = ["target", "node", "link", "above"]
    at_us = sf.unix_micros("at")
    sent_us = at_us - sf.col("lag_us")
    heard = (
        events.where((sf.col("event") == "heartbeat") & sf.col("lag_us").isNotNull())
        .join(sf.broadcast(places), on=["node", "link"], how="inner")
        .join(span, on="target", how="inner")
        .groupBy(*place)
        .agg(
            sf.max(sf.when(at_us <= sf.col("covered_from_us"), sent_us)).alias("sent_us"),
            sf.min(sf.when(sent_us > sf.col("settled_until_us") + scope.settle_us, at_us)).alias("came_us"),
        )
    )
    # What a link brought within the span was published in between these, and what was published then it brought.
    begin_us = sf.least("covered_from_us", sf.greatest("held_from_us", "sent_us")) - scope.settle_us
    end_us = sf.coalesce(sf.col("came_us") + scope.settle_us, sf.lit(NEVER_US))
    above = sf.col("above")
    bounds = (
        places.join(span, on="target", how="inner")
        .join(heard, on=place, how="left")
        .groupBy("target", "covered_from_us", "settled_until_us")
        .agg(
            sf.min(sf.when(~above, begin_us)).alias("seen_after_us"),
            sf.max(sf.when(above, end_us)).alias("seen_until_us"),
            sf.min(sf.when(above, begin_us)).alias("got_after_us"),
            sf.max(sf.when(~above, end_us)).alias("got_until_us"),
        )
    )
    # What was published at the reference itself it logged at once.
    return bounds.select(
        "target",
        "seen_after_us",
        sf.coalesce("seen_until_us", sf.col("settled_until_us") + scope.settle_us).alias("seen_until_us"),
        sf.coalesce("got_after_us", sf.col("covered_from_us") - scope.settle_us).alias("got_after_us"),
        "got_until_us",
    )
