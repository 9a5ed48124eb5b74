"""Encoding of PUBLISH for delivery (MQTT 5, section 3.3): the hot path of the server.

Values come from the decoder or the replica, so they are not validated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from fanout.mqtt.data_representation import encode_varint

__all__ = ["encode_publish", "encode_varint"]

_SHORT_HEAD = Struct(">BBH").pack
_LONG_HEAD = Struct(">BBBH").pack
_TWO_BYTES = Struct(">H").pack


def encode_publish(
    topic: bytes,
    payload: bytes,
    *,
    version: int,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
    expiry_s: int | None = None,
    subscription_identifiers: Sequence[int] = (),
) -> bytes:
    """Encode one PUBLISH.

    Args:
        topic: A valid Topic Name.
        payload: Application Message.
        version: 4 or 5.
        qos: 0, 1 or 2.
        retain: The RETAIN flag.
        dup: The DUP flag; must be off at QoS 0 [MQTT-3.3.1-2].
        packet_id: The Packet Identifier, not 0; ignored at QoS 0 [MQTT-2.2.1-2].
        properties: Encoded properties without length, as `split_publish_properties` keeps them; version 5
            only.
        expiry_s: Message Expiry Interval in seconds; None for none; version 5 only.
        subscription_identifiers: Those of the matching subscriptions; version 5 only.

    Raises:
        ValueError: The packet is longer than a Remaining Length allows.
        struct.error: The topic is longer than 65,535 bytes, or the Packet Identifier does not fit two bytes.
    """
    if version == 5:
        if expiry_s is not None:
            properties += b"\x02" + expiry_s.to_bytes(4, "big")
        for subscription_identifier in subscription_identifiers:
            properties += b"\x0b" + encode_varint(subscription_identifier)
        middle = encode_varint(len(properties)) + properties if properties else b"\x00"
    else:
        middle = b""
    if qos:
        middle = _TWO_BYTES(packet_id) + middle
    first = 0x30 | dup << 3 | qos << 1 | retain
    topic_length = len(topic)
    length = 2 + topic_length + len(middle) + len(payload)
    # One pack for the Remaining Length and the topic's length: half the time of to_bytes and concatenation.
    if length < 0x80:
        return _SHORT_HEAD(first, length, topic_length) + topic + middle + payload
    if length < 0x4000:
        return _LONG_HEAD(first, length & 0x7F | 0x80, length >> 7, topic_length) + topic + middle + payload
    return bytes((first,)) + encode_varint(length) + _TWO_BYTES(topic_length) + topic + middle + payload
