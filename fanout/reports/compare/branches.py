"""Branches without any update at a target from some time on, while topics beside them have updates.

A broker silently hides topics that a subscriber's user may not read. Then nothing of whole topics comes, from the
beginning or since a right was taken away, and neighbours come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.absences import UNEXPLAINED
from fanout.reports.read.scope import NEVER_US

__all__ = ["BRANCHES_MAX", "UNREAD", "Branch", "empty_branches", "hidden_branches"]

UNREAD: Final = ("audit", UNEXPLAINED)
"""Causes that a branch which is not readable has: an audit finds that its topics do not come."""

BRANCHES_MAX: Final = 2_000
"""So many branches are looked at, those next to the root first."""

_LEVELS_MAX: Final = 8
_UPDATES_MIN: Final = 3
_CHANCE_MAX: Final = 1e-6
"""Greatest probability that chance alone took all updates of a branch."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of which nothing came any more."""

    target: int
    name: str
    """A Topic Name, or a beginning of it of so many levels."""
    is_topic: bool
    missing: int
    audit: int
    """Those of them that were lost before an audit which found a difference."""
    live: int
    """Those of them that were lost while the link was live, and nothing in its log says why."""

    @property
    def filter(self) -> str:
        """Return the Topic Filter of it."""
        return self.name if self.is_topic else f"{self.name}/#"


def empty_branches(expected: DataFrame, *, lost: DataFrame) -> DataFrame:
    """Return the branches of each target that lack every update since the first missing one, the widest first.

    Args:
        expected: `losses.expected_updates`.
        lost: `losses.count_losses`.

    Returns:
        Columns target, level, name, is_topic, missing, and one for each of `UNREAD`.
    """
    at_us, first_us = sf.col("at_us"), sf.col("first_us")
    counts = ("missing", *UNREAD)
    lacking = lost.where((sf.col("scope") == "topic") & (sf.col("missing") > 0)).select(
        "target", "topic", "first_us", *counts
    )
    topics = (
        expected.where("expected = 1")
        .join(sf.broadcast(lacking), on=["target", "topic"], how="left")
        .groupBy("target", "topic")
        .agg(
            *(sf.coalesce(sf.first(name), sf.lit(0)).alias(name) for name in counts),
            sf.min("first_us").alias("first_us"),
            sf.count_if(at_us >= first_us).alias("since"),
            sf.max(sf.when(first_us.isNull() | (at_us < first_us), at_us)).alias("before_us"),
        )
        .withColumn("came_us", sf.when(sf.col("since") == sf.col("missing"), sf.col("before_us")).otherwise(NEVER_US))
    )
    levels = sf.split("topic", "/")
    level = sf.explode(sf.sequence(sf.lit(1), sf.least(sf.size(levels), sf.lit(_LEVELS_MAX))))
    is_topic = sf.size(levels) == sf.col("level")
    name = sf.array_join(sf.slice(levels, sf.lit(1), sf.col("level")), "/")
    named = topics.withColumn("level", level).withColumns({"is_topic": is_topic, "name": name})
    counted = named.groupBy("target", "level", "name", "is_topic").agg(
        *(sf.sum(count).alias(count) for count in counts),
        sf.min("first_us").alias("first_us"),
        sf.max("came_us").alias("came_us"),
    )
    nothing_since = sf.coalesce(sf.col("came_us") < sf.col("first_us"), sf.col("first_us").isNotNull())
    empty = counted.where(nothing_since & (sum((sf.col(name) for name in UNREAD), start=sf.lit(0)) > 0))
    return empty.drop("first_us", "came_us").orderBy("level", sf.desc("missing"), "target", "name")


def hidden_branches(rows: Iterable[Mapping[str, Any]], *, lost_share: Mapping[int, float]) -> Sequence[Branch]:
    """Return the widest of these branches that chance did not empty, and that are not all a target had to get.

    Args:
        rows: `empty_branches`.
        lost_share: By target, the share of all of its updates that is missing.
    """
    found: dict[tuple[int, str], Branch] = {}
    for row in rows:
        one = Branch(**{name: row[name] for name in ("target", "name", "is_topic", "missing", *UNREAD)})
        share = lost_share.get(one.target, 1.0)
        if share >= 1 or one.missing < max(_UPDATES_MIN, math.log(_CHANCE_MAX) / math.log(share)):
            continue
        levels = one.name.split("/")
        wider = ("/".join(levels[:count]) for count in range(1, len(levels)))
        if (one.target, one.name) not in found and not any((one.target, name) in found for name in wider):
            found[one.target, one.name] = one
    return tuple(found.values())
