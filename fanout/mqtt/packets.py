"""Packets: one value for each MQTT Control Packet, and its encoding (MQTT 5 and 3.1.1, chapter 3).

Both versions share the values: MQTT 3.1.1 has no properties and fewer codes. PUBLISH on the data path does not use
them: `publish` encodes it, the decoder gives rows.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fanout.errors import ProtocolError
from fanout.mqtt.data_representation import encode_binary, encode_string, encode_varint
from fanout.mqtt.packet_types import ACK_TYPES, FIXED_HEADER_FLAGS, PacketType
from fanout.mqtt.properties import NO_PROPERTIES, WILL, Properties, PropertyOwner, encode_properties
from fanout.mqtt.publish import encode_publish
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import check_topic_filter, check_topic_name

__all__ = [
    "Ack",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "PacketType",
    "Pingreq",
    "Pingresp",
    "Publish",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "encode",
    "encode_acks",
    "encode_unknown",
]


@dataclass(frozen=True, slots=True)
class Will:
    """The Will Message of a CONNECT (MQTT 5, section 3.1.2.5)."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Connect:
    """CONNECT (MQTT 5, section 3.1)."""

    client_id: str
    version: int = 5
    """4 is MQTT 3.1.1, 5 is MQTT 5."""
    clean_start: bool = True
    """Clean Session in MQTT 3.1.1."""
    keep_alive: int = 0
    """Seconds; 0 turns it off."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = NO_PROPERTIES
    bridge: bool = False
    """Protocol Level 0x84, the unofficial mark of a bridge that wants RETAIN as published (MQTT 3.1.1)."""


@dataclass(frozen=True, slots=True)
class Connack:
    """CONNACK (MQTT 5, section 3.2)."""

    session_present: bool
    reason_code: int
    """A Reason Code in MQTT 5; a Connect Return Code, 0 to 5, in MQTT 3.1.1."""
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Publish:
    """PUBLISH (MQTT 5, section 3.3), off the data path."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    """None at QoS 0 and only there."""
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL or PUBCOMP (MQTT 5, sections 3.4 to 3.7)."""

    type: PacketType
    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Subscription:
    """A Topic Filter and its Subscription Options (MQTT 5, section 3.8.3.1); MQTT 3.1.1 has only the QoS."""

    topic_filter: bytes
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE (MQTT 5, section 3.8)."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Suback:
    """SUBACK (MQTT 5, section 3.9)."""

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (MQTT 5, section 3.10)."""

    packet_id: int
    topic_filters: tuple[bytes, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsuback:
    """UNSUBACK (MQTT 5, section 3.11)."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    """One per Topic Filter in MQTT 5; empty in MQTT 3.1.1."""
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pingreq:
    """PINGREQ (MQTT 5, section 3.12)."""


@dataclass(frozen=True, slots=True)
class Pingresp:
    """PINGRESP (MQTT 5, section 3.13)."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """DISCONNECT (MQTT 5, section 3.14)."""

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH (MQTT 5, section 3.15)."""

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
"""Any MQTT Control Packet."""


def encode(packet: Packet, *, version: int) -> bytes:
    """Encode `packet` for a Network Connection of `version` (4 or 5).

    Version 4 leaves out properties and the Reason Codes of acknowledgements, and encodes every failing SUBACK as 0x80.

    Raises:
        ValueError: The packet does not exist in that version, or has a value that MQTT forbids.
    """
    if version not in (4, 5):
        raise ValueError(f"there is no MQTT version {version}")
    if isinstance(packet, Publish):
        return _encode_publish(packet, version)
    packet_type, encode_body = _BODIES[type(packet)]
    return _frame(packet.type if isinstance(packet, Ack) else packet_type, encode_body(packet, version))


def encode_acks(ack_type: PacketType, packet_ids: Sequence[int]) -> bytes:
    """Encode one PUBACK, PUBREC, PUBREL or PUBCOMP (Reason Code 0, no properties) for each of `packet_ids`.

    The bytes are the same in both versions. One array operation replaces a packet each, because one read may need
    thousands of them.

    Raises:
        ValueError: `ack_type` acknowledges nothing.
        OverflowError: A Packet Identifier does not fit two bytes.
    """
    if ack_type not in ACK_TYPES:
        raise ValueError(f"{ack_type.name} does not acknowledge a PUBLISH")
    words = array("H", ((ack_type << 4 | FIXED_HEADER_FLAGS[ack_type]) << 8 | 2,)) * (2 * len(packet_ids))
    words[1::2] = array("H", packet_ids)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def encode_unknown(ack_type: PacketType, packet_ids: Sequence[int]) -> bytes:
    """Encode one PUBREL or PUBCOMP of MQTT 5 with Packet Identifier not found, for each of `packet_ids`.

    It takes a tenth of the time of `encode`: one read may need tens of thousands of such answers.
    """
    head = bytes((ack_type << 4 | FIXED_HEADER_FLAGS[ack_type], 3))
    tail = bytes((ReasonCode.PACKET_IDENTIFIER_NOT_FOUND,))
    return b"".join([head + packet_id.to_bytes(2, "big") + tail for packet_id in packet_ids])


