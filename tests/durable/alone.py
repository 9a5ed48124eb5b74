"""What members say at the primary of sessions without copies, for pools without one."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Notices", "WithoutNotices"]

_NEVER = float("-inf")


class Notices:
    """The notices of all processes, as a primary carries them: each is heard by all at once, while it is there."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Begin with a primary, and without any.

        Args:
            now_s: Returns the time.
        """
        self.is_there = True
        """Whether the primary can be reached."""
        self.is_slow = False
        """Whether it gives nothing back at the moment."""
        self.told: list[str] = []
        """Processes that have said that sessions go on without copies, once for each time."""
        self._now_s = now_s
        self._said_s: dict[str, float] = {}
        self._vouched_s: dict[str, float] = {}

    def tell(self, instance: str) -> bool:
        """Take the notice of a process; return whether the primary is there."""
        if self.is_there:
            self.told.append(instance)
            if not self.is_slow:
                self._said_s[instance] = self._now_s()
        return self.is_there

    def give_back(self) -> None:
        """Give back what was told meanwhile."""
        self.is_slow = False
        self._said_s |= dict.fromkeys(self.told, self._now_s())

    def said_s(self, instance: str) -> float:
        """Return when a process said so last."""
        return self._said_s.get(instance, _NEVER)

    def vouch(self, instance: str) -> None:
        """Take it that a process has said that its copies are right."""
        self._vouched_s[instance] = self._now_s()

    def went_alone(self, instance: str) -> bool:
        """Return whether a process has said so and not vouched since."""
        return self.said_s(instance) > self._vouched_s.get(instance, _NEVER)


class WithoutNotices:
    """A part of `fanout.durable.ownership.ports.Others` for members that no primary is a witness for."""

    has_witness = False

    def have_asked(self, *, since_s: float) -> bool:
        """Return that all have."""
        return True

    def is_current(self, since_s: float) -> bool:
        """Return that nothing is late."""
        return True

    def tell_alone(self) -> bool:
        """Return that nothing takes it."""
        return False

    def said_alone_s(self, instance: str) -> float:
        """Return that it was never said."""
        return _NEVER

    def went_alone(self, instance: str) -> bool:
        """Return that nobody did."""
        return False
