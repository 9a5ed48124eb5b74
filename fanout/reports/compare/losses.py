"""The updates that targets lack, counted in one pass: by target, by topic, by prefix, and by window of time.

Also the expected updates around each loss, which tell a loss that goes on from one that has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.reports.compare.absences import CAUSES, UNEXPLAINED
from fanout.reports.compare.prefixes import prefix_of, window_of
from fanout.reports.compare.sequence_bits import is_expected, origin_us

if TYPE_CHECKING:
    from pyspark.sql import GroupedData

__all__ = [
    "COUNTS",
    "SCOPE_KEYS",
    "count_around",
    "count_losses",
    "expected_updates",
    "unknown_updates",
    "worst_losses",
]

COUNTS = ("missing", "unknown", "superseded", *CAUSES, UNEXPLAINED)
"""Counts of a loss: see `UpdateFigures` and `MissingCauses`."""


SCOPE_KEYS: Final = {"target": ("target",), "topic": ("target", "topic"), "prefix": ("target", "prefix")}
"""Scopes of a loss, and the columns that name each."""


def count_losses(absent: DataFrame, *, places: DataFrame, depth: int, window_us: int) -> DataFrame:
    """Return how many updates are lacking in each scope, and since when.

    Args:
        absent: `absent_updates` with `cause`.
        places: (target, node, link); `target` is the key.
        depth: Number of topic levels in a prefix; 0 counts no prefixes.
        window_us: The width of the windows of time.

    Returns:
        Columns scope (`target`, `topic`, `prefix` or `window`), target, topic, prefix, node, link, window_us (null
        where they do not belong to the scope), `COUNTS`, first_us and last_us (of the missing).
    """
    known, at_us = sf.col("known"), sf.col("origin_us")
    rows = absent.join(sf.broadcast(places), on="target", how="inner").withColumns(
        {"prefix": prefix_of(sf.col("topic"), depth=depth), "window_us": window_of(at_us, window_us)}
    )
    sets: dict[str, Sequence[str]] = {"target": ("target",), "topic": ("target", "topic")}
    sets |= {"prefix": ("target", "prefix")} if depth else {}
    sets |= {"window": ("node", "link", "window_us")}
    counted = {"missing": known, "unknown": ~known, "superseded": known & sf.col("superseded")}
    counted |= {cause: known & (sf.col("cause") == cause) for cause in (*CAUSES, UNEXPLAINED)}
    return _group_by_sets(rows, sets).agg(
        *(sf.count_if(condition).alias(name) for name, condition in counted.items()),
        sf.min(sf.when(known, at_us)).alias("first_us"),
        sf.max(sf.when(known, at_us)).alias("last_us"),
    )


def worst_losses(losses: DataFrame, *, limit: int) -> DataFrame:
    """Return the losses of targets and windows, and of the topics that lack most for sure.

    Args:
        losses: `count_losses`.
        limit: The most topics.

    Returns:
        Its columns, rank (of a topic, the worst first; it counts from 1), and topics: how many lack an update.
    """
    is_topic = (sf.col("scope") == "topic") & (sf.col("missing") > 0)
    listed = Window.partitionBy("scope", is_topic)
    worst_first = listed.orderBy(sf.desc("missing"), sf.desc("unknown"), "topic", "target")
    everywhere = listed.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ranked = losses.withColumns(
        {"rank": sf.row_number().over(worst_first), "topics": sf.count(sf.lit(1)).over(everywhere)}
    )
    return ranked.where(sf.col("scope").isin("target", "window") | (is_topic & (sf.col("rank") <= limit)))


def expected_updates(rows: DataFrame, *, repeats: bool) -> DataFrame:
    """Return one row (target, topic, at_us, expected: 1, certain: 1) for each update that a target had to get.

    Args:
        rows: Stamped reference rows by target, with the target's spans.
        repeats: True if the reference may hold an update more than once, as a tap or a union may; a primary does not.
    """
    expected = rows.where(is_expected())
    if not repeats:
        found = expected.withColumn("at_us", origin_us())
    else:
        found = expected.groupBy("target", "stamp_primary", "stamp_epoch", "sequence").agg(
            sf.min("topic").alias("topic"), sf.min(origin_us()).alias("at_us")
        )
    return found.select("target", "topic", "at_us", sf.lit(1).alias("expected"), sf.lit(1).alias("certain"))


def unknown_updates(absent: DataFrame) -> DataFrame:
    """Return rows that take unknown updates of `absent_updates` back from `certain`."""
    unknown = absent.where(~sf.col("known"))
    return unknown.select(
        "target", "topic", sf.col("origin_us").alias("at_us"), sf.lit(0).alias("expected"), sf.lit(-1).alias("certain")
    )


def count_around(
    expected: DataFrame, *, scopes: Mapping[str, DataFrame], places: DataFrame, depth: int, window_us: int
) -> DataFrame:
    """Return the expected updates of each link in each window, and in and after each loss.

    Args:
        expected: `expected_updates`, and `unknown_updates` where there are any.
        scopes: By name (`target`, `topic`, `prefix`) the few losses to look around: their key, first_us and
            last_us.
        places: As for `count_losses`.
        depth: Number of topic levels in a prefix.
        window_us: The width of the windows of time.

    Returns:
        Columns scope (`window`, or one of the scopes); of `window` node, link, window_us, and expected; of others their
        key, place (1 within the loss, 2 after it), and certain: of how many updates is known whether they came.
    """
    rows = expected.withColumns(
        {"prefix": prefix_of(sf.col("topic"), depth=depth), "window_us": window_of(sf.col("at_us"), window_us)}
    )
    for name, few in scopes.items():
        times = sf.struct("first_us", "last_us").alias(f"{name}_loss")
        rows = rows.join(sf.broadcast(few.select(*SCOPE_KEYS[name], times)), on=list(SCOPE_KEYS[name]), how="left")
    sums = (sf.sum("expected").alias("expected"), sf.sum("certain").alias("certain"))
    # First by all of it, with no topic and prefix but those of the losses, so that few rows go to each scope.
    placed = rows.groupBy(
        "target",
        "window_us",
        *(sf.when(sf.col(f"{name}_loss").isNotNull(), sf.col(name)).alias(name) for name in scopes if name != "target"),
        *(_place(sf.col(f"{name}_loss")).alias(f"{name}_place") for name in scopes),
    ).agg(*sums)
    sets: dict[str, Sequence[str]] = {"window": ("node", "link", "window_us")}
    sets |= {name: (*SCOPE_KEYS[name], f"{name}_place") for name in scopes}
    place = sf.coalesce(*(sf.max(f"{name}_place") for name in scopes), sf.lit(None).cast("int")).alias("place")
    counted = _group_by_sets(placed.join(sf.broadcast(places), on="target", how="inner"), sets).agg(place, *sums)
    return counted.where((sf.col("scope") == "window") | (sf.col("place") > 0))


def _place(loss: Column) -> Column:
    at_us = sf.col("at_us")
    return sf.when(at_us < loss["first_us"], 0).when(at_us <= loss["last_us"], 1).when(loss.isNotNull(), 2)


def _group_by_sets(rows: DataFrame, sets: Mapping[str, Sequence[str]]) -> GroupedData:
    """Return the rows grouped by each of some sets of columns, and by `scope`, the name of the set."""
    names = list(dict.fromkeys(name for each in sets.values() for name in each))
    own = {name: [scope for scope, each in sets.items() if name in each] for name in names}
    rows = rows.withColumn("scope", sf.explode(sf.array(*(sf.lit(scope) for scope in sets))))
    return rows.select(
        "scope",
        *(sf.when(sf.col("scope").isin(own[name]), sf.col(name)).alias(name) for name in names),
        *(name for name in rows.columns if name not in names and name != "scope"),
    ).groupBy("scope", *names)
