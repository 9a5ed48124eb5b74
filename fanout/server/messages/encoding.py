"""The bytes in which a session gets an update: wire variants, messages on their way, and their encoding.

Owns the step from an `Update` to one PUBLISH for one kind of receiver (MQTT 5, section 3.3; MQTT 3.1.1,
section 3.3). It must not know sessions, audiences or sockets. Values come from the replica, so nothing is
validated again.
"""

from __future__ import annotations

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

TWO_BYTES: Final = tuple(number.to_bytes(2, "big") for number in range(65_536))
"""Every Two Byte Integer, encoded: Packet Identifiers and topic lengths of the hot path (40 ns against 95
ns)."""

SHORT_MAX: Final = 2048
"""`HEADERS` has those of a Remaining Length below it."""

HEADERS: Final = tuple(
    tuple(
        bytes((first, length)) if length < 0x80 else bytes((first, length & 0x7F | 0x80, length >> 7))
        for length in range(SHORT_MAX)
    )
    for first in range(0x30, 0x36)
)
"""The fixed headers of a PUBLISH without DUP by flags (QoS 0: RETAIN) and Remaining Length."""

_NS_PER_S = 1_000_000_000
_OVERHEAD_BYTES = 32

Message: TypeAlias = tuple[Update, int, bool, tuple[int, ...]]
"""(update, qos, retain, subscription_identifiers): one Application Message on its way to sessions.

The same tuple is shared by all members of an audience, and by audiences that want it alike. `qos` and
`retain` are what the receiver gets (the Maximum QoS of the subscription and Retain As Published are already
applied).
"""


class SharedMessage(tuple[Update, int, bool, tuple[int, ...]]):
    """A `Message` that came through a shared subscription."""

    share: tuple[bytes, bytes]
    """ShareName and Topic Filter of the shared subscription; set once, when it is made."""


Frame: TypeAlias = bytes | tuple[bytes, bytes]
"""A PUBLISH at QoS 0, or what stands before and behind the Packet Identifier of one at QoS 1 or 2."""


class WireVariant(NamedTuple):
    """What decides the bytes of a PUBLISH, beside the subscriptions that it matches."""

    version: int
    """Protocol Level: 4 (MQTT 3.1.1) or 5."""
    stamped: bool = False
    """Whether the receiver asked for the update's stamp."""
    packet_bytes_max: int = 0
    """The receiver's Maximum Packet Size; 0 when it set none [MQTT-3.1.2-24]."""

    def takes(self, size: int) -> bool:
        """Return whether the receiver takes a packet of `size` bytes."""
        return not 0 < self.packet_bytes_max < size


def remaining_expiry_s(expires_ns: int, now_ns: int) -> int:
    """Return the Message Expiry Interval to send: what is left, rounded up [MQTT-3.3.2-6]."""
    return max(0, -((now_ns - expires_ns) // _NS_PER_S))


def encode_message(message: Message, *, wire: WireVariant, now_ns: int, packet_id: int = 0, dup: bool = False) -> bytes:
    """Encode one PUBLISH for a receiver of kind `wire`.

    Args:
        message: What to send.
        wire: The kind of receiver; its `packet_bytes_max` is the caller's business.
        now_ns: Unix time in nanoseconds, for the Message Expiry Interval.
        packet_id: Packet Identifier; 0 at QoS 0.
        dup: The DUP flag.
    """
    (topic, payload, _, _, properties, _, expires_ns, _, stamp), qos, retain, identifiers = message
    version, stamped, _ = wire
    if not qos and (version == 4 or not (properties or expires_ns or identifiers or (stamped and stamp is not None))):
        # The usual case in half the time. Dispatch has the same lines in its loop.
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
    """Encode one PUBLISH for several receivers of kind `wire`, whose Packet Identifiers differ."""
    (topic, payload, _, _, properties, _, expires_ns, _, stamp), qos, retain, identifiers = message
    if not qos:
        return encode_message(message, wire=wire, now_ns=now_ns)
    version, stamped, _ = wire
    if version == 4 or not (properties or expires_ns or identifiers or (stamped and stamp is not None)):
        # The usual case in a quarter of the time.
        length = len(topic) + len(payload) + 4
        if length < SHORT_MAX - 1:
            headers = HEADERS[qos << 1 | retain]
            if version == 4:
                return headers[length] + TWO_BYTES[len(topic)] + topic, payload
            return headers[length + 1] + TWO_BYTES[len(topic)] + topic, b"\0" + payload
    return split_at_packet_id(encode_message(message, wire=wire, now_ns=now_ns, packet_id=1), topic=message[0][0])


def split_at_packet_id(frame: bytes, *, topic: bytes) -> tuple[bytes, bytes]:
    """Cut a PUBLISH at QoS 1 or 2 into what stands before and behind its Packet Identifier."""
    start = 2
    while frame[start - 1] & 0x80:  # the Remaining Length goes on
        start += 1
    start += 2 + len(topic)
    return frame[:start], frame[start + 2 :]


def message_bytes(message: Message) -> int:
    """Return what a message counts towards the bounds of a queue."""
    update = message[0]
    return len(update[0]) + len(update[1]) + len(update[4]) + _OVERHEAD_BYTES
