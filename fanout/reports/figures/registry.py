"""The sections that reports are made of, and which of them each report has.

A section is one part of the comparison with its own queries: it takes what the first look found, and gives fields of
the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pyspark.sql import SparkSession

from fanout.reports.figures.by_identity import IdentityComparison
from fanout.reports.figures.by_value import describe_by_value
from fanout.reports.figures.convergence import describe_convergence
from fanout.reports.figures.final_values import describe_finals
from fanout.reports.figures.lag import describe_lag
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.figures.snapshots import LinkSections, describe_links
from fanout.reports.figures.stalls import describe_stalls
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.figures.traffic import basis_statement, describe_traffic, traffic_scope
from fanout.reports.identify.planning import basis_statements, decide_scope
from fanout.reports.read.reading import Tables
from fanout.reports.read.scope import AskedWindow, Scope
from fanout.reports.read.survey import Survey
from fanout.reports.values.document import Parameters, ReferenceSequences, ReportName

__all__ = ["REPORTS", "Material", "Part", "ReportKind", "Section"]

_SNAPSHOTS_BASIS: Final = "The links' own events, each by its node's clock; no reference is needed."
_LAG_BASIS: Final = (
    "Propagation times run from an update's stamp to its logging at the node, by two clocks; their difference is taken "
    "out where heartbeats bound it, and else it is in them. Updates without a stamp have none. Round trips are those "
    "of the links' heartbeats, by one clock. No reference is needed."
)


class Material:
    """What sections are made from: the logs, what the first look found, and what was asked for.

    Call `close` to free what Spark keeps.

    Args:
        spark: The session.
        tables: The logs.
        survey: What they hold.
        parameters: What was asked for.
        parquet: Where the tables behind the report go.
    """

    def __init__(
        self, spark: SparkSession, tables: Tables, *, survey: Survey, parameters: Parameters, parquet: ParquetTables
    ) -> None:
        self.spark = spark
        self.tables = tables
        self.survey = survey
        self.parameters = parameters
        self.parquet = parquet
        self.window = AskedWindow.between(parameters.since, parameters.until)
        self.settle_us = round(parameters.settle_s * 1_000_000)
        self.list_limit = parameters.list_limit

    @cached_property
    def scope(self) -> Scope:
        """What is compared with what."""
        return decide_scope(
            self.survey,
            requested=self.parameters.reference,
            settle_us=self.settle_us,
            behind_max_us=round(self.parameters.behind_max_s * 1_000_000),
            window=self.window,
        )

    @cached_property
    def traffic_scope(self) -> Scope:
        """Whose log says what was published.

        By the same rule it has the reference of `scope`. Its groups are others: there a primary that links over
        MQTT 3.1.1 are compared with stands twice, by identity and by value, and its updates would count twice.
        """
        return traffic_scope(
            self.survey, requested=self.parameters.reference, settle_us=self.settle_us, window=self.window
        )

    @cached_property
    def states(self) -> TopicStates:
        """The verdicts on each topic."""
        return TopicStates(self.spark, self.tables, survey=self.survey, scope=self.scope)

    def close(self) -> None:
        """Free what Spark keeps."""
        if "states" in vars(self):
            self.states.close()


@dataclass(frozen=True, slots=True)
class Part:
    """What one section found."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the report by name."""
    by_target: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of a selector's figures by name, by target."""
    sequences: tuple[ReferenceSequences, ...] = ()
    """What the reference's log holds of its sequences."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a report."""

    name: str
    """What it is called while it is made."""
    needs_reference: bool
    build: Callable[[Material], Part]


@dataclass(frozen=True, slots=True)
class ReportKind:
    """What one report is made of."""

    sections: tuple[Section, ...]
    basis: Callable[[Material], tuple[str, ...]]
    """Says what the figures are relative to."""

    @property
    def needs_reference(self) -> bool:
        """Whether any section compares nodes with a reference."""
        return any(section.needs_reference for section in self.sections)

    @property
    def judges(self) -> bool:
        """Whether it says of each selector what it got."""
        return _BY_IDENTITY in self.sections


def _by_identity(material: Material) -> Part:
    comparison = IdentityComparison(
        material.spark,
        material.tables,
        survey=material.survey,
        scope=material.scope,
        parameters=material.parameters,
        parquet=material.parquet,
    )
    found = comparison.stamped()
    fields = {
        "prefixes": found.prefixes,
        "prefix_map": found.prefix_map,
        "missing_topics": found.topics,
        "missing": found.missing,
        "over_time": found.over_time,
    }
    return Part(fields, {target: {"stamped": one} for target, one in found.figures.items()}, found.sequences)


def _by_value(material: Material) -> Part:
    figures, repeated = describe_by_value(
        material.spark,
        material.tables,
        survey=material.survey,
        scope=material.scope,
        list_limit=material.list_limit,
    )
    return Part({"repeated": repeated}, {target: {"unstamped": one} for target, one in figures.items()})


