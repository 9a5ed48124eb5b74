"""The updates that targets lack, counted in one pass: by target, by topic, by prefix, and by window of time.

Also what was expected around each loss, which tells a loss that goes on from one that has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.absences import CAUSES, UNEXPLAINED
from fanout.reports.compare.prefixes import prefix_of, window_of
from fanout.reports.compare.sequence_bits import is_expected, origin_us

__all__ = [
    "COUNTS",
    "SCOPE_KEYS",
    "count_around",
    "count_losses",
    "count_windows",
    "expected_updates",
    "lacking_topics",
    "place_expected",
    "unknown_updates",
]

COUNTS = ("missing", "unknown", "superseded", *CAUSES, UNEXPLAINED)
"""What is counted of a loss: see `StampedFigures` and `MissingCauses`."""


SCOPE_KEYS: Final = {"target": ("target",), "topic": ("target", "topic"), "prefix": ("target", "prefix")}
"""What a loss can be of, and the columns that name it."""


def count_losses(absent: DataFrame, *, places: DataFrame, depth: int, window_us: int) -> DataFrame:
    """Return how many updates are lacking in each scope, and since when.

    Args:
        absent: `absent_updates` with `cause`.
        places: (target, node, link); `target` is the key.
        depth: How many topic levels make a prefix; 0 counts no prefixes.
        window_us: The width of the windows of time.

    Returns:
        Columns scope (`target`, `topic`, `prefix` or `window`), target, topic, prefix, node, link, window_us (null
        where they do not belong to the scope), `COUNTS`, first_us and last_us (of the missing).
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
    )


def lacking_topics(losses: DataFrame) -> DataFrame:
    """Return the losses of single topics that are known for sure, the worst first."""
    topics = losses.where((sf.col("scope") == "topic") & (sf.col("missing") > 0))
    return topics.orderBy(sf.desc("missing"), sf.desc("unknown"), "topic", "target")


def expected_updates(rows: DataFrame, *, repeats: bool) -> DataFrame:
    """Return one row (target, topic, at_us, expected: 1, certain: 1) for each update that a target had to get.

    Args:
        rows: Stamped reference rows by target, with the target's spans.
        repeats: Whether the reference may hold an update more than once, as a tap or a union may; a primary does not.
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
    """Return those of `absent_updates` of which nobody knows, as rows that take them back from `certain`."""
    unknown = absent.where(~sf.col("known"))
    return unknown.select(
        "target", "topic", sf.col("origin_us").alias("at_us"), sf.lit(0).alias("expected"), sf.lit(-1).alias("certain")
    )


def place_expected(expected: DataFrame, *, scopes: Mapping[str, DataFrame], depth: int, window_us: int) -> DataFrame:
    """Return the expected updates counted by window of time, and by where they lie from the losses of each scope.

    Args:
        expected: `expected_updates`, and `unknown_updates` where there are any.
        scopes: By name (`target`, `topic`, `prefix`) the few losses to look around: their key, first_us and
            last_us.
        depth: How many topic levels make a prefix.
        window_us: The width of the windows of time.

    Returns:
        Columns target, window_us; topic and prefix (null unless one of the losses), and for each scope its place: 0
        before the loss, 1 within it, 2 behind it, null without one; expected, and certain: those of which is known
        whether they came.
    """
    rows = expected.withColumns(
        {"prefix": prefix_of(sf.col("topic"), depth=depth), "window_us": window_of(sf.col("at_us"), window_us)}
    )
    for name, few in scopes.items():
        times = sf.struct("first_us", "last_us").alias(f"{name}_loss")
        rows = rows.join(sf.broadcast(few.select(*SCOPE_KEYS[name], times)), on=list(SCOPE_KEYS[name]), how="left")
    listed = [name for name in ("topic", "prefix") if name in scopes]
    return (
        rows.select(
            "target",
            "window_us",
            "expected",
            "certain",
            *(sf.when(sf.col(f"{name}_loss").isNotNull(), sf.col(name)).alias(name) for name in listed),
            *(_place(sf.col(f"{name}_loss")).alias(f"{name}_place") for name in scopes),
        )
        .groupBy("target", "window_us", *listed, *(f"{name}_place" for name in scopes))
        .agg(sf.sum("expected").alias("expected"), sf.sum("certain").alias("certain"))
    )


def count_windows(placed: DataFrame, *, places: DataFrame) -> DataFrame:
    """Return how many updates were expected of each link in each window: node, link, window_us, expected.

    Args:
        placed: `place_expected`.
        places: As for `count_losses`.
    """
    named = placed.join(sf.broadcast(places), on="target", how="inner")
    return named.groupBy("node", "link", "window_us").agg(sf.sum("expected").alias("expected"))


def count_around(placed: DataFrame, *, scope: str) -> DataFrame:
    """Return of how many updates in and behind each loss of a scope is known whether they came: key, place, certain."""
    place = sf.col(f"{scope}_place")
    counted = placed.where(place > 0).groupBy(*SCOPE_KEYS[scope], place.alias("place"))
    return counted.agg(sf.sum("certain").alias("certain"))


def _place(loss: Column) -> Column:
    at_us = sf.col("at_us")
    return sf.when(at_us < loss["first_us"], 0).when(at_us <= loss["last_us"], 1).when(loss.isNotNull(), 2)
