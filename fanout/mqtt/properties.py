"""Properties of MQTT 5 (section 2.2.2): one table has the type, packets, repetition and range of each.

Owns decoding, encoding and the rules of a property by itself; rules that need the state of a session are elsewhere. A
property block travels with its length in front. `split_publish_properties` takes the block of a PUBLISH without it,
because the data path keeps properties encoded and only cuts some out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from fanout.errors import ProtocolError, UserPropertiesExceeded
from fanout.mqtt.data_representation import (
    MAX_VARINT,
    decode_binary,
    decode_string,
    decode_u16,
    decode_u32,
    decode_varint,
    encode_binary,
    encode_string,
    encode_varint,
    malformed,
    protocol_error,
)
from fanout.mqtt.packet_types import ACK_TYPES, PacketType

__all__ = [
    "NO_PROPERTIES",
    "USER_PROPERTIES_MAX",
    "USER_PROPERTY_BYTES_MIN",
    "WILL",
    "Properties",
    "PropertyOwner",
    "PublishProperties",
    "check_user_properties",
    "clean_block",
    "decode_properties",
    "encode_properties",
    "split_publish_block",
    "split_publish_properties",
]

WILL: Final[Literal["will"]] = "will"
"""Stands for the Will Properties in the payload of CONNECT (MQTT 5, section 3.1.3.2)."""

USER_PROPERTIES_MAX: Final = 1 << 28
"""Stands for no limit of User Properties: no packet has room for as many."""
USER_PROPERTY_BYTES_MIN: Final = 5
"""Bytes of the smallest User Property."""

PropertyOwner: TypeAlias = PacketType | Literal["will"]
"""Owner of a property block."""


@dataclass(frozen=True, slots=True)
class Properties:
    """Every property of MQTT 5, by the specification's name; None or empty means absent."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifier: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_property: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES = Properties()
"""The empty block, shared by all packets without properties."""


class PublishProperties(NamedTuple):
    """The property block of a PUBLISH, split for the data path."""

    kept: bytes
    """The block without Topic Alias, Subscription Identifiers and Message Expiry Interval, order kept."""
    expiry_s: int | None
    """The Message Expiry Interval in seconds; None for none."""
    topic_alias: int | None
    """The Topic Alias (0 is not refused here: the decoder knows the Topic Alias Maximum); None for none."""
    subscription_identifiers: tuple[int, ...]
    """The Subscription Identifiers, in order."""
    user_at: int
    """Offset in `kept` of the User Property that is its last property; the length of `kept` if another one is last."""


def _decode_byte(data: bytes, pos: int) -> tuple[int, int]:
    if pos >= len(data):
        raise malformed("a Byte is cut off")
    return data[pos], pos + 1


def _decode_pair(data: bytes, pos: int) -> tuple[tuple[str, str], int]:
    name, pos = decode_string(data, pos)
    value, pos = decode_string(data, pos)
    return (name, value), pos


class _Type(NamedTuple):
    """A data type of MQTT 5, section 2.2.2.2; the value is `Any` here only: its type follows from the row."""

    decode: Callable[[bytes, int], tuple[Any, int]]
    encode: Callable[[Any], bytes]


_BYTE = _Type(_decode_byte, lambda value: bytes((value,)))
_TWO_BYTE_INTEGER = _Type(decode_u16, lambda value: value.to_bytes(2, "big"))
_FOUR_BYTE_INTEGER = _Type(decode_u32, lambda value: value.to_bytes(4, "big"))
_VARIABLE_BYTE_INTEGER = _Type(decode_varint, encode_varint)
_STRING = _Type(decode_string, encode_string)
_BINARY_DATA = _Type(decode_binary, encode_binary)
_STRING_PAIR = _Type(_decode_pair, lambda pair: encode_string(pair[0]) + encode_string(pair[1]))

_CONNECT = PacketType.CONNECT
_CONNACK = PacketType.CONNACK
_PUBLISH = PacketType.PUBLISH
_SUBSCRIBE = PacketType.SUBSCRIBE
_DISCONNECT = PacketType.DISCONNECT
_AUTH = PacketType.AUTH
_EVERY: frozenset[PropertyOwner] = frozenset({*PacketType, WILL} - {PacketType.PINGREQ, PacketType.PINGRESP})
_REASON_STRING: frozenset[PropertyOwner] = frozenset(
    {_CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, _DISCONNECT, _AUTH, *ACK_TYPES}
)
_FLAG = range(2)
_ALL_U16 = range(0x1_0000)
_ALL_U32 = range(0x1_0000_0000)
_POSITIVE_U16 = range(1, 0x1_0000)


