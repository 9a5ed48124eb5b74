"""The queries that compare nodes with the reference, and their few rows as figures.

Every query is one of the transforms; nothing is computed here but shares and bounds of finished counts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.reports.compare import absences, holes, multisets, prefixes
from fanout.reports.compare import sequence_bits as words
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.figures.prefixes import map_prefixes
from fanout.reports.read import rows
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.schemas import PHASE_LIVE
from fanout.reports.read.scope import Group, Scope, Target
from fanout.reports.read.survey import Survey
from fanout.reports.values import buckets
from fanout.reports.values.document import (
    CompletenessPoint,
    CompletenessSection,
    CompletenessSeries,
    MissingUpdate,
    Parameters,
    PrefixFigures,
    PrefixNodes,
    ReferenceSequences,
    RepeatedTopic,
)
from fanout.reports.values.figures import (
    Listed,
    MissingCauses,
    StampedFigures,
    UnstampedFigures,
    percent,
    time_of,
)

__all__ = ["ByIdentity", "Comparison"]

_CLOCK_STEP_US: Final = 3_600_000_000
"""By how much less than the clock of a node that stamps may step, a row's stamp and the time of its logging differ."""

_HOLES_BROADCAST_MAX: Final = 500_000
"""Words with holes, of about 100 bytes each, that are sent to the rows instead of shuffling the rows."""


class ByIdentity(NamedTuple):
    """What the updates with a stamp show; all but the figures are None without any."""

    figures: dict[int, StampedFigures]
    """By target."""
    prefixes: Listed[PrefixFigures] | None
    prefix_map: Listed[PrefixNodes] | None
    missing: Listed[MissingUpdate] | None
    over_time: CompletenessSection | None


