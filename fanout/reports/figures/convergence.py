"""The section on whether the nodes hold the same values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import functions as sf

from fanout.reports.compare import convergence
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.figures.replicated_sets import ReplicatedSet
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.read import rows
from fanout.reports.read.reading import collect_rows
from fanout.reports.values.buckets import window_us
from fanout.reports.values.figures import Listed, time_of
from fanout.reports.values.findings import ApartTopic, ConvergenceSection, ConvergenceSet, HeldValue, Member

__all__ = ["describe_convergence"]

_NO_WINDOWS = {"windows_compared": 0, "windows_equal": 0, "last_equal_us": None}
_PLACES = "member int, set int, node string, link string, selector string, whole boolean"


def describe_convergence(material: Material) -> Part:
    """Return, for each selector, whether its nodes hold the same values at the end, and when they did before.

    A window that ends before the logs do has only the latter: values at the end of the logs are not of it.
    """
    states, parquet = material.states, material.parquet
    at_end = not states.scope.window.has_end
    begin_us, end_us = states.survey.span_us(states.scope.window)
    width_us = window_us(end_us - begin_us)
    windows = _windows(states, width_us=width_us, parquet=parquet)
    sets = tuple(
        ConvergenceSet.of(
            windows.get(one.id, _NO_WINDOWS),
            filter=one.selection.filter,
            exclude=one.selection.exclude,
            basis=states.scope.groups[one.group].basis,
            settled_until=time_of(one.judged_until_us) if at_end else None,
            members=_members(states, one, at_end=at_end),
            **{verdict: _sum(states, one, f"set_{verdict}") if at_end else None for verdict in convergence.VERDICTS},
        )
        for one in states.sets
    )
    apart = None
    if at_end:
        parquet.write(
            "convergence",
            states.frame.where("speaks_for_set AND set_verdict IS NOT NULL").withColumnRenamed(
                "set_verdict", "verdict"
            ),
        )
        total = sum(one.apart or 0 for one in sets)
        apart = Listed[ApartTopic](total=total, listed=_apart(states, list_limit=material.list_limit) if total else ())
    else:
        parquet.write_empty("convergence")
    section = ConvergenceSection(sets=sets, apart=apart, window_s=width_us // 1_000_000)
    return Part({"convergence": section})


def _sum(states: TopicStates, one: ReplicatedSet, name: str) -> int:
    return sum(states.of(target.id, name) for target in one.targets)


def _members(states: TopicStates, one: ReplicatedSet, *, at_end: bool) -> tuple[Member, ...]:
    """Return the members of a set with what they hold: the reference first, then the nodes."""

    def member(node: str, link: str, counts: Callable[[str], int], side: str) -> Member:
        if not at_end:
            return Member(node=node, link=link, topics=None, digest=None)
        return Member(
            node=node, link=link, topics=counts(f"{side}_topics"), digest=_hexadecimal(counts(f"{side}_digest"))
        )

    first = [] if one.reference is None else [member(*one.reference, partial(_sum, states, one), "reference")]
    return (
        *first,
        *(member(target.node, target.link, partial(states.of, target.id), "held") for target in one.targets),
    )


def _windows(states: TopicStates, *, width_us: int, parquet: ParquetTables) -> dict[int, dict[str, Any]]:
    """Return, for each set, in how many windows its nodes said the same of what they hold."""
    survey = states.survey
    selectors = {(node, link.name): len(link.selections) for node in survey.roles for link in survey.config(node).links}
    found: list[tuple[object, ...]] = [
        (target.id, one.id, *target.place.values(), selectors[target.node, target.link] == 1)
        for one in states.sets
        for target in one.targets
    ]
    places = rows.small_frame(states.tables.events.sparkSession, found, schema=_PLACES)
    events = states.tables.events.where(rows.is_within(sf.col("at"), states.scope.window))
    points = convergence.digest_points(events, places=places, window_us=width_us)
    parquet.write("digests", points.join(sf.broadcast(places.drop("set", "whole")), on="member", how="inner"))
    return {row["set"]: row for row in collect_rows(convergence.windows_of(points))}


def _apart(states: TopicStates, *, list_limit: int) -> tuple[ApartTopic, ...]:
    """Return the first topics that are apart, each with the digests of the members."""
    # As many topics, each with all of its members, are in as many rows, or in fewer.
    most = list_limit * max(len(one.targets) for one in states.sets)
    found = (
        states.frame.where(sf.col("set_verdict") == "apart")
        .select("set", "topic", "target", "wanted_digest", "held_digest")
        .orderBy("set", "topic", "target")
        .limit(most)
    )
    by_topic: dict[tuple[int, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in collect_rows(found):
        by_topic[row["set"], row["topic"]][row["target"]] = row
    return tuple(
        ApartTopic(
            filter=states.sets[set_id].selection.filter, topic=topic, values=_values(states.sets[set_id], by_target)
        )
        for (set_id, topic), by_target in list(by_topic.items())[:list_limit]
    )


def _values(one: ReplicatedSet, by_target: dict[int, dict[str, Any]]) -> tuple[HeldValue, ...]:
    held = [(target.node, target.link, by_target.get(target.id, {}).get("held_digest")) for target in one.targets]
    if one.reference is not None:
        held.insert(0, (*one.reference, next(iter(by_target.values()))["wanted_digest"]))
    return tuple(
        HeldValue(node=node, link=link, digest=None if digest is None else _hexadecimal(digest))
        for node, link, digest in held
    )


def _hexadecimal(digest: int) -> str:
    return f"{digest % 2**64:016x}"