def _frame(packet_type: PacketType, body: bytes) -> bytes:
    return bytes((packet_type << 4 | FIXED_HEADER_FLAGS[packet_type],)) + encode_varint(len(body)) + body


def _encode_packet_id(packet_id: int | None) -> bytes:
    if packet_id is None or not 1 <= packet_id <= 0xFFFF:
        raise ValueError(f"{packet_id} is not a Packet Identifier")  # [MQTT-2.2.1-3]
    return packet_id.to_bytes(2, "big")


def _encode_block(properties: Properties, version: int, owner: PropertyOwner) -> bytes:
    return encode_properties(properties, packet=owner) if version == 5 else b""


def _encode_topic(topic: bytes, check: Callable[[bytes], None]) -> bytes:
    try:
        check(topic)
    except ProtocolError as error:
        raise ValueError(error.detail) from error
    return encode_binary(topic)


def _check_qos(qos: int) -> int:
    if qos not in (0, 1, 2):
        raise ValueError(f"{qos} is not a QoS")  # [MQTT-3.3.1-4]
    return qos


def _encode_publish(packet: Publish, version: int) -> bytes:
    _check_qos(packet.qos)
    if packet.qos == 0 and (packet.dup or packet.packet_id is not None):
        raise ValueError("a PUBLISH at QoS 0 has neither DUP nor a Packet Identifier")
    if packet.topic or version == 4 or packet.properties.topic_alias is None:
        _encode_topic(packet.topic, check_topic_name)
    if packet.qos:
        _encode_packet_id(packet.packet_id)
    block = _encode_block(packet.properties, version, PacketType.PUBLISH)
    # `encode_publish` wants the block without its length, a Variable Byte Integer of up to four bytes.
    length_bytes = next((index + 1 for index, byte in enumerate(block) if byte < 0x80), 0)
    return encode_publish(
        packet.topic,
        packet.payload,
        version=version,
        qos=packet.qos,
        retain=packet.retain,
        dup=packet.dup,
        packet_id=packet.packet_id or 0,
        properties=block[length_bytes:],
    )


def _connect_body(packet: Connect, version: int) -> bytes:
    if packet.version != version:
        raise ValueError(f"a CONNECT for version {packet.version} is not one for version {version}")
    if packet.bridge and version != 4:
        raise ValueError("the bridge bit belongs to MQTT 3.1.1; MQTT 5 has Retain As Published")
    if version == 4 and packet.password is not None and packet.username is None:
        raise ValueError("MQTT 3.1.1 has no Password without a User Name")  # [MQTT-3.1.2-22]
    flags = packet.clean_start << 1
    body = b""
    if packet.will is not None:
        flags |= 0x04 | _check_qos(packet.will.qos) << 3 | packet.will.retain << 5
        body += _encode_block(packet.will.properties, version, WILL)
        body += _encode_topic(packet.will.topic, check_topic_name) + encode_binary(packet.will.payload)
    if packet.username is not None:
        flags |= 0x80
        body += encode_string(packet.username)
    if packet.password is not None:
        flags |= 0x40
        body += encode_binary(packet.password)
    if not 0 <= packet.keep_alive <= 0xFFFF:
        raise ValueError(f"{packet.keep_alive} is not a Keep Alive")
    return (
        b"\x00\x04MQTT"
        + bytes((version | packet.bridge << 7, flags))
        + packet.keep_alive.to_bytes(2, "big")
        + _encode_block(packet.properties, version, PacketType.CONNECT)
        + encode_string(packet.client_id)
        + body
    )


def _connack_body(packet: Connack, version: int) -> bytes:
    if version == 4 and not 0 <= packet.reason_code <= 5:
        raise ValueError(f"{packet.reason_code} is not a Connect Return Code of MQTT 3.1.1")
    if packet.session_present and packet.reason_code:
        raise ValueError("a refusing CONNACK has no Session Present")  # [MQTT-3.2.2-6]
    head = bytes((packet.session_present, packet.reason_code))
    return head + _encode_block(packet.properties, version, PacketType.CONNACK)


