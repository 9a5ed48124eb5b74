"""The section on whether the nodes hold the same values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.reports.compare import convergence
from fanout.reports.compare import final_values as state
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read import rows
from fanout.reports.read.details import Selection
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.scope import Scope, Target
from fanout.reports.read.survey import Survey
from fanout.reports.values.buckets import window_us
from fanout.reports.values.figures import Listed, time_of
from fanout.reports.values.findings import ApartTopic, ConvergenceSection, ConvergenceSet, HeldValue, Member

__all__ = ["describe_convergence"]

_PLACE = "node string, link string, selector string"


@dataclass(frozen=True, slots=True)
class _Set:
    """A selector as several links replicate it."""

    id: int
    group: int
    selection: Selection
    targets: tuple[Target, ...]
    reference: int | None
    """The identifier of the reference as a member; None for a union, which is no node."""


@dataclass(frozen=True, slots=True)
class _Finals:
    """What is held at the end of the logs."""

    counts: dict[int, dict[str, Any]]
    """Of each set its topics by verdict."""
    held: dict[int, dict[str, Any]]
    """Of each member its topics and their digest."""
    total: int
    """How many topics are apart."""
    apart: list[tuple[int, str, dict[int, int]]]
    """The first of them: set, topic, and the digest of each member that holds a value."""


class _Members:
    """The members of all sets and their names; a target is the member of its own identifier."""

    def __init__(self, survey: Survey, scope: Scope) -> None:
        self.scope = scope
        by_selection: dict[tuple[int, Selection], list[Target]] = defaultdict(list)
        for target in scope.targets:
            by_selection[target.group, target.selection].append(target)
        self.sets: list[_Set] = []
        self.names: dict[int, tuple[str, str]] = {target.id: (target.node, target.link) for target in scope.targets}
        self.gaps = {target.id: bool(survey.gap_pos(target.node, link=target.link)) for target in scope.targets}
        for (group, selection), targets in sorted(by_selection.items()):
            reference = None
            sources = [source for source in scope.sources if source.group == group]
            if scope.reference.kind != "union":
                reference = len(scope.targets) + len(self.sets)
                self.names[reference] = (sources[0].node, sources[0].link)
                self.gaps[reference] = any(survey.gap_pos(s.node, link=s.link) for s in sources)
            self.sets.append(_Set(len(self.sets), group, selection, tuple(targets), reference))

    def of(self, one: _Set) -> list[int]:
        """Return the members of a set: the reference first, then the nodes."""
        first = [] if one.reference is None else [one.reference]
        return [*first, *(target.id for target in one.targets)]

    def settled_until_us(self, one: _Set) -> int:
        """Return until when values are judged: until the first member's log is settled."""
        return min(min(target.settled_until_us, target.silent_after_us) for target in one.targets)


