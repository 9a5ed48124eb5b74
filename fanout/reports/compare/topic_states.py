"""One row for each topic of each target: value and newest update at the reference, and at the node.

Each log is reduced to a row for each of its topics before the two sides meet, so no row of one log is joined with a
row of another. Final values, convergence and stalls are all judged from these rows.

A link's rows hold from its node's last process and its last tear-down on. The last row of a topic decides, by
its position in the log; its digest stands for the value. If the log has a gap after that row, nothing is known.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.sequence_bits import origin_us
from fanout.reports.compare.stalls import came, comparable
from fanout.reports.read.rows import explode_targets, is_live, small_frame, within_reference
from fanout.reports.read.schemas import CHANGE_NEW, CHANGE_REFUSED, CHANGE_REMOVED, CHANGE_REPLACED, CHANGE_UNCHANGED
from fanout.reports.read.scope import Scope, Target
from fanout.reports.read.survey import Survey

__all__ = ["node_topics", "reference_topics", "topic_states"]

_STORED = (CHANGE_NEW, CHANGE_REPLACED, CHANGE_REMOVED, CHANGE_UNCHANGED, CHANGE_REFUSED)
_FLOOR = "last_epoch bigint, floor_pos bigint, gap_pos bigint"
_SOURCES = (
    f"node string, link string, `group` int, span int, settled_until_us bigint, covered_until_us bigint, {_FLOOR}"
)
_PLACES = f"node string, link string, selector string, target int, `group` int, held_until_us bigint, {_FLOOR}"
_VALUE = ("digest", "changed_us", "stamp_epoch", "sequence", "sure")
"""Columns of a topic's last value in one log."""


def reference_topics(updates: DataFrame, *, survey: Survey, scope: Scope) -> DataFrame:
    """Return, for each target and each topic that it selects, what the reference's log says of the topic.

    Args:
        updates: The table.
        survey: Result of the first look.
        scope: The scope of the report.

    Returns:
        Columns target, topic, settled_us and expected_us (the newest update that the target had to get and is old
        enough to be judged, and the newest at all; covered_from_us is not looked at), and those of a value:
        digest (null when removed, or kept out); changed_us, when the value was stamped, or without a stamp applied;
        stamp_epoch and sequence (0 without a stamp); sure, whether no later row of the topic can be lost. These are
        null where the log says of no value; (target, topic) is the key.
    """
    # Targets that are judged until the same times share what is found: matching topics is left to the end, when each
    # is one row. From when a target is judged need not be known before: the newest update is after it, or none is.
    spans = sorted({_span(target) for target in scope.targets})
    places: list[tuple[object, ...]] = [
        (node, link, group, number, *span[1:], *_floor(survey, node, link))
        for node, link, group in scope.sources
        for number, span in enumerate(spans)
        if span[0] == group
    ]
    published = updates.join(
        sf.broadcast(small_frame(updates.sparkSession, places, schema=_SOURCES)), on=["node", "link"], how="inner"
    )
    update = comparable(scope) & is_live() & (origin_us() <= sf.col("covered_until_us"))
    settled = update & (origin_us() <= sf.col("settled_until_us"))
    newest = {
        "settled_us": sf.max(sf.when(settled, origin_us())),
        "expected_us": sf.max(sf.when(update, origin_us())),
    }
    if len(scope.sources) == len(scope.groups):  # each has one source, hence each topic one row
        topics = _last_values(published, by=("group", "span"), **newest)
    else:
        # Newest by time, then by sequence (updates of one batch share their time), then by digest, so that two
        # runs agree.
        order = sf.struct("changed_us", "stamp_epoch", "sequence", "digest")
        topics = (
            _last_values(published, by=("node", "link", "group", "span"), **newest)
            .groupBy("group", "span", "topic")
            .agg(
                *(sf.max_by(name, order).alias(name) for name in _VALUE),
                *(sf.max(name).alias(name) for name in newest),
            )
        )
    wanted = explode_targets(topics, scope=scope, targets=scope.targets)
    if len(spans) > len({group for group, _, _ in spans}):
        of_target = sf.array(*(sf.lit(spans.index(_span(target))) for target in scope.targets))
        wanted = wanted.where(sf.get(of_target, sf.col("target")) == sf.col("span"))
    return wanted.drop("group", "span")


