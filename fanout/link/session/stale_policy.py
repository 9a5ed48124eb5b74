"""Staleness of a replica: since when it is not known to be current, and the policies `on_stall` and `on_session_loss`.

A replica is stale from the moment that the primary last confirmed it: by a heartbeat, or by being live. A stale replica
is not ready, but may be offered as stale, with its age.

The replica of a lost session is removed or served on. Then the snapshot of the next session replaces it value by value,
and local clients get only the differences. When the grace period ends before that snapshot is proved, it is removed.
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
        since: When the values were last known to be current, monotonic seconds; None while they are, and without any.
    """

    def __init__(self, config: LinkConfig) -> None:
        """Begin with a replica that is not stale."""
        self.reason: str | None = None
        self.deadline = _NEVER
        self.since: float | None = None
        self._allowed = config.on_session_loss == "serve_stale"
        self._grace_s = config.grace_s
        self._stall_grace_s = config.stall_grace_s if config.on_stall == "serve_stale" else 0.0

    def begin(self, reason: str, *, complete: bool, now: float) -> bool:
        """Note that a session is lost, and return whether its replica is still served.

        A replica that is stale already stays so, and its grace period does not begin again.

        Args:
            reason: Why the session is lost, for an operator.
            complete: True if the replica was proved complete in that session; an incomplete snapshot is not served.
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

    def leave_live(self, *, current_s: float) -> None:
        """Note that the link is not live any more; `current_s` is when its values were last known to be current."""
        self.since = current_s

    def forget_age(self) -> None:
        """Note that the values are current again, or being removed."""
        self.since = None

    def offers(self, age_s: float) -> bool:
        """Say whether complete values may be offered as stale, by their age: `on_stall`."""
        return age_s < self._stall_grace_s

    def left_s(self, now: float) -> float | None:
        """Return the seconds left of the grace period; None while the replica is not stale."""
        return None if self.reason is None else max(0.0, self.deadline - now)
