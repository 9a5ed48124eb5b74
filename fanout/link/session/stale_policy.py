"""Policy `on_session_loss`: whether the replica of a lost session is still served, and for how long.

A stale replica is not ready. The snapshot of the next session replaces it value by value, and local clients get only
the differences. When the grace period ends before that snapshot is proved, the replica is removed.
"""

from __future__ import annotations

from fanout.config import LinkConfig

__all__ = ["StalePolicy"]

_NEVER = float("inf")


class StalePolicy:
    """Staleness of one replica.

    Attributes:
        reason: Why the replica is stale, for an operator; None while it is not.
        deadline: When the grace period ends, monotonic seconds; infinity while it is not stale.
    """

    def __init__(self, config: LinkConfig) -> None:
        """Begin with a replica that is not stale."""
        self.reason: str | None = None
        self.deadline = _NEVER
        self._allowed = config.on_session_loss == "serve_stale"
        self._grace_s = config.grace_s

    def begin(self, reason: str, *, complete: bool, now: float) -> bool:
        """Note that a session is lost, and return whether its replica is still served.

        A replica that is stale already stays so, and its grace period does not begin again.

        Args:
            reason: Why the session is lost, for an operator.
            complete: Whether the replica was proved complete in that session; an incomplete snapshot is not served.
            now: Monotonic seconds.
        """
        if self.reason is None and self._allowed and complete:
            self.reason = reason
            self.deadline = now + self._grace_s
        return self.reason is not None

    def end(self) -> None:
        """Note that the replica is proved again, or removed."""
        self.reason = None
        self.deadline = _NEVER

    def left_s(self, now: float) -> float | None:
        """Return the seconds left of the grace period; None while the replica is not stale."""
        return None if self.reason is None else max(0.0, self.deadline - now)
