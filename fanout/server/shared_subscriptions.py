"""Shared Subscriptions: `$share/{ShareName}/{filter}` (MQTT 5, section 4.8.2).

Owns the groups, their members and whose turn it is. It must not know sockets, nor how a message is delivered.
MQTT 3.1.1 has no such thing, yet its clients may use the same form, as with other servers.
"""

from __future__ import annotations

from collections import OrderedDict

from fanout.server.audiences import AudienceIndex, SubscriptionOptions
from fanout.server.sessions import Session, SessionState

__all__ = ["ShareGroup", "SharedSubscriptions"]


_ORDER = (SessionState.DIRECT, SessionState.QUEUED, SessionState.ABSENT)


class ShareGroup:
    """The sessions that share one ShareName and Topic Filter: each message goes to one of them."""

    __slots__ = ("_members", "_turns", "topic_filter")

    def __init__(self, topic_filter: bytes) -> None:
        self.topic_filter = topic_filter
        """The Topic Filter behind the ShareName."""
        self._members: dict[Session, SubscriptionOptions] = {}
        # The same sessions by state, each in order of turn: the first is next.
        self._turns: dict[SessionState, OrderedDict[Session, None]] = {state: OrderedDict() for state in SessionState}

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def set(self, session: Session, options: SubscriptionOptions) -> None:
        """Make `session` a member, or change its options."""
        if session not in self._members:
            self._turns[session.state][session] = None
        self._members[session] = options

    def discard(self, session: Session) -> None:
        """Take `session`, a member, out."""
        del self._members[session]
        self._take_from_turns(session)

    def place(self, session: Session) -> None:
        """Note that the state of `session`, a member, has changed."""
        self._take_from_turns(session)
        self._turns[session.state][session] = None

    def take_turn(self) -> tuple[Session, SubscriptionOptions]:
        """Return the member whose turn it is, and put it last; an empty group is asked by nobody.

        Those that can be written to at once come first, then those that are connected, then those that are away:
        the queue of one of them keeps the message.
        """
        turns = next(turns for turns in map(self._turns.__getitem__, _ORDER) if turns)
        session = next(iter(turns))
        turns.move_to_end(session)
        return session, self._members[session]

    def _take_from_turns(self, session: Session) -> None:
        for turns in self._turns.values():
            turns.pop(session, None)


class SharedSubscriptions:
    """All groups."""

    def __init__(self, index: AudienceIndex) -> None:
        self._index = index
        self._groups: dict[tuple[bytes, bytes], ShareGroup] = {}

    def subscribe(self, session: Session, key: tuple[bytes, bytes], options: SubscriptionOptions) -> None:
        """Make `session` a member of the group `key` (ShareName, Topic Filter)."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ShareGroup(key[1])
            self._index.add_group(group.topic_filter, group)
        group.set(session, options)
        session.shared[key] = group

    def unsubscribe(self, session: Session, key: tuple[bytes, bytes]) -> bool:
        """Take `session` from the group `key`; return whether it was a member."""
        group = session.shared.pop(key, None)
        if group is None:
            return False
        group.discard(session)
        if not len(group):
            self._index.remove_group(group.topic_filter, group)
            del self._groups[key]
        return True

    def leave(self, session: Session) -> None:
        """Take `session` from all its groups."""
        for key in list(session.shared):
            self.unsubscribe(session, key)
