"""Members that can keep copies: the present ones, those that have lost their copies, and the one that comes next."""

from __future__ import annotations

from typing import Final, NamedTuple

from fanout.durable.ownership.placement import keeper_of
from fanout.durable.ownership.ports import Others

__all__ = ["ALONE_S", "CopyKeepers", "KeeperChange"]

ALONE_S: Final = 2.5
"""Time without a member that could keep a copy, after which sessions go on without one."""
_AWAY_S: Final = 1.0
"""Time without an answer of a keeper, after which its copies are made elsewhere; a busy one still has them."""
_STOOD_S: Final = 0.25
"""Longest time between two looks that counts: beyond that, this process did not run, and could hear nobody."""
_STEADY_S: Final = 2.0
"""Time without a change of members, after which copies go to the members that the hash chooses."""


class KeeperChange(NamedTuple):
    """Result of one look at the members."""

    has_changed: bool
    """True if other members can keep copies than before."""
    lost: frozenset[str]
    """Members without a copy: new processes, and those that are away for too long."""
    is_interrupted: bool
    """True if a member may have forgotten places that its copies name."""
    is_steady: bool
    """True if copies go to the members that the hash chooses from now on."""


class CopyKeepers:
    """The members that can keep copies of this member's sessions."""

    def __init__(self, others: Others, *, now_s: float) -> None:
        """Begin with none.

        Args:
            others: The other members.
            now_s: Monotonic seconds.
        """
        self.names: tuple[str, ...] = ()
        """The members."""
        self.ran_s = 0.0
        """Time for which this member has run, in seconds: a pause shows nothing of the others."""
        self._others = others
        self._looked_s = now_s
        self._instances: dict[str, str] = {}
        """Process of each member that could keep copies, as it was heard last."""
        self._interruptions: dict[str, int] = {}
        """Number of interruptions of the streams of each of them, as it was heard last."""
        self._away: dict[str, float] = {}
        """Member that could keep copies until then, to that time."""
        self._alone_since_s: float | None = 0.0
        """Value of `ran_s` since which no member can keep a copy; None while one can."""
        self._steady_at_s: float | None = None
        """Time from which copies go to the members that the hash chooses; None while they are there."""

    @property
    def are_steady(self) -> bool:
        """True if copies are at the members that the hash chooses, or on their way there."""
        return self._steady_at_s is None

    @property
    def are_gone(self) -> bool:
        """True if no member could keep a copy for so long that sessions go on without."""
        return self._alone_since_s is not None and self.ran_s - self._alone_since_s >= ALONE_S

    def next_for(self, client_id: str, *, unable: tuple[str, ...]) -> str | None:
        """Return the member that is to keep the copy of a session; None for none.

        Args:
            client_id: Client Identifier.
            unable: Members that are passed over.
        """
        return keeper_of(client_id, [one for one in self.names if one not in unable] if unable else self.names)

    def look(self, now_s: float) -> KeeperChange:
        """Look at the members once more.

        A member that is silent for a moment has its copies still. If each silence of a busy one moved thousands of
        copies, the others would be too busy to answer too.
        """
        self.ran_s += min(now_s - self._looked_s, _STOOD_S)
        self._looked_s = now_s
        keepers = [other for other in self._others.states() if other.keeps_copies]
        instances = {other.name: other.instance for other in keepers}
        interruptions = {other.name: other.interruptions for other in keepers}
        is_interrupted = any(self._interruptions.get(name, each) != each for name, each in interruptions.items())
        self._interruptions |= interruptions
        lost = {name for name, each in instances.items() if self._instances.get(name, each) != each}
        self._instances |= instances
        names = tuple(instances)
        has_changed = names != self.names
        if has_changed:
            for name in self.names:
                self._away.setdefault(name, now_s)
            self.names, self._steady_at_s = names, now_s + _STEADY_S
            self._alone_since_s = None if names else self.ran_s
            for name in names:
                self._away.pop(name, None)
        for name in [name for name, since_s in self._away.items() if now_s - since_s >= _AWAY_S]:
            del self._away[name]
            self._instances.pop(name, None)
            lost.add(name)
        is_steady = self._steady_at_s is not None and now_s >= self._steady_at_s
        if is_steady:
            self._steady_at_s = None
        return KeeperChange(has_changed, frozenset(lost), is_interrupted, is_steady)
