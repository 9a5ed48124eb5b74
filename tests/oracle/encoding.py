"""Packets that a client of the oracle sends, encoded from the specification alone.

Nothing is checked: what is legal is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.oracle.packets import PROPERTIES, Kind, Packet, Properties, Value, ValueType

__all__ = ["encode_ack", "encode_connect", "encode_properties", "encode_publish", "encode_subscribe", "packet", "sized"]

_WIDTHS = {ValueType.BYTE: 1, ValueType.TWO_BYTES: 2, ValueType.FOUR_BYTES: 4}


def packet(first: int, *parts: bytes) -> bytes:
    """Return a packet with its first byte and its body."""
    body = b"".join(parts)
    return bytes((first,)) + _variable(len(body)) + body


def sized(data: bytes) -> bytes:
    """Return a string or binary data behind its length."""
    return len(data).to_bytes(2, "big") + data


def encode_properties(properties: Iterable[tuple[int, Value]]) -> bytes:
    """Return properties in their order, behind their length."""
    block = b"".join(bytes((identifier,)) + _encode(identifier, value) for identifier, value in properties)
    return _variable(len(block)) + block


def encode_connect(
    client_id: bytes,
    *,
    version: int,
    clean_start: bool = True,
    properties: Properties = (),
    will: Packet | None = None,
) -> bytes:
    """Return a CONNECT with Keep Alive 0, and with a PUBLISH as its Will Message."""
    flags, of_will = 2 if clean_start else 0, b""
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        of_will = encode_properties(will.properties) if version == 5 else b""
        of_will += sized(will.topic) + sized(will.payload)
    head = sized(b"MQTT") + bytes((version, flags)) + b"\0\0"
    block = encode_properties(properties) if version == 5 else b""
    return packet(Kind.CONNECT << 4, head, block, sized(client_id), of_will)


def encode_subscribe(
    packet_id: int, filters: Sequence[tuple[bytes, int]], *, version: int, properties: Properties = ()
) -> bytes:
    """Return a SUBSCRIBE for Topic Filters with their options."""
    block = encode_properties(properties) if version == 5 else b""
    return packet(0x82, packet_id.to_bytes(2, "big"), block, *(sized(name) + bytes((one,)) for name, one in filters))


def encode_publish(
    topic: bytes,
    payload: bytes,
    *,
    version: int,
    qos: int = 0,
    retain: bool = False,
    packet_id: int = 0,
    properties: Iterable[tuple[int, Value]] = (),
) -> bytes:
    """Return a PUBLISH."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    block = encode_properties(properties) if version == 5 else b""
    return packet(0x30 | qos << 1 | retain, sized(topic), identifier, block, payload)


def encode_ack(kind: Kind, packet_id: int) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP that says success."""
    return bytes((kind << 4 | (2 if kind is Kind.PUBREL else 0), 2, packet_id >> 8, packet_id & 0xFF))


def _encode(identifier: int, value: Value) -> bytes:
    value_type = PROPERTIES[identifier].type
    if isinstance(value, tuple):
        return sized(value[0]) + sized(value[1])
    if isinstance(value, bytes):
        return sized(value)
    if value_type is ValueType.VARIABLE:
        return _variable(value)
    return value.to_bytes(_WIDTHS[value_type], "big")


def _variable(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)
