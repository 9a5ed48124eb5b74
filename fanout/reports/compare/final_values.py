"""Final values: what each link holds at the end, compared topic by topic with what the reference holds.

A link's rows hold from its node's last process and its last tear-down on. The last row of a topic decides, by
its position in the log; its digest stands for the value. Where the log has a gap after that row, nothing is
known.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.reports.read.rows import explode_targets, small_frame
from fanout.reports.read.schemas import CHANGE_NEW, CHANGE_REFUSED, CHANGE_REMOVED, CHANGE_REPLACED, CHANGE_UNCHANGED
from fanout.reports.read.scope import Scope
from fanout.reports.read.survey import Survey

__all__ = [
    "VERDICTS",
    "compare_states",
    "count_states",
    "final_state",
    "floors_frame",
    "reference_state",
    "standing_rows",
]

VERDICTS = ("equal", "different", "absent", "extra", "pending", "unknown")
"""What a topic can be at a node: the reference's value; another; none where the reference has one; one where
the reference has none; not equal, but changed too recently to be judged; not logged since a gap in a log."""

_FLOORS = "node string, link string, last_epoch bigint, floor_pos bigint, gap_pos bigint"
_JUDGING = "target int, settled_until_us bigint, silent_after_us bigint, all_wanted boolean, all_held boolean"
_SIDES = ("wanted", "held")
_VALUE = ("digest", "changed_us", "stamp_epoch", "sequence", "sure")
"""What is known of a topic's last value in one log."""


def floors_frame(spark: SparkSession, *, survey: Survey, scope: Scope) -> DataFrame:
    """Return, for each (node, link), from where on its rows hold, and where its last gap ends."""
    places = sorted(
        {(source.node, source.link) for source in scope.sources}
        | {(target.node, target.link) for target in scope.targets}
    )
    rows: list[tuple[object, ...]] = []
    for node, link in places:
        epoch, floor_pos = survey.floor(node, link=link)
        rows.append((node, link, epoch, floor_pos, survey.gap_pos(node, link=link)))
    return small_frame(spark, rows, schema=_FLOORS)


def standing_rows(updates: DataFrame, *, floors: DataFrame) -> DataFrame:
    """Return the rows that say what is retained: stored, removed or kept out by a limit, and not torn down since."""
    stored = sf.col("change").isin(CHANGE_NEW, CHANGE_REPLACED, CHANGE_REMOVED, CHANGE_UNCHANGED, CHANGE_REFUSED)
    return (
        updates.where(stored)
        .join(sf.broadcast(floors), on=["node", "link"], how="inner")
        .where((sf.col("node_epoch") == sf.col("last_epoch")) & (sf.col("log_pos") > sf.col("floor_pos")))
    )


def final_state(rows: DataFrame, *, by: tuple[str, ...]) -> DataFrame:
    """Return the last value of each topic in one log.

    Returns:
        The columns of `by`; topic; digest (null when removed, or kept out); changed_us, when the value was stamped, or
        without a stamp applied; stamp_epoch and sequence (0 without a stamp); sure, whether no later row of
        the topic can be lost.
    """
    value = sf.when(~sf.col("change").isin(CHANGE_REMOVED, CHANGE_REFUSED), sf.col("digest"))
    changed_us = sf.unix_micros(sf.coalesce("origin", "applied"))
    nothing = sf.lit(0).cast("long")
    return rows.groupBy(*by, "topic").agg(
        sf.max_by(value, "log_pos").alias("digest"),
        sf.max_by(changed_us, "log_pos").alias("changed_us"),
        sf.max_by(sf.coalesce("stamp_epoch", nothing), "log_pos").alias("stamp_epoch"),
        sf.max_by(sf.coalesce("sequence", nothing), "log_pos").alias("sequence"),
        (sf.max("log_pos") > sf.max("gap_pos")).alias("sure"),
    )