class _Rule(NamedTuple):
    """One row of table 2-4 of MQTT 5, with the additions of the packets' sections."""

    name: str
    type: _Type
    owners: frozenset[PropertyOwner]
    values: range | None = None
    """Legal values; None for types other than integers."""


def _rule(name: str, value_type: _Type, *owners: PropertyOwner, values: range | None = None) -> _Rule:
    return _Rule(name, value_type, frozenset(owners), values)


_RULES: dict[int, _Rule] = {
    0x01: _rule("payload_format_indicator", _BYTE, _PUBLISH, WILL, values=_FLAG),
    0x02: _rule("message_expiry_interval", _FOUR_BYTE_INTEGER, _PUBLISH, WILL, values=_ALL_U32),
    0x03: _rule("content_type", _STRING, _PUBLISH, WILL),
    0x08: _rule("response_topic", _STRING, _PUBLISH, WILL),
    0x09: _rule("correlation_data", _BINARY_DATA, _PUBLISH, WILL),
    0x0B: _rule(
        "subscription_identifier",
        _VARIABLE_BYTE_INTEGER,
        _PUBLISH,
        _SUBSCRIBE,
        values=range(1, MAX_VARINT + 1),
    ),
    0x11: _rule("session_expiry_interval", _FOUR_BYTE_INTEGER, _CONNECT, _CONNACK, _DISCONNECT, values=_ALL_U32),
    0x12: _rule("assigned_client_identifier", _STRING, _CONNACK),
    0x13: _rule("server_keep_alive", _TWO_BYTE_INTEGER, _CONNACK, values=_ALL_U16),
    0x15: _rule("authentication_method", _STRING, _CONNECT, _CONNACK, _AUTH),
    0x16: _rule("authentication_data", _BINARY_DATA, _CONNECT, _CONNACK, _AUTH),
    0x17: _rule("request_problem_information", _BYTE, _CONNECT, values=_FLAG),
    0x18: _rule("will_delay_interval", _FOUR_BYTE_INTEGER, WILL, values=_ALL_U32),
    0x19: _rule("request_response_information", _BYTE, _CONNECT, values=_FLAG),
    0x1A: _rule("response_information", _STRING, _CONNACK),
    0x1C: _rule("server_reference", _STRING, _CONNACK, _DISCONNECT),
    0x1F: _Rule("reason_string", _STRING, _REASON_STRING),
    0x21: _rule("receive_maximum", _TWO_BYTE_INTEGER, _CONNECT, _CONNACK, values=_POSITIVE_U16),
    0x22: _rule("topic_alias_maximum", _TWO_BYTE_INTEGER, _CONNECT, _CONNACK, values=_ALL_U16),
    0x23: _rule("topic_alias", _TWO_BYTE_INTEGER, _PUBLISH, values=_POSITIVE_U16),
    0x24: _rule("maximum_qos", _BYTE, _CONNACK, values=_FLAG),
    0x25: _rule("retain_available", _BYTE, _CONNACK, values=_FLAG),
    0x26: _Rule("user_property", _STRING_PAIR, _EVERY),
    0x27: _rule("maximum_packet_size", _FOUR_BYTE_INTEGER, _CONNECT, _CONNACK, values=range(1, 0x1_0000_0000)),
    0x28: _rule("wildcard_subscription_available", _BYTE, _CONNACK, values=_FLAG),
    0x29: _rule("subscription_identifier_available", _BYTE, _CONNACK, values=_FLAG),
    0x2A: _rule("shared_subscription_available", _BYTE, _CONNACK, values=_FLAG),
}


def _may_repeat(name: str, packet: PropertyOwner) -> bool:
    # SUBSCRIBE holds one Subscription Identifier, a PUBLISH one per matching subscription (3.8.2.1.2,
    # 3.3.2.3.8).
    return name == "user_property" or (name == "subscription_identifier" and packet is _PUBLISH)


def _check_response_topic(topic: str) -> str:
    """Return the fault of a Response Topic; empty for none [MQTT-3.3.2-14]."""
    if not topic:
        return "the Response Topic is empty"  # it is a Topic Name [MQTT-4.7.3-1]
    if "+" in topic or "#" in topic:
        return "the Response Topic holds a wildcard character"
    return ""


