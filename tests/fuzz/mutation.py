"""Valid packets to begin with, and ways of spoiling them.

Everything comes from one `random.Random`, so that a seed repeats a run. The packets are made with the codec's own
encoder: what matters here is what becomes of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fanout.mqtt.data_representation import encode_varint
from fanout.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from fanout.mqtt.properties import Properties

__all__ = ["connects", "cuts", "from_client", "from_server", "mutate", "spoil"]

_INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0x81, 0xFF, 0x23, 0x2B, 0x2F, 0x24, 0xC0, 0xED)
"""Bytes on which decoders stumble: limits of lengths, characters of topics, starts of ill-formed UTF-8."""
_PIECE_BYTES_MAX = 16


def connects(version: int, *, client_id: str = "fuzz") -> list[bytes]:
    """Return CONNECT packets that are valid, with ever more in them."""
    will = Will(b"w/gone", b"gone", 1, True)
    packets = [
        Connect(client_id, version),
        Connect(client_id, version, clean_start=False, keep_alive=60, will=will),
        Connect(client_id, version, username="user", password=b"secret"),
    ]
    if version == 5:
        properties = Properties(
            session_expiry_interval=1,
            receive_maximum=3,
            maximum_packet_size=1000,
            topic_alias_maximum=4,
            request_response_information=1,
            request_problem_information=0,
            user_property=(("key", "value"), ("key", "another")),
        )
        will = Will(b"w", b"x", 2, False, Properties(will_delay_interval=1, content_type="text", correlation_data=b"1"))
        packets += [
            Connect(client_id, version, clean_start=False, properties=properties, will=will),
            Connect("", version, properties=Properties(authentication_method="SCRAM", authentication_data=b"data")),
        ]
    return [encode(packet, version=version) for packet in packets]


def from_client(version: int) -> list[bytes]:
    """Return packets that a client may send after its CONNECT, each kind with what it may hold."""
    packets: list[Packet] = [
        Publish(b"f/a", b"payload"),
        Publish(b"f/b", b"payload" * 30, 1, True, False, 1),
        Publish(b"f/c", b"", 2, True, True, 2),
        Ack(PacketType.PUBREL, 2),
        Ack(PacketType.PUBACK, 1),
        Ack(PacketType.PUBREC, 1),
        Ack(PacketType.PUBCOMP, 1),
        Subscribe(3, (Subscription(b"f/#", 2), Subscription(b"f/+", 1), Subscription(b"$share/g/f/a", 1))),
        Unsubscribe(4, (b"f/+", b"not/there")),
        Pingreq(),
        Disconnect(),
    ]
    if version == 5:
        packets += [
            Publish(b"f/a", b"x", 1, False, False, 7, _publish_properties()),
            Publish(b"f/d", b"alias", properties=Properties(topic_alias=1)),
            Publish(b"f/u", "text ä€𝄞".encode(), properties=Properties(payload_format_indicator=1)),
            Ack(PacketType.PUBACK, 1, 0x80, Properties(reason_string="no", user_property=(("a", "b"),))),
            Subscribe(5, (Subscription(b"f/#", 1, True, True, 2),), Properties(subscription_identifier=(268_435_455,))),
            Unsubscribe(6, (b"f/#",), Properties(user_property=(("a", "b"),))),
            Disconnect(0x04, Properties(session_expiry_interval=0, reason_string="bye")),
            Auth(0x18, Properties(authentication_method="SCRAM")),
        ]
    return [encode(packet, version=version) for packet in packets]


def from_server(version: int) -> list[bytes]:
    """Return packets that a server may send, for the decoder of a link."""
    packets: list[Packet] = [
        Connack(True, 0),
        Publish(b"f/b", b"payload", 1, True, False, 1),
        Publish(b"f/c", b"", 2, False, True, 2),
        Ack(PacketType.PUBREL, 2),
        Suback(3, (0, 1, 2, 0x80)),
        Unsuback(4, (0, 0x11) if version == 5 else ()),
        Pingresp(),
    ]
    if version == 5:
        packets += [
            Connack(False, 0x87, Properties(reason_string="no", server_reference="other")),
            Connack(False, 0, Properties(receive_maximum=10, maximum_qos=1, retain_available=0, server_keep_alive=30)),
            Publish(b"f/a", b"x", properties=_publish_properties(subscription_identifier=(1, 200, 300_000))),
            Publish(b"f/d", b"alias", properties=Properties(topic_alias=1)),
            Disconnect(0x8B, Properties(reason_string="stop", user_property=(("a", "b"),))),
        ]
    return [encode(packet, version=version) for packet in packets]


def _publish_properties(subscription_identifier: tuple[int, ...] = ()) -> Properties:
    return Properties(
        payload_format_indicator=0,
        message_expiry_interval=60,
        content_type="text/plain",
        response_topic="f/answer",
        correlation_data=b"\0\1\2",
        user_property=(("key", "value"), ("key", "")),
        subscription_identifier=subscription_identifier,
    )


def spoil(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return `data` with one to four small faults: bytes flipped, set, inserted, deleted or repeated.

    In half of the cases the Remaining Length is put right afterwards, so that what is behind it is reached.

    Args:
        data: One packet.
        rng: Decides.
        others: Packets from which a piece may be taken.
    """
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        _spoil_once(spoilt, rng, others)
    if spoilt and rng.random() < 0.5:
        body = _without_length(bytes(spoilt))
        return bytes(spoilt[:1]) + encode_varint(len(body)) + body
    return bytes(spoilt)


def mutate(packets: Sequence[bytes], rng: random.Random, *, count_max: int = 6) -> bytes:
    """Return a stream of up to `count_max` packets, at least one of them spoilt, perhaps cut off at the end."""
    chosen = [rng.choice(packets) for _ in range(rng.randint(1, count_max))]
    spoilt = rng.randrange(len(chosen))
    chosen[spoilt] = spoil(chosen[spoilt], rng, packets)
    if rng.random() < 0.2:
        rng.shuffle(chosen)
    stream = b"".join(chosen)
    return stream[: rng.randint(0, len(stream))] if rng.random() < 0.1 else stream


def cuts(data: bytes, rng: random.Random) -> list[bytes]:
    """Return `data` in pieces of random size; at times byte by byte."""
    size_max = rng.choice((1, 2, 5, 40, 400))
    pieces, pos = [], 0
    while pos < len(data):
        stop = pos + rng.randint(1, size_max)
        pieces.append(data[pos:stop])
        pos = stop
    return pieces


def _spoil_once(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    pos = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0 if pos < len(data):
            data[pos] ^= 1 << rng.randrange(8)
        case 1 if pos < len(data):
            data[pos] = rng.choice(_INTERESTING)
        case 2:
            data.insert(pos, rng.choice(_INTERESTING) if rng.random() < 0.5 else rng.randrange(256))
        case 3:
            del data[pos : pos + rng.randint(1, _PIECE_BYTES_MAX)]
        case 4:
            data[pos:pos] = data[pos : pos + rng.randint(1, _PIECE_BYTES_MAX)]
        case 5 if others:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            data[pos:pos] = other[start : start + rng.randint(1, _PIECE_BYTES_MAX)]
        case _:
            data[pos:pos] = rng.randbytes(rng.randint(1, 4))


def _without_length(data: bytes) -> bytes:
    """Return what is behind the first byte and a Remaining Length."""
    pos = 1
    while pos < min(len(data), 4) and data[pos] & 0x80:
        pos += 1
    return data[pos + 1 :]
