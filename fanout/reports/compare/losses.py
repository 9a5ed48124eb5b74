"""The updates that targets lack, counted in one pass: by target, by topic, by prefix, and by window of time.

Also what was expected around each loss, which tells a loss that goes on from one that has ended.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.absences import CAUSES, UNEXPLAINED
from fanout.reports.compare.prefixes import prefix_of, window_of
from fanout.reports.compare.sequence_bits import is_expected, origin_us

__all__ = ["COUNTS", "count_expected", "count_losses", "expected_updates", "worst_losses"]

COUNTS = ("missing", "unknown", "superseded", *CAUSES, UNEXPLAINED)
"""What is counted of a loss: see `StampedFigures` and `MissingCauses`."""


_ORDER = ("origin_us", "primary", "epoch", "sequence", "target")


def count_losses(absent: DataFrame, *, places: DataFrame, depth: int, window_us: int) -> DataFrame:
    """Return how many updates are lacking in each scope, and since when.

    Args:
        absent: `absent_updates` with `cause`.
        places: (target, node, link); `target` is the key.
        depth: How many topic levels make a prefix; 0 counts no prefixes.
        window_us: The width of the windows of time.

    Returns:
        Columns scope (`target`, `topic`, `prefix` or `window`), target, topic, prefix, node, link, window_us (null
        where they do not belong to the scope), `COUNTS`, first_us and last_us (of the missing), last_absent_us (of the
        unknown too).
    """
    known, at_us = sf.col("known"), sf.col("origin_us")
    rows = absent.join(sf.broadcast(places), on="target", how="inner").withColumns(
        {"prefix": prefix_of(sf.col("topic"), depth=depth), "window_us": window_of(at_us, window_us)}
    )
    sets = [["target"], ["target", "topic"], *([["target", "prefix"]] if depth else []), ["node", "link", "window_us"]]
    names = list(dict.fromkeys(name for each in sets for name in each))
    scope = (
        sf.when(sf.grouping("window_us") == 0, "window")
        .when(sf.grouping("topic") == 0, "topic")
        .otherwise("target" if not depth else sf.when(sf.grouping("prefix") == 0, "prefix").otherwise("target"))
    )
    counted = {"missing": known, "unknown": ~known, "superseded": known & sf.col("superseded")}
    counted |= {cause: known & (sf.col("cause") == cause) for cause in (*CAUSES, UNEXPLAINED)}
    return rows.groupingSets(sets, *names).agg(
        scope.alias("scope"),
        *(sf.count_if(condition).alias(name) for name, condition in counted.items()),
        sf.min(sf.when(known, at_us)).alias("first_us"),
        sf.max(sf.when(known, at_us)).alias("last_us"),
        sf.max(at_us).alias("last_absent_us"),
    )


def worst_losses(losses: DataFrame, *, absent: DataFrame, list_limit: int) -> DataFrame:
    """Return all losses by target and window, the worst topics, and the first missing updates.

    Args:
        losses: `count_losses`, persisted: it is read for each part.
        absent: As for `count_losses`.
        list_limit: The most topics, and the most updates.

    Returns:
        The columns of both; `scope` is `update` for a missing update, `topics` for the number of lacking topics, in
        `missing`.
    """
    topics = losses.where((sf.col("scope") == "topic") & (sf.col("missing") > 0))
    updates = absent.where("known").orderBy(*_ORDER).limit(list_limit)
    parts = [
        losses.where(sf.col("scope").isin("target", "window")),
        topics.orderBy(sf.desc("missing"), sf.desc("unknown"), "topic", "target").limit(list_limit),
        topics.agg(sf.lit("topics").alias("scope"), sf.count(sf.lit(1)).alias("missing")),
        updates.select(
            sf.lit("update").alias("scope"),
            *("target", "topic", "primary", "epoch", "sequence", "origin_us", "cause"),
            sf.col("superseded").alias("is_superseded"),
        ),
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def expected_updates(rows: DataFrame, *, repeats: bool) -> DataFrame:
    """Return one row (target, topic, at_us) for each update that a target had to get.

    Args:
        rows: Stamped reference rows by target, with the target's spans.
        repeats: Whether the reference may hold an update more than once, as a tap or a union may; a primary does not.
    """
    expected = rows.where(is_expected())
    if not repeats:
        return expected.select("target", "topic", origin_us().alias("at_us"))
    return expected.groupBy("target", "stamp_primary", "stamp_epoch", "sequence").agg(
        sf.min("topic").alias("topic"), sf.min(origin_us()).alias("at_us")
    )


def count_expected(
    expected: DataFrame, *, places: DataFrame, scopes: dict[str, DataFrame], depth: int, window_us: int
) -> DataFrame:
    """Return how many updates were expected in each window of each link, and around the losses of each scope.

    Args:
        expected: `expected_updates`.
        places: As for `count_losses`.
        scopes: By name (`target`, `topic`, `prefix`) the few losses to look around: the columns of its key, first_us and
            last_us.
        depth: How many topic levels make a prefix.
        window_us: The width of the windows of time.

    Returns:
        Columns scope, the key of it, place (1 within the loss, 2 behind it; null for `window`), expected.
    """
    rows = expected.withColumns(
        {"prefix": prefix_of(sf.col("topic"), depth=depth), "window_us": window_of(sf.col("at_us"), window_us)}
    )
    keys = {"target": ["target"], "topic": ["target", "topic"], "prefix": ["target", "prefix"]}
    for name, few in scopes.items():
        times = sf.struct("first_us", "last_us").alias(f"{name}_loss")
        rows = rows.join(sf.broadcast(few.select(*keys[name], times)), on=keys[name], how="left")
    # One pass over the rows; what follows reads the few that are left of them.
    listed = [name for name in ("topic", "prefix") if name in scopes]
    few_rows = (
        rows.select(
            "target",
            "window_us",
            *(sf.when(sf.col(f"{name}_loss").isNotNull(), sf.col(name)).alias(name) for name in listed),
            *(_place(sf.col(f"{name}_loss")).alias(f"{name}_place") for name in scopes),
        )
        .groupBy("target", "window_us", *listed, *(f"{name}_place" for name in scopes))
        .agg(sf.count(sf.lit(1)).alias("expected"))
    )
    total = sf.sum("expected").alias("expected")
    parts = [
        few_rows.join(sf.broadcast(places), on="target", how="inner")
        .groupBy("node", "link", "window_us")
        .agg(sf.lit("window").alias("scope"), total)
    ]
    for name in scopes:
        place = sf.col(f"{name}_place")
        parts.append(
            few_rows.where(place > 0).groupBy(*keys[name], place.alias("place")).agg(sf.lit(name).alias("scope"), total)
        )
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _place(loss: Column) -> Column:
    at_us = sf.col("at_us")
    return sf.when(at_us < loss["first_us"], 0).when(at_us <= loss["last_us"], 1).when(loss.isNotNull(), 2)