def _ack_body(packet: Ack, version: int) -> bytes:
    if packet.type not in ACK_TYPES:
        raise ValueError(f"{packet.type.name} does not acknowledge a PUBLISH")
    body = _encode_packet_id(packet.packet_id)
    if version == 4:
        return body
    if packet.properties != NO_PROPERTIES:
        return body + bytes((packet.reason_code,)) + encode_properties(packet.properties, packet=packet.type)
    return body + bytes((packet.reason_code,)) if packet.reason_code else body


def _subscribe_body(packet: Subscribe, version: int) -> bytes:
    if not packet.subscriptions:
        raise ValueError("a SUBSCRIBE holds at least one Topic Filter")  # [MQTT-3.8.3-2]
    body = _encode_packet_id(packet.packet_id) + _encode_block(packet.properties, version, PacketType.SUBSCRIBE)
    for subscription in packet.subscriptions:
        options = _check_qos(subscription.qos)
        if version == 5:
            if subscription.retain_handling not in (0, 1, 2):
                raise ValueError(f"{subscription.retain_handling} is not a Retain Handling")
            options |= (
                subscription.no_local << 2 | subscription.retain_as_published << 3 | subscription.retain_handling << 4
            )
        body += _encode_topic(subscription.topic_filter, check_topic_filter) + bytes((options,))
    return body


def _suback_body(packet: Suback, version: int) -> bytes:
    body = _encode_packet_id(packet.packet_id) + _encode_block(packet.properties, version, PacketType.SUBACK)
    if version == 4:
        return body + bytes(min(code, 0x80) for code in packet.reason_codes)  # [MQTT-3.9.3-2] of MQTT 3.1.1
    return body + bytes(packet.reason_codes)


def _unsubscribe_body(packet: Unsubscribe, version: int) -> bytes:
    if not packet.topic_filters:
        raise ValueError("an UNSUBSCRIBE holds at least one Topic Filter")  # [MQTT-3.10.3-2]
    body = _encode_packet_id(packet.packet_id) + _encode_block(packet.properties, version, PacketType.UNSUBSCRIBE)
    return body + b"".join([_encode_topic(each, check_topic_filter) for each in packet.topic_filters])


def _unsuback_body(packet: Unsuback, version: int) -> bytes:
    body = _encode_packet_id(packet.packet_id)
    if version == 4:
        return body
    return body + encode_properties(packet.properties, packet=PacketType.UNSUBACK) + bytes(packet.reason_codes)


def _disconnect_body(packet: Disconnect, version: int) -> bytes:
    if version == 4:
        if packet.reason_code:
            # DISCONNECT would discard the Will Message [MQTT-3.14.4-3]; a failure closes the Network
            # Connection.
            raise ValueError("MQTT 3.1.1 has no DISCONNECT with a Reason Code")
        return b""
    return _reason_body(packet.reason_code, packet.properties, PacketType.DISCONNECT)


def _auth_body(packet: Auth, version: int) -> bytes:
    if version == 4:
        raise ValueError("MQTT 3.1.1 has no AUTH")
    body = _reason_body(packet.reason_code, packet.properties, PacketType.AUTH)
    return body + b"\x00" if len(body) == 1 else body  # AUTH has no form with a Reason Code alone (3.15.2.1)


def _reason_body(reason_code: int, properties: Properties, owner: PacketType) -> bytes:
    if properties != NO_PROPERTIES:
        return bytes((reason_code,)) + encode_properties(properties, packet=owner)
    return bytes((reason_code,)) if reason_code else b""


def _empty_body(_packet: Packet, _version: int) -> bytes:
    return b""


_BODIES: dict[type[Packet], tuple[PacketType, Callable[[Any, int], bytes]]] = {
    Connect: (PacketType.CONNECT, _connect_body),
    Connack: (PacketType.CONNACK, _connack_body),
    Ack: (PacketType.PUBACK, _ack_body),
    Subscribe: (PacketType.SUBSCRIBE, _subscribe_body),
    Suback: (PacketType.SUBACK, _suback_body),
    Unsubscribe: (PacketType.UNSUBSCRIBE, _unsubscribe_body),
    Unsuback: (PacketType.UNSUBACK, _unsuback_body),
    Pingreq: (PacketType.PINGREQ, _empty_body),
    Pingresp: (PacketType.PINGRESP, _empty_body),
    Disconnect: (PacketType.DISCONNECT, _disconnect_body),
    Auth: (PacketType.AUTH, _auth_body),
}
"""Type and body of each packet but PUBLISH; an `Ack` has its own type."""
