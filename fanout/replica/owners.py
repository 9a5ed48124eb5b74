"""Owners of retained values: which user published each value of a node's own topics last, and how much each user has.

Core: a value counts for its user until it is removed or replaced by another user's. Values that were there before the
node started count for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fanout.replica.update import TOPIC, ChangeKind, Changes

__all__ = ["RETAINED_BYTES_KEY", "RETAINED_TOPICS_KEY", "RetainedOwners"]

RETAINED_TOPICS_KEY: Final = "access.quota.retained_topics_max"
"""Key of the most values of a user."""
RETAINED_BYTES_KEY: Final = "access.quota.retained_bytes_max"
"""Key of the most bytes of them."""
_MESSAGE: Final = int(ChangeKind.MESSAGE)
_REMOVED: Final = int(ChangeKind.REMOVED)
_REFUSED: Final = int(ChangeKind.REFUSED)
_TOLD_MAX: Final = 1_000


class RetainedOwners:
    """Users of the retained values of a node's own topics.

    Attributes:
        refused_by: Number of values that each quota refused, by its key.
    """

    def __init__(
        self,
        quota_of: Callable[[str], tuple[int, int] | None],
        *,
        reached: Callable[[str, str], object] = lambda user, key: None,
    ) -> None:
        """Begin without owners.

        Args:
            quota_of: Returns the most topics and bytes of a user, "" for clients without one; None for no bound.
            reached: Called with a user and the key of a quota when that refuses the user's value for the first time.
        """
        self.quota_of = quota_of
        """Returns the most topics and bytes of a user, as given."""
        self._owners: dict[bytes, tuple[str, int]] = {}
        """Topic to the user of its value, and the bytes of topic, payload and properties."""
        self._used: dict[str, tuple[int, int]] = {}
        """User to its topics and bytes."""
        self._reached = reached
        self._told: set[tuple[str, str]] = set()
        """Users and quotas of which `reached` was told; emptied at `_TOLD_MAX`."""
        self.refused_by = {RETAINED_TOPICS_KEY: 0, RETAINED_BYTES_KEY: 0}

    def used(self, user: str) -> tuple[int, int]:
        """Return the number of a user's topics, and their bytes."""
        return self._used.get(user, (0, 0))

    def take(self, user: str, topic: bytes, *, size: int, quota: tuple[int, int]) -> bool:
        """Give a topic to a user that publishes a retained value, unless that exceeds its quota; return whether it did.

        Args:
            user: The user; "" for a client without one.
            topic: The topic.
            size: Bytes of topic, payload and properties.
            quota: The answer of `quota_of`.
        """
        owner, held = self._owners.get(topic, ("", -1))
        topics, nbytes = self.used(user)
        is_own = held >= 0 and owner == user
        if not is_own and topics >= quota[0]:
            return self._refuse(user, RETAINED_TOPICS_KEY)
        grown = size - held if is_own else size
        if grown > 0 and nbytes + grown > quota[1]:
            return self._refuse(user, RETAINED_BYTES_KEY)
        self.forget(topic)
        topics, nbytes = self.used(user)
        self._used[user] = topics + 1, nbytes + size
        self._owners[topic] = user, size
        return True

    def note(self, changes: Changes) -> None:
        """Forget the owners of values that are removed, or that a limit kept out."""
        if self._owners and (_REMOVED in changes.kinds or _REFUSED in changes.kinds):
            newest = {
                update[TOPIC]: kind
                for update, kind in zip(changes.updates, changes.kinds, strict=True)
                if kind != _MESSAGE
            }
            for topic, kind in newest.items():
                if kind in (_REMOVED, _REFUSED):
                    self.forget(topic)

    def forget(self, topic: bytes) -> bool:
        """Forget whose the value of a topic is, which is removed; return whether that was known."""
        user, size = self._owners.pop(topic, ("", -1))
        if size >= 0:
            topics, nbytes = self._used.pop(user)
            if topics > 1:
                self._used[user] = topics - 1, nbytes - size
        return size >= 0

    def _refuse(self, user: str, key: str) -> bool:
        """Count a refusal, and return False."""
        self.refused_by[key] += 1
        if (user, key) not in self._told:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told.add((user, key))
            self._reached(user, key)
        return False
