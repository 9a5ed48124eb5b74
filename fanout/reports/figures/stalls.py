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
from fanout.reports.values.figures import Listed, time_of
from fanout.reports.values.findings import StalledTopic, StallFigures, StallSection

__all__ = ["describe_stalls"]

_BROADCAST_MAX: Final = 500_000
"""Stalled topics, of about 100 bytes each, that are sent to the rows instead of shuffling the rows."""
_PARQUET_NAMES: Final = {"held_us": "newest_us", "settled_us": "reference_newest_us", "first_us": "first_lacking_us"}


def describe_stalls(material: Material) -> Part:
    """Return, for each selector of each link, the topics whose newest settled update did not come."""
    states, scope, parquet, list_limit = material.states, material.scope, material.parquet, material.list_limit
    basis = {target.id: scope.groups[target.group].basis for target in scope.targets}
    targets = tuple(
        StallFigures(
            **target.place,
            basis=basis[target.id],
            current=states.of(target.id, "stall_current"),
            stalled=states.of(target.id, "stall_stalled"),
            alone=states.of(target.id, "alone"),
            pending=states.of(target.id, "stall_pending"),
            unknown=states.of(target.id, "stall_unknown"),
            most_behind_s=None if behind_us is None else behind_us / 1e6,
        )
        for target in scope.targets
        for behind_us in (states.counts.get(target.id, {}).get("most_behind_us"),)
    )
    total = sum(one.stalled for one in targets)
    found: list[dict[str, Any]] = []
    if parquet.wanted or total:
        lacking = _lacking(states, few=total <= _BROADCAST_MAX)
        # An empty table too: what stalled at the time of an earlier report may have stood there.
        parquet.write("stalls", lacking.withColumnsRenamed(_PARQUET_NAMES))
        if total:
            here_alone = sf.when(sf.col("current_links") > 0, 0).otherwise(1)
            found = collect_rows(lacking.orderBy(here_alone, sf.desc("lacking"), "target", "topic").limit(list_limit))
    topics = tuple(
        StalledTopic(
            **scope.targets[row["target"]].place,
            topic=row["topic"],
            basis=basis[row["target"]],
            newest=None if row["held_us"] is None else time_of(row["held_us"]),
            first_lacking=time_of(row["first_us"]),
            reference_newest=time_of(row["settled_us"]),
            **{name: row[name] for name in ("lacking", "stalled_links", "current_links")},
        )
        for row in found
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
