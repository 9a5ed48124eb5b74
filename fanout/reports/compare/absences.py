"""State of a link when an update was lost: the spans in which it could lose any, and the span that covers a time.

The log of a link shows why updates are lost: the link or its node was away, or a later audit found that the primary had
dropped something. The log of a node above may show the same for that node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.read.absences import Absence
from fanout.reports.read.rows import small_frame
from fanout.reports.read.scope import NEVER_US, Scope, Target
from fanout.reports.read.survey import Survey

__all__ = [
    "CAUSES",
    "LIMITED",
    "SPANS",
    "UNEXPLAINED",
    "absences_of_targets",
    "skips_of_targets",
    "with_cause",
    "with_left_out",
    "with_skipped",
]

CAUSES: Final = ("restart", "new_epoch", "resumed", "away", "audit", "upstream", "skipped", "selector", "max_age")
"""Why a link may have lost an update; see `MissingCauses`."""

UNEXPLAINED: Final = "live"
"""Cause of losses of a live link that nothing in the log explains."""

SPANS: Final = "target int, after_us bigint, until_us bigint, cause string"
"""When a target may have lost updates, by its group's clock, and why."""

LIMITED: Final = ("payload_bytes", "retain", "qos")
"""Columns that say whether a selector leaves an update out."""

_INDIRECT: Final = ("audit", "upstream")
"""Causes that are told by something else than the link's own absence."""

_ROWS_OF_SLICE: Final = 4_000_000
"""Rows of the logs for each task that sorts the losses of a target by time, about."""

_SKIP_MARGIN_US: Final = 10_000_000
"""Longest time between the skip of a message and its publication, or its row in the log of a tap. Only its own topic is
looked at.
"""

_STOPPING_US: Final = 5_000_000
"""Longest time between the end of a node's links and its stop in good order."""


def absences_of_targets(survey: Survey, *, scope: Scope) -> list[tuple[object, ...]]:
    """Return the spans of each target, by its group's clock; spans of the nodes above it have the cause `upstream`.

    Args:
        survey: The absences of links, and which nodes are above which.
        scope: The scope of the report.

    Returns:
        Rows of `SPANS`.
    """
    by_link: dict[tuple[str, str], list[Absence]] = defaultdict(list)
    for absence in survey.absences:
        by_link[absence.node, absence.link].append(absence)
    links = sorted({(target.group, target.node, target.link, target.offset_us) for target in scope.targets})
    above = {(node, link): survey.nodes_above(node, link=link) for _, node, link, _ in links}
    spans: list[tuple[object, ...]] = []
    for target in scope.targets:
        stopped_us = survey.stopped_us(target.node)
        places = [(target.node, target.link, target.offset_us, "", stopped_us)]
        places += [
            (node, link, offset_us, "upstream", None)
            for group, node, link, offset_us in links
            if group == target.group and node in above[target.node, target.link]
        ]
        spans += [
            (
                target.id,
                _begin_us(absence, stopped_us=stopped_us) - offset_us - target.apart_us,
                absence.until_us - offset_us + target.apart_us,
                cause or absence.cause,
            )
            for node, link, offset_us, cause, stopped_us in places
            for absence in by_link[node, link]
        ]
    return spans


def _begin_us(absence: Absence, *, stopped_us: int | None) -> int:
    """Return since when an absence lasts: of a link that ended with its node, all before that had to come."""
    left_us = absence.left_us
    if stopped_us is None or left_us is None or absence.until_us != NEVER_US:
        return absence.after_us
    return left_us if left_us >= stopped_us - _STOPPING_US else absence.after_us


