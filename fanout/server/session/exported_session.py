"""A durable session as a value (core): the Session State (MQTT 5, section 4.1) that goes from one node to another.

Durations are what remains of them: clocks of two nodes do not compare. `session_format` has its bytes; `registry` makes
the value of a session, and a session of the value.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from fanout.access.identity import Identity
from fanout.mqtt.delivery import SendState
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.wills import WillMessage

__all__ = [
    "ExportedInFlight",
    "ExportedMessage",
    "ExportedRetained",
    "ExportedSession",
    "ExportedSubscription",
    "MoveRefusal",
]


class MoveRefusal(enum.StrEnum):
    """Reason why a session does not come to a node; nothing has changed then."""

    STOPPING = "stopping"
    """The node stops: it takes no sessions."""
    SESSION_EXISTS = "session exists"
    """The node has a session with this Client Identifier."""
    NOT_ADMITTED = "not admitted"
    """Its owner may not connect here, or only one of the two nodes has access control."""
    LIMITS = "limits"
    """It is over a limit of `[server]`, or there is no room for a further session."""


@dataclass(slots=True, kw_only=True)
class ExportedMessage:
    """A message for the client, with what decides its bytes; nothing of it changes."""

    topic: bytes
    """Topic Name."""
    payload: bytes
    """Application Message."""
    properties: bytes
    """Encoded properties, as in an `Update`."""
    update_qos: int
    """QoS of the update; another member of a share group may get it at that."""
    retained: bool
    """True if the publisher set RETAIN."""
    expiry_left_ns: int | None
    """Rest of the Message Expiry Interval; None without one."""
    digest: int
    """Digest of the update."""
    qos: int
    """QoS at which the client gets it."""
    retain: bool
    """RETAIN flag with which the client gets it."""
    identifiers: tuple[int, ...] = ()
    """Subscription Identifiers."""
    share: tuple[bytes, bytes] | None = None
    """ShareName and Topic Filter of the shared subscription it came by; None for another one."""
    replaces_retained: bool = False
    """True when it takes the place of the retained message of its topic in a retained delivery."""
    form: bytes | None = field(init=False, default=None, compare=False, repr=False)
    """Its bytes in `session_format`, once they were made."""


class ExportedInFlight(NamedTuple):
    """A message at QoS 1 or 2 that was sent and is not completed."""

    packet_id: int
    """Packet Identifier."""
    state: SendState
    """Packet that it waits for."""
    message: ExportedMessage | None
    """The message; None when it waits for PUBCOMP, since it is never sent again."""


class ExportedSubscription(NamedTuple):
    """A subscription."""

    topic_filter: bytes
    """Topic Filter as the client sent it, `$share/...` included."""
    options: SubscriptionOptions
    """Options that it was granted."""


@dataclass(frozen=True, slots=True)
class ExportedRetained:
    """Retained messages of a subscription that are not delivered yet."""

    topic_filter: bytes
    """Topic Filter of the subscription."""
    topics: tuple[bytes, ...] | None
    """Their topics, in order; None for all that match the filter."""


@dataclass(slots=True, kw_only=True)
class ExportedSession:
    """A durable session without a Network Connection; nothing of it changes."""

    client_id: str
    """Client Identifier."""
    owner: Identity | None
    """Identity of its client, without proof; None when the node had no access control."""
    owner_since: int = 0
    """Since when its owner has the Client Identifier, as a pool counts."""
    wire: WireVariant
    """Wire variant of its last Network Connection."""
    expiry_left_ms: int
    """Time until it ends, in milliseconds; above 0."""
    subscriptions: tuple[ExportedSubscription, ...] = ()
    """Its subscriptions."""
    in_flight: tuple[ExportedInFlight, ...] = ()
    """Messages to the client that are not completed, in the order in which they are sent again."""
    last_packet_id: int = 0
    """Packet Identifier that was used last for a message to the client; 0 before the first."""
    queue: tuple[ExportedMessage, ...] = ()
    """Messages at QoS 1 and 2 that were not sent, in order."""
    retained: tuple[ExportedRetained, ...] = ()
    """Retained messages that were not sent, in order."""
    unreleased: frozenset[int] = frozenset()
    """Packet Identifiers of QoS 2 messages from the client that wait for PUBREL."""
    will: WillMessage | None = None
    """Its Will Message; None when it has none (left)."""
    will_left_ms: int | None = None
    """Time until its Will Message is published, in milliseconds; None when that is at the end of the session."""