def decode_properties(
    data: bytes, pos: int, *, packet: PropertyOwner, user_properties_max: int = USER_PROPERTIES_MAX
) -> tuple[Properties, int]:
    """Return the properties at `pos`, which begin with their length, and the position after them.

    Raises:
        UserPropertiesExceeded: There are more than `user_properties_max` User Properties.
        ProtocolError: As Malformed Packet: the block is cut off, or has an identifier that is unknown or not
            valid for `packet`. As Protocol Error: a property is repeated or has a value that is not allowed,
            or Authentication Data comes without an Authentication Method.
    """
    length, pos = decode_varint(data, pos)
    if length == 0:
        return NO_PROPERTIES, pos
    stop = pos + length
    if stop > len(data):
        raise malformed("the Property Length is beyond the packet")
    block = data[:stop]
    if length > USER_PROPERTY_BYTES_MIN * user_properties_max:
        check_user_properties(block[pos:], user_properties_max)
    found: dict[str, Any] = {}
    repeated: dict[str, list[Any]] = {}
    while pos < stop:
        rule = _RULES.get(block[pos])
        if rule is None:
            raise malformed(f"0x{block[pos]:02X} is not a property")
        if packet not in rule.owners:
            raise malformed(f"the property {rule.name} does not belong into this packet")
        value, pos = rule.type.decode(block, pos + 1)
        if rule.values is not None and value not in rule.values:
            raise protocol_error(f"the property {rule.name} has the value {value}")
        if _may_repeat(rule.name, packet):
            repeated.setdefault(rule.name, []).append(value)
        elif rule.name in found:
            raise protocol_error(f"the property {rule.name} is there twice")
        elif rule.name == "subscription_identifier":
            found[rule.name] = (value,)
        else:
            found[rule.name] = value
    if "response_topic" in found and (problem := _check_response_topic(found["response_topic"])):
        raise protocol_error(problem)
    if "authentication_data" in found and "authentication_method" not in found:
        raise protocol_error("Authentication Data without an Authentication Method")
    found.update((name, tuple(values)) for name, values in repeated.items())
    return Properties(**found), pos


def check_user_properties(block: bytes, most: int) -> None:
    """Check that a property block, without its length, has at most so many User Properties; other faults are left.

    Raises:
        UserPropertiesExceeded: There are more.
    """
    pos = count = 0
    try:
        while pos < len(block):
            rule = _RULES.get(block[pos])
            if rule is None:
                return
            if rule.type is _STRING_PAIR:
                count += 1
                if count > most:
                    raise UserPropertiesExceeded(most)
                pos = _skip_text(block, pos + 1, rule.type)
            else:
                _, pos = rule.type.decode(block, pos + 1)
    except UserPropertiesExceeded:
        raise
    except ProtocolError:
        return


def clean_block(block: bytes, *, packet: PropertyOwner) -> bytes:
    """Return a property block, without its length, with the allowed properties only, in order.

    Everything after an unknown identifier, or after a value that is cut off, is omitted, because its end is not known.
    """
    pos = 0
    kept: list[bytes] = []
    seen: set[str] = set()
    with_method = False
    while pos < len(block):
        start, rule = pos, _RULES.get(block[pos])
        if rule is None:
            break
        value: Any = None
        try:
            value, pos = rule.type.decode(block, start + 1)
        except ProtocolError:
            try:
                pos = _skip_text(block, start + 1, rule.type)
            except ProtocolError:
                break
        is_allowed = value is not None and packet in rule.owners and (rule.values is None or value in rule.values)
        if rule.name == "response_topic" and is_allowed:
            is_allowed = not _check_response_topic(value)
        if rule.name == "authentication_data" and not with_method:
            is_allowed = False
        if is_allowed and (rule.name not in seen or _may_repeat(rule.name, packet)):
            seen.add(rule.name)
            with_method = with_method or rule.name == "authentication_method"
            kept.append(block[start:pos])
    return b"".join(kept)


def _skip_text(block: bytes, pos: int, value_type: _Type) -> int:
    """Return the position after a text that is not well-formed.

    Raises:
        ProtocolError: It is cut off, or no text.
    """
    if value_type not in (_STRING, _STRING_PAIR):
        raise malformed("a value is cut off")
    for _ in range(1 if value_type is _STRING else 2):
        _, pos = decode_binary(block, pos)
    return pos


def encode_properties(properties: Properties, *, packet: PropertyOwner) -> bytes:
    """Encode a property block with its length in front.

    Raises:
        ValueError: A property does not belong into `packet` or has a value that MQTT forbids.
    """
    if properties is NO_PROPERTIES:
        return b"\x00"
    parts: list[bytes] = []
    for identifier, rule in _RULES.items():
        value = getattr(properties, rule.name)
        if value is None or value == ():
            continue
        if packet not in rule.owners:
            raise ValueError(f"the property {rule.name} does not belong into {packet!r}")
        values = value if rule.name in {"user_property", "subscription_identifier"} else (value,)
        if len(values) > 1 and not _may_repeat(rule.name, packet):
            raise ValueError(f"the property {rule.name} is allowed once in {packet!r}")
        for one in values:
            if rule.values is not None and one not in rule.values:
                raise ValueError(f"the property {rule.name} must not be {one}")
            parts.append(bytes((identifier,)) + rule.type.encode(one))
    if properties.response_topic is not None and (problem := _check_response_topic(properties.response_topic)):
        raise ValueError(problem)
    block = b"".join(parts)
    return encode_varint(len(block)) + block


