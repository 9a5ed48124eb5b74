"""The packets of a roaming client, in bytes: MQTT 3.1.1 and 5, without properties but for the session's expiry.

It shares no code with fanout, so that a fault of one codec does not hide in the other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "CONNACK",
    "DISCONNECT",
    "LATER",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "SUBACK",
    "Packet",
    "PublishPacket",
    "connect",
    "publish",
    "read_publish",
    "short",
    "subscribe",
    "take_packets",
]

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, DISCONNECT = 2, 3, 4, 5, 6, 7, 9, 14
"""Control Packet types."""
LATER = (3, 0x88)
"""Reason Codes of CONNACK: Server unavailable, in MQTT 3.1.1 and 5."""
EXPIRY_S = 3600


class Packet(NamedTuple):
    """A packet that came."""

    kind: int
    """Control Packet type: the upper four bits of the first byte."""
    flags: int
    """The lower four."""
    body: bytes

    @property
    def packet_id(self) -> int:
        """The Packet Identifier of an acknowledgement."""
        return int.from_bytes(self.body[:2], "big")

    @property
    def reason_code(self) -> int:
        """The Reason Code of an acknowledgement."""
        return self.body[2] if len(self.body) > 2 else 0


class PublishPacket(NamedTuple):
    """A PUBLISH that came."""

    qos: int
    packet_id: int
    payload: bytes


def take_packets(buffer: bytearray) -> list[Packet]:
    """Remove the whole packets from the start of `buffer` and return them."""
    packets = []
    while (end := _length(buffer)) is not None:
        start, stop = end
        packets.append(Packet(buffer[0] >> 4, buffer[0] & 15, bytes(buffer[start:stop])))
        del buffer[:stop]
    return packets


def _length(buffer: bytearray) -> tuple[int, int] | None:
    length = 0
    for at in range(1, min(5, len(buffer))):
        length |= (buffer[at] & 0x7F) << 7 * (at - 1)
        if buffer[at] < 0x80:
            stop = at + 1 + length
            return (at + 1, stop) if len(buffer) >= stop else None
    return None


def connect(client_id: str, *, version: int, keep_alive_s: int) -> bytes:
    """Return a CONNECT with Clean Start 0 and a durable session."""
    properties = b"\x05\x11" + EXPIRY_S.to_bytes(4, "big") if version == 5 else b""
    head = b"\x00\x04MQTT" + bytes((version, 0)) + keep_alive_s.to_bytes(2, "big")
    return _frame(0x10, head + properties + _text(client_id))


def subscribe(filters: Mapping[str, int], *, packet_id: int, version: int) -> bytes:
    """Return a SUBSCRIBE with the QoS of each Topic Filter."""
    body = packet_id.to_bytes(2, "big") + b"\x00" * (version == 5)
    return _frame(0x82, body + b"".join(_text(each) + bytes((qos,)) for each, qos in filters.items()))


def publish(
    topic: str, payload: bytes, *, qos: int, packet_id: int, dup: bool, version: int, retain: bool = False
) -> bytes:
    """Return a PUBLISH at QoS 1 or 2."""
    body = _text(topic) + packet_id.to_bytes(2, "big") + b"\x00" * (version == 5) + payload
    return _frame(0x30 | dup << 3 | qos << 1 | retain, body)


def short(kind: int, packet_id: int) -> bytes:
    """Return an acknowledgement of success."""
    return bytes((kind << 4 | (2 if kind == PUBREL else 0), 2)) + packet_id.to_bytes(2, "big")


def read_publish(packet: Packet, *, version: int) -> PublishPacket:
    """Return what a PUBLISH says."""
    qos = packet.flags >> 1 & 3
    at = 2 + int.from_bytes(packet.body[:2], "big")
    packet_id = int.from_bytes(packet.body[at : at + 2], "big") if qos else 0
    at += 2 if qos else 0
    if version == 5:
        length = shift = 0
        while True:
            byte = packet.body[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        at += length
    return PublishPacket(qos, packet_id, packet.body[at:])


def _frame(first: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray((first,))
    while True:
        length, low = divmod(length, 128)
        encoded.append(low | (0x80 if length else 0))
        if not length:
            return bytes(encoded) + body


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("!H", len(data)) + data