def reference_state(rows: DataFrame, *, scope: Scope) -> DataFrame:
    """Return the reference's last value of each topic, one row for each (group, topic).

    Args:
        rows: The standing rows of the sources, with `group`.
        scope: The scope of the report.
    """
    state = final_state(rows, by=("node", "link", "group"))
    if len(scope.sources) == len(scope.groups):  # each has one source, hence each topic one row
        return state.select("group", "topic", *_VALUE)
    # Newest by time, then by sequence (updates of one batch share their time), then by digest, so that two
    # runs agree.
    order = sf.struct("changed_us", "stamp_epoch", "sequence", "digest")
    return state.groupBy("group", "topic").agg(*(sf.max_by(name, order).alias(name) for name in _VALUE))


def compare_states(
    reference: DataFrame, *, held: DataFrame, survey: Survey, scope: Scope, spark: SparkSession
) -> DataFrame:
    """Return the verdict on each (target, topic) that the reference or the node holds.

    Args:
        reference: `reference_state`.
        held: `final_state` of the nodes' rows by target.
        survey: What the first look found.
        scope: The scope of the report.
        spark: The session.

    Returns:
        Columns target, topic, verdict; topics of which both are known to hold nothing are left out.
    """
    wanted = explode_targets(reference, scope=scope, targets=scope.targets)
    both = (
        _side(wanted, "wanted", other="held")
        .unionByName(_side(held, "held", other="wanted"))
        .groupBy("target", "topic")
        .agg(*(sf.max(f"{side}_{name}").alias(f"{side}_{name}") for side in _SIDES for name in _VALUE))
        .where(sf.col("wanted_digest").isNotNull() | sf.col("held_digest").isNotNull())
    )
    judging = _judging_frame(spark, survey=survey, scope=scope)
    return both.join(sf.broadcast(judging), on="target", how="inner").select(
        "target", "topic", _verdict().alias("verdict")
    )


def count_states(verdicts: DataFrame) -> DataFrame:
    """Return, for each target, how many topics got each verdict."""
    return verdicts.groupBy("target").agg(
        *(sf.count_if(sf.col("verdict") == verdict).alias(verdict) for verdict in VERDICTS)
    )


def _side(state: DataFrame, side: str, *, other: str) -> DataFrame:
    """Return one side's values beside nulls for the other side, so that grouping joins them."""
    types = dict(state.dtypes)
    return state.select(
        "target",
        "topic",
        *(sf.col(name).alias(f"{side}_{name}") for name in _VALUE),
        *(sf.lit(None).cast(types[name]).alias(f"{other}_{name}") for name in _VALUE),
    )


def _judging_frame(spark: SparkSession, *, survey: Survey, scope: Scope) -> DataFrame:
    """Return, for each target, until when it is judged, and whether no row in a log means no value."""
    rows: list[tuple[object, ...]] = []
    for target in scope.targets:
        sources = [source for source in scope.sources if source.group == target.group]
        all_wanted = not any(survey.gap_pos(source.node, link=source.link) for source in sources)
        all_held = not survey.gap_pos(target.node, link=target.link)
        rows.append((target.id, target.settled_until_us, target.silent_after_us, all_wanted, all_held))
    return small_frame(spark, rows, schema=_JUDGING)


def _verdict() -> Column:
    equal = sf.equal_null("wanted_digest", "held_digest")
    wanted_sure = sf.coalesce("wanted_sure", "all_wanted")
    heard = sf.coalesce(sf.col("wanted_changed_us") <= sf.col("silent_after_us"), sf.lit(True))
    held_sure = sf.coalesce("held_sure", "all_held") & heard
    # What the node last logged is the reference's last update itself, so nothing newer can have been lost.
    same_update = (
        (sf.col("wanted_sequence") > 0)
        & (sf.col("wanted_sequence") == sf.col("held_sequence"))
        & (sf.col("wanted_stamp_epoch") == sf.col("held_stamp_epoch"))
    )
    known = wanted_sure & (held_sure | (equal & sf.coalesce(same_update, sf.lit(False))))
    changed_us = sf.greatest("wanted_changed_us", "held_changed_us")
    return (
        sf.when(~known, "unknown")
        .when(equal, "equal")
        .when(changed_us > sf.col("settled_until_us"), "pending")
        .when(sf.col("held_digest").isNull(), "absent")
        .when(sf.col("wanted_digest").isNull(), "extra")
        .otherwise("different")
    )
