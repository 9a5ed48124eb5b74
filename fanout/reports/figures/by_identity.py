"""Updates by identity: the stamped updates that each target got, those that it lacks, and since when.

Every query is one of the transforms; nothing is computed here but shares and bounds of finished counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare import absences, branches, holes, losses, prefixes
from fanout.reports.compare import sequence_bits as words
from fanout.reports.compare.branches import Branch
from fanout.reports.figures.material import Material, Part
from fanout.reports.read import rows
from fanout.reports.read.details import Limits
from fanout.reports.read.reading import collect_rows
from fanout.reports.read.schemas import PHASE_LIVE, SIDE_NODE, SIDE_REFERENCE
from fanout.reports.read.scope import NEVER_US, Group, Target
from fanout.reports.session.sail import keep
from fanout.reports.summary.alarms import list_alarms
from fanout.reports.values import buckets
from fanout.reports.values.document import (
    CompletenessPoint,
    CompletenessSection,
    CompletenessSeries,
    HiddenBranch,
    MissingTopic,
    MissingUpdate,
    Outage,
    PrefixAtNode,
    PrefixFigures,
    PrefixNodes,
    ReferenceSequences,
)
from fanout.reports.values.figures import Listed, MissingCauses, UpdateFigures, goes_on, percent, time_of
from fanout.reports.values.summary import MissingCause

__all__ = ["describe_by_identity"]

_CLOCK_STEP_US: Final = 3_600_000_000
"""Margin around a window: a row's stamp and its logging differ by less, even if the stamping node's clock is set."""

_HOLES_BROADCAST_MAX: Final = 500_000
"""Words with holes, of about 100 bytes each, that are sent to the rows instead of shuffling the rows."""

_TOPICS_BROADCAST_MAX: Final = 200_000
"""Topics that lack anything; of more it is not asked whether they are readable."""

_CAUSES: Final = (*absences.CAUSES, absences.UNEXPLAINED)
_LOSS: Final = "target int, topic string, prefix string, first_us bigint, last_us bigint"

Row = dict[str, Any]
Around = dict[tuple[str, int, str | None], Row]
"""By (scope, target, topic or prefix): how many updates were expected within the loss, and after it."""


@dataclass(frozen=True, slots=True)
class _Losses:
    """Result of `compare.losses.worst_losses`, by scope."""

    by_target: dict[int, Row]
    by_window: dict[tuple[str, str, int], Row]
    topics: list[Row]
    topics_total: int
    updates: list[Row]


_NO_LOSSES: Final = _Losses({}, {}, [], 0, [])


def describe_by_identity(material: Material) -> Part:
    """Return the fate of each update of the reference, by its stamp or without one by counting."""
    part = _Comparison(material).compare(material.counted().scope.targets)
    alarms = list_alarms(material.survey.alarms, window=material.window, limit=material.list_limit)
    return replace(part, fields={**part.fields, "outages": _outages(material), "alarms": alarms})


def _outages(material: Material) -> tuple[Outage, ...]:
    """Return when links were away, the latest first; a node that was stopped in good order is not away."""
    stopped = {node for node in material.survey.roles if material.survey.stopped_us(node) is not None}
    away = [
        one
        for one in material.survey.absences
        if one.cause != "audit" and not (one.until_us >= NEVER_US and one.node in stopped)
    ]
    away.sort(key=lambda one: (-one.after_us, one.node, one.link))
    return tuple(
        Outage(
            node=one.node,
            link=one.link,
            begin=time_of(one.after_us),
            end=None if one.until_us >= NEVER_US else time_of(one.until_us),
        )
        for one in away[: material.list_limit]
    )


class _Comparison:
    """The queries by identity of one report; each method runs some of them and returns finished figures."""

    def __init__(self, material: Material) -> None:
        spark, survey, scope = material.spark, material.survey, material.counted().scope
        self._spark = spark
        self._survey = survey
        self._scope = scope
        self._depth = material.depth
        self._list_limit = material.list_limit
        self._parquet = material.parquet
        self._updates = material.counted().updates
        self._events = material.tables.events
        self._sources = rows.source_rows(self._updates, scope=scope)
        self._targets = rows.targets_frame(spark, scope)
        begin_us, end_us = survey.span_us(scope.window)
        self._window_us = buckets.window_us(end_us - begin_us)
        self._places = rows.places_frame(spark, scope.targets)

    def _rows_by_target(self, targets: tuple[Target, ...]) -> tuple[DataFrame, DataFrame]:
        """Return what the reference logged, and what the nodes logged, by target and with the target's spans."""
        published = self._sources.where(
            words.identified(self._scope, side=SIDE_REFERENCE) & (sf.col("phase") == PHASE_LIVE)
        )
        logged = rows.target_rows(self._updates, scope=self._scope, targets=targets)
        logged = logged.where(words.identified(self._scope, side=SIDE_NODE))
        if self._scope.stamped_once:
            # What is far from the window need not be read: Parquet files are skipped by these. Not with stamps of
            # publishers, whose clocks say nothing of when the reference logged them.
            near = self._scope.window.widened(_CLOCK_STEP_US)
            published = published.where(rows.is_within(sf.col("applied"), near))
            is_copy = sf.col("phase") != PHASE_LIVE
            logged = logged.where(is_copy | sf.col("origin").isNull() | rows.is_within(sf.col("origin"), near))
        if self._scope.reference.stamps:
            # By its clock, which is that of its own stamps: a publisher's clock may be far off.
            published = published.withColumn("origin", sf.col("applied"))
        wanted = rows.explode_targets(published, scope=self._scope, targets=targets)
        return self._with_spans(wanted), self._with_spans(logged)

    def _merged_words(self, wanted: DataFrame, logged: DataFrame, targets: tuple[Target, ...]) -> DataFrame:
        """Return the words of the targets, and those of the reference itself where it stamped."""
        parts = [
            words.expected_words(wanted, gaps=any(target.gaps_us for target in targets)),
            words.applied_words(logged, window=self._scope.window),
        ]
        reference = self._scope.reference
        if reference.stamps and self._scope.targets_of("stamped"):
            own = sf.col("stamp_primary").isin(list(reference.nodes))  # of a publisher's count parts may go elsewhere
            stamped = self._sources.where(words.stamped(self._scope) & own & (sf.col("phase") == PHASE_LIVE))
            parts.append(words.sequence_words(stamped, window=self._scope.window))
        return words.merge_words(*parts)

    def compare(self, targets: tuple[Target, ...]) -> Part:
        """Return the figures by identity of each target, by prefix, over time, and the list of missing updates."""
        wanted, logged = self._rows_by_target(targets)
        merged = keep(self._merged_words(wanted, logged, targets))
        kept = [merged]
        try:
            counted = collect_rows(words.count_words(merged))
            counts = {row["target"]: row for row in counted if row["target"] != words.REFERENCE}
            sequences = _reference_sequences(row for row in counted if row["target"] == words.REFERENCE)
            hole_words = sum(row["hole_words"] for row in counts.values())
            lost: DataFrame | None = None
            found = _NO_LOSSES
            if hole_words:
                few_holes = hole_words <= _HOLES_BROADCAST_MAX
                absent = keep(self._absent_updates(wanted, logged, merged, few_holes=few_holes))
                lost = keep(
                    losses.count_losses(absent, places=self._places, depth=self._depth, window_us=self._window_us)
                )
                kept += [absent, lost]
                found = self._worst(lost, absent)
                self._parquet.write("missing", absent.join(sf.broadcast(self._places), on="target", how="inner"))
            else:
                self._parquet.write_empty("missing")
            expected = losses.expected_updates(wanted, repeats=not self._scope.stamped_once)
            by_prefix, prefix_map = self._prefixes(expected, lost) if self._depth else (None, None)
            if lost is not None and any(row["unknown"] for row in found.by_target.values()):
                expected = expected.unionByName(losses.unknown_updates(absent))
            around, windows = self._expected(expected, found, () if by_prefix is None else by_prefix.listed)
            hidden = () if lost is None else self._hidden(expected, lost, found, counts)
        finally:
            for frame in kept:
                frame.unpersist()
        fields = {
            "prefixes": None if by_prefix is None else self._list_prefixes(by_prefix, around),
            "prefix_map": prefix_map,
            "hidden_branches": tuple(
                HiddenBranch(**self._place(one.target), branch=one.filter, missing=one.missing) for one in hidden
            ),
            "missing_topics": Listed[MissingTopic](
                total=found.topics_total,
                listed=tuple(self._missing_topic(row, around, hidden) for row in found.topics),
            ),
            "missing": Listed[MissingUpdate](
                total=sum(row["missing"] for row in counts.values()),
                listed=tuple(self._missing_update(row, hidden) for row in found.updates),
            ),
            "over_time": self._over_time(windows, found.by_window),
        }
        absent_at_reference = self._lacked_by_reference(targets, sequences, counts)
        unidentified = self._count_unidentified(targets)
        by_target: dict[int, dict[str, UpdateFigures]] = {}
        for target in targets:
            figures = _stamped_figures(
                counts.get(target.id, {}),
                found.by_target.get(target.id, {}),
                around.get(("target", target.id, None), {}),
                absent=absent_at_reference[target.group],
                unidentified=unidentified.get(target.id, 0),
                hidden=[one for one in hidden if one.target == target.id],
            )
            by_target[target.id] = {self._scope.groups[target.group].basis: figures}
        return Part(fields, by_target, sequences)

    def _absent_updates(self, wanted: DataFrame, logged: DataFrame, merged: DataFrame, *, few_holes: bool) -> DataFrame:
        limited = [target for target in self._scope.targets if target.selection.limits != Limits()]
        absent = holes.absent_updates(
            wanted,
            words=merged,
            copies=holes.latest_copies(logged),
            few_holes=few_holes,
            more=absences.LIMITED if limited else (),
        )
        found = absences.absences_of_targets(self._survey, scope=self._scope)
        spans = rows.small_frame(self._spark, found, schema=absences.SPANS)
        span_us = self._survey.span_us(self._scope.window)
        caused = absences.with_cause(absent, absences=spans, span_us=span_us, rows=self._survey.rows)
        if any(alarm.event == "skipped" for alarm in self._survey.alarms):
            caused = absences.with_skipped(caused, skips=absences.skips_of_targets(self._events, scope=self._scope))
        return absences.with_left_out(caused, limited) if limited else caused

    def _worst(self, lost: DataFrame, absent: DataFrame) -> _Losses:
        by_scope: dict[str, list[Row]] = defaultdict(list)
        for row in collect_rows(losses.worst_losses(lost, limit=self._list_limit)):
            by_scope[row["scope"]].append(row)
        topics = sorted(by_scope["topic"], key=lambda row: row["rank"])
        updates = absent.where("known").orderBy("origin_us", "primary", "epoch", "sequence", "target")
        return _Losses(
            by_target={row["target"]: row for row in by_scope["target"]},
            by_window={(row["node"], row["link"], row["window_us"]): row for row in by_scope["window"]},
            topics=topics,
            topics_total=topics[0]["topics"] if topics else 0,
            updates=collect_rows(updates.limit(self._list_limit)),
        )

    def _prefixes(self, expected: DataFrame, lost: DataFrame | None) -> tuple[Listed[Row], Listed[PrefixNodes]]:
        """Return the worst prefixes by target, and by node."""
        counted = prefixes.count_prefixes(expected, losses=lost, depth=self._depth)
        found = collect_rows(prefixes.worst_prefixes(counted, limit=self._list_limit))
        worst = sorted((row for row in found if row["rank"] <= self._list_limit), key=lambda row: row["rank"])
        at_nodes: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in found:
            if row["prefix_rank"] <= self._list_limit:
                at_nodes[row["prefix"]][self._scope.targets[row["target"]].node].append(row)
        return (
            Listed[Row](total=found[0]["rows"] if found else 0, listed=tuple(worst)),
            Listed[PrefixNodes](
                total=found[0]["prefixes"] if found else 0,
                listed=tuple(
                    PrefixNodes(prefix=prefix, nodes=tuple(self._at_node(node, nodes[node]) for node in sorted(nodes)))
                    for prefix, nodes in sorted(at_nodes.items())
                ),
            ),
        )

    def _at_node(self, node: str, found: Sequence[Row]) -> PrefixAtNode:
        """Return the figures of a node's selectors for a prefix; if one is a bound, the sum is a bound."""
        expected, missing, unknown = (sum(row[name] for row in found) for name in ("expected", "missing", "unknown"))
        there = expected - missing
        is_proved = all(not row["expected"] or self._shows_all(self._scope.targets[row["target"]]) for row in found)
        return PrefixAtNode(
            node=node,
            expected=expected,
            missing=missing,
            unknown=unknown,
            complete_percent_at_least=percent(there - unknown, expected) if is_proved else None,
            complete_percent_at_most=percent(there, expected),
        )

    def _expected(
        self, expected: DataFrame, found: _Losses, by_prefix: Sequence[Row]
    ) -> tuple[Around, dict[tuple[str, str, int], int]]:
        """Return the known updates in and after each loss, by (scope, target, name), and those due in each window."""
        of_scope: dict[str, list[tuple[object, ...]]] = {
            "target": [_loss(row) for row in found.by_target.values() if row["missing"]],
            "topic": [_loss(row) for row in found.topics],
            "prefix": [_loss(row) for row in by_prefix if row["missing"]],
        }
        scopes = {name: rows.small_frame(self._spark, few, schema=_LOSS) for name, few in of_scope.items() if few}
        counted = losses.count_around(
            expected, scopes=scopes, places=self._places, depth=self._depth, window_us=self._window_us
        )
        windows: dict[tuple[str, str, int], int] = {}
        around: Around = defaultdict(dict)
        for row in collect_rows(counted):
            scope = row["scope"]
            if scope == "window":
                windows[row["node"], row["link"], row["window_us"]] = row["expected"]
            else:
                name = None if scope == "target" else row[scope]
                around[scope, row["target"], name]["within" if row["place"] == 1 else "after"] = row["certain"]
        return around, windows

    def _over_time(
        self, expected: dict[tuple[str, str, int], int], lacking: dict[tuple[str, str, int], Row]
    ) -> CompletenessSection:
        series: dict[tuple[str, str], list[CompletenessPoint]] = defaultdict(list)
        for key in sorted({*expected, *lacking}):
            node, link, at_us = key
            lost = lacking.get(key, {"missing": 0, "unknown": 0})
            series[node, link].append(CompletenessPoint.of(lost, at=time_of(at_us), expected=expected.get(key, 0)))
        return CompletenessSection(
            window_s=self._window_us // 1_000_000,
            series=tuple(
                CompletenessSeries(node=node, link=link, points=tuple(points))
                for (node, link), points in series.items()
            ),
        )

    def _hidden(self, expected: DataFrame, lost: DataFrame, found: _Losses, counts: dict[int, Row]) -> Sequence[Branch]:
        """Return the branches that targets may not read, where anything that they lack has no other explanation."""
        unread = sum(row[cause] for row in found.by_target.values() for cause in branches.UNREAD)
        if not unread or found.topics_total > _TOPICS_BROADCAST_MAX:
            return ()
        empty = branches.empty_branches(expected, lost=lost).limit(branches.BRANCHES_MAX)
        shares = {target: row["missing"] / row["expected"] for target, row in counts.items() if row["expected"]}
        return branches.hidden_branches(collect_rows(empty), lost_share=shares)

    def _missing_topic(self, row: Row, around: Around, hidden: Sequence[Branch]) -> MissingTopic:
        return MissingTopic.of(
            row | self._place(row["target"]),
            cause=_cause(max(_CAUSES, key=lambda cause: row[cause]), row, hidden),
            **_since(row, around.get(("topic", row["target"], row["topic"]), {})),
        )

    def _missing_update(self, row: Row, hidden: Sequence[Branch]) -> MissingUpdate:
        return MissingUpdate.of(row | self._place(row["target"]), cause=_cause(row["cause"], row, hidden))

    def _list_prefixes(self, worst: Listed[Row], around: Around) -> Listed[PrefixFigures]:
        listed = tuple(
            PrefixFigures.of(
                row | self._place(row["target"]),
                complete_percent_at_least=(
                    percent(row["expected"] - row["missing"] - row["unknown"], row["expected"])
                    if self._shows_all(self._scope.targets[row["target"]])
                    else None
                ),
                complete_percent_at_most=percent(row["expected"] - row["missing"], row["expected"]),
                **_since(row, around.get(("prefix", row["target"], row["prefix"]), {})),
            )
            for row in worst.listed
        )
        return Listed[PrefixFigures](total=worst.total, listed=listed)

    def _lacked_by_reference(
        self, targets: Iterable[Target], sequences: Sequence[ReferenceSequences], counts: Mapping[int, Row]
    ) -> dict[int, int | None]:
        """Return, by group, how many updates the reference's log lacks, at most; None when nobody can know."""
        extra = {group.id: 0 for group in self._scope.groups}
        for target in targets:
            extra[target.group] += counts.get(target.id, {}).get("unreferenced", 0)
        return {group.id: self._lacked_of(group, sequences, extra=extra[group.id]) for group in self._scope.groups}

    def _lacked_of(self, group: Group, sequences: Sequence[ReferenceSequences], *, extra: int) -> int | None:
        """Return the same of one group.

        Without stamps the secondaries check it: one update that a secondary has and it lacks shows that it may lack
        more.
        """
        if group.exact or (group.basis == "unstamped" and self._counts_all(group) and not extra):
            return 0
        reference = self._scope.reference
        survey = self._survey.with_gaps_of(self._scope.window, margin_us=0)  # those of a node that stamps, see below
        gaps = [gap for node, link in group.sources for gap in survey.gaps_of(node, link=link)]
        # Those of publishers show in no count, and neither does what a crash took from the end of one.
        countable = reference.stamps and group.stamped_by == reference.nodes
        if not countable or not all(gap.lost_positions for gap in gaps):
            return None
        lost = sum(gap.lost_positions for gap in set(gaps))
        return max(lost, sum(one.absent for one in sequences))

    def _count_unidentified(self, targets: tuple[Target, ...]) -> dict[int, int]:
        """Return, by target, the updates of the reference without a stamp; of several sources that with most counts."""
        groups = self._scope.groups
        of_mixed = [
            target
            for target in targets
            if groups[target.group].basis == "stamped" and self._is_mixed(groups[target.group])
        ]
        if not of_mixed:
            return {}
        found = rows.explode_targets(
            self._sources.where(sf.col("sequence").isNull() & rows.is_live()), scope=self._scope, targets=of_mixed
        )
        by_source = (
            self._with_spans(found)
            .where(words.is_expected())
            .groupBy("target", "node", "link")
            .agg(sf.count(sf.lit(1)).alias("updates"))
        )
        most = by_source.groupBy("target").agg(sf.max("updates").alias("updates"))
        return {row["target"]: row["updates"] for row in collect_rows(most)}

    def _with_spans(self, by_target: DataFrame) -> DataFrame:
        return by_target.join(sf.broadcast(self._targets), on="target", how="inner")

    def _place(self, target_id: int) -> Row:
        return self._scope.targets[target_id].place

    def _shows_all(self, target: Target) -> bool:
        """Return whether the reference's log shows, with its identity, every update that the target had to get."""
        group = self._scope.groups[target.group]
        if group.basis == "unstamped":
            return self._counts_all(group)
        return group.exact and not self._is_mixed(group)

    def _is_mixed(self, group: Group) -> bool:
        """Return whether sources of stamped updates logged any without a stamp."""
        return any(self._survey.live_rows(node, link=link, stamped=False) for node, link in group.sources)

    def _counts_all(self, group: Group) -> bool:
        """Return True if the log by which updates without stamps are counted has all updates of its link."""
        return self._scope.reference.kind != "union" and not group.gap