def with_cause(lost: DataFrame, *, absences: DataFrame, span_us: tuple[int, int], rows: int) -> DataFrame:
    """Return the lost updates with the column `cause`: one of `CAUSES`, or `UNEXPLAINED`.

    Rows and spans are put in order of time and read once, so neither many losses nor many spans multiply.

    Args:
        lost: Rows with the columns target and origin_us.
        absences: A frame of `absences_of_targets`.
        span_us: From when to when updates were lost, about.
        rows: Number of rows in the logs. With many that time is divided into slices, so that the losses of one target
            are put in order by many tasks.
    """
    slices = 1 + rows // _ROWS_OF_SLICE
    begin_us, end_us = span_us
    width_us = max(1, (end_us - begin_us) // slices)

    def slice_of(at_us: Column) -> Column:
        position = (at_us - sf.lit(begin_us).cast("long")) / sf.lit(width_us)
        return sf.greatest(sf.lit(0), sf.least(sf.lit(slices - 1), sf.floor(position))).cast("int")

    spans = absences.select(
        "target",
        slice_of(sf.col("after_us")).alias("slice"),
        sf.col("after_us").alias("origin_us"),
        sf.struct("until_us", "cause").alias("span"),
    )
    # Of all of a kind that have begun the one that lasts longest covers the time, if any does. What a link did itself
    # goes before what an audit found, and that before what the nodes above it did.
    kinds = [~sf.col("span")["cause"].isin(*_INDIRECT), *(sf.col("span")["cause"] == each for each in _INDIRECT)]
    if slices > 1:
        kind = sf.when(kinds[0], 0).when(kinds[1], 1).otherwise(2)
        later = sf.sequence(sf.col("slice") + 1, sf.lit(slices - 1))
        begun_before = (
            spans.where(sf.col("slice") < slices - 1)
            .withColumn("slice", sf.explode(later))
            .groupBy("target", "slice", kind)
            .agg(sf.min("origin_us").alias("origin_us"), sf.max("span").alias("span"))
        )
        spans = spans.unionByName(begun_before.select("target", "slice", "origin_us", "span"))
    # A span that begins at the very time of an update comes behind it: it does not cover it.
    begun = (
        Window.partitionBy("target", "slice")
        .orderBy("origin_us", sf.col("span").isNotNull())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    longest = [sf.max(sf.when(each, sf.col("span"))).over(begun) for each in kinds]
    covering = [sf.when(span["until_us"] >= sf.col("origin_us"), span["cause"]) for span in longest]
    cause = sf.coalesce(*covering, sf.lit(UNEXPLAINED))
    return (
        lost.withColumn("slice", slice_of(sf.col("origin_us")))
        .withColumn("span", sf.lit(None).cast("struct<until_us: bigint, cause: string>"))
        .unionByName(spans, allowMissingColumns=True)
        .withColumn("cause", cause)
        .where(sf.col("span").isNull())
        .drop("span", "slice")
    )


def skips_of_targets(events: DataFrame, *, scope: Scope) -> DataFrame:
    """Return when each target skipped messages of each topic that its log names, by its group's clock.

    Args:
        events: The rows of `events`.
        scope: The scope of the report.

    Returns:
        Columns target, topic, skipped_from_us, skipped_until_us.
    """
    margin_us = max(scope.settle_us, _SKIP_MARGIN_US)
    places: list[tuple[object, ...]] = [(one.id, one.node, one.link, one.offset_us) for one in scope.targets]
    frame = small_frame(events.sparkSession, places, schema="target int, node string, link string, offset_us bigint")
    told = sf.from_json("detail", "topics array<string>, first_us bigint, last_us bigint").alias("told")
    skipped = events.where(sf.col("event") == "skipped").select("node", "link", told)
    return (
        skipped.select("node", "link", sf.explode("told.topics").alias("topic"), "told.first_us", "told.last_us")
        .join(sf.broadcast(frame), on=["node", "link"], how="inner")
        .groupBy("target", "topic")
        .agg(
            sf.min(sf.col("first_us") - sf.col("offset_us") - margin_us).alias("skipped_from_us"),
            sf.max(sf.col("last_us") - sf.col("offset_us") + margin_us).alias("skipped_until_us"),
        )
    )


def with_skipped(lost: DataFrame, *, skips: DataFrame) -> DataFrame:
    """Return the lost updates with the cause `skipped` where nothing else explains one, and its topic was skipped then.

    Args:
        lost: `with_cause`.
        skips: `skips_of_targets`.
    """
    then = sf.col("origin_us").between(sf.col("skipped_from_us"), sf.col("skipped_until_us"))
    cause = sf.when((sf.col("cause") == UNEXPLAINED) & then, "skipped").otherwise(sf.col("cause"))
    joined = lost.join(sf.broadcast(skips), on=["target", "topic"], how="left")
    return joined.withColumn("cause", cause).drop("skipped_from_us", "skipped_until_us")


def with_left_out(lost: DataFrame, targets: Iterable[Target]) -> DataFrame:
    """Return the lost updates with the cause `selector` or `max_age` where nothing else explains one, and that may.

    Args:
        lost: `with_cause`, with the columns of `LIMITED`.
        targets: Those whose selectors or links leave messages out.
    """
    unexplained, cause = sf.col("cause") == UNEXPLAINED, sf.col("cause")
    for target in targets:
        limits, here = target.selection.limits, unexplained & (sf.col("target") == target.id)
        if limits.max_age_s:
            cause = sf.when(here & (sf.col("qos") <= limits.max_age_qos), "max_age").otherwise(cause)
        outside = sf.lit(limits.content)
        if limits.payload_max:
            outside |= sf.col("payload_bytes") > limits.payload_max
        if limits.retained_only:
            outside |= ~sf.col("retain")
        cause = sf.when(here & outside, "selector").otherwise(cause)
    return lost.withColumn("cause", cause).drop(*LIMITED)
