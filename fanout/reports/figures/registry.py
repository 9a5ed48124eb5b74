"""The sections of reports, and the choice for each report.

A section is one part of the comparison with its own queries: it takes the results of the first look, and gives fields
of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from fanout.reports.figures.by_identity import describe_by_identity
from fanout.reports.figures.convergence import describe_convergence
from fanout.reports.figures.lag import describe_lag
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.snapshots import describe_links
from fanout.reports.figures.topics import describe_finals, describe_stalls, describe_topics
from fanout.reports.figures.traffic import basis_statement, describe_traffic
from fanout.reports.identify.planning import basis_statements
from fanout.reports.values.document import ReportName

__all__ = ["REPORTS", "ReportKind", "Section"]

_SNAPSHOTS_BASIS: Final = "The links' own events, each by its node's clock; no reference is needed."
_LAG_BASIS: Final = (
    "Propagation times run from an update's stamp to its logging at the node, by two clocks; their difference is "
    "removed where heartbeats bound it, and included otherwise. Updates without a stamp have none. Round trips are "
    "those of the links' heartbeats, by one clock. No reference is needed."
)


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a report."""

    name: str
    """Its name while it is made."""
    needs_reference: bool
    build: Callable[[Material], Part]


@dataclass(frozen=True, slots=True)
class ReportKind:
    """Parts of one report."""

    sections: tuple[Section, ...]
    basis: Callable[[Material], tuple[str, ...]]
    """Says what the figures are relative to."""

    @property
    def needs_reference(self) -> bool:
        """True if any section compares nodes with a reference."""
        return any(section.needs_reference for section in self.sections)

    @property
    def judges(self) -> bool:
        """True if it says of each selector what it got."""
        return _BY_IDENTITY in self.sections

    @property
    def converges(self) -> bool:
        """True if it compares the nodes of a selector with one another."""
        return _CONVERGENCE in self.sections


_BY_IDENTITY: Final = Section("updates", needs_reference=True, build=describe_by_identity)
_FINAL_VALUES: Final = Section("final values", needs_reference=True, build=describe_finals)
_TOPICS: Final = Section("topics", needs_reference=True, build=describe_topics)
_LAG: Final = Section("lag", needs_reference=False, build=partial(describe_lag, depth=0))
_LAG_BY_PREFIX: Final = Section("lag", needs_reference=False, build=describe_lag)
_READY: Final = Section("epochs", needs_reference=False, build=partial(describe_links, shows=("ready",)))
_EPOCHS: Final = Section("epochs", needs_reference=False, build=describe_links)
_SNAPSHOTS: Final = Section("epochs", needs_reference=False, build=partial(describe_links, shows=("snapshots",)))
_STALLS: Final = Section("stalls", needs_reference=True, build=describe_stalls)
_CONVERGENCE: Final = Section("convergence", needs_reference=True, build=describe_convergence)
_TRAFFIC: Final = Section("traffic", needs_reference=True, build=describe_traffic)


def _basis(material: Material) -> tuple[str, ...]:
    return basis_statements(material.scope)


def _basis_of_all(material: Material) -> tuple[str, ...]:
    traffic = f"Traffic: {basis_statement(material.traffic_scope.reference)}"
    return (*_basis(material), traffic, f"Epochs: {_SNAPSHOTS_BASIS}")


_COMPARED: Final = (_BY_IDENTITY, _FINAL_VALUES)

REPORTS: Final[Mapping[ReportName, ReportKind]] = {
    "summary": ReportKind((_BY_IDENTITY, _TOPICS, _LAG), _basis),
    "completeness": ReportKind((*_COMPARED, _LAG_BY_PREFIX, _READY), _basis),
    "all": ReportKind((*_COMPARED, _LAG_BY_PREFIX, _EPOCHS, _STALLS, _CONVERGENCE, _TRAFFIC), _basis_of_all),
    "lag": ReportKind((_LAG_BY_PREFIX, _READY), lambda _: (_LAG_BASIS,)),
    "snapshots": ReportKind((_SNAPSHOTS,), lambda _: (_SNAPSHOTS_BASIS,)),
    "convergence": ReportKind((_CONVERGENCE,), _basis),
    "stalls": ReportKind((_STALLS,), _basis),
    "traffic": ReportKind((_TRAFFIC,), lambda material: (basis_statement(material.traffic_scope.reference),)),
}
"""Sections of each report, in the order in which they are made."""
