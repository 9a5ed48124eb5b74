"""The figures by value, of updates without stamps."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as sf

from fanout.reports.compare import absences, multisets
from fanout.reports.figures.material import Material, Part
from fanout.reports.read.reading import collect_rows
from fanout.reports.values.document import RepeatedTopic
from fanout.reports.values.figures import Listed, MissingCauses, UnstampedFigures, percent

__all__ = ["describe_by_value"]


def describe_by_value(material: Material) -> Part:
    """Return the bounds of each target without stamps, and the topics on which a loss can stay unseen."""
    tables, survey, scope = material.tables, material.survey, material.scope
    targets = scope.targets_of("unstamped")
    if not targets:
        return Part()
    gaps = any(target.gaps_us for target in targets)
    published, logged = multisets.rows_by_value(tables, scope=scope, targets=targets)
    seen = multisets.reference_multiset(published, scope=scope, gaps=gaps)
    differences = multisets.value_differences(seen, nodes=multisets.node_multiset(logged))
    by_topic = multisets.sum_by_topic(differences).persist()
    try:
        counts = {row["target"]: row for row in collect_rows(multisets.count_multisets(by_topic))}
        total = sum(row["repeated_topics"] for row in counts.values())
        often = by_topic.where(sf.col("most") > 1).orderBy(sf.desc("seen_sure"), "target", "topic")
        repeated = collect_rows(often.limit(material.list_limit)) if total else []
    finally:
        by_topic.unpersist()
    causes: dict[int, MissingCauses] = {}
    if any(row["missing"] for row in counts.values()):
        # Computed once more for that: kept for all logs, they would take a row for each value ever published.
        found = multisets.count_causes(
            differences,
            rows=published,
            absences=absences.absences_of_targets(absences.link_absences(tables.events), survey=survey, scope=scope),
            span_us=survey.span_us(scope.window),
            log_rows=survey.rows,
            gaps=gaps,
        )
        causes = {row.pop("target"): MissingCauses(**row) for row in collect_rows(found)}
    figures = {
        target.id: _figures(
            counts.get(target.id, {}),
            causes.get(target.id, MissingCauses()),
            extra_is_known=scope.reference.kind != "union" and not scope.groups[target.group].gap,
        )
        for target in targets
    }
    listed = tuple(
        RepeatedTopic(**scope.targets[row["target"]].place, topic=row["topic"], reference_updates=row["seen_sure"])
        for row in repeated
    )
    by_target = {target: {"unstamped": one} for target, one in figures.items()}
    return Part({"repeated": Listed[RepeatedTopic](total=total, listed=listed)}, by_target)


def _figures(counts: dict[str, Any], causes: MissingCauses, *, extra_is_known: bool) -> UnstampedFigures:
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
