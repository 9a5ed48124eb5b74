"""Failure detection: which other members are dead, and whether this one is isolated (core).

Others must be able to take a node for dead only after it has stopped by itself. So a verdict on another member needs a
witness, the primary: this node hears itself there, and the member not. A node that hears neither any member nor itself
is isolated, some time before the others may find it dead. Times are seconds of a monotonic clock that goes on while
the machine is suspended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ["FailureDetector", "LifeSigns", "isolated_after_s"]

_MARGIN_S: Final = 1.0
"""Time for which a node is isolated before others may take it for dead."""
_WITNESS_S: Final = 1.5
"""Greatest age of an own heartbeat that makes the primary a witness, or half of `dead_after_s` if that is more.

It was sent as long after the member was heard: all send one each second, so the member's would have come before it.
"""
_LOOK_S: Final = 1.0
"""Time between two looks, after which this node did not run in between."""


def isolated_after_s(dead_after_s: float) -> float:
    """Return the time after which a node is isolated that hears nobody."""
    return max(dead_after_s - _MARGIN_S, dead_after_s / 2)


class LifeSigns(NamedTuple):
    """Life signs of another member."""

    name: str
    """Its name."""
    heard_s: float
    """When it was heard last, directly or at the primary; when this node began to ask, if it never was."""
    answered_s: float | None
    """When it was asked for its newest answer; None before one came.

    Its heartbeats at the primary do not count: they do not show that it hears this node.
    """


class FailureDetector:
    """Verdicts of this node on the others and on itself."""

    def __init__(self, *, dead_after_s: float) -> None:
        """Begin without any verdict.

        Args:
            dead_after_s: Silence after which a member is dead.
        """
        self.isolated_after_s = isolated_after_s(dead_after_s)
        """Time after which this node is isolated when it hears nobody."""
        self.is_isolated = False
        """True if others may take this node for dead soon: neither one that may be alive was heard, nor itself."""
        self.dead: frozenset[str] = frozenset()
        """Names of the members that were found dead, and were not heard since."""
        self._dead_after_s = dead_after_s
        self._witness_s = max(_WITNESS_S, dead_after_s / 2)
        self._witnessed: dict[str, float] = {}
        """Member that was found dead, with a witness, to when it had been heard last."""
        self._looked_s: float | None = None
        self._runs_since_s = float("-inf")
        """Start of the present run of looks without a pause: before that this node heard nobody."""
        self._own_s = float("-inf")
        """Time at which the newest heartbeat that came back was sent."""

    def look(self, others: Iterable[LifeSigns], *, own_sent_s: Sequence[float | None], now_s: float) -> None:
        """Judge anew.

        Args:
            others: Every other member.
            own_sent_s: For each link that may publish heartbeats, the time at which the newest one that came back was
                sent; None for none. Empty without such a link.
            now_s: The time.
        """
        paused_s = now_s if self._looked_s is None else now_s - self._looked_s
        if self._looked_s is None or paused_s > _LOOK_S:
            self._runs_since_s = now_s
        if paused_s > self.isolated_after_s:
            self._witnessed = {}  # a member may have come back meanwhile, and found this one dead
        self._looked_s = now_s
        self._own_s = max([self._own_s, *(sent_s for sent_s in own_sent_s if sent_s is not None)])
        # A member that reaches the primary of one link only is heard by who hears all of them.
        is_witness = bool(own_sent_s) and all(
            sent_s is not None and now_s - sent_s <= self._witness_s for sent_s in own_sent_s
        )
        # A member that has changed its address is there twice for a while.
        signs: dict[str, LifeSigns] = {}
        for other in others:
            if other.name not in signs or signs[other.name].heard_s <= other.heard_s:
                signs[other.name] = other
        if self._witnessed:
            self._witnessed = {
                name: heard_s
                for name, heard_s in self._witnessed.items()
                if name in signs and signs[name].heard_s <= heard_s
            }
        silent: dict[str, float] = {}
        if now_s - self._runs_since_s > self._dead_after_s:
            silent = {
                other.name: other.heard_s for other in signs.values() if now_s - other.heard_s > self._dead_after_s
            }
        if is_witness:
            heard_until_s = min(sent_s for sent_s in own_sent_s if sent_s is not None) - self._witness_s
            self._witnessed |= {name: heard_s for name, heard_s in silent.items() if heard_s <= heard_until_s}
        self.dead = frozenset(self._witnessed) if own_sent_s else frozenset((*self._witnessed, *silent))
        answered = [
            other.answered_s
            for other in signs.values()
            if other.answered_s is not None and other.name not in self._witnessed
        ]
        self.is_isolated = bool(answered) and now_s - max(*answered, self._own_s) > self.isolated_after_s
