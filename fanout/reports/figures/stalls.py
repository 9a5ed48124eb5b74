"""The section on topics that stopped at a node."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from fanout.reports.compare import multisets, stalls
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read import rows
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.scope import Scope
from fanout.reports.values.figures import Listed, time_of
from fanout.reports.values.findings import StalledTopic, StallFigures, StallSection

__all__ = ["describe_stalls"]

_BROADCAST_MAX: Final = 500_000
"""Stalled topics, of about 100 bytes each, that are sent to the rows instead of shuffling the rows."""


def describe_stalls(
    spark: SparkSession, tables: Tables, *, scope: Scope, list_limit: int, parquet: ParquetTables
) -> StallSection:
    """Return, for each selector of each link, the topics whose newest settled update did not come."""
    spans = rows.targets_frame(spark, scope)
    sources = rows.source_rows(tables.updates, spark=spark, scope=scope).where(stalls.comparable(scope))
    wanted = rows.explode_targets(sources, scope=scope, targets=scope.targets).join(
        sf.broadcast(spans), on="target", how="inner"
    )
    logged = (
        rows.target_rows(tables.updates, spark=spark, scope=scope, targets=scope.targets)
        .where(stalls.comparable(scope))
        .join(sf.broadcast(spans), on="target", how="inner")
    )
    places = [(target.id, target.group, target.node, target.link, target.selection.filter) for target in scope.targets]
    groups = rows.small_frame(spark, [place[:2] for place in places], schema="target int, `group` int")
    named = rows.small_frame(
        spark,
        [(place[0], *place[2:]) for place in places],
        schema="target int, node string, link string, selector string",
    )
    held = stalls.newest_at_node(logged)
    by_value = [target.id for target in scope.targets_of("unstamped")]
    if by_value and scope.window.has_end:
        of_value = spans.where(sf.col("target").isin(by_value))
        ways = multisets.journeys(tables.events, spans=of_value, spark=spark, scope=scope)
        behind = logged.join(sf.broadcast(ways), on="target", how="inner")
        held = held.unionByName(stalls.newest_late(behind, published=wanted))
    verdicts = stalls.judge_topics(stalls.newest_expected(wanted), held=held, targets_frame=spans).persist()
    stalled = stalls.with_others(verdicts, groups=groups).persist()
    try:
        counts = {row.pop("target"): row for row in collect_rows(stalls.count_stalls(verdicts, stalled=stalled))}
        total = sum(row["stalled"] for row in counts.values())
        lacking = stalls.lacking_updates(stalled, rows=wanted, few=total <= _BROADCAST_MAX)
        found = lacking.join(sf.broadcast(named), on="target", how="inner")
        listed = []
        if total:
            here_alone = sf.when(sf.col("current_links") > 0, 0).otherwise(1)
            listed = collect_rows(found.orderBy(here_alone, sf.desc("lacking"), "target", "topic").limit(list_limit))
        # An empty table too: what stalled at the time of an earlier report may have stood there.
        parquet.write(
            "stalls",
            found.withColumnsRenamed(
                {"held_us": "newest_us", "settled_us": "reference_newest_us", "first_us": "first_lacking_us"}
            ),
        )
    finally:
        stalled.unpersist()
        verdicts.unpersist()
    targets = tuple(
        StallFigures(
            node=target.node,
            link=target.link,
            filter=target.selection.filter,
            basis=scope.groups[target.group].basis,
            **{name: counts.get(target.id, {}).get(name, 0) for name in (*stalls.VERDICTS, "alone")},
            most_behind_s=_seconds(counts.get(target.id, {}).get("most_behind_us")),
        )
        for target in scope.targets
    )
    topics = tuple(
        StalledTopic(
            node=row["node"],
            link=row["link"],
            filter=row["selector"],
            topic=row["topic"],
            basis=scope.groups[row["group"]].basis,
            newest=None if row["held_us"] is None else time_of(row["held_us"]),
            first_lacking=time_of(row["first_us"]),
            reference_newest=time_of(row["settled_us"]),
            lacking=row["lacking"],
            stalled_links=row["stalled_links"],
            current_links=row["current_links"],
        )
        for row in listed
    )
    return StallSection(targets=targets, topics=Listed[StalledTopic](total=total, listed=topics))


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