class Comparison:
    """The queries of one completeness report; each method runs some of them and returns finished figures."""

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        *,
        survey: Survey,
        scope: Scope,
        parameters: Parameters,
        parquet: ParquetTables,
    ) -> None:
        self._spark = spark
        self._survey = survey
        self._scope = scope
        self._depth = parameters.depth
        self._list_limit = parameters.list_limit
        self._parquet = parquet
        self._updates = tables.updates
        self._sources = rows.source_rows(tables.updates, spark=spark, scope=scope)
        self._events = tables.events
        self._targets = rows.targets_frame(spark, scope)
        self._absences = absences.absences_of_targets(
            absences.link_absences(tables.events), spark=spark, survey=survey, scope=scope
        )

    def reference_sequences(self) -> tuple[ReferenceSequences, ...]:
        """Return what a primary's own log holds of its sequences; nothing for other references."""
        reference = self._scope.reference
        if not reference.stamps or not self._scope.targets_of("stamped"):
            return ()
        own = sf.col("stamp_primary").isin(list(reference.nodes))  # of a publisher's count parts may go elsewhere
        published = self._sources.where(words.stamped(self._scope) & own & (sf.col("phase") == PHASE_LIVE))
        found = words.reference_sequences(published, window=self._scope.window).orderBy("primary", "epoch")
        return tuple(
            ReferenceSequences(
                primary=row["primary"],
                epoch=row["epoch"],
                first=row["first_sequence"],
                last=row["last_sequence"],
                present=row["present"],
                absent=row["last_sequence"] - row["first_sequence"] + 1 - row["present"],
            )
            for row in collect_rows(found)
        )

    def stamped(self, sequences: tuple[ReferenceSequences, ...]) -> ByIdentity:
        """Return the figures by identity of each target, by prefix, over time, and the list of missing updates.

        Args:
            sequences: `reference_sequences`.
        """
        targets = self._scope.targets_of("stamped")
        if not targets:
            self._parquet.write_empty("missing")
            return ByIdentity({}, None, None, None, None)
        published = self._sources.where(words.stamped(self._scope) & (sf.col("phase") == PHASE_LIVE))
        logged = rows.target_rows(self._updates, spark=self._spark, scope=self._scope, targets=targets).where(
            words.stamped(self._scope)
        )
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
        wanted = self._with_spans(rows.explode_targets(published, scope=self._scope, targets=targets))
        logged = self._with_spans(logged)
        merged = words.merge_words(
            words.expected_words(wanted, gaps=any(target.gaps_us for target in targets)),
            words.applied_words(logged, window=self._scope.window),
        ).persist()
        absent: DataFrame | None = None
        try:
            counts = {row.pop("target"): row for row in collect_rows(words.count_words(merged, by=["target"]))}
            total = sum(row["missing"] for row in counts.values())
            few_holes = sum(row["hole_words"] for row in counts.values()) <= _HOLES_BROADCAST_MAX
            copies = holes.latest_copies(logged)
            lost = holes.absent_updates(wanted, words=merged, copies=copies, few_holes=few_holes)
            absent = absences.with_cause(lost, absences=self._absences).persist()
            kinds = self._count_kinds(absent) if total else {}
            listed = self._list_missing(absent) if total else ()
            by_prefix, prefix_map = self._list_prefixes(wanted, absent) if self._depth else (None, None)
            over_time = self._over_time(wanted, absent)
            self._parquet.write("missing", self._with_names(absent))
        finally:
            if absent is not None:
                absent.unpersist()
            merged.unpersist()
        lacking = {group.id: self._absent(group, sequences) for group in self._scope.groups}
        unidentified = self._count_unidentified(targets)
        figures = {
            target.id: _stamped_figures(
                counts.get(target.id, {}),
                kinds.get(target.id, {}),
                absent=lacking[target.group],
                unidentified=unidentified.get(target.id, 0),
            )
            for target in targets
        }
        missing = Listed[MissingUpdate](total=total, listed=listed)
        return ByIdentity(figures, by_prefix, prefix_map, missing, over_time)

    def unstamped(self) -> tuple[dict[int, UnstampedFigures], Listed[RepeatedTopic] | None]:
        """Return the bounds of each target without stamps, and the topics on which a loss can stay unseen."""
        targets = self._scope.targets_of("unstamped")
        if not targets:
            return {}, None
        gaps = any(target.gaps_us for target in targets)
        ways = multisets.journeys(self._events, spans=self._targets, spark=self._spark, scope=self._scope)
        spans = self._targets.join(sf.broadcast(ways), on="target", how="inner")
        published = multisets.reference_rows(self._sources, scope=self._scope, targets_frame=spans, targets=targets)
        seen = multisets.reference_multiset(published, scope=self._scope, gaps=gaps)
        logged = rows.target_rows(self._updates, spark=self._spark, scope=self._scope, targets=targets).join(
            sf.broadcast(spans), on="target", how="inner"
        )
        got = multisets.node_multiset(logged)
        differences = multisets.value_differences(seen, nodes=got)
        by_topic = multisets.sum_by_topic(differences).persist()
        try:
            counts = {row["target"]: row for row in collect_rows(multisets.count_multisets(by_topic))}
            repeated = collect_rows(
                by_topic.where(sf.col("most") > 1)
                .orderBy(sf.desc("seen_sure"), "target", "topic")
                .limit(self._list_limit)
            )
        finally:
            by_topic.unpersist()
        causes: dict[int, MissingCauses] = {}
        if any(row["missing"] for row in counts.values()):
            # Computed once more for that: kept for all logs, they would take a row for each value ever published.
            found = multisets.count_causes(differences, rows=published, absences=self._absences, gaps=gaps)
            causes = {row.pop("target"): MissingCauses(**row) for row in collect_rows(found)}
        figures = {
            target.id: _unstamped_figures(
                counts.get(target.id, {}),
                causes.get(target.id, MissingCauses()),
                extra_is_known=self._extra_is_known(target),
            )
            for target in targets
        }
        listed = tuple(
            RepeatedTopic(**self._place(row["target"]), topic=row["topic"], reference_updates=row["seen_sure"])
            for row in repeated
        )
        total = sum(figure.repeated_topics for figure in figures.values())
        return figures, Listed[RepeatedTopic](total=total, listed=listed)

    def _absent(self, group: Group, sequences: tuple[ReferenceSequences, ...]) -> int | None:
        """Return how many updates the reference's log lacks, at most; None when nobody can know."""
        if group.exact:
            return 0
        reference = self._scope.reference
        survey = self._survey.with_gaps_of(self._scope.window, margin_us=0)  # those of a node that stamps, see below
        gaps = [
            gap
            for source in self._scope.sources
            if source.group == group.id
            for gap in survey.gaps_of(source.node, link=source.link)
        ]
        # Those of publishers show in no count, and neither does what a crash took from the end of one.
        countable = reference.stamps and group.stamped_by == reference.nodes
        if not countable or not all(gap.lost_positions for gap in gaps):
            return None
        lost = sum(gap.lost_positions for gap in set(gaps))
        return max(lost, sum(one.absent for one in sequences))

    def _count_unidentified(self, targets: tuple[Target, ...]) -> dict[int, int]:
        """Return, by target, the updates of the reference without a stamp; of several sources that with most counts."""
        mixed = {
            source.group
            for source in self._scope.sources
            if self._survey.live_rows(source.node, link=source.link, stamped=False)
        }
        of_mixed = [target for target in targets if target.group in mixed]
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

    def _count_kinds(self, absent: DataFrame) -> dict[int, dict[str, int]]:
        """Return, by target, how many of the missing updates were superseded, and how many had each cause."""
        kinds = {"superseded": sf.col("superseded")}
        kinds |= {cause: sf.col("cause") == cause for cause in (*absences.CAUSES, absences.UNEXPLAINED)}
        found = absent.groupBy("target").agg(
            *(sf.count_if(sf.col("known") & is_one).alias(name) for name, is_one in kinds.items())
        )
        return {row.pop("target"): row for row in collect_rows(found)}

    def _over_time(self, wanted: DataFrame, absent: DataFrame) -> CompletenessSection:
        begin_us, end_us = self._survey.span_us(self._scope.window)
        width_us = buckets.window_us(end_us - begin_us)
        by_target = prefixes.count_windows(
            wanted, absent=absent, window_us=width_us, repeats=not self._scope.stamped_once
        )
        by_link = (
            self._with_names(by_target)
            .groupBy("node", "link", "window_us")
            .agg(*(sf.sum(name).alias(name) for name in ("expected", "missing", "unknown")))
        )
        series: dict[tuple[str, str], list[CompletenessPoint]] = defaultdict(list)
        for row in collect_rows(by_link.orderBy("node", "link", "window_us")):
            series[row.pop("node"), row.pop("link")].append(CompletenessPoint(at=time_of(row.pop("window_us")), **row))
        return CompletenessSection(
            window_s=width_us // 1_000_000,
            series=tuple(
                CompletenessSeries(node=node, link=link, points=tuple(points))
                for (node, link), points in series.items()
            ),
        )

    def _list_missing(self, absent: DataFrame) -> tuple[MissingUpdate, ...]:
        first = absent.where("known").orderBy("origin_us", "primary", "epoch", "sequence", "target")
        return tuple(
            MissingUpdate(
                **self._place(row["target"]),
                topic=row["topic"],
                primary=row["primary"],
                epoch=row["epoch"],
                sequence=row["sequence"],
                origin=time_of(row["origin_us"]),
                superseded=row["superseded"],
                cause=row["cause"],
            )
            for row in collect_rows(first.limit(self._list_limit))
        )

    def _list_prefixes(self, wanted: DataFrame, absent: DataFrame) -> tuple[Listed[PrefixFigures], Listed[PrefixNodes]]:
        counted = prefixes.count_prefixes(
            wanted, absent=absent, depth=self._depth, repeats=not self._scope.stamped_once
        ).persist()
        try:
            total = counted.count()
            worst = counted.orderBy(sf.desc("missing"), sf.desc("unknown"), "prefix", "target").limit(self._list_limit)
            found = collect_rows(worst)
            places = [(target.id, target.node, self._shows_all(target)) for target in self._scope.targets]
            by_node = map_prefixes(self._spark, counted, places=places, list_limit=self._list_limit)
        finally:
            counted.unpersist()
        listed = tuple(
            PrefixFigures(
                **self._place(row["target"]),
                prefix=row["prefix"],
                expected=row["expected"],
                missing=row["missing"],
                unknown=row["unknown"],
                complete_percent_at_least=(
                    percent(row["expected"] - row["missing"] - row["unknown"], row["expected"])
                    if self._shows_all(self._scope.targets[row["target"]])
                    else None
                ),
                complete_percent_at_most=percent(row["expected"] - row["missing"], row["expected"]),
            )
            for row in found
        )
        return Listed[PrefixFigures](total=total, listed=listed), by_node

    def _with_spans(self, by_target: DataFrame) -> DataFrame:
        return by_target.join(sf.broadcast(self._targets), on="target", how="inner")

    def _with_names(self, by_target: DataFrame) -> DataFrame:
        names: list[tuple[object, ...]] = [
            (target.id, *self._place(target.id).values()) for target in self._scope.targets
        ]
        named = rows.small_frame(self._spark, names, schema="target int, node string, link string, selector string")
        return by_target.join(sf.broadcast(named), on="target", how="inner")

    def _place(self, target_id: int) -> dict[str, Any]:
        target = self._scope.targets[target_id]
        return {"node": target.node, "link": target.link, "filter": target.selection.filter}

    def _shows_all(self, target: Target) -> bool:
        """Return whether the reference's log shows, with its identity, every update that the target had to get."""
        return self._scope.groups[target.group].exact and not any(
            self._survey.live_rows(source.node, link=source.link, stamped=False)
            for source in self._scope.sources
            if source.group == target.group
        )

    def _extra_is_known(self, target: Target) -> bool:
        return self._scope.reference.kind != "union" and not self._scope.groups[target.group].gap