def _cause(cause: MissingCause, row: Row, hidden: Sequence[Branch]) -> MissingCause:
    """Return the cause of a topic's missing updates: `hidden` if only its hidden branch explains them."""
    if cause in branches.UNREAD and any(
        one.target == row["target"] and (one.name == row["topic"] or row["topic"].startswith(f"{one.name}/"))
        for one in hidden
    ):
        return "hidden"
    return cause


def _stamped_figures(
    counts: Row, lost: Row, around: Row, *, absent: int | None, unidentified: int, hidden: Sequence[Branch]
) -> UpdateFigures:
    """Return the figures of one target.

    Args:
        counts: Row of `words.count_words`.
        lost: Row of `losses.count_losses`, of the target.
        around: Number of updates expected during the loss and after it.
        absent: Number of updates that the reference's log lacks; None when nobody can know.
        unidentified: Number of those that the target selects without a stamp.
        hidden: The branches that it may not read.
    """
    names = (
        *("expected", "applied", "reobtained", "conflated", "missing", "unknown", "pending"),
        *("pending_applied", "duplicated", "stale", "refused", "unreferenced"),
    )
    values: dict[str, Any] = {name: counts.get(name, 0) for name in names}
    expected, missing, unknown = values["expected"], values["missing"], values["unknown"]
    there = expected - missing
    doubtful = (absent or 0) + unidentified
    # What the node logged and the reference did not is not lost.
    unseen = None if absent is None else max(0, absent - values["unreferenced"])
    whole = expected + unidentified + (unseen or 0)
    causes = {cause: lost.get(cause, 0) for cause in _CAUSES}
    for one in hidden:
        causes["audit"] -= one.audit
        causes["live"] -= one.live
    return UpdateFigures(
        **values,
        superseded=lost.get("superseded", 0),
        causes=MissingCauses(**causes, hidden=sum(one.audit + one.live for one in hidden)),
        complete_percent=None if unknown or doubtful or absent is None else percent(there, expected),
        complete_percent_at_least=None if absent is None else percent(there - unknown, whole),
        complete_percent_at_most=percent(there + doubtful, expected + doubtful),
        unseen=unseen,
        unidentified=unidentified,
        **_since(lost, around),
    )


def _since(lost: Row, around: Row) -> Row:
    """Return the begin and end of a loss, and True if it goes on."""
    if not lost.get("missing"):
        return {}
    return {
        "first_missing": time_of(lost["first_us"]),
        "last_missing": time_of(lost["last_us"]),
        "going_on": goes_on(lost["missing"], within=around.get("within", 0), after=around.get("after", 0)),
    }


def _loss(row: Row) -> tuple[object, ...]:
    return (row.get("target"), row.get("topic"), row.get("prefix"), row["first_us"], row["last_us"])


def _reference_sequences(found: Iterable[Row]) -> tuple[ReferenceSequences, ...]:
    """Return the sequences in the reference's log, if any are in the window or beside it."""
    return tuple(
        ReferenceSequences(
            primary=row["primary"],
            epoch=row["epoch"],
            first=row["first_sequence"],
            last=row["last_sequence"],
            present=row["expected"],
            absent=row["last_sequence"] - row["first_sequence"] + 1 - row["expected"],
        )
        for row in sorted(found, key=lambda row: (row["primary"], row["epoch"]))
        if None not in (row["first_sequence"], row["last_sequence"]) and row["first_sequence"] <= row["last_sequence"]
    )
