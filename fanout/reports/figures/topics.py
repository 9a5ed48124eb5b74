"""The topics that stopped at a node, and those whose final value is another."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare import final_values, stalls
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.read import rows
from fanout.reports.read.reading import collect_rows
from fanout.reports.values.document import DifferingTopic
from fanout.reports.values.figures import FinalFigures, Listed, percent
from fanout.reports.values.findings import StalledTopic, StallFigures, StallSection

__all__ = ["describe_finals", "describe_stalls", "describe_topics"]

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


def describe_finals(material: Material) -> Part:
    """Return how the final values of each target compare, and the topics that differ.

    Nothing for a window that ends before the logs do: its values would take a replay of the logs. Nothing either of a
    selector that leaves retained values out.
    """
    states, scope, parquet, list_limit = material.states, material.scope, material.parquet, material.list_limit
    if scope.window.has_end:
        parquet.write_empty("final_values")
        return Part()
    figures = {
        target.id: _figures({verdict: states.of(target.id, f"final_{verdict}") for verdict in final_values.VERDICTS})
        for target in scope.targets
        if not target.selection.limits.keeps_values_out
    }
    total = sum(figure.unequal for figure in figures.values())
    parquet.write("final_values", states.frame.where("final IS NOT NULL").withColumnRenamed("final", "verdict"))
    compared = sf.col("target").isin(*figures)
    unequal = states.frame.where(compared & sf.col("final").isin(*final_values.UNEQUAL)).select(
        "target", "topic", "final"
    )
    listed = collect_rows(unequal.orderBy("target", "topic").limit(list_limit)) if total else []
    differing = Listed[DifferingTopic](
        total=total,
        listed=tuple(
            DifferingTopic(**scope.targets[row["target"]].place, topic=row["topic"], verdict=row["final"])
            for row in listed
        ),
    )
    return Part({"differing": differing}, {target: {"final": one} for target, one in figures.items()})


def _figures(values: dict[str, int]) -> FinalFigures:
    judged = values["equal"] + values["different"] + values["absent"] + values["extra"]
    return FinalFigures(
        **values,
        equal_percent=None if values["unknown"] else percent(values["equal"], judged),
        equal_percent_at_least=percent(values["equal"], judged + values["unknown"]),
    )


def describe_topics(material: Material) -> Part:
    """Return the topics that differ or stopped."""
    finals, stalled = describe_finals(material), describe_stalls(material)
    return Part({**finals.fields, **stalled.fields}, finals.by_target)
