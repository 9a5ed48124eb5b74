"""The section on topics that stopped at a node."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare import stalls
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.read import rows
from fanout.reports.read.reading import collect_rows
from fanout.reports.values.figures import Listed
from fanout.reports.values.findings import StalledTopic, StallFigures, StallSection

__all__ = ["describe_stalls"]

_BROADCAST_MAX: Final = 500_000
"""Stalled topics, of about 100 bytes each, that are sent to the rows instead of shuffling the rows."""
_NAMES: Final = {"held_us": "newest_us", "settled_us": "reference_newest_us", "first_us": "first_lacking_us"}


def describe_stalls(material: Material) -> Part:
    """Return, for each selector of each link, the topics whose newest settled update did not come."""
    states, scope, parquet, list_limit = material.states, material.scope, material.parquet, material.list_limit
    basis = {target.id: scope.groups[target.group].basis for target in scope.targets}
    targets = tuple(
        StallFigures.of(
            target.place | {verdict: states.of(target.id, f"stall_{verdict}") for verdict in stalls.VERDICTS},
            basis=basis[target.id],
            alone=states.of(target.id, "alone"),
            most_behind_s=None if behind_us is None else behind_us / 1e6,
        )
        for target in scope.targets
        for behind_us in (states.counts.get(target.id, {}).get("most_behind_us"),)
    )
    total = sum(one.stalled for one in targets)
    found: list[dict[str, Any]] = []
    if parquet.wanted or total:
        lacking = _lacking(states, few=total <= _BROADCAST_MAX).withColumnsRenamed(_NAMES)
        # An empty table too: what stalled at the time of an earlier report may have stood there.
        parquet.write("stalls", lacking)
        if total:
            here_alone = sf.when(sf.col("current_links") > 0, 0).otherwise(1)
            found = collect_rows(lacking.orderBy(here_alone, sf.desc("lacking"), "target", "topic").limit(list_limit))
    topics = tuple(
        StalledTopic.of(row | scope.targets[row["target"]].place, basis=basis[row["target"]]) for row in found
    )
    section = StallSection(targets=targets, topics=Listed[StalledTopic](total=total, listed=topics))
    return Part({"stalls": section})


def _lacking(states: TopicStates, *, few: bool) -> DataFrame:
    published = rows.source_rows(states.tables.updates, scope=states.scope)
    return stalls.lacking_updates(
        states.frame.where(sf.col("stall") == "stalled"),
        rows=published.where(stalls.comparable(states.scope)),
        few=few,
    )
