"""Lower bounds on losses where updates carry no stamp: how often each (topic, digest) was seen, by whom.

A message without identity cannot be told from its repetition, so nothing is paired: the k-th occurrence here
is not the k-th occurrence there once one was lost. What can be said is that a value seen more often at the
reference than at the node was lost at least the difference of times. Everything doubtful is counted so that
the bound stays true: what may be a second copy (DUP set) counts for the side that would be accused, not for
the side that accuses; so do retained copies, which may stand for an update; and so does what lies a settle
horizon before or after the window, or as far from it as updates may have waited while the link was away: up to a
heartbeat that came back, in front of which everything had come.

Which of several occurrences was lost is not known either, so those that fell into a time in which the link could lose
updates are taken to be lost first: what is left was lost without an explanation, at least.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.replog.files.schema import FLAG_DUP
from fanout.reports.compare.absences import CAUSES, UNEXPLAINED, with_cause
from fanout.reports.read.reading import Tables
from fanout.reports.read.rows import (
    explode_targets,
    in_gap,
    is_live,
    small_frame,
    source_rows,
    target_rows,
    targets_frame,
)
from fanout.reports.read.scope import NEVER_US, Scope, Target

__all__ = [
    "count_causes",
    "count_multisets",
    "journeys",
    "node_multiset",
    "reference_multiset",
    "rows_by_value",
    "sum_by_topic",
    "value_differences",
]

_KEY = ("target", "topic", "digest")
_SEEN = ("seen_sure", "seen_all", "seen_doubtful")
_GOT = ("got_sure", "got_all")


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


def reference_multiset(rows: DataFrame, *, scope: Scope, gaps: bool) -> DataFrame:
    """Return how often the reference saw each value that a target selects.

    Of several sources (a union) the one that saw a value most often counts.

    Args:
        rows: The reference's rows, of `rows_by_value`.
        scope: The scope of the report.
        gaps: Whether a target has gaps; without any, no row is asked whether it lies in one.

    Returns:
        One row for each (target, topic, digest): seen_sure, seen_all, and seen_doubtful, those that fell into
        a gap of the target's log.
    """
    by_source = rows.groupBy("target", "node", "link", "topic", "digest").agg(*_counts("seen", gaps=gaps))
    if scope.reference.kind != "union":
        return by_source.select(*_KEY, *_SEEN)
    return by_source.groupBy(*_KEY).agg(*(sf.max(name).alias(name) for name in _SEEN))


def node_multiset(rows: DataFrame) -> DataFrame:
    """Return how often each target logged each value.

    Args:
        rows: The nodes' rows, of `rows_by_value`.

    Returns:
        One row for each (target, topic, digest): got_sure, got_all.
    """
    return rows.groupBy(*_KEY).agg(*_counts("got", gaps=False)).select(*_KEY, *_GOT)


def value_differences(reference: DataFrame, *, nodes: DataFrame) -> DataFrame:
    """Return, for each value of each target, how often it was lost, and came unseen, at least."""
    zero = sf.lit(0).cast("long")
    both = (
        reference.select(*_KEY, *_SEEN, *(zero.alias(name) for name in _GOT))
        .unionByName(nodes.select(*_KEY, *(zero.alias(name) for name in _SEEN), *_GOT))
        .groupBy(*_KEY)
        .agg(*(sf.sum(name).alias(name) for name in (*_SEEN, *_GOT)))
    )
    return both.select(
        *_KEY,
        "seen_sure",
        "seen_doubtful",
        "got_sure",
        sf.greatest(sf.col("seen_sure") - sf.col("got_all"), zero).alias("missing"),
        sf.greatest(sf.col("got_sure") - sf.col("seen_all"), zero).alias("extra"),
    )


def sum_by_topic(differences: DataFrame) -> DataFrame:
    """Return the differences added up by (target, topic); `most` is how often its most frequent value came."""
    return differences.groupBy("target", "topic").agg(
        *(sf.sum(name).alias(name) for name in ("seen_sure", "seen_doubtful", "got_sure", "missing", "extra")),
        sf.max("seen_sure").alias("most"),
    )


def count_multisets(by_topic: DataFrame) -> DataFrame:
    """Return the counts of a report for each target.

    `repeated_topics` are those of which a value was seen more than once: there a loss and a copy can cancel.
    """
    return by_topic.groupBy("target").agg(
        sf.sum("seen_sure").alias("reference_updates"),
        sf.sum("got_sure").alias("node_updates"),
        sf.sum("seen_doubtful").alias("unknown"),
        sf.sum("missing").alias("missing"),
        sf.sum("extra").alias("extra"),
        sf.count_if(sf.col("seen_sure") > 0).alias("topics"),
        sf.count_if(sf.col("most") > 1).alias("repeated_topics"),
    )


def count_causes(
    differences: DataFrame,
    *,
    rows: DataFrame,
    absences: DataFrame,
    span_us: tuple[int, int],
    log_rows: int,
    gaps: bool,
) -> DataFrame:
    """Return, for each target, how many of its missing updates each cause explains at most, and what none does.

    Args:
        differences: `value_differences`.
        rows: The reference's rows, of `rows_by_value`.
        absences: `absences.absences_of_targets`.
        span_us: From when to when the logs are, about.
        log_rows: How many rows the logs have.
        gaps: As for `reference_multiset`.

    Returns:
        Columns target, one for each of `CAUSES`, and `UNEXPLAINED`; together the missing ones.
    """
    lost = differences.where(sf.col("missing") > 0).select(*_KEY, "missing")
    at_us = sf.unix_micros("applied")
    seen = (
        rows.where(_sure(at_us) & ~(in_gap(at_us) if gaps else sf.lit(False)))
        .select(*_KEY, "node", "link", at_us.alias("origin_us"))
        .join(lost.select(*_KEY), on=list(_KEY), how="left_semi")
    )
    by_source = (
        with_cause(seen, absences=absences, span_us=span_us, rows=log_rows)
        .groupBy(*_KEY, "node", "link")
        .agg(*(sf.count_if(sf.col("cause") == cause).alias(cause) for cause in CAUSES))
    )
    found = lost.join(
        by_source.groupBy(*_KEY).agg(*(sf.max(cause).alias(cause) for cause in CAUSES)), on=list(_KEY), how="inner"
    )
    left = sf.col("missing")
    for cause in CAUSES:
        found = found.withColumn(cause, sf.least(sf.col(cause), left))
        left = left - sf.col(cause)
    return (
        found.withColumn(UNEXPLAINED, left)
        .groupBy("target")
        .agg(*(sf.sum(name).alias(name) for name in (*CAUSES, UNEXPLAINED)))
    )


def _counts(name: str, *, gaps: bool) -> tuple[Column, ...]:
    at_us = sf.unix_micros("applied")
    # Wider on both sides by as much as clocks may differ and an update may be under way.
    near = (at_us > sf.col(f"{name}_after_us")) & (at_us <= sf.col(f"{name}_until_us"))
    sure = _sure(at_us)
    doubtful = in_gap(at_us) if gaps else sf.lit(False)
    return (
        sf.count_if(sure & ~doubtful).alias(f"{name}_sure"),
        sf.count_if(near).alias(f"{name}_all"),
        sf.count_if(sure & doubtful).alias(f"{name}_doubtful"),
    )


def _sure(at_us: Column) -> Column:
    """Return whether a row is an update of its own, in the span in which the target had to get it."""
    inside = (at_us > sf.col("covered_from_us")) & (at_us <= sf.col("settled_until_us"))
    return is_live() & (sf.col("flags").bitwiseAND(FLAG_DUP) == 0) & inside
