"""The sets of links that replicate the same selector from the same primary, which should hold the same values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fanout.reports.read.details import Selection
from fanout.reports.read.scope import Scope, Target
from fanout.reports.read.survey import Survey

__all__ = ["ReplicatedSet", "replicated_sets"]


@dataclass(frozen=True, slots=True)
class ReplicatedSet:
    """A selector as several links replicate it; its members are these links, and the reference."""

    id: int
    group: int
    selection: Selection
    targets: tuple[Target, ...]
    reference: tuple[str, str] | None
    """The node and link of the reference; None for a union, which is no node."""
    gap_members: int
    """Number of members that may lack rows in their log."""

    @property
    def members(self) -> int:
        """Number of its members."""
        return len(self.targets) + (self.reference is not None)

    @property
    def judged_until_us(self) -> int:
        """Until when values are judged: until the first member's log is settled."""
        return min(min(target.settled_until_us, target.silent_after_us) for target in self.targets)


def replicated_sets(survey: Survey, scope: Scope) -> tuple[ReplicatedSet, ...]:
    """Return the sets of a report; the identifier of each is its index."""
    by_selection: dict[tuple[int, Selection], list[Target]] = defaultdict(list)
    for target in scope.targets:
        by_selection[target.group, target.selection].append(target)
    found: list[ReplicatedSet] = []
    for (group, selection), targets in sorted(by_selection.items()):
        sources = scope.groups[group].sources
        gaps = sum(bool(survey.gap_pos(target.node, link=target.link)) for target in targets)
        reference = None
        if scope.reference.kind != "union":
            reference = sources[0]
            gaps += any(survey.gap_pos(node, link=link) for node, link in sources)
        found.append(ReplicatedSet(len(found), group, selection, tuple(targets), reference, gaps))
    return tuple(found)
