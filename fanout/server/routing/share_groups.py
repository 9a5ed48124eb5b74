"""Shared Subscriptions: `$share/{ShareName}/{filter}` (MQTT 5, section 4.8.2).

Owns the share groups and their membership. MQTT 3.1.1 does not define them, but its clients may use the same form, as
with other servers.
"""

from __future__ import annotations

from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.subscribers import ShareGroup, Subscriber, SubscriptionOptions

__all__ = ["SharedSubscriptions"]


class SharedSubscriptions:
    """All share groups."""

    def __init__(self, index: AudienceIndex) -> None:
        self._index = index
        self._groups: dict[tuple[bytes, bytes], ShareGroup] = {}

    def subscribe(self, session: Subscriber, key: tuple[bytes, bytes], options: SubscriptionOptions) -> None:
        """Make `session` a member of the group `key` (ShareName, Topic Filter)."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ShareGroup(key)
            self._index.add_group(group)
        group.set(session, options)
        session.shared[key] = group

    def unsubscribe(self, session: Subscriber, key: tuple[bytes, bytes]) -> bool:
        """Remove `session` from the group `key`; return whether it was a member."""
        group = session.shared.pop(key, None)
        if group is None:
            return False
        group.discard(session)
        if not len(group):
            self._index.remove_group(group)
            del self._groups[key]
        return True

    def leave(self, session: Subscriber) -> None:
        """Remove `session` from all its groups."""
        for key in list(session.shared):
            self.unsubscribe(session, key)