def _stamped_figures(
    counts: dict[str, Any], kinds: dict[str, int], *, absent: int | None, unidentified: int
) -> StampedFigures:
    """Return the figures of one target.

    Args:
        counts: Of `words.count_words`.
        kinds: How many of the missing were superseded, and had each cause.
        absent: How many updates the reference's log lacks; None when nobody can know.
        unidentified: How many that the target selects carry no stamp.
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
    return StampedFigures(
        **values,
        superseded=kinds.get("superseded", 0),
        causes=MissingCauses(**{name: number for name, number in kinds.items() if name != "superseded"}),
        complete_percent=None if unknown or doubtful or absent is None else percent(there, expected),
        complete_percent_at_least=None if absent is None else percent(there - unknown, whole),
        complete_percent_at_most=percent(there + doubtful, expected + doubtful),
        unseen=unseen,
        unidentified=unidentified,
    )


def _unstamped_figures(counts: dict[str, Any], causes: MissingCauses, *, extra_is_known: bool) -> UnstampedFigures:
    seen, missing = counts.get("reference_updates", 0), counts.get("missing", 0)
    return UnstampedFigures(
        reference_updates=seen,
        node_updates=counts.get("node_updates", 0),
        missing_at_least=missing,
        causes=causes,
        unknown=counts.get("unknown", 0),
        extra_at_least=counts.get("extra", 0) if extra_is_known else None,
        topics=counts.get("topics", 0),
        repeated_topics=counts.get("repeated_topics", 0),
        complete_percent_at_most=percent(seen - missing, seen),
    )
