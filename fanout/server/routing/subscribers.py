"""Subscribers and the groups in which they get messages: audiences and share groups (MQTT 5, 3.8.3.1 and 4.8.2).

Owns the members of each group, and which of them are written to directly. These types refer to each other, so they are
in one module. `audiences` finds the groups of a Topic Name; `session.session` implements the subscriber.
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
    """True when the session does not get its own messages [MQTT-3.8.3-3]."""
    retain_as_published: bool = False
    """True when live messages keep the RETAIN flag [MQTT-3.3.1-12] [MQTT-3.3.1-13]."""
    identifier: int = 0
    """Subscription Identifier; 0 for none."""


class SessionState(enum.Enum):
    """Path of messages to a session."""

    ABSENT = "absent"
    """The session has no Network Connection: messages at QoS 1 and 2 are queued, messages at QoS 0 are not."""
    DIRECT = "direct"
    """Its queue is empty and its socket writable: its audience writes to it."""
    QUEUED = "queued"
    """Its queue is not empty, its socket is full, or the age of what waits has a bound: messages are queued. If the
    socket is full, those that may be conflated are kept as the newest of each topic.
    """


class Subscriber(ABC):
    """Interface of a session to its audience, its share groups and the dispatcher."""

    __slots__ = (
        "age_bound",
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
        """Wire variant of its last Network Connection."""
        self.follower = follower
        """Its position in the shared in-flight log of its audience."""
        self.subscriptions: Mapping[bytes, SubscriptionOptions] = {}
        """Its subscriptions, without shared ones; the dictionary belongs to its audience."""
        self.shared: dict[tuple[bytes, bytes], ShareGroup] = {}
        """Its shared subscriptions: (ShareName, Topic Filter) to the group; set by `SharedSubscriptions`."""
        self.age_bound = False
        """True if the age of what waits for it has a bound; then it is never DIRECT, and in an audience apart."""
        self.fingerprint = 0
        """Hash of `subscriptions`; set by `AudienceIndex`."""
        self.audience: Audience | None = None
        """Its audience; None without subscriptions."""
        self.state = SessionState.ABSENT
        """Path of messages to it."""
        self.write: Write | None = None
        """Writes to its Network Connection; None unless its state is DIRECT."""

    @abstractmethod
    def enqueue(self, batch: MessageBatch) -> None:
        """Queue a batch; without a Network Connection only its messages at QoS 1 and 2."""

    @abstractmethod
    def send(self, batch: MessageBatch, *, now_ns: int) -> bytes:
        """Return the bytes of a batch for a subscriber that is DIRECT; messages above its window are queued."""


class TrieEntry:
    """One subscription of an audience, as it is in the trie of Topic Filters."""

    __slots__ = ("audience", "options")

    def __init__(self, audience: Audience, options: SubscriptionOptions) -> None:
        self.audience = audience
        self.options = options


class Audience:
    """Sessions with identical subscriptions and wire variant, all with a bound on the age or all without.

    Every member is in exactly one of `direct` and `queued`.
    """

    __slots__ = (
        "age_bound",
        "collected",
        "direct",
        "entries",
        "log",
        "no_local",
        "qos_max",
        "queued",
        "subscriptions",
        "wire",
    )

    def __init__(
        self,
        *,
        wire: WireVariant,
        subscriptions: dict[bytes, SubscriptionOptions],
        in_flight_bytes_max: int,
        age_bound: bool = False,
    ) -> None:
        self.age_bound = age_bound
        """True if its members have a bound on the age of what waits."""
        self.wire = wire
        """Wire variant of the members."""
        self.subscriptions = subscriptions
        """Topic Filter to options; all members share this dictionary, which changes only while there is one member."""
        self.entries: dict[bytes, TrieEntry] = {}
        """Trie entries by Topic Filter, the same filters as in `subscriptions`."""
        self.direct: dict[Subscriber, Write] = {}
        """Members that are written to directly."""
        self.queued: dict[Subscriber, None] = {}
        """Members whose messages are queued: without a connection, slow, or with older messages in their queue."""
        self.log = SharedInflight(bytes_max=in_flight_bytes_max)
        """In-flight log at QoS 1 or 2, shared by the direct members that are in step."""
        self.qos_max = 0
        """Highest QoS that a subscription has or had; 0 means that members need no delivery state."""
        self.no_local = False
        """True when a subscription has or had No Local."""
        self.collected: Collected | None = None
        """The current slice, while the dispatcher collects it; None between dispatches."""

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.direct) + len(self.queued)

    @property
    def sessions(self) -> int:
        """Number of members that are sessions of clients, not readers inside the node."""
        return sum(bool(member.client_id) for members in (self.direct, self.queued) for member in members)

    def update(self, session: Subscriber) -> None:
        """Move a member to `direct` or to `queued`, as its state says."""
        if session.write is not None:
            self.queued.pop(session, None)
            self.direct[session] = session.write
        else:
            self.direct.pop(session, None)
            self.queued[session] = None

    def discard(self, session: Subscriber) -> None:
        """Remove `session`; its messages in flight become its own."""
        session.follower.leave()
        self.direct.pop(session, None)
        self.queued.pop(session, None)


class Collected:
    """Frames and messages of one slice for one audience, while the dispatcher collects them."""

    __slots__ = ("encodes", "expiring", "frames", "keeps", "messages", "qos_levels")

    def __init__(self, audience: Audience) -> None:
        self.frames: list[Frame] = []
        self.messages: list[Message] = []
        self.encodes = bool(audience.direct)
        """True when a member is written to directly, so that frames are needed."""
        self.keeps = bool(audience.queued) or audience.qos_max > 0
        """True when the messages are needed: for a queue, or until they are acknowledged."""
        self.qos_levels = 0
        """QoS of the messages above 0: 1, 2, or 3 when both occur."""
        self.expiring = False
        """True when a message has a Message Expiry Interval."""


_ORDER = (SessionState.DIRECT, SessionState.QUEUED, SessionState.ABSENT)


class ShareGroup:
    """Sessions with the same ShareName and Topic Filter: each message goes to one of them."""

    __slots__ = ("_members", "_turns", "key")

    def __init__(self, key: tuple[bytes, bytes]) -> None:
        self.key = key
        """ShareName and Topic Filter."""
        self._members: dict[Subscriber, SubscriptionOptions] = {}
        # The members by state, in round-robin order: the first is next.
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

    def options_of(self, session: Subscriber) -> SubscriptionOptions:
        """Return the options of `session`, a member."""
        return self._members[session]

    def discard(self, session: Subscriber) -> None:
        """Remove `session`, a member."""
        del self._members[session]
        self._take_from_turns(session)

    def update(self, session: Subscriber) -> None:
        """Record that the state of `session`, a member, has changed."""
        self._take_from_turns(session)
        self._turns[session.state][session] = None

    def take_turn(self) -> tuple[Subscriber, SubscriptionOptions]:
        """Return the member whose turn it is, and move it to the end; the group must not be empty.

        Members that are written to directly come first, then other connected ones, then members without a connection,
        which queue the message.
        """
        turns = next(turns for turns in map(self._turns.__getitem__, _ORDER) if turns)
        session = next(iter(turns))
        turns.move_to_end(session)
        return session, self._members[session]

    def _take_from_turns(self, session: Subscriber) -> None:
        for turns in self._turns.values():
            turns.pop(session, None)