def split_publish_properties(raw: bytes) -> PublishProperties:
    """Validate the property block of a PUBLISH (without its length) and cut out properties of this hop.

    Raises:
        ProtocolError: As `decode_properties` for a PUBLISH, but a Topic Alias of 0 is left to the decoder.
    """
    return PublishProperties(*split_publish_block(raw))


def split_publish_block(raw: bytes) -> tuple[bytes, int | None, int | None, tuple[int, ...], int]:
    """Do the work of `split_publish_properties` for the decoder: a plain tuple takes a third less time."""
    # Decoded by hand rather than through the table: a stamped stream has a new block in every message, and
    # this takes 0.5 to 1 us where the table takes 8. The tests hold both against each other.
    end = len(raw)
    pos = 0
    seen = 0  # bit n: the property n was there
    expiry_s: int | None = None
    topic_alias: int | None = None
    subscription_identifiers: list[int] = []
    pieces: list[bytes] = []
    kept_from = 0
    user_at = -1  # begin of the User Property that is the last one apart from those cut out
    stop = 0
    is_ascii = raw.isascii()  # then every string in it is well-formed
    try:
        while pos < end:
            identifier = raw[pos]
            if identifier == 0x26:  # User Property
                middle = pos + 3 + (raw[pos + 1] << 8 | raw[pos + 2])
                stop = middle + 2 + (raw[middle] << 8 | raw[middle + 1])
                if stop > end:
                    raise malformed("a User Property is cut off")
                name = raw[pos + 3 : middle]
                value = raw[middle + 2 : stop]
                if not is_ascii:
                    name.decode()
                    value.decode()
                if 0 in name or 0 in value:
                    raise malformed("a User Property holds U+0000")
                user_at = pos
                pos = stop
                continue
            start = pos
            if identifier == 0x0B:  # Subscription Identifier
                subscription_identifier, pos = decode_varint(raw, pos + 1)
                if subscription_identifier == 0:
                    raise protocol_error("the Subscription Identifier is 0")  # section 3.3.2.3.8
                subscription_identifiers.append(subscription_identifier)
            else:
                if seen >> identifier & 1:
                    raise protocol_error(f"the property 0x{identifier:02X} is there twice")
                seen |= 1 << identifier
                if identifier == 0x02:  # Message Expiry Interval
                    pos += 5
                    expiry_s = raw[pos - 4] << 24 | raw[pos - 3] << 16 | raw[pos - 2] << 8 | raw[pos - 1]
                elif identifier == 0x23:  # Topic Alias
                    pos += 3
                    topic_alias = raw[pos - 2] << 8 | raw[pos - 1]
                elif identifier == 0x01:  # Payload Format Indicator
                    if raw[pos + 1] > 1:
                        raise protocol_error(f"the Payload Format Indicator is {raw[pos + 1]}")
                    pos += 2
                    user_at = -1
                    continue
                elif identifier in {0x03, 0x08, 0x09}:  # Content Type, Response Topic, Correlation Data
                    stop = pos + 3 + (raw[pos + 1] << 8 | raw[pos + 2])
                    if stop > end:
                        raise malformed("a string or binary value is cut off")
                    if identifier != 0x09:
                        _check_publish_text(identifier, raw[pos + 3 : stop].decode())
                    pos = stop
                    user_at = -1
                    continue
                else:
                    raise malformed(f"0x{identifier:02X} is not a property of PUBLISH")
            if start > kept_from:
                pieces.append(raw[kept_from:start])
            kept_from = pos
    except IndexError as error:
        raise malformed("a property is cut off") from error
    except UnicodeDecodeError as error:
        raise malformed("a string is not well-formed UTF-8") from error
    if kept_from == 0:
        return raw, None, None, (), end if user_at < 0 else user_at
    if kept_from < end:
        pieces.append(raw[kept_from:])
    kept = b"".join(pieces)
    user_bytes = 0 if user_at < 0 else stop - user_at
    return kept, expiry_s, topic_alias, tuple(subscription_identifiers), len(kept) - user_bytes


def _check_publish_text(identifier: int, text: str) -> None:
    if "\0" in text:
        raise malformed("a string holds U+0000")
    if identifier == 0x08 and (problem := _check_response_topic(text)):
        raise protocol_error(problem)
