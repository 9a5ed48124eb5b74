"""Input of the sections of a report, and the result of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from pyspark.sql import SparkSession

from fanout.errors import ReportError
from fanout.reports.figures.counted import Clock, CountedUpdates, count_updates
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.identify.planning import decide_scope, decide_traffic_scope
from fanout.reports.read.reading import Tables
from fanout.reports.read.scope import AskedWindow, Scope
from fanout.reports.read.survey import Survey
from fanout.reports.values.document import Parameters, ReferenceSequences

__all__ = ["Material", "Part"]


class Material:
    """Input of sections: the logs, the result of the first look, and the parameters.

    Call `close` to free what Spark keeps.

    Args:
        spark: The session.
        tables: The logs.
        survey: What they hold.
        parameters: Parameters of the report.
        parquet: Place of the tables of the report.
        by_set: True to compare the members of each set with one another.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        *,
        survey: Survey,
        parameters: Parameters,
        parquet: ParquetTables,
        by_set: bool = False,
    ) -> None:
        self.spark = spark
        self.tables = tables
        self.survey = survey
        self.parameters = parameters
        self.parquet = parquet
        self._by_set = by_set
        self.window = AskedWindow.between(parameters.since, parameters.until)
        self.settle_us = round(parameters.settle_s * 1_000_000)
        self.list_limit = parameters.list_limit
        self.depth = parameters.depth
        self._counted: CountedUpdates | None = None
        self._lock = Lock()

    @cached_property
    def scope(self) -> Scope:
        """The compared pairs of logs."""
        return self._decide_scope({})

    def counted(self) -> CountedUpdates:
        """Return the updates with an identity for each, and the comparison by the clocks that they show.

        Raises:
            ReportError: There is nothing to compare.
        """
        with self._lock:  # the first section that asks computes it, so that no other does it too
            if self._counted is None:
                self._counted = count_updates(
                    self.tables,
                    survey=self.survey,
                    scope=self.scope,
                    by_clocks=self._decide_scope,
                )
            return self._counted

    def counted_if_comparable(self) -> CountedUpdates | None:
        """Return the same, or None where there is nothing to compare, which not every report needs."""
        try:
            return self.counted()
        except ReportError:
            return None

    def _decide_scope(self, clocks: Mapping[tuple[str, str], Clock]) -> Scope:
        return decide_scope(
            self.survey,
            requested=self.parameters.reference,
            settle_us=self.settle_us,
            behind_max_us=round(self.parameters.behind_max_s * 1_000_000),
            window=self.window,
            clocks=clocks,
        )

    @cached_property
    def traffic_scope(self) -> Scope:
        """Reference: the node whose log says what was published.

        By the same rule it has the reference of `scope`. Its groups are others, because a primary with links over MQTT
        3.1.1 has two groups there, by identity and by value, and its updates would count twice.
        """
        return decide_traffic_scope(
            self.survey, requested=self.parameters.reference, settle_us=self.settle_us, window=self.window
        )

    @cached_property
    def states(self) -> TopicStates:
        """The verdicts on each topic."""
        return TopicStates(self.tables, survey=self.survey, scope=self.scope, counted=self.counted, by_set=self._by_set)

    def close(self) -> None:
        """Free what Spark keeps."""
        if "states" in vars(self):
            self.states.close()
        if self._counted is not None and self._counted.kept is not None:
            self._counted.kept.unpersist()


@dataclass(frozen=True, slots=True)
class Part:
    """Result of one section."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the report by name."""
    by_target: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of a selector's figures by name, by target."""
    sequences: tuple[ReferenceSequences, ...] = ()
    """Sequences in the reference's log."""
