"""Subscribers, and the groups in which they get messages: audiences and share groups.

Owns who is in which group, and who is written to at once. These types refer to each other, so they stand side by side.
How a Topic Name leads to a group is the business of `audiences`, what a subscriber does with a message that of
`sessions`. (MQTT 5, sections 3.8.3.1 and 4.8.2.)
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from fanout.server.messages.encoding import Frame, Message, WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.messages.shared_inflight import Follower, SharedInflight

__all__ = [
    "Audience",
    "Collected",
    "SessionState",
    "ShareGroup",
    "Subscriber",
    "SubscriptionOptions",
    "TrieEntry",
    "Write",
]

Write: TypeAlias = Callable[[bytes], None]
"""Writes bytes to a Network Connection."""


class SubscriptionOptions(NamedTuple):
    """The options of one subscription that decide what is delivered (MQTT 5, section 3.8.3.1)."""

    qos: int
    """Maximum QoS granted."""
    no_local: bool = False
    """Whether the session's own messages are left out [MQTT-3.8.3-3]."""
    retain_as_published: bool = False
    """Whether live messages keep the RETAIN flag [MQTT-3.3.1-12] [MQTT-3.3.1-13]."""
    identifier: int = 0
    """Subscription Identifier; 0 for none."""


class SessionState(enum.Enum):
    """How messages reach a session."""

    ABSENT = "absent"
    """It has no Network Connection: QoS 1 and 2 are queued, QoS 0 is not for it."""
    DIRECT = "direct"
    """Nothing waits and its socket takes more: its audience writes to it."""
    QUEUED = "queued"
    """Something older is before them, or its socket is full: they wait, retained values at QoS 0 as the newest
    of each topic."""


class Subscriber(ABC):
    """A session, as its audience, its share groups and the dispatcher see it."""

    __slots__ = (
        "audience",
        "client_id",
        "fingerprint",
        "follower",
        "shared",
        "state",
        "subscriptions",
        "wire",
        "write",
    )

    def __init__(self, client_id: str, *, wire: WireVariant, follower: Follower) -> None:
        self.client_id = client_id
        """Client Identifier."""
        self.wire = wire
        """The kind of receiver it was at its last Network Connection."""
        self.follower = follower
        """Its part in what its audience sends with shared Packet Identifiers."""
        self.subscriptions: Mapping[bytes, SubscriptionOptions] = {}
        """Its subscriptions, but for shared ones; belongs to its audience."""
        self.shared: dict[tuple[bytes, bytes], ShareGroup] = {}
        """Its shared subscriptions: (ShareName, Topic Filter) to the group; kept by `SharedSubscriptions`."""
        self.fingerprint = 0
        """A hash over `subscriptions`, kept by `AudienceIndex`."""
        self.audience: Audience | None = None
        """The audience that it belongs to; None without subscriptions."""
        self.state = SessionState.ABSENT
        """How messages reach it."""
        self.write: Write | None = None
        """Writes to its Network Connection; None unless its state is DIRECT."""

    @abstractmethod
    def enqueue(self, batch: MessageBatch) -> int:
        """Queue a batch; without a Network Connection only what has QoS 1 or 2.

        Returns:
            How many messages were taken.
        """

    @abstractmethod
    def send(self, batch: MessageBatch, *, now_ns: int) -> bytes:
        """Return the bytes of a batch for a subscriber that is DIRECT; what is over its window is queued."""


class TrieEntry:
    """One subscription of an audience, as it stands in the trie."""

    __slots__ = ("audience", "options")

    def __init__(self, audience: Audience, options: SubscriptionOptions) -> None:
        self.audience = audience
        self.options = options