def node_topics(updates: DataFrame, *, survey: Survey, scope: Scope) -> DataFrame:
    """Return, for each target, what its node's log says of each topic.

    A retained copy counts as got, with the time of its update; without a stamp with the time of the copy. A removal
    without a message does not count, nor does an update after the window.

    Args:
        updates: The table.
        survey: Result of the first look.
        scope: The scope of the report.

    Returns:
        Columns target, topic, held_us (the newest update that the node got in any way), and those of a value as
        `reference_topics` has them; (target, topic) is the key.
    """
    places: list[tuple[object, ...]] = [
        (
            target.node,
            target.link,
            target.selection.filter,
            target.id,
            target.group,
            scope.window.last_us + scope.tolerance_us(target),
            *_floor(survey, target.node, target.link),
        )
        for target in scope.targets
    ]
    logged = updates.join(
        sf.broadcast(small_frame(updates.sparkSession, places, schema=_PLACES)),
        on=["node", "link", "selector"],
        how="inner",
    )
    got = comparable(scope) & came() & (origin_us() <= sf.col("held_until_us"))
    topics = _last_values(logged, by=("target",), held_us=sf.max(sf.when(got, origin_us())))
    return within_reference(topics, scope=scope, targets=scope.targets)


def topic_states(reference: DataFrame, *, nodes: DataFrame, late: DataFrame | None, targets: DataFrame) -> DataFrame:
    """Return what is known of each (target, topic) at both sides.

    Args:
        reference: `reference_topics`.
        nodes: `node_topics`.
        late: `stalls.newest_late`; None where there is none.
        targets: Reference of each target; `target` is the key.

    Returns:
        The columns of `targets`; topic; settled_us, expected_us (null when it did not have to get any), held_us; for
        both sides, `wanted` and `held`, the columns of a value: `wanted_digest` and so on.
    """
    newest = ("settled_us", "expected_us", "held_us")
    values = [f"{side}_{name}" for side in ("wanted", "held") for name in _VALUE]
    sides = [
        frame.withColumnsRenamed({name: f"{side}_{name}" for name in _VALUE})
        for side, frame in (("wanted", reference), ("held", nodes), ("held", late))
        if frame is not None
    ]
    # Distributed by topic alone, so that all that is said of a topic is where it is judged.
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), sides).repartition("topic")
    covered = {
        name: sf.when(sf.col(name) > sf.col("covered_from_us"), sf.col(name)) for name in ("settled_us", "expected_us")
    }
    return (
        together.groupBy("target", "topic")
        .agg(*(sf.max(name).alias(name) for name in (*newest, *values)))
        .join(sf.broadcast(targets), on="target", how="inner")
        .withColumns(covered)
        .where(sf.coalesce("wanted_changed_us", "held_changed_us", "expected_us").isNotNull())
    )


def _span(target: Target) -> tuple[int, int, int]:
    """Return the times of a target on which its newest updates depend."""
    return target.group, target.settled_until_us, target.covered_until_us


def _floor(survey: Survey, node: str, link: str) -> tuple[int, int, int]:
    """Return the place from which the rows of a link hold, and the end of its last gap."""
    return *survey.floor(node, link=link), survey.gap_pos(node, link=link)


def _last_values(rows: DataFrame, *, by: tuple[str, ...], **others: Column) -> DataFrame:
    """Return the last value of each topic in one log, and other aggregates of its rows."""
    # The rows that say what is retained: stored, removed or kept out by a limit, and not torn down since.
    standing = (
        sf.col("change").isin(*_STORED)
        & (sf.col("node_epoch") == sf.col("last_epoch"))
        & (sf.col("log_pos") > sf.col("floor_pos"))
    )
    pos = sf.when(standing, sf.col("log_pos"))
    nothing = sf.lit(0).cast("long")
    value = {
        "digest": sf.when(~sf.col("change").isin(CHANGE_REMOVED, CHANGE_REFUSED), sf.col("digest")),
        "changed_us": origin_us(),
        "stamp_epoch": sf.coalesce("stamp_epoch", nothing),
        "sequence": sf.coalesce("sequence", nothing),
    }
    return rows.groupBy(*by, "topic").agg(
        *(sf.max_by(column, pos).alias(name) for name, column in value.items()),
        (sf.max(pos) > sf.max("gap_pos")).alias("sure"),
        *(column.alias(name) for name, column in others.items()),
    )
