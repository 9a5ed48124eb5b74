"""Encoding of updates as PUBLISH packets, for each wire variant of receivers (section 3.3 of MQTT 5 and 3.1.1).

Values come from the replica, so nothing is validated again.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from fanout.chain.stamp import with_trailer
from fanout.mqtt.publish import encode_publish
from fanout.replica.update import Update

__all__ = [
    "HEADERS",
    "SHORT_MAX",
    "TWO_BYTES",
    "Frame",
    "Message",
    "SharedMessage",
    "WireVariant",
    "encode_frame",
    "encode_message",
    "message_bytes",
    "remaining_expiry_s",
    "split_at_packet_id",
]

TWO_BYTES: Final = tuple(map(struct.Struct(">H").pack, range(65_536)))
"""Every Two Byte Integer, encoded: Packet Identifiers and topic lengths of the hot path (40 ns against 95
ns)."""

SHORT_MAX: Final = 2048
"""`HEADERS` has those of a Remaining Length below it."""

_LENGTHS: Final = tuple(
    bytes((length,)) if length < 0x80 else bytes((length & 0x7F | 0x80, length >> 7)) for length in range(SHORT_MAX)
)

HEADERS: Final = tuple(tuple(map(bytes((first,)).__add__, _LENGTHS)) for first in range(0x30, 0x36))
"""The fixed headers of a PUBLISH without DUP by flags (QoS 0: RETAIN) and Remaining Length."""

_NS_PER_S = 1_000_000_000
_OVERHEAD_BYTES = 32

Message: TypeAlias = tuple[Update, int, bool, tuple[int, ...]]
"""(update, qos, retain, subscription_identifiers): one Application Message to sessions.

All members of an audience share one tuple, and so do audiences with the same encoding. `qos` and `retain` are as sent
to the receiver: the Maximum QoS of the subscription and Retain As Published are applied.
"""


class SharedMessage(tuple[Update, int, bool, tuple[int, ...]]):
    """A `Message` for a member of a shared subscription."""

    share: tuple[bytes, bytes]
    """ShareName and Topic Filter of the shared subscription; set once, at creation."""


Frame: TypeAlias = bytes | tuple[bytes, bytes]
"""A PUBLISH at QoS 0, or the parts before and after the Packet Identifier of a PUBLISH at QoS 1 or 2."""


class WireVariant(NamedTuple):
    """Properties of a receiver that decide the bytes of a PUBLISH, beside the matching subscriptions."""

    version: int
    """Protocol Level: 4 (MQTT 3.1.1) or 5."""
    stamped: bool = False
    """True when the receiver asked for stamps."""
    packet_bytes_max: int = 0
    """Maximum Packet Size of the receiver; 0 when it set none [MQTT-3.1.2-24]."""

    def takes(self, size: int) -> bool:
        """Return whether a packet of `size` bytes is within the receiver's Maximum Packet Size."""
        return not 0 < self.packet_bytes_max < size


def remaining_expiry_s(expires_ns: int, now_ns: int) -> int:
    """Return the Message Expiry Interval to send: the seconds that are left, rounded up [MQTT-3.3.2-6].

    A time of day that was set back must not make it longer than four bytes hold.
    """
    return min(max(0, -((now_ns - expires_ns) // _NS_PER_S)), 0xFFFF_FFFF)


def encode_message(message: Message, *, wire: WireVariant, now_ns: int, packet_id: int = 0, dup: bool = False) -> bytes:
    """Encode one PUBLISH for a receiver of kind `wire`.

    Args:
        message: The message to send.
        wire: Wire variant of the receiver; the caller checks `packet_bytes_max`.
        now_ns: Unix time in nanoseconds, for the Message Expiry Interval.
        packet_id: Packet Identifier; 0 at QoS 0.
        dup: The DUP flag.
    """
    (topic, payload, _, _, properties, _, expires_ns, _, stamp), qos, retain, identifiers = message
    version, stamped, _ = wire
    if not qos and (version == 4 or not (properties or expires_ns or identifiers or (stamped and stamp is not None))):
        # Fast path: the usual case in half the time. `Dispatcher.dispatch` has a copy of it in its loop; test_dispatch
        # checks that both give the same bytes.
        length = len(topic) + len(payload) + 2
        if length < SHORT_MAX - 1:
            if version == 4:
                return b"".join((HEADERS[retain][length], TWO_BYTES[len(topic)], topic, payload))
            return b"".join((HEADERS[retain][length + 1], TWO_BYTES[len(topic)], topic, b"\0", payload))
    if version == 4:
        return encode_publish(topic, payload, version=4, qos=qos, retain=retain, dup=dup, packet_id=packet_id)
    if stamped:
        properties = with_trailer(properties, stamp)
    return encode_publish(
        topic,
        payload,
        version=5,
        qos=qos,
        retain=retain,
        dup=dup,
        packet_id=packet_id,
        properties=properties,
        expiry_s=remaining_expiry_s(expires_ns, now_ns) if expires_ns else None,
        subscription_identifiers=identifiers,
    )


def encode_frame(message: Message, *, wire: WireVariant, now_ns: int) -> Frame:
    """Encode one PUBLISH for several receivers of one wire variant, whose Packet Identifiers differ."""
    (topic, payload, _, _, properties, _, expires_ns, _, stamp), qos, retain, identifiers = message
    if not qos:
        return encode_message(message, wire=wire, now_ns=now_ns)
    version, stamped, _ = wire
    if version == 4 or not (properties or expires_ns or identifiers or (stamped and stamp is not None)):
        # Fast path: the usual case in a quarter of the time, copied in `Dispatcher.dispatch` too.
        length = len(topic) + len(payload) + 4
        if length < SHORT_MAX - 1:
            headers = HEADERS[qos << 1 | retain]
            if version == 4:
                return headers[length] + TWO_BYTES[len(topic)] + topic, payload
            return headers[length + 1] + TWO_BYTES[len(topic)] + topic, b"\0" + payload
    return split_at_packet_id(encode_message(message, wire=wire, now_ns=now_ns, packet_id=1), topic=message[0][0])


def split_at_packet_id(frame: bytes, *, topic: bytes) -> tuple[bytes, bytes]:
    """Split a PUBLISH at QoS 1 or 2 into the parts before and after its Packet Identifier."""
    start = 2
    while frame[start - 1] & 0x80:  # the Remaining Length goes on
        start += 1
    start += 2 + len(topic)
    return frame[:start], frame[start + 2 :]


def message_bytes(message: Message) -> int:
    """Return the bytes that a message counts towards the bounds of a queue."""
    update = message[0]
    return len(update[0]) + len(update[1]) + len(update[4]) + _OVERHEAD_BYTES
