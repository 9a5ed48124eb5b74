"""Values of the two sides that a completeness report compares.

* a *group* holds the links of reference nodes that speak of the same primary, its sources, and has one basis;
* a *target* is a selector of a link that is compared with its group.

All times of a target are by its group's clock: that of the node that stamped, or without stamps the
reference's own. `fanout.reports.identify.planning` decides them; nothing here knows rows or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from fanout.errors import ReportError
from fanout.reports.read.details import GapRecord, Selection

__all__ = [
    "APART_US",
    "NEVER_US",
    "WHOLE",
    "AskedWindow",
    "Basis",
    "Group",
    "Reference",
    "ReferenceKind",
    "Scope",
    "Target",
]

Basis = Literal["stamped", "unstamped"]
ReferenceKind = Literal["primary", "first_tier", "tap", "secondary", "union"]
"""A first-tier node is a secondary that stamps what it gets from a foreign primary, for the nodes below it."""

NEVER_US: Final = 2**62
"""A time that never comes."""

APART_US: Final = 1_000_000
"""Least time within which two nodes may log one update without a stamp, however short the settle horizon is."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AskedWindow:
    """The time that a report is asked to be about; by default all of it.

    The begin belongs to it and the end does not, so no update is in two adjacent windows.
    """

    since_us: int = -NEVER_US
    until_us: int = NEVER_US

    @classmethod
    def between(cls, since: datetime | None, until: datetime | None) -> AskedWindow:
        """Return the window between two times; None leaves a side open.

        Raises:
            ReportError: It ends before it begins, or there is nothing in it.
        """
        if since is not None and until is not None and since >= until:
            raise ReportError(
                f"the window begins at {since:%F %T} UTC and ends at {until:%F %T} UTC",
                hint="Give an --until that is later than --since, as in --since 2h --until 1h",
            )
        return cls(
            -NEVER_US if since is None else (since - _EPOCH) // timedelta(microseconds=1),
            NEVER_US if until is None else (until - _EPOCH) // timedelta(microseconds=1),
        )

    @property
    def is_whole(self) -> bool:
        """True if nothing is left out."""
        return not (self.has_begin or self.has_end)

    @property
    def last_us(self) -> int:
        """The last microsecond of it."""
        return self.until_us - 1

    @property
    def has_begin(self) -> bool:
        """True if a begin was asked for."""
        return self.since_us > -NEVER_US

    @property
    def has_end(self) -> bool:
        """True if an end was asked for."""
        return self.until_us < NEVER_US

    def asks_before(self, begins_us: int) -> bool:
        """Return True if the window begins before a log whose own beginning is gone."""
        return (self.has_begin and self.since_us < begins_us) or self.until_us <= begins_us

    def widened(self, by_us: int) -> AskedWindow:
        """Return the window with so much more at each end that was asked for."""
        return AskedWindow(
            self.since_us - by_us if self.has_begin else self.since_us,
            self.until_us + by_us if self.has_end else self.until_us,
        )

    def meets(self, first_us: int, last_us: int) -> bool:
        """Return whether a span, its ends included, has a moment in the window."""
        return first_us < self.until_us and last_us >= self.since_us

    def meets_gap(self, gap: GapRecord, *, margin_us: int) -> bool:
        """Return True if rows lost in a gap may belong to the window; clocks and times under way differ by a margin."""
        first_us = -NEVER_US if gap.first_us is None else gap.first_us
        return self.meets(first_us - margin_us, gap.last_us + margin_us)


WHOLE: Final = AskedWindow()
"""All of the logs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference: the node whose log says what there was to be replicated."""

    kind: ReferenceKind
    nodes: tuple[str, ...]
    """The node, or for a union every node whose log is part of it."""
    chosen: str
    """Why it was taken."""

    @property
    def stamps(self) -> bool:
        """True if the node itself stamped what it hands on."""
        return self.kind in ("primary", "first_tier")

    @property
    def name(self) -> str:
        """Its name in the report: the node's identifier, or `union`."""
        return "union" if self.kind == "union" else self.nodes[0]


@dataclass(frozen=True, slots=True)
class Group:
    """Links of the reference that speak of the same primary: its sources."""

    id: int
    sources: tuple[tuple[str, str], ...]
    """By node and link; link "" is what was published at the node itself."""
    basis: Basis
    exact: bool
    """True if the sources saw everything: the stamping node's own log, without holes."""
    stamped_by: tuple[str, ...]
    from_us: int
    """Time from which the sources hold their selections; -NEVER_US for updates published at the node itself."""
    end_us: int
    """The end of the reference's log."""
    selections: tuple[Selection, ...] | None
    """Selectors of the sources; None when there is nothing that they leave out."""
    gap: bool
    """True if rows of a source may be missing from its log."""


@dataclass(frozen=True, slots=True)
class Target:
    """One selector of one link, and the span in which it had to apply every update."""

    id: int
    node: str
    link: str
    selection: Selection
    group: int
    held_from_us: int | None
    """When the link first held everything, by the node's own clock; None when it never did."""
    covered_from_us: int
    """Updates stamped (or, without stamps, logged) after this had to be applied."""
    covered_until_us: int
    """Updates after this did not: the end of the reference's log, or the node was stopped in good order."""
    settled_until_us: int
    """Updates after this are too young to be judged."""
    gaps_us: tuple[tuple[int, int], ...]
    """Spans (after, until) in which the node's log may lack rows: what it lacks of them is unknown."""
    offset_us: int = 0
    """Time to subtract from a time by the node's clock to get one by its group's."""
    behind_us: int = 0
    """Time by which the node's log ends before `covered_until_us` without a stop; 0 if it does not.

    Later updates may be in a part of the log that is not here yet: they are pending, or in a gap without end."""
    silent_after_us: int = NEVER_US
    """When that is too much for a log that is only late: updates after this, which the node has not, are unknown."""
    apart_us: int = 0
    """Time within which the node and the reference mostly log one update, clocks left out; the settle horizon if
    nothing is measured, and nothing for updates with stamps.
    """

    @property
    def place(self) -> dict[str, Any]:
        """Return what a report calls it by: node, link and filter."""
        return {"node": self.node, "link": self.link, "filter": self.selection.filter}


@dataclass(frozen=True, slots=True)
class Scope:
    """All that a completeness report compares."""

    reference: Reference
    settle_us: int
    groups: tuple[Group, ...]
    targets: tuple[Target, ...]
    notices: tuple[str, ...]
    """Notices that a reader needs to read the figures right, one sentence each."""
    left_out: tuple[str, ...] = ()
    """The links that are compared with nothing."""
    window: AskedWindow = WHOLE
    """Window of the report; the targets' spans are those parts of it that they cover."""
    cut_off: str = ""
    """Why the reference's log does not show the window from its begin on; "" unless something says so."""

    @property
    def stamped_once(self) -> bool:
        """True if the reference can hold no update twice: it is the node that stamped all of them."""
        return self.reference.stamps and all(
            group.stamped_by == self.reference.nodes for group in self.groups if group.basis == "stamped"
        )

    @property
    def sources(self) -> list[tuple[str, str, int]]:
        """The node and link of each source, and its group."""
        return [(*source, group.id) for group in self.groups for source in group.sources]

    def tolerance_us(self, target: Target) -> int:
        """Return the greatest distance of two nodes' times of one update: 0 for a stamped one."""
        return self.settle_us if self.groups[target.group].basis == "unstamped" else 0

    def targets_of(self, basis: Basis) -> tuple[Target, ...]:
        """Return the targets whose group has this basis."""
        return tuple(target for target in self.targets if self.groups[target.group].basis == basis)
