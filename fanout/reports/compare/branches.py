"""Branches of topics of which a target lacks everything, while it has what is beside them: it may not read them.

A broker hides from a subscriber what its user may not read, and says nothing. Then whole topics are at 0 per cent, and
neighbours are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare.absences import UNEXPLAINED

__all__ = ["BRANCHES_MAX", "Branch", "empty_branches", "hidden_branches"]

BRANCHES_MAX: Final = 2_000
"""So many branches are looked at, those next to the root first."""

_LEVELS_MAX: Final = 8
_UPDATES_MIN: Final = 3
_CHANCE_MAX: Final = 1e-6
"""How likely it may be that chance alone took all updates of a branch."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of which nothing came."""

    target: int
    name: str
    """A Topic Name, or a beginning of it of so many levels."""
    is_topic: bool
    missing: int
    unexplained: int
    """Those of them that were lost while the link was live, and nothing in its log says why."""

    @property
    def filter(self) -> str:
        """Return the Topic Filter of it."""
        return self.name if self.is_topic else f"{self.name}/#"


def empty_branches(expected: DataFrame, *, absent: DataFrame) -> DataFrame:
    """Return the branches of each target of which every update is missing, those next to the root first.

    Args:
        expected: `losses.expected_updates`.
        absent: `holes.absent_updates` with `cause`.

    Returns:
        Columns target, level, name, is_topic, missing, unexplained.
    """
    nothing = sf.lit(0).cast("long")
    unexplained = (sf.col("cause") == UNEXPLAINED).cast("long")
    lost = absent.where("known").select(
        "target", "topic", nothing.alias("expected"), sf.lit(1).alias("missing"), unexplained.alias("unexplained")
    )
    topics = (
        expected.where("expected = 1")
        .select("target", "topic", "expected", nothing.alias("missing"), nothing.alias("unexplained"))
        .unionByName(lost)
        .groupBy("target", "topic")
        .agg(*(sf.sum(name).alias(name) for name in ("expected", "missing", "unexplained")))
    )
    levels = sf.split("topic", "/")
    level = sf.explode(sf.sequence(sf.lit(1), sf.least(sf.size(levels), sf.lit(_LEVELS_MAX))))
    return (
        topics.withColumn("level", level)
        .withColumn("is_topic", sf.size(levels) == sf.col("level"))
        .withColumn("name", sf.array_join(sf.slice(levels, sf.lit(1), sf.col("level")), "/"))
        .groupBy("target", "level", "name", "is_topic")
        .agg(*(sf.sum(name).alias(name) for name in ("expected", "missing", "unexplained")))
        .where((sf.col("missing") == sf.col("expected")) & (sf.col("unexplained") > 0))
        .drop("expected")
        .orderBy("level", sf.desc("missing"), "target", "name")
    )


def hidden_branches(rows: Iterable[Mapping[str, Any]], *, lost_share: Mapping[int, float]) -> Sequence[Branch]:
    """Return the widest of these branches that chance did not empty, and that are not all a target had to get.

    Args:
        rows: `empty_branches`.
        lost_share: By target, the share of all of its updates that is missing.
    """
    found: dict[tuple[int, str], Branch] = {}
    for row in rows:
        one = Branch(**{name: row[name] for name in ("target", "name", "is_topic", "missing", "unexplained")})
        share = lost_share.get(one.target, 1.0)
        if share >= 1 or one.missing < max(_UPDATES_MIN, math.log(_CHANCE_MAX) / math.log(share)):
            continue
        levels = one.name.split("/")
        wider = ("/".join(levels[:count]) for count in range(1, len(levels)))
        if (one.target, one.name) not in found and not any((one.target, name) in found for name in wider):
            found[one.target, one.name] = one
    return tuple(found.values())