def _final_values(material: Material) -> Part:
    figures, differing = describe_finals(material.states, list_limit=material.list_limit, parquet=material.parquet)
    return Part({"differing": differing}, {target: {"final": one} for target, one in figures.items()})


def _topics(material: Material) -> Part:
    """Count the topics that differ or stopped, and list none of them."""
    figures, differing = describe_finals(material.states, list_limit=0, parquet=material.parquet)
    stalled = describe_stalls(material.states, list_limit=0, parquet=material.parquet)
    by_target = {target: {"final": one} for target, one in figures.items()}
    return Part({"differing": differing, "stalls": stalled}, by_target)


def _lag(material: Material) -> Part:
    return _lag_by_prefix(material, depth=0)


def _lag_by_prefix(material: Material, *, depth: int | None = None) -> Part:
    section = describe_lag(
        material.tables,
        survey=material.survey,
        window=material.window,
        depth=material.parameters.depth if depth is None else depth,
        list_limit=material.list_limit,
        parquet=material.parquet,
    )
    return Part({"lag": section})


def _links(material: Material, *, parquet: ParquetTables | None) -> LinkSections:
    return describe_links(
        material.spark,
        material.tables,
        survey=material.survey,
        settle_us=material.settle_us,
        window=material.window,
        list_limit=material.list_limit,
        parquet=parquet,
    )


def _ready(material: Material) -> Part:
    return Part({"ready": _links(material, parquet=None).ready})


def _snapshots(material: Material) -> Part:
    return Part({"snapshots": _links(material, parquet=material.parquet).snapshots})


def _epochs(material: Material) -> Part:
    found = _links(material, parquet=material.parquet)
    return Part({"ready": found.ready, "snapshots": found.snapshots})


def _stalls(material: Material) -> Part:
    section = describe_stalls(material.states, list_limit=material.list_limit, parquet=material.parquet)
    return Part({"stalls": section})


def _convergence(material: Material) -> Part:
    section = describe_convergence(material.states, list_limit=material.list_limit, parquet=material.parquet)
    return Part({"convergence": section})


def _traffic(material: Material) -> Part:
    section = describe_traffic(
        material.spark,
        material.tables,
        survey=material.survey,
        scope=material.traffic_scope,
        depth=material.parameters.depth,
        list_limit=material.list_limit,
        parquet=material.parquet,
    )
    return Part({"traffic": section})


_BY_IDENTITY: Final = Section("updates by identity", needs_reference=True, build=_by_identity)
_BY_VALUE: Final = Section("updates by value", needs_reference=True, build=_by_value)
_FINAL_VALUES: Final = Section("final values", needs_reference=True, build=_final_values)
_TOPICS: Final = Section("topics", needs_reference=True, build=_topics)
_LAG: Final = Section("lag", needs_reference=False, build=_lag)
_LAG_BY_PREFIX: Final = Section("lag", needs_reference=False, build=_lag_by_prefix)
_READY: Final = Section("epochs", needs_reference=False, build=_ready)
_EPOCHS: Final = Section("epochs", needs_reference=False, build=_epochs)
_STALLS: Final = Section("stalls", needs_reference=True, build=_stalls)
_CONVERGENCE: Final = Section("convergence", needs_reference=True, build=_convergence)
_SNAPSHOTS: Final = Section("epochs", needs_reference=False, build=_snapshots)
_TRAFFIC: Final = Section("traffic", needs_reference=True, build=_traffic)


def _basis(material: Material) -> tuple[str, ...]:
    return basis_statements(material.scope)


def _basis_of_all(material: Material) -> tuple[str, ...]:
    traffic = f"Traffic: {basis_statement(material.traffic_scope.reference)}"
    return (*_basis(material), traffic, f"Epochs: {_SNAPSHOTS_BASIS}")


_COMPARED: Final = (_BY_IDENTITY, _BY_VALUE, _FINAL_VALUES)

REPORTS: Final[Mapping[ReportName, ReportKind]] = {
    "summary": ReportKind((_BY_IDENTITY, _BY_VALUE, _TOPICS, _LAG), _basis),
    "completeness": ReportKind((*_COMPARED, _LAG_BY_PREFIX, _READY), _basis),
    "all": ReportKind((*_COMPARED, _LAG_BY_PREFIX, _EPOCHS, _STALLS, _CONVERGENCE, _TRAFFIC), _basis_of_all),
    "lag": ReportKind((_LAG_BY_PREFIX, _READY), lambda _: (_LAG_BASIS,)),
    "snapshots": ReportKind((_SNAPSHOTS,), lambda _: (_SNAPSHOTS_BASIS,)),
    "convergence": ReportKind((_CONVERGENCE,), _basis),
    "stalls": ReportKind((_STALLS,), _basis),
    "traffic": ReportKind((_TRAFFIC,), lambda material: (basis_statement(material.traffic_scope.reference),)),
}
"""What each report is made of, in the order in which its sections are made."""
