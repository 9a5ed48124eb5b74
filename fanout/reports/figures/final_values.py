"""The figures on final values."""

from __future__ import annotations

from pyspark.sql import functions as sf

from fanout.reports.compare.final_values import UNEQUAL, VERDICTS
from fanout.reports.figures.material import Material, Part
from fanout.reports.read.reading import collect_rows
from fanout.reports.values.document import DifferingTopic
from fanout.reports.values.figures import FinalFigures, Listed, percent

__all__ = ["describe_finals"]


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
        target.id: _figures({verdict: states.of(target.id, f"final_{verdict}") for verdict in VERDICTS})
        for target in scope.targets
        if not target.selection.limits.keeps_values_out
    }
    total = sum(figure.unequal for figure in figures.values())
    parquet.write("final_values", states.frame.where("final IS NOT NULL").withColumnRenamed("final", "verdict"))
    compared = sf.col("target").isin(*figures)
    unequal = states.frame.where(compared & sf.col("final").isin(*UNEQUAL)).select("target", "topic", "final")
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
