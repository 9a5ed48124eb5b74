"""Convergence: comparison of members at common cuts, begin of each difference, and order of audits (core).

A difference at one cut is nothing: the streams of members are not in step to the message everywhere. One that outlives
`converge_after_s` is repaired by audits, each of which compares one member with the primary. No vote decides which
member is outdated. A member that differs from more members than it agrees with audits first, because that audit may be
enough. Time comes in as seconds of a monotonic clock, and as Unix time for people.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fanout.chain.cut import Cut, differing_selectors

__all__ = ["Convergence", "Repair", "Verdict"]

CUTS_MIN: Final = 2
"""Cuts in a row that must differ before anything is repaired."""
OTHERS_FACTOR: Final = 3
"""A member that agrees with as many members as it differs from waits so many times as long before it audits."""
PAUSE_MAX_S: Final = 300.0
"""Longest pause after an audit that did not help; it doubles up to here."""
_FRESH_FACTOR: Final = 3
"""A cut is too old to say anything after so many times `converge_after_s`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """True if one member holds the same as this node."""

    equal: bool | None
    """None while nothing could be compared lately."""
    since_ns: int | None
    """Since when that is so, Unix time in nanoseconds; None with `equal` None."""
    overdue: bool = False
    """True if it has differed for longer than `converge_after_s`."""


@dataclass(frozen=True, slots=True)
class Repair:
    """An audit that is due."""

    members: tuple[str, ...]
    """Members that hold something else than this node."""
    selectors: tuple[int, ...]
    """Positions of the selectors that differ."""
    seconds: float
    """For how long they have differed."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """This node and one other member, at their newest common cut of one link."""

    marker: str
    differing: tuple[int, ...]
    compared_s: float
    compared_ns: int
    since_s: float
    since_ns: int
    cuts: int
    """Cuts in a row with this result."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """Pause after an audit."""

    until_s: float
    pause_s: float


class Convergence:
    """Equality of the members of a pool, as this node knows it.

    Attributes:
        cuts_compared_total: Cuts that were compared with another member's.
        cuts_differed_total: Of these, the ones at which both held different values.
        repairs_total: Audits that were called for.
    """

    def __init__(self, *, converge_after_s: float) -> None:
        """Begin without any cut.

        Args:
            converge_after_s: Time in which a difference may end by itself.
        """
        self.cuts_compared_total = 0
        self.cuts_differed_total = 0
        self.repairs_total = 0
        self._after_s = converge_after_s
        self._pairs: dict[tuple[str, str], _Pair] = {}
        """(link, member) to their newest common cut."""
        self._rests: dict[str, _Rest] = {}
        """Link to the pause after its newest audit, while members differ."""

    def compare(self, link: str, member: str, *, ours: Cut, theirs: Cut, now_s: float, now_ns: int) -> None:
        """Compare this node with another member at one cut of one link.

        Args:
            link: Name of the link.
            member: The other member.
            ours: This node at the cut.
            theirs: The other member at the cut.
            now_s: Monotonic seconds.
            now_ns: Unix time in nanoseconds.
        """
        before = self._pairs.get((link, member))
        if before is not None and before.marker == theirs.marker:
            return
        differing = differing_selectors(ours, theirs)
        if differing is None:
            return
        self.cuts_compared_total += 1
        self.cuts_differed_total += bool(differing)
        if before is not None and not self._is_fresh(before, now_s):
            before = None
        since_s, since_ns, cuts = now_s, now_ns, 1
        if before is not None and bool(before.differing) == bool(differing):
            since_s, since_ns, cuts = before.since_s, before.since_ns, before.cuts + 1
        elif before is not None and differing:  # it may have begun right after the cut at which they were equal
            since_s, since_ns = before.compared_s, before.compared_ns
        self._pairs[link, member] = _Pair(theirs.marker, differing, now_s, now_ns, since_s, since_ns, cuts)
        if not differing and not self._differing(link, now_s):
            self._rests.pop(link, None)

    def keep(self, members: Collection[str]) -> None:
        """Forget all members but these."""
        self._pairs = {key: pair for key, pair in self._pairs.items() if key[1] in members}

    def verdict(self, member: str, *, now_s: float) -> Verdict:
        """Return True if a member holds the same as this node, on all links."""
        pairs = [pair for (_, other), pair in self._pairs.items() if other == member and self._is_fresh(pair, now_s)]
        if not pairs:
            return Verdict(None, None)
        differing = [pair for pair in pairs if pair.differing]
        if not differing:
            return Verdict(True, max(pair.since_ns for pair in pairs))
        overdue = any(now_s - pair.since_s > self._after_s and pair.cuts >= CUTS_MIN for pair in differing)
        return Verdict(False, min(pair.since_ns for pair in differing), overdue)

    def due(self, link: str, *, now_s: float) -> Repair | None:
        """Return why this node is to audit a link now; None when it is not."""
        differing = self._differing(link, now_s)
        if not differing:
            return None
        fresh = sum(other == link and self._is_fresh(pair, now_s) for (other, _), pair in self._pairs.items())
        is_first = 2 * len(differing) > fresh
        seconds = now_s - min(pair.since_s for pair in differing.values())
        if seconds < self._after_s * (1 if is_first else OTHERS_FACTOR):
            return None
        if max(pair.cuts for pair in differing.values()) < CUTS_MIN:
            return None
        rest = self._rests.get(link)
        if rest is not None and now_s < rest.until_s:
            return None
        selectors = {index for pair in differing.values() for index in pair.differing}
        return Repair(tuple(sorted(differing)), tuple(sorted(selectors)), seconds)

    def note_repair(self, link: str, *, now_s: float) -> None:
        """Note that an audit of a link has ended: the next one waits, longer each time, until members are equal."""
        self.repairs_total += 1
        before = self._rests.get(link)
        pause_s = self._after_s if before is None else min(PAUSE_MAX_S, 2 * before.pause_s)
        self._rests[link] = _Rest(now_s + pause_s, pause_s)

    def _differing(self, link: str, now_s: float) -> dict[str, _Pair]:
        return {
            member: pair
            for (other, member), pair in self._pairs.items()
            if other == link and pair.differing and self._is_fresh(pair, now_s)
        }

    def _is_fresh(self, pair: _Pair, now_s: float) -> bool:
        return now_s - pair.compared_s <= _FRESH_FACTOR * self._after_s