def describe_convergence(
    spark: SparkSession, tables: Tables, *, survey: Survey, scope: Scope, list_limit: int, parquet: ParquetTables
) -> ConvergenceSection:
    """Return, for each selector, whether its nodes hold the same values at the end, and when they did before.

    Of a window that ends before the logs do only the latter: what is held at the end of the logs is not of it.
    """
    members = _Members(survey, scope)
    begin_us, end_us = survey.span_us(scope.window)
    width_us = window_us(end_us - begin_us)
    finals = None
    if not scope.window.has_end:
        finals = _finals(spark, tables, survey=survey, members=members, list_limit=list_limit, parquet=parquet)
    else:
        parquet.write_empty("convergence")
    places = _places(spark, survey=survey, members=members)
    events = tables.events.where(rows.is_within(sf.col("at"), scope.window))
    points = convergence.digest_points(events, places=places, window_us=width_us).persist()
    try:
        windows = {row["set"]: row for row in collect_rows(convergence.windows_of(points))}
        parquet.write("digests", points.join(sf.broadcast(places.drop("set", "whole")), on="member", how="inner"))
    finally:
        points.unpersist()
    sets = tuple(
        ConvergenceSet(
            filter=one.selection.filter,
            exclude=one.selection.exclude,
            basis=scope.groups[one.group].basis,
            settled_until=None if finals is None else time_of(members.settled_until_us(one)),
            members=tuple(_member(members.names[member], member, finals) for member in members.of(one)),
            **{
                name: None if finals is None else finals.counts.get(one.id, {}).get(name, 0)
                for name in ("equal", "apart", "pending", "unknown")
            },
            windows_compared=windows[one.id]["compared"] if one.id in windows else 0,
            windows_equal=windows[one.id]["equal"] if one.id in windows else 0,
            last_equal=_time(windows.get(one.id, {}).get("last_equal_us")),
        )
        for one in members.sets
    )
    apart = None if finals is None else _describe_apart(finals, members)
    return ConvergenceSection(sets=sets, apart=apart, window_s=width_us // 1_000_000)


def _finals(
    spark: SparkSession,
    tables: Tables,
    *,
    survey: Survey,
    members: _Members,
    list_limit: int,
    parquet: ParquetTables,
) -> _Finals:
    values = _values(spark, tables, survey=survey, members=members).persist()
    verdicts = convergence.compare_members(values, sets=_sets_frame(spark, members)).persist()
    try:
        counts = {row["set"]: row for row in collect_rows(convergence.count_verdicts(verdicts))}
        held = {row["member"]: row for row in collect_rows(convergence.count_members(values))}
        total = sum(row["apart"] for row in counts.values())
        apart = _list_apart(values, verdicts, list_limit=list_limit) if total else []
        filters: list[tuple[object, ...]] = [(one.id, one.selection.filter) for one in members.sets]
        named = rows.small_frame(spark, filters, schema="set int, selector string")
        parquet.write("convergence", verdicts.join(sf.broadcast(named), on="set", how="inner"))
    finally:
        verdicts.unpersist()
        values.unpersist()
    return _Finals(counts, held, total, apart)


def _member(name: tuple[str, str], member: int, finals: _Finals | None) -> Member:
    node, link = name
    if finals is None:
        return Member(node=node, link=link, topics=None, digest=None)
    held = finals.held.get(member, {"topics": 0, "digest": 0})
    return Member(node=node, link=link, topics=held["topics"], digest=_hexadecimal(held["digest"]))


def _describe_apart(finals: _Finals, members: _Members) -> Listed[ApartTopic]:
    listed = tuple(
        ApartTopic(
            filter=members.sets[set_id].selection.filter,
            topic=topic,
            values=tuple(
                HeldValue(
                    node=members.names[member][0],
                    link=members.names[member][1],
                    digest=_hexadecimal(digests[member]) if member in digests else None,
                )
                for member in members.of(members.sets[set_id])
            ),
        )
        for set_id, topic, digests in finals.apart
    )
    return Listed[ApartTopic](total=finals.total, listed=listed)


def _values(spark: SparkSession, tables: Tables, *, survey: Survey, members: _Members) -> DataFrame:
    """Return the last value of each topic at each member; see `convergence.compare_members`."""
    scope = members.scope
    floors = state.floors_frame(spark, survey=survey, scope=scope)
    standing = state.standing_rows(tables.updates, floors=floors)
    columns = ("set", "member", "topic", "digest", "changed_us", "sure", "gap")
    held = state.final_state(
        rows.target_rows(standing, spark=spark, scope=scope, targets=scope.targets), by=("target",)
    )
    parts = [held.join(sf.broadcast(_owners(spark, members, of_targets=True)), on="target", how="inner")]
    if scope.reference.kind != "union":
        reference = state.reference_state(rows.source_rows(standing, spark=spark, scope=scope), scope=scope)
        # One target stands for all of its set: they select the same.
        first = [one.targets[0] for one in members.sets]
        wanted = rows.explode_targets(reference, scope=scope, targets=first)
        parts.append(wanted.join(sf.broadcast(_owners(spark, members, of_targets=False)), on="target", how="inner"))
    return reduce(DataFrame.unionByName, [part.select(*columns) for part in parts])


def _owners(spark: SparkSession, members: _Members, *, of_targets: bool) -> DataFrame:
    """Return, for each target, its set and member, or the reference of its set; `target` is the key."""
    found: list[tuple[object, ...]] = []
    for one in members.sets:
        if of_targets:
            found.extend((target.id, one.id, target.id, members.gaps[target.id]) for target in one.targets)
        elif one.reference is not None:
            found.append((one.targets[0].id, one.id, one.reference, members.gaps[one.reference]))
    return rows.small_frame(spark, found, schema="target int, set int, member int, gap boolean")


def _sets_frame(spark: SparkSession, members: _Members) -> DataFrame:
    found: list[tuple[object, ...]] = [
        (
            one.id,
            len(members.of(one)),
            sum(members.gaps[member] for member in members.of(one)),
            members.settled_until_us(one),
        )
        for one in members.sets
    ]
    return rows.small_frame(spark, found, schema="set int, members int, gap_members int, settled_until_us bigint")


def _places(spark: SparkSession, *, survey: Survey, members: _Members) -> DataFrame:
    selectors = {(node, link.name): len(link.selections) for node in survey.roles for link in survey.config(node).links}
    found: list[tuple[object, ...]] = [
        (
            target.id,
            one.id,
            target.node,
            target.link,
            target.selection.filter,
            selectors[target.node, target.link] == 1,
        )
        for one in members.sets
        for target in one.targets
    ]
    return rows.small_frame(spark, found, schema=f"member int, set int, {_PLACE}, whole boolean")


def _list_apart(values: DataFrame, verdicts: DataFrame, *, list_limit: int) -> list[tuple[int, str, dict[int, int]]]:
    """Return the first topics that are apart, each with the digests of the members that hold a value."""
    first = verdicts.where(sf.col("verdict") == "apart").orderBy("set", "topic").limit(list_limit)
    found: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    listed = values.join(sf.broadcast(first.select("set", "topic")), on=["set", "topic"], how="inner")
    for row in collect_rows(listed.where(sf.col("digest").isNotNull()).orderBy("set", "topic", "member")):
        found[row["set"], row["topic"]][row["member"]] = row["digest"]
    return [(set_id, topic, digests) for (set_id, topic), digests in found.items()]


def _hexadecimal(digest: int) -> str:
    return f"{digest % 2**64:016x}"


def _time(unix_us: int | None) -> datetime | None:
    return None if unix_us is None else time_of(unix_us)
