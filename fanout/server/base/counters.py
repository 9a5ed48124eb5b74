"""Counters of the server.

Owns the names and meanings of the counters. Parts of the server add to `Counters`. A new counter is a
field here and an equal field of `fanout.api.models.ServerStatus`, whose docstring is the help text of its metric.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from fanout.mqtt.reason_codes import ReasonCode

__all__ = ["Counters", "DropReason", "EntryFault", "Limit", "Load"]


class DropReason(enum.Enum):
    """Reason why a message was not delivered, or not accepted from a client."""

    QUEUE_FULL = "queue_full"
    """A session's queue was at its bound: the oldest messages at QoS 0, and with `queue_overflow` "drop_oldest"
    of any QoS."""
    DISCONNECTED = "disconnected"
    """The newest value of a topic was waiting at QoS 0 for a slow client when its Network Connection ended."""
    EXPIRED = "expired"
    """The Message Expiry Interval passed while the message was waiting."""
    PACKET_TOO_LARGE = "packet_too_large"
    """The PUBLISH would be over the client's Maximum Packet Size [MQTT-3.1.2-25]."""
    SESSION_ENDED = "session_ended"
    """The message was waiting at QoS 1 or 2 for a session that ended."""
    REFUSED = "refused"
    """A client published the message and the node refused it."""


class Limit(enum.Enum):
    """A limit that a client can reach, by its key in `[server]`, or a quota of its user, by its key in the file.

    Limits of a session's queue and of its messages in flight are not here: `DropReason` and gauges show them.
    """

    CONNECTIONS = "connections_max"
    """A new connection was closed because there were too many."""
    CONNECTIONS_PER_ADDRESS = "connections_per_address_max"
    """A new connection was closed because there were too many from its address."""
    CONNECTION_RATE = "connection_rate_max"
    """New connections came faster than the limit."""
    CONNECT_TIMEOUT = "connect_timeout_s"
    """CONNECT, or the PROXY header or TLS handshake before it, did not come in time."""
    UNAUTHENTICATED_BYTES = "unauthenticated_bytes_max"
    """A connection was ended because clients that were not admitted had sent too much."""
    UNAUTHENTICATED_BYTES_PER_ADDRESS = "unauthenticated_bytes_per_address_max"
    """A connection was ended because clients of its address that were not admitted had sent too much."""
    SESSIONS = "sessions_max"
    """A client was refused because there were too many sessions for one more."""
    SUBSCRIPTIONS = "subscriptions_max"
    """A Topic Filter was refused because its session had too many."""
    FILTER_BYTES = "filter_bytes_max"
    """A Topic Filter was refused because the filters of its session had too many bytes."""
    FILTER_LEVELS = "filter_levels_max"
    """A Topic Filter was refused because it had too many levels."""
    PACKET_BYTES = "packet_bytes_max"
    """A connection was ended because a packet was too large."""
    USER_PROPERTIES = "user_properties_max"
    """A connection was ended because a packet had too many User Properties."""
    RECEIVE_MAXIMUM = "receive_maximum"
    """A connection was ended because its client had too many unacknowledged messages."""
    USER_SESSIONS = "access.quota.sessions_max"
    """A client was refused because its user had too many sessions for one more."""
    USER_CONNECTIONS = "access.quota.connections_max"
    """A client was refused because its user had too many Network Connections."""
    USER_SUBSCRIPTIONS = "access.quota.subscriptions_max"
    """A Topic Filter was refused because its user had too many subscriptions."""


class EntryFault(enum.Enum):
    """Layer below MQTT in which a connection failed because the client sent something invalid."""

    PROXY_HEADER = "proxy_header"
    """No valid PROXY header, or one from an address that may send none."""
    TLS = "tls"
    """The TLS handshake failed."""
    WEBSOCKET = "websocket"
    """An invalid WebSocket handshake or frame."""


_LIMIT_OF_CODE = {
    ReasonCode.PACKET_TOO_LARGE: Limit.PACKET_BYTES,
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: Limit.RECEIVE_MAXIMUM,
}


class Load(NamedTuple):
    """Queued and in-flight messages of all sessions."""

    subscriptions: int
    """Subscriptions, shared ones included."""
    queued_messages: int
    """Messages queued."""
    queued_bytes: int
    """Their bytes; batches that several sessions share count for each."""
    conflated_topics: int
    """Newest values that wait for slow QoS 0 readers."""
    in_flight_messages: int
    """Messages at QoS 1 and 2 sent and not completed."""
    in_flight_bytes: int
    """Their bytes; what members of an audience share counts once."""


@dataclass(slots=True)
class Counters:
    """Totals since the server was made."""

    deliveries: int = 0
    """PUBLISH packets handed to clients."""
    sent_bytes: int = 0
    """Bytes handed to the Network Connections of clients."""
    received: int = 0
    """PUBLISH packets received from clients."""
    received_bytes: int = 0
    """Bytes received from clients."""
    connections_opened: int = 0
    """Network Connections accepted."""
    connections_refused: int = 0
    """Of these, ended before a successful CONNACK."""
    takeovers: int = 0
    """Sessions taken over by a new Network Connection while one was open."""
    unknown_releases: int = 0
    """PUBRELs with a Packet Identifier that the session does not know."""
    keep_alive_timeouts: int = 0
    """Network Connections ended because nothing came for one and a half times the Keep Alive."""
    protocol_errors: int = 0
    """Network Connections ended because the client broke MQTT."""
    wills: int = 0
    """Will Messages published."""
    sessions_overflowed: int = 0
    """Sessions ended because too many messages at QoS 1 and 2 waited for them."""
    conflated: int = 0
    """Messages that slow QoS 0 readers did not get because a newer value of the topic took their place."""
    dropped: dict[DropReason, int] = field(default_factory=lambda: dict.fromkeys(DropReason, 0))
    """Messages dropped, by reason."""

    limits_reached: dict[Limit, int] = field(default_factory=lambda: dict.fromkeys(Limit, 0))
    """Number of times that each limit was reached."""
    entry_faults: dict[EntryFault, int] = field(default_factory=lambda: dict.fromkeys(EntryFault, 0))
    """Network Connections that failed below MQTT, by layer."""
    ended: dict[ReasonCode, int] = field(default_factory=dict)
    """Network Connections that the server ended, by Reason Code."""

    def end(self, reason_code: ReasonCode) -> None:
        """Count a Network Connection that the server ends with a Reason Code, whether or not it can be sent."""
        self.ended[reason_code] = self.ended.get(reason_code, 0) + 1
        limit = _LIMIT_OF_CODE.get(reason_code)
        if limit is not None:
            self.limits_reached[limit] += 1

    def figures(self) -> dict[str, Any]:
        """Return the totals by the names that the status has for them (`fanout.api.models.ServerStatus`)."""
        return {f"{one.name}_total": _by_label(getattr(self, one.name)) for one in fields(self)}


def _by_label(count: Any) -> Any:
    """Return a count; one for each reason gets their names in the status instead of the enums."""
    if not isinstance(count, dict):
        return count
    return {key.name.lower() if isinstance(key, ReasonCode) else key.value: each for key, each in count.items()}
