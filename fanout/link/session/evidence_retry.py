"""Schedule of the attempts to get heartbeats, or better evidence where a live link has too little to be ready.

A right may have been granted meanwhile, or the primary may answer in order now. An attempt is a capability check
(`fanout.link.snapshot.capability_check`), and an audit if the check found something better.
"""

from __future__ import annotations

__all__ = ["PAUSE_MAX_S", "PAUSE_MIN_S", "EvidenceRetry"]

PAUSE_MIN_S = 5.0
PAUSE_MAX_S = 60.0
"""First and longest pause between two attempts; it doubles in between."""
_COST_FACTOR = 10
"""Ratio of the pause after an attempt with an audit to the duration of the audit."""
_NEVER = float("inf")


class EvidenceRetry:
    """Schedule of one link.

    Attributes:
        due_s: When the next attempt is due, monotonic seconds; infinity for never.
    """

    def __init__(self) -> None:
        """Begin without an attempt."""
        self.due_s = _NEVER
        self._pause_s = PAUSE_MIN_S

    def plan(self, now: float) -> None:
        """Schedule the next attempt after the pause, which doubles."""
        self.due_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def rest(self, now: float, *, took_s: float) -> None:
        """Put off the next attempt if the audit of this one took long."""
        self.due_s = max(self.due_s, now + _COST_FACTOR * took_s)

    def end(self) -> None:
        """Schedule no attempt, and begin with the shortest pause again."""
        self.due_s = _NEVER
        self._pause_s = PAUSE_MIN_S
