"""The queries that compare nodes with the reference, and their few rows as figures.

Every query is one of the transforms; nothing is computed here but shares and bounds of finished counts.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.reports.compare import absences, multisets
from fanout.reports.compare import final_values as state
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read import rows
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.scope import Scope, Target
from fanout.reports.read.survey import Survey
from fanout.reports.values.document import (
    DifferingTopic,
    Parameters,
    RepeatedTopic,
)
from fanout.reports.values.figures import (
    FinalFigures,
    Listed,
    MissingCauses,
    UnstampedFigures,
    percent,
)

__all__ = ["Comparison"]


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
        self._list_limit = parameters.list_limit
        self._parquet = parquet
        self._updates = tables.updates
        self._sources = rows.source_rows(tables.updates, spark=spark, scope=scope)
        self._events = tables.events
        self._targets = rows.targets_frame(spark, scope)
        self._absences = absences.absences_of_targets(
            absences.link_absences(tables.events), spark=spark, survey=survey, scope=scope
        )

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
            found = multisets.count_causes(
                differences,
                rows=published,
                absences=self._absences,
                span_us=self._survey.span_us(self._scope.window),
                gaps=gaps,
            )
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

    def finals(self) -> tuple[dict[int, FinalFigures], Listed[DifferingTopic]]:
        """Return how the final values of each target compare, and the topics that differ."""
        floors = state.floors_frame(self._spark, survey=self._survey, scope=self._scope)
        standing = state.standing_rows(self._updates, floors=floors)
        reference = state.reference_state(
            rows.source_rows(standing, spark=self._spark, scope=self._scope), scope=self._scope
        )
        held = state.final_state(
            rows.target_rows(standing, spark=self._spark, scope=self._scope, targets=self._scope.targets),
            by=("target",),
        )
        verdicts = state.compare_states(
            reference, held=held, survey=self._survey, scope=self._scope, spark=self._spark
        ).persist()
        try:
            counts = {row.pop("target"): row for row in collect_rows(state.count_states(verdicts))}
            unequal = verdicts.where(sf.col("verdict").isin("different", "absent", "extra"))
            differing = collect_rows(unequal.orderBy("target", "topic").limit(self._list_limit))
            self._parquet.write("final_values", self._with_names(verdicts))
        finally:
            verdicts.unpersist()
        figures = {target.id: _final_figures(counts.get(target.id, {})) for target in self._scope.targets}
        listed = tuple(
            DifferingTopic(**self._place(row["target"]), topic=row["topic"], verdict=row["verdict"])
            for row in differing
        )
        total = sum(figure.different + figure.absent + figure.extra for figure in figures.values())
        return figures, Listed[DifferingTopic](total=total, listed=listed)

    def _with_names(self, by_target: DataFrame) -> DataFrame:
        return rows.with_names(by_target, spark=self._spark, scope=self._scope)

    def _place(self, target_id: int) -> dict[str, Any]:
        return self._scope.targets[target_id].place

    def _extra_is_known(self, target: Target) -> bool:
        return self._scope.reference.kind != "union" and not self._scope.groups[target.group].gap


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


def _final_figures(counts: dict[str, Any]) -> FinalFigures:
    values: dict[str, int] = {verdict: counts.get(verdict, 0) for verdict in state.VERDICTS}
    judged = values["equal"] + values["different"] + values["absent"] + values["extra"]
    return FinalFigures(
        **values,
        equal_percent=None if values["unknown"] else percent(values["equal"], judged),
        equal_percent_at_least=percent(values["equal"], judged + values["unknown"]),
    )