class Audience:
    """The sessions that have one set of subscriptions and one wire variant.

    Every member is in exactly one of `direct` and `queued`.
    """

    __slots__ = ("collected", "direct", "entries", "log", "no_local", "qos_max", "queued", "subscriptions", "wire")

    def __init__(
        self, *, wire: WireVariant, subscriptions: dict[bytes, SubscriptionOptions], in_flight_bytes_max: int
    ) -> None:
        self.wire = wire
        """The members' wire variant."""
        self.subscriptions = subscriptions
        """Topic Filter to options; one dictionary that all members share, changed only while there is one
        session."""
        self.entries: dict[bytes, TrieEntry] = {}
        """What stands in the trie: the same Topic Filters as `subscriptions`."""
        self.direct: dict[Subscriber, Write] = {}
        """Members that are written to at once."""
        self.queued: dict[Subscriber, None] = {}
        """Members whose messages are queued: away, slow, or with older messages before."""
        self.log = SharedInflight(bytes_max=in_flight_bytes_max)
        """What was sent at QoS 1 or 2 to the direct members that are in step."""
        self.qos_max = 0
        """The highest QoS that a subscription has or had; 0 means that members need no delivery state."""
        self.no_local = False
        """Whether a subscription has or had No Local."""
        self.collected: Collected | None = None
        """Used by the dispatcher while it collects; None between dispatches."""

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.direct) + len(self.queued)

    def update(self, session: Subscriber) -> None:
        """Put `session` among the direct ones when it can be written to, else among those held."""
        if session.write is not None:
            self.queued.pop(session, None)
            self.direct[session] = session.write
        else:
            self.direct.pop(session, None)
            self.queued[session] = None

    def discard(self, session: Subscriber) -> None:
        """Take `session` out; what it has in flight becomes its own."""
        session.follower.leave()
        self.direct.pop(session, None)
        self.queued.pop(session, None)


class Collected:
    """What one slice brings to one audience, while it is collected."""

    __slots__ = ("encodes", "expiring", "frames", "keeps", "messages", "qos_levels")

    def __init__(self, audience: Audience) -> None:
        self.frames: list[Frame] = []
        self.messages: list[Message] = []
        self.encodes = bool(audience.direct)
        """Whether somebody is written to at once."""
        self.keeps = bool(audience.queued) or audience.qos_max > 0
        """Whether messages must be remembered: for a queue, or until they are acknowledged."""
        self.qos_levels = 0
        """Which of QoS 1 and 2 the messages have: the sum of both when both occur."""
        self.expiring = False
        """Whether a message has a Message Expiry Interval."""


_ORDER = (SessionState.DIRECT, SessionState.QUEUED, SessionState.ABSENT)


class ShareGroup:
    """The sessions that share one ShareName and Topic Filter: each message goes to one of them."""

    __slots__ = ("_members", "_turns", "key")

    def __init__(self, key: tuple[bytes, bytes]) -> None:
        self.key = key
        """ShareName and Topic Filter."""
        self._members: dict[Subscriber, SubscriptionOptions] = {}
        # The same sessions by state, each in order of turn: the first is next.
        self._turns: dict[SessionState, OrderedDict[Subscriber, None]] = {
            state: OrderedDict() for state in SessionState
        }

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def set(self, session: Subscriber, options: SubscriptionOptions) -> None:
        """Make `session` a member, or change its options."""
        if session not in self._members:
            self._turns[session.state][session] = None
        self._members[session] = options

    def discard(self, session: Subscriber) -> None:
        """Take `session`, a member, out."""
        del self._members[session]
        self._take_from_turns(session)

    def update(self, session: Subscriber) -> None:
        """Note that the state of `session`, a member, has changed."""
        self._take_from_turns(session)
        self._turns[session.state][session] = None

    def take_turn(self) -> tuple[Subscriber, SubscriptionOptions]:
        """Return the member whose turn it is, and put it last; an empty group is asked by nobody.

        Those that can be written to at once come first, then those that are connected, then those that are away:
        the queue of one of them keeps the message.
        """
        turns = next(turns for turns in map(self._turns.__getitem__, _ORDER) if turns)
        session = next(iter(turns))
        turns.move_to_end(session)
        return session, self._members[session]

    def _take_from_turns(self, session: Subscriber) -> None:
        for turns in self._turns.values():
            turns.pop(session, None)
