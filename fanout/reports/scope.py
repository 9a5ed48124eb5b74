"""The values that say what a completeness report compares with what.

* a *source* is a link of a reference node (link "" of a primary: what was published at it);
* a *group* holds the sources that speak of the same primary, and has one basis;
* a *target* is a selector of a link that is compared with its group.

All times of a target are by its group's clock: that of the node that stamped, or without stamps the
reference's own. `fanout.reports.planning` decides them; nothing here knows rows or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from fanout.reports.details import Selection

__all__ = ["NEVER_US", "Basis", "Group", "Reference", "ReferenceKind", "Scope", "Source", "Target"]

Basis = Literal["stamped", "unstamped"]
ReferenceKind = Literal["primary", "first_tier", "tap", "secondary", "union"]
"""A first-tier node is a secondary that stamps what it gets from a foreign primary, for the nodes below it."""

NEVER_US: Final = 2**62
"""A time that never comes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Whose log says what there was to be replicated."""

    kind: ReferenceKind
    nodes: tuple[str, ...]
    """The node, or for a union every node whose log is part of it."""
    chosen: str
    """Why it was taken."""

    @property
    def stamps(self) -> bool:
        """Whether the node itself stamped what it hands on."""
        return self.kind in ("primary", "first_tier")

    @property
    def name(self) -> str:
        """What the report calls it: the node's identifier, or `union`."""
        return "union" if self.kind == "union" else self.nodes[0]


@dataclass(frozen=True, slots=True)
class Source:
    """A link of a reference node; link "" is what was published at the node itself."""

    node: str
    link: str
    group: int


@dataclass(frozen=True, slots=True)
class Group:
    """Sources that speak of the same primary."""

    id: int
    basis: Basis
    exact: bool
    """Whether the sources saw everything: the stamping node's own log, without holes."""
    stamped_by: tuple[str, ...]
    from_us: int
    """Since when the sources hold what they select; -NEVER_US for what was published at the node itself."""
    end_us: int
    """The end of the reference's log."""
    selections: tuple[Selection, ...] | None
    """What the sources select; None when there is nothing that they leave out."""
    gap: bool
    """Whether rows of a source may be missing from its log."""


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
    """What to subtract from a time by the node's clock to get one by its group's."""
    behind_us: int = 0
    """By how much the node's log ends before `covered_until_us`, without a stop that would say why; 0 when it does not.

    What came later may be in a part of the log that is not here yet: it is pending, or in a gap without end."""
    silent_after_us: int = NEVER_US
    """When that is too much for a log that is only late: updates after this, which the node has not, are unknown."""


@dataclass(frozen=True, slots=True)
class Scope:
    """All that a completeness report compares."""

    reference: Reference
    settle_us: int
    groups: tuple[Group, ...]
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    notices: tuple[str, ...]
    """What a reader must know to read the figures right, one sentence each."""
    left_out: tuple[str, ...] = ()
    """The links that are compared with nothing."""

    @property
    def stamped_once(self) -> bool:
        """Whether the reference can hold no update twice: it is the node that stamped all of them."""
        return self.reference.stamps and all(
            group.stamped_by == self.reference.nodes for group in self.groups if group.basis == "stamped"
        )

    def targets_of(self, basis: Basis) -> tuple[Target, ...]:
        """Return the targets whose group has this basis."""
        return tuple(target for target in self.targets if self.groups[target.group].basis == basis)
