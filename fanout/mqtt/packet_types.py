"""MQTT Control Packet types (MQTT 5, section 2.1.2), their flags (2.1.3) and their direction of flow."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

__all__ = ["ACK_TYPES", "FIXED_HEADER_FLAGS", "RECEIVABLE", "PacketType", "Role"]

Role: TypeAlias = Literal["client", "server"]
"""Side of the Network Connection of this process."""


class PacketType(enum.IntEnum):
    """The type in the high four bits of the fixed header; 0 is reserved and forbidden."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


ACK_TYPES = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP})
"""The packets that acknowledge a PUBLISH: a Packet Identifier, a Reason Code and properties."""

FIXED_HEADER_FLAGS: dict[PacketType, int] = {
    packet_type: 0b0010 if packet_type in {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE} else 0b0000
    for packet_type in PacketType
    if packet_type is not PacketType.PUBLISH
}
"""The reserved flags of each type [MQTT-2.1.3-1]; PUBLISH has none, its flags are DUP, QoS and RETAIN."""

_BOTH = frozenset({PacketType.PUBLISH, *ACK_TYPES})
_FROM_CLIENT = _BOTH | {
    PacketType.CONNECT,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ,
    PacketType.DISCONNECT,
}
_FROM_SERVER = _BOTH | {
    PacketType.CONNACK,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.PINGRESP,
}

RECEIVABLE: dict[tuple[Role, int], frozenset[PacketType]] = {
    ("server", 4): _FROM_CLIENT,
    ("server", 5): _FROM_CLIENT | {PacketType.AUTH},
    ("client", 4): _FROM_SERVER,
    ("client", 5): _FROM_SERVER | {PacketType.DISCONNECT, PacketType.AUTH},
}
"""Packets that a role may receive in a version: DISCONNECT from a server and AUTH exist in MQTT 5 only."""
