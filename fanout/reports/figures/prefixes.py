"""The map of prefixes by node: where updates are lacking."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fanout.reports.compare import prefixes
from fanout.reports.read.reading import collect_rows
from fanout.reports.read.rows import small_frame
from fanout.reports.values.document import PrefixAtNode, PrefixNodes
from fanout.reports.values.figures import Listed, percent

__all__ = ["map_prefixes"]


def map_prefixes(
    spark: SparkSession, counted: DataFrame, *, places: Iterable[tuple[int, str, bool]], list_limit: int
) -> Listed[PrefixNodes]:
    """Return the prefixes that lack most, each with all of its nodes.

    Args:
        spark: The session.
        counted: `fanout.reports.compare.prefixes.count_prefixes`.
        places: Of each target its identifier, its node, and whether the reference shows every update of it.
        list_limit: The most prefixes.
    """
    named = small_frame(spark, list(places), schema="target int, node string, proved boolean")
    by_node = prefixes.count_by_node(counted, places=named).persist()
    try:
        total = by_node.select("prefix").distinct().count()
        found = collect_rows(prefixes.worst_prefixes(by_node, limit=list_limit).orderBy("prefix", "node"))
    finally:
        by_node.unpersist()
    return Listed[PrefixNodes](
        total=total,
        listed=tuple(
            PrefixNodes(prefix=prefix, nodes=tuple(_at_node(row) for row in rows))
            for prefix, rows in groupby(found, key=lambda row: str(row["prefix"]))
        ),
    )


def _at_node(row: dict[str, Any]) -> PrefixAtNode:
    expected, there = row["expected"], row["expected"] - row["missing"]
    return PrefixAtNode(
        **{name: row[name] for name in ("node", "expected", "missing", "unknown")},
        complete_percent_at_least=percent(there - row["unknown"], expected) if row["proved"] else None,
        complete_percent_at_most=percent(there, expected),
    )
