"""Log rows brought into the terms of a report: which target a row belongs to, and when.

Owns the two ways from a row to a target: a reference row belongs to every target that selects its topic, a
node's row to the one target whose link and selector it names. Every join here is with a small frame whose key
is unique.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType
from pyspark.sql.window import WindowSpec

from fanout.replog.files.schema import FLAG_CONFLATED
from fanout.reports.read.details import Selection
from fanout.reports.read.matching import LOOKED_UP_MIN, beginning, matches_any, matches_selection, plain_root
from fanout.reports.read.schemas import PHASE_LIVE, arrow_type, struct_of
from fanout.reports.read.scope import NEVER_US, AskedWindow, Scope, Target

__all__ = [
    "conflated",
    "explode_targets",
    "in_gap",
    "is_live",
    "is_within",
    "places_frame",
    "small_frame",
    "source_rows",
    "target_rows",
    "targets_frame",
    "whole",
    "within_reference",
]

_FOUND = "targets_of_"
_SOURCES = "node string, link string, group int"
_PLACES = "target int, node string, link string, selector string"
_TARGETS = (
    "target int, covered_from_us bigint, covered_until_us bigint, settled_until_us bigint, "
    "reference_from_us bigint, reference_until_us bigint, "
    "gaps array<struct<after_us: bigint, until_us: bigint>>"
)


def whole(*key: str) -> WindowSpec:
    """Return the window that is all rows of a key."""
    return Window.partitionBy(*key).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)


def is_live() -> Column:
    """Return whether a row is an update that was applied: not a retained copy, and not folded away."""
    return (sf.col("phase") == PHASE_LIVE) & ~conflated()


def conflated() -> Column:
    """Return whether a row is an update that the node folded into a newer one."""
    return sf.col("flags").bitwiseAND(FLAG_CONFLATED) != 0


def in_gap(at_us: Column) -> Column:
    """Return whether a time lies in a gap of the target's log; the row has the target's column `gaps`."""
    return sf.exists("gaps", lambda gap: (at_us > gap["after_us"]) & (at_us <= gap["until_us"]))


def is_within(time: Column, window: AskedWindow) -> Column:
    """Return whether a time lies in the window that was asked for; of a bare column Parquet files can skip the rest."""
    found = sf.lit(True)
    if window.has_begin:
        found &= time >= sf.timestamp_micros(sf.lit(window.since_us))
    if window.has_end:
        found &= time < sf.timestamp_micros(sf.lit(window.until_us))
    return found


def targets_frame(spark: SparkSession, scope: Scope) -> DataFrame:
    """Return one row for each target with its spans; `target` is the key.

    A node's row can be compared only within the reference's own span. A primary's log has no bounds, because updates
    beyond its end were lost from it.
    """
    rows: list[tuple[object, ...]] = []
    for target in scope.targets:
        group = scope.groups[target.group]
        bounded = group.selections is not None
        rows.append(
            (
                target.id,
                target.covered_from_us,
                target.covered_until_us,
                target.settled_until_us,
                group.from_us if bounded else -NEVER_US,
                group.end_us if bounded else NEVER_US,
                list(target.gaps_us),
            )
        )
    return small_frame(spark, rows, schema=_TARGETS)


def places_frame(spark: SparkSession, targets: Iterable[Target]) -> DataFrame:
    """Return (target, node, link, selector) of each target; `target` is the key."""
    return small_frame(spark, [(target.id, *target.place.values()) for target in targets], schema=_PLACES)


def source_rows(updates: DataFrame, *, scope: Scope) -> DataFrame:
    """Return the rows that the reference logged, with the `group` that each speaks of."""
    sources = small_frame(updates.sparkSession, scope.sources, schema=_SOURCES)
    return updates.join(sf.broadcast(sources), on=["node", "link"], how="inner")


def explode_targets(rows: DataFrame, *, scope: Scope, targets: Sequence[Target]) -> DataFrame:
    """Return each row once for every target that selects its topic, with the column `target`.

    Args:
        rows: Rows with the columns `topic` and `group`.
        scope: The scope of the report.
        targets: Those to consider; the others get no row.
    """
    by_selection: dict[tuple[int, Selection], list[int]] = defaultdict(list)
    for target in targets:
        by_selection[target.group, target.selection].append(target.id)
    if not by_selection:
        return rows.withColumn("target", sf.lit(0)).limit(0)
    rows, matched = _look_up(rows, by_selection)
    one_group = len(scope.groups) == 1
    # Each distinct selection is evaluated once for a row, however many nodes share it. Empty arrays, not nulls: taking
    # nulls out would need a lambda, which Spark does not compile.
    matched += [
        sf.when(
            matches_selection(sf.col("topic"), selection) & (sf.lit(True) if one_group else sf.col("group") == group),
            sf.array(*(sf.lit(target) for target in ids)),
        ).otherwise(_nobody())
        for (group, selection), ids in sorted(by_selection.items())
    ]
    found = [name for name in rows.columns if name.startswith(_FOUND)]
    return rows.withColumn("target", sf.explode(sf.flatten(sf.array(*matched)))).drop(*found)


def _look_up(rows: DataFrame, by_selection: dict[tuple[int, Selection], list[int]]) -> tuple[DataFrame, list[Column]]:
    """Find the targets of many plain selections by their text, not one after another, and take these selections out.

    Returns:
        The rows, and their columns with the targets that were found, whose names begin with `_FOUND`.
    """
    by_levels: dict[int, dict[tuple[int, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for (group, selection), ids in by_selection.items():
        if (root := plain_root(selection)) is not None:
            by_levels[root[0]][group, root[1]] += ids
    columns = []
    for levels, by_root in sorted(by_levels.items()):
        if len(by_root) < LOOKED_UP_MIN:
            continue
        name = f"{_FOUND}{levels}"
        places = small_frame(
            rows.sparkSession,
            [(group, text, ids) for (group, text), ids in sorted(by_root.items())],
            schema=f"`group` int, root string, {name} array<int>",
        )
        rooted = rows.withColumn("root", beginning(sf.col("topic"), levels))
        rows = rooted.join(sf.broadcast(places), on=["group", "root"], how="left").drop("root")
        columns.append(sf.coalesce(name, _nobody()))
        for place in [one for one in by_selection if (root := plain_root(one[1])) is not None and root[0] == levels]:
            del by_selection[place]
    return rows, columns


def _nobody() -> Column:
    return sf.array().cast("array<int>")


def target_rows(updates: DataFrame, *, scope: Scope, targets: Sequence[Target]) -> DataFrame:
    """Return the rows that the nodes logged for these targets, with the columns `target` and `group`.

    Rows of topics that the reference does not select are left out.
    """
    listed = [(*target.place.values(), target.id, target.group) for target in targets]
    schema = "node string, link string, selector string, target int, group int"
    places = small_frame(updates.sparkSession, listed, schema=schema)
    rows = updates.join(sf.broadcast(places), on=["node", "link", "selector"], how="inner")
    return within_reference(rows, scope=scope, targets=targets)


def within_reference(rows: DataFrame, *, scope: Scope, targets: Sequence[Target]) -> DataFrame:
    """Return the rows, with the columns topic and target, of topics that the reference selects.

    Nothing can be said of the others.
    """
    for group in scope.groups:
        if group.selections is None:
            continue
        ids = [target.id for target in targets if target.group == group.id]
        rows = rows.where(matches_any(sf.col("topic"), group.selections) | ~sf.col("target").isin(ids))
    return rows


def small_frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], *, schema: str | StructType) -> DataFrame:
    """Return a frame of a few rows that exist on this side; no Python runs on an executor for it.

    Through Arrow, which the JVM reads itself: a frame made of Python's tuples would be unpickled by Python on
    every executor, which may have none.
    """
    struct = struct_of(schema) if isinstance(schema, str) else schema
    arrow = pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in struct.fields])
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(arrow)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=arrow), schema=struct)
