"""Packet bodies: decoding of one whole MQTT Control Packet other than PUBLISH (MQTT 5 and 3.1.1, chapter 3).

Owns the checks of one packet by itself: fields, reserved bits, Reason Codes, properties, and that nothing follows the
last field. `decoder` checks the order of packets.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from typing import NamedTuple

from fanout.errors import ProtocolError, UnsupportedProtocolVersion
from fanout.mqtt.data_representation import (
    decode_binary,
    decode_string,
    decode_u16,
    malformed,
    protocol_error,
)
from fanout.mqtt.packet_types import ACK_TYPES, PacketType
from fanout.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from fanout.mqtt.properties import (
    NO_PROPERTIES,
    USER_PROPERTIES_MAX,
    WILL,
    Properties,
    PropertyOwner,
    decode_properties,
)
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import SHARE_PREFIX, check_topic_filter, check_topic_name

__all__ = ["TOPIC_FILTERS_MAX", "Protocol", "decode_ack", "decode_body", "decode_connect", "decode_protocol"]

TOPIC_FILTERS_MAX = 8_192
"""Topic Filters of one SUBSCRIBE or UNSUBSCRIBE. A packet is processed in one piece, at about 5 us for each:
262,144, which fit into 1 MiB, would hold up all other clients for more than a second."""

_BRIDGE_BIT = 0x80
_FAILURES = frozenset(range(0x80, 0x100))
_PUBACK_CODES = _FAILURES | {0x00, 0x10}
_PUBREL_CODES = frozenset({0x00, 0x92})
_REASON_CODES: dict[PacketType, frozenset[int]] = {
    PacketType.PUBREL: _PUBREL_CODES,  # [MQTT-3.6.2-1]
    PacketType.PUBCOMP: _PUBREL_CODES,  # [MQTT-3.7.2-1]
    PacketType.AUTH: frozenset({0x00, 0x18, 0x19}),  # [MQTT-3.15.2-1]
    # Packets that refuse or end something may have any code of 0x80 or above, not only those of the packet's table:
    # it is a failure all the same (section 2.4), and the code tells an operator more than our refusal. Mosquitto
    # answers PUBACK 0x95 to a message over its message_size_limit.
    PacketType.PUBACK: _PUBACK_CODES,
    PacketType.PUBREC: _PUBACK_CODES,
    PacketType.CONNACK: _FAILURES | {0x00},
    PacketType.SUBACK: _FAILURES | {0x00, 0x01, 0x02},
    PacketType.UNSUBACK: _FAILURES | {0x00, 0x11},
    PacketType.DISCONNECT: _FAILURES | {0x00, 0x04},
}
_SUBACK_RETURN_CODES = frozenset({0x00, 0x01, 0x02, 0x80})
_LAST_CONNECT_RETURN_CODE = 5


class Protocol(NamedTuple):
    """The first two fields of CONNECT (MQTT 5, sections 3.1.2.1 and 3.1.2.2)."""

    version: int
    """4 or 5."""
    bridge: bool
    """True if the Protocol Level has the bridge bit."""
    stop: int
    """The position of the Connect Flags."""


def decode_protocol(body: bytes) -> Protocol:
    """Decode Protocol Name and Protocol Version of a CONNECT.

    Raises:
        UnsupportedProtocolVersion: It is not MQTT 5 or 3.1.1 [MQTT-3.1.2-1] [MQTT-3.1.2-2].
        ProtocolError: A field is cut off.
    """
    name, pos = decode_string(body, 0)
    level, pos = _decode_u8(body, pos)
    if name != "MQTT" or level not in (4, 5, 4 | _BRIDGE_BIT):
        raise UnsupportedProtocolVersion(name, level)
    return Protocol(level & ~_BRIDGE_BIT, level >= _BRIDGE_BIT, pos)


def decode_connect(body: bytes, *, protocol: Protocol, user_properties_max: int = USER_PROPERTIES_MAX) -> Connect:
    """Decode the rest of a CONNECT (MQTT 5, section 3.1; MQTT 3.1.1, section 3.1).

    Raises:
        UserPropertiesExceeded: CONNECT or its Will has more than `user_properties_max` User Properties.
        ProtocolError: It breaks a rule; CLIENT_IDENTIFIER_NOT_VALID and TOPIC_NAME_INVALID where those fit.
    """
    version, bridge, pos = protocol
    flags, pos = _decode_u8(body, pos)
    if flags & 0x01:
        raise malformed("the reserved Connect Flag is set")  # [MQTT-3.1.2-3]
    has_will = flags & 0x04
    will_qos = flags >> 3 & 0x03
    has_password = flags & 0x40
    has_username = flags & 0x80
    if not has_will and flags & 0x38:
        raise malformed("Will QoS or Will Retain is set without the Will Flag")  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
    if will_qos == 3:
        raise malformed("the Will QoS is 3")  # [MQTT-3.1.2-12]
    if version == 4 and has_password and not has_username:
        raise malformed("a Password without a User Name")  # [MQTT-3.1.2-22] of MQTT 3.1.1
    keep_alive, pos = decode_u16(body, pos)
    properties, pos = _decode_block(body, pos, version, PacketType.CONNECT, user_properties_max)
    client_id, pos = decode_string(body, pos)
    if version == 4 and not client_id and not flags & 0x02:
        # [MQTT-3.1.3-8] of MQTT 3.1.1: answered with return code 0x02
        raise ProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "an empty ClientId needs Clean Session")
    will: Will | None = None
    if has_will:
        will_properties, pos = _decode_block(body, pos, version, WILL, user_properties_max)
        will_topic, pos = decode_binary(body, pos)
        check_topic_name(will_topic)  # [MQTT-3.1.3-11]
        will_payload, pos = decode_binary(body, pos)
        will = Will(will_topic, will_payload, will_qos, bool(flags & 0x20), will_properties)
    username: str | None = None
    if has_username:
        username, pos = decode_string(body, pos)  # [MQTT-3.1.3-12]
    password: bytes | None = None
    if has_password:
        password, pos = decode_binary(body, pos)
    _check_end(body, pos)
    return Connect(
        client_id=client_id,
        version=version,
        clean_start=bool(flags & 0x02),
        keep_alive=keep_alive,
        username=username,
        password=password,
        will=will,
        properties=properties,
        bridge=bridge,
    )


def decode_ack(
    packet_type: PacketType, body: bytes, *, version: int, user_properties_max: int = USER_PROPERTIES_MAX
) -> Ack:
    """Decode the body of a PUBACK, PUBREC, PUBREL or PUBCOMP.

    Raises:
        UserPropertiesExceeded: It has more than `user_properties_max` User Properties.
        ProtocolError: It breaks a rule of MQTT 5, sections 3.4 to 3.7, or MQTT 3.1.1, sections 3.4 to 3.7.
    """
    packet_id, pos = _decode_packet_id(body)
    if version == 4 or pos == len(body):
        _check_end(body, pos)
        return Ack(packet_type, packet_id)
    reason_code, properties = _decode_reason(packet_type, body, pos, user_properties_max)
    return Ack(packet_type, packet_id, reason_code, properties)


def decode_body(
    packet_type: PacketType, body: bytes, *, version: int, user_properties_max: int = USER_PROPERTIES_MAX
) -> Packet:
    """Decode the body of any packet but CONNECT and PUBLISH.

    Raises:
        UserPropertiesExceeded: It has more than `user_properties_max` User Properties.
        ProtocolError: It breaks a rule of its section of the specification.
    """
    if packet_type in ACK_TYPES:
        return decode_ack(packet_type, body, version=version, user_properties_max=user_properties_max)
    return _DECODERS[packet_type](body, version, user_properties_max)


def _decode_connack(body: bytes, version: int, user_properties_max: int) -> Connack:
    if version == 5 and body == b"\x00\x01":
        # A server of MQTT 3.1.1 answers an unknown version in its own format ([MQTT-3.1.2-2] of 3.1.1).
        return Connack(session_present=False, reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    flags, pos = _decode_u8(body, 0)
    if flags > 1:
        raise malformed("a reserved Connect Acknowledge Flag is set")  # [MQTT-3.2.2-1]
    code, pos = _decode_u8(body, pos)
    if version == 4 and code > _LAST_CONNECT_RETURN_CODE:
        raise protocol_error(f"the Connect Return Code {code} is reserved")  # MQTT 3.1.1, section 3.2.2.3
    if version == 5:
        _check_reason_code(PacketType.CONNACK, code)
    if flags and code:
        raise protocol_error("a refusing CONNACK has Session Present")  # [MQTT-3.2.2-6]; [MQTT-3.2.2-4] of 3.1.1
    properties, pos = _decode_block(body, pos, version, PacketType.CONNACK, user_properties_max)
    _check_end(body, pos)
    return Connack(bool(flags), code, properties)


def _decode_subscribe(body: bytes, version: int, user_properties_max: int) -> Subscribe:
    packet_id, pos = _decode_packet_id(body)
    properties, pos = _decode_block(body, pos, version, PacketType.SUBSCRIBE, user_properties_max)
    subscriptions: list[Subscription] = []
    while pos < len(body):
        _check_count(subscriptions)
        topic_filter, pos = decode_binary(body, pos)
        check_topic_filter(topic_filter)  # [MQTT-3.8.3-1]
        options, pos = _decode_u8(body, pos)
        if version == 4:
            if options > 2:
                raise malformed(f"the Requested QoS is 0x{options:02X}")  # [MQTT-3-8.3-4] of MQTT 3.1.1
            subscriptions.append(Subscription(topic_filter, options))
            continue
        subscription = _decode_options(topic_filter, options)
        # SUBACK tells whether the form of a Shared Subscription is right, for each filter.
        if subscription.no_local and topic_filter.startswith(SHARE_PREFIX):
            raise protocol_error("No Local is set on a Shared Subscription")  # [MQTT-3.8.3-4]
        subscriptions.append(subscription)
    if not subscriptions:
        raise protocol_error("a SUBSCRIBE without a Topic Filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _decode_options(topic_filter: bytes, options: int) -> Subscription:
    if options & 0xC0:
        raise malformed("a reserved bit of the Subscription Options is set")  # [MQTT-3.8.3-5]
    qos = options & 0x03
    if qos == 3:
        raise protocol_error("the Maximum QoS of a subscription is 3")  # section 3.8.3.1
    retain_handling = options >> 4
    if retain_handling == 3:
        raise protocol_error("the Retain Handling is 3")  # section 3.8.3.1
    return Subscription(topic_filter, qos, bool(options & 0x04), bool(options & 0x08), retain_handling)


def _decode_suback(body: bytes, version: int, user_properties_max: int) -> Suback:
    packet_id, pos = _decode_packet_id(body)
    properties, pos = _decode_block(body, pos, version, PacketType.SUBACK, user_properties_max)
    codes = tuple(body[pos:])
    if not codes:
        raise protocol_error("a SUBACK without a Reason Code")  # [MQTT-3.8.4-6]
    for code in codes:
        if version == 5:
            _check_reason_code(PacketType.SUBACK, code)
        elif code not in _SUBACK_RETURN_CODES:
            raise protocol_error(f"the return code 0x{code:02X} is reserved")  # [MQTT-3.9.3-2] of MQTT 3.1.1
    return Suback(packet_id, codes, properties)


def _decode_unsubscribe(body: bytes, version: int, user_properties_max: int) -> Unsubscribe:
    packet_id, pos = _decode_packet_id(body)
    properties, pos = _decode_block(body, pos, version, PacketType.UNSUBSCRIBE, user_properties_max)
    topic_filters: list[bytes] = []
    while pos < len(body):
        _check_count(topic_filters)
        topic_filter, pos = decode_binary(body, pos)
        check_topic_filter(topic_filter)  # [MQTT-3.10.3-1]
        topic_filters.append(topic_filter)
    if not topic_filters:
        raise protocol_error("an UNSUBSCRIBE without a Topic Filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def _decode_unsuback(body: bytes, version: int, user_properties_max: int) -> Unsuback:
    packet_id, pos = _decode_packet_id(body)
    if version == 4:
        _check_end(body, pos)
        return Unsuback(packet_id)
    properties, pos = decode_properties(body, pos, packet=PacketType.UNSUBACK, user_properties_max=user_properties_max)
    codes = tuple(body[pos:])
    if not codes:
        raise protocol_error("an UNSUBACK without a Reason Code")  # [MQTT-3.11.3-1]
    for code in codes:
        _check_reason_code(PacketType.UNSUBACK, code)
    return Unsuback(packet_id, codes, properties)


def _decode_empty(packet: Pingreq | Pingresp, body: bytes, _version: int, _user_properties_max: int) -> Packet:
    _check_end(body, 0)
    return packet


def _decode_disconnect(body: bytes, version: int, user_properties_max: int) -> Disconnect:
    if version == 4 or not body:
        _check_end(body, 0)
        return Disconnect()
    return Disconnect(*_decode_reason(PacketType.DISCONNECT, body, 0, user_properties_max))


def _decode_auth(body: bytes, _version: int, user_properties_max: int) -> Auth:
    if not body:
        return Auth()
    if len(body) == 1:
        raise malformed("an AUTH with a Reason Code and without a Property Length")  # section 3.15.2.1
    reason_code, properties = _decode_reason(PacketType.AUTH, body, 0, user_properties_max)
    if properties.authentication_method is None:
        raise protocol_error("an AUTH without an Authentication Method")  # section 3.15.2.2.2
    return Auth(reason_code, properties)


_DECODERS: dict[PacketType, Callable[[bytes, int, int], Packet]] = {
    PacketType.CONNACK: _decode_connack,
    PacketType.SUBSCRIBE: _decode_subscribe,
    PacketType.SUBACK: _decode_suback,
    PacketType.UNSUBSCRIBE: _decode_unsubscribe,
    PacketType.UNSUBACK: _decode_unsuback,
    PacketType.PINGREQ: partial(_decode_empty, Pingreq()),
    PacketType.PINGRESP: partial(_decode_empty, Pingresp()),
    PacketType.DISCONNECT: _decode_disconnect,
    PacketType.AUTH: _decode_auth,
}


def _decode_u8(body: bytes, pos: int) -> tuple[int, int]:
    if pos >= len(body):
        raise malformed("the packet ends before its last field")
    return body[pos], pos + 1


def _decode_packet_id(body: bytes) -> tuple[int, int]:
    packet_id, pos = decode_u16(body, 0)
    if packet_id == 0:
        raise protocol_error("the Packet Identifier is 0")  # [MQTT-2.2.1-3]
    return packet_id, pos


def _decode_block(
    body: bytes, pos: int, version: int, owner: PropertyOwner, user_properties_max: int
) -> tuple[Properties, int]:
    if version == 4:
        return NO_PROPERTIES, pos
    return decode_properties(body, pos, packet=owner, user_properties_max=user_properties_max)


def _decode_reason(packet_type: PacketType, body: bytes, pos: int, user_properties_max: int) -> tuple[int, Properties]:
    """Decode the Reason Code and properties at the end of a packet; a missing Property Length means none."""
    reason_code = body[pos]
    pos += 1
    _check_reason_code(packet_type, reason_code)
    if pos == len(body):
        return reason_code, NO_PROPERTIES
    properties, pos = decode_properties(body, pos, packet=packet_type, user_properties_max=user_properties_max)
    _check_end(body, pos)
    return reason_code, properties


def _check_reason_code(packet_type: PacketType, reason_code: int) -> None:
    if reason_code not in _REASON_CODES[packet_type]:
        raise protocol_error(f"0x{reason_code:02X} is not a Reason Code of {packet_type.name}")


def _check_count(topic_filters: Sized) -> None:
    if len(topic_filters) == TOPIC_FILTERS_MAX:
        raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"more than {TOPIC_FILTERS_MAX} Topic Filters in one packet")


def _check_end(body: bytes, pos: int) -> None:
    if pos != len(body):
        raise malformed("bytes follow the last field")
