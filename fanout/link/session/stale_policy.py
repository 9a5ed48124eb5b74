"""Whether a link goes on serving the replica of a session that is lost, and for how long (core).

Owns the policy `on_session_loss` and its time of grace. A stale replica is not ready; it is replaced value by value by
the snapshot of the next session, of which only differences reach local clients, and removed when the grace is over
before that snapshot is proved. It must not know what a session is (`fanout.link.session.lifecycle`).
"""

from __future__ import annotations

from fanout.config import LinkConfig

__all__ = ["StalePolicy"]

_NEVER = float("inf")


class StalePolicy:
    """The staleness of one replica.

    Attributes:
        reason: Why the replica is stale, for a person; None while it is not.
        deadline: When the grace is over, monotonic seconds; infinity while it is not stale.
    """

    def __init__(self, config: LinkConfig) -> None:
        """Make one for a replica that is not stale."""
        self.reason: str | None = None
        self.deadline = _NEVER
        self._allowed = config.on_session_loss == "serve_stale"
        self._grace_s = config.grace_s

    def begin(self, reason: str, *, complete: bool, now: float) -> bool:
        """Note that a session is lost, and return whether its replica is served on.

        A replica that is stale already stays so, and its grace does not begin again.

        Args:
            reason: Why, for a person.
            complete: Whether the replica was proved complete in that session: half a snapshot is not served on.
            now: Monotonic seconds.
        """
        if self.reason is None and self._allowed and complete:
            self.reason = reason
            self.deadline = now + self._grace_s
        return self.reason is not None

    def end(self) -> None:
        """Note that the replica is proved again, or gone."""
        self.reason = None
        self.deadline = _NEVER

    def left_s(self, now: float) -> float | None:
        """Return how much of the grace is left, in seconds; None while nothing is stale."""
        return None if self.reason is None else max(0.0, self.deadline - now)
