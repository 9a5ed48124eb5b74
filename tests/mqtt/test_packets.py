"""Chapter 3 of MQTT 5 and 3.1.1: encoding each packet, byte by byte, and what is refused as our mistake."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.mqtt.decoder import AckRun, Decoder, Item, PublishRun
from fanout.mqtt.packet_types import PacketType, Role
from fanout.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
    encode_acks,
    encode_unknown,
)
from fanout.mqtt.properties import Properties, encode_properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.mqtt.strategies import connects, packet_ids, packets_from_client, packets_from_server

VERSIONS = st.sampled_from([4, 5])
WHY = Properties(reason_string="no")

ENCODED: list[tuple[Packet, int, bytes]] = [
    (
        Connect("", version=5, clean_start=True, keep_alive=10, properties=Properties(session_expiry_interval=10)),
        5,
        b"\x10\x12\x00\x04MQTT\x05\x02\x00\x0a\x05\x11\x00\x00\x00\x0a\x00\x00",
    ),
    (
        Connect(
            "c",
            version=4,
            clean_start=False,
            username="u",
            password=b"p",
            will=Will(b"w", b"x", 1, retain=True),
            bridge=True,
        ),
        4,
        b"\x10\x19\x00\x04MQTT\x84\xec\x00\x00\x00\x01c\x00\x01w\x00\x01x\x00\x01u\x00\x01p",
    ),
    (
        Connect("c", will=Will(b"w", b"", 2, properties=Properties(will_delay_interval=1))),
        5,
        b"\x10\x19\x00\x04MQTT\x05\x16\x00\x00\x00\x00\x01c\x05\x18\x00\x00\x00\x01\x00\x01w\x00\x00",
    ),
    (Connect("c", password=b"p"), 5, b"\x10\x11\x00\x04MQTT\x05\x42\x00\x00\x00\x00\x01c\x00\x01p"),
    (Connack(session_present=True, reason_code=0), 5, b"\x20\x03\x01\x00\x00"),
    (Connack(session_present=False, reason_code=5), 4, b"\x20\x02\x00\x05"),
    (Connack(session_present=False, reason_code=0x87), 5, b"\x20\x03\x00\x87\x00"),
    (Publish(b"a/b", b"!", qos=1, packet_id=10), 4, b"\x32\x08\x00\x03a/b\x00\x0a!"),
    (
        Publish(b"a/b", b"!", retain=True, properties=Properties(payload_format_indicator=1)),
        5,
        b"\x31\x09\x00\x03a/b\x02\x01\x01!",
    ),
    (Publish(b"", b"!", properties=Properties(topic_alias=3)), 5, b"\x30\x07\x00\x00\x03\x23\x00\x03!"),
    (
        Publish(b"a", b"", properties=Properties(content_type="x" * 200)),
        5,
        b"\x30\xd0\x01\x00\x01a\xcb\x01\x03\x00\xc8" + b"x" * 200,
    ),
    (Ack(PacketType.PUBACK, 0x1234), 5, b"\x40\x02\x12\x34"),
    (Ack(PacketType.PUBREC, 1, 0x10), 5, b"\x50\x03\x00\x01\x10"),
    (Ack(PacketType.PUBREL, 1, 0x92), 5, b"\x62\x03\x00\x01\x92"),
    (Ack(PacketType.PUBCOMP, 1, 0, WHY), 5, b"\x70\x09\x00\x01\x00\x05\x1f\x00\x02no"),
    (Ack(PacketType.PUBACK, 1, 0x87, WHY), 4, b"\x40\x02\x00\x01"),
    (
        Subscribe(10, (Subscription(b"a/b", 1), Subscription(b"c/d", 2))),
        4,
        b"\x82\x0e\x00\x0a\x00\x03a/b\x01\x00\x03c/d\x02",
    ),
    (
        Subscribe(10, (Subscription(b"a/b", 1, no_local=True, retain_as_published=True, retain_handling=2),)),
        5,
        b"\x82\x09\x00\x0a\x00\x00\x03a/b\x2d",
    ),
    (Suback(10, (0, 2, 0x87)), 5, b"\x90\x06\x00\x0a\x00\x00\x02\x87"),
    (Suback(10, (0, 2, 0x87)), 4, b"\x90\x05\x00\x0a\x00\x02\x80"),
    (Unsubscribe(10, (b"a/b", b"c")), 4, b"\xa2\x0a\x00\x0a\x00\x03a/b\x00\x01c"),
    (Unsubscribe(10, (b"a/b",)), 5, b"\xa2\x08\x00\x0a\x00\x00\x03a/b"),
    (Unsuback(10, (0, 0x11)), 5, b"\xb0\x05\x00\x0a\x00\x00\x11"),
    (Unsuback(10, (0, 0x11)), 4, b"\xb0\x02\x00\x0a"),
    (Pingreq(), 4, b"\xc0\x00"),
    (Pingresp(), 5, b"\xd0\x00"),
    (Disconnect(), 4, b"\xe0\x00"),
    (Disconnect(), 5, b"\xe0\x00"),
    (Disconnect(0x8E), 5, b"\xe0\x01\x8e"),
    (Disconnect(0, WHY), 5, b"\xe0\x07\x00\x05\x1f\x00\x02no"),
    (Auth(), 5, b"\xf0\x00"),
    (Auth(0x18), 5, b"\xf0\x02\x18\x00"),
    (Auth(0x18, Properties(authentication_method="m")), 5, b"\xf0\x06\x18\x04\x15\x00\x01m"),
]


@pytest.mark.parametrize(("packet", "version", "encoded"), ENCODED)
def test_encoded_byte_by_byte(packet: Packet, version: int, encoded: bytes) -> None:
    """Each packet has the bytes that its section prescribes, in the shortest form."""
    assert encode(packet, version=version) == encoded


REFUSED: list[tuple[Packet, int, str]] = [
    (Pingreq(), 3, "no MQTT version 3"),
    (Connect("c", version=5), 4, "not one for version 4"),
    (Connect("c", version=5, bridge=True), 5, "bridge bit"),
    (Connect("c", version=4, password=b"p"), 4, "without a User Name"),
    (Connect("c", keep_alive=65_536), 5, "not a Keep Alive"),
    (Connect("c", keep_alive=-1), 5, "not a Keep Alive"),
    (Connect("c", will=Will(b"a/#", b"")), 5, "wildcard"),
    (Connect("c", will=Will(b"a", b"", 3)), 5, "not a QoS"),
    (Connect("c", will=Will(b"a", bytes(65_536))), 5, "65536 bytes"),
    (Connect("c\0"), 5, r"U\+0000"),
    (Connack(session_present=False, reason_code=0x87), 4, "Connect Return Code"),
    (Connack(session_present=True, reason_code=0x87), 5, "Session Present"),
    (Publish(b"", b""), 5, "empty"),
    (Publish(b"", b"", properties=Properties(topic_alias=1)), 4, "empty"),
    (Publish(b"a", b"", qos=3, packet_id=1), 5, "not a QoS"),
    (Publish(b"a", b"", qos=1), 5, "not a Packet Identifier"),
    (Publish(b"a", b"", qos=1, packet_id=0), 5, "not a Packet Identifier"),
    (Publish(b"a", b"", packet_id=1), 5, "QoS 0"),
    (Publish(b"a", b"", dup=True), 5, "QoS 0"),
    (Ack(PacketType.PUBLISH, 1), 5, "does not acknowledge"),
    (Ack(PacketType.PUBACK, 65_536), 5, "not a Packet Identifier"),
    (Subscribe(1, ()), 5, "at least one"),
    (Subscribe(0, (Subscription(b"a"),)), 5, "not a Packet Identifier"),
    (Subscribe(1, (Subscription(b"a#"),)), 5, "misplaced"),
    (Subscribe(1, (Subscription(b"a", 3),)), 4, "not a QoS"),
    (Subscribe(1, (Subscription(b"a", retain_handling=3),)), 5, "not a Retain Handling"),
    (Unsubscribe(1, ()), 4, "at least one"),
    (Unsubscribe(1, (b"",)), 4, "empty"),
    (Disconnect(0x8E), 4, "DISCONNECT with a Reason Code"),
    (Auth(), 4, "no AUTH"),
    (Pingresp(), 6, "no MQTT version 6"),
    (Suback(1, (0,), Properties(topic_alias=1)), 5, "does not belong"),
]


@pytest.mark.parametrize(("packet", "version", "text"), REFUSED)
def test_what_mqtt_forbids_is_our_mistake(packet: Packet, version: int, text: str) -> None:
    """A value that MQTT forbids is never written."""
    with pytest.raises(ValueError, match=text):
        encode(packet, version=version)


def decode_all(data: bytes, *, version: int | None, role: Role) -> list[Item]:
    """Decode `data`, which must be legal and whole."""
    decoder = Decoder(version=version, packet_bytes_max=1 << 20, role=role)
    items = decoder.feed(data)
    assert decoder.fault is None
    assert decoder.buffered_bytes == 0
    return items


def as_item(packet: Packet, version: int) -> Item:
    """Return what the decoder makes of `packet`: acks and PUBLISH become runs and lose what nobody reads."""
    match packet:
        case Ack(kind, packet_id, code):
            return AckRun(kind, [packet_id], [code] if code else None)
        case Publish(topic, payload, qos, retain, dup, packet_id, properties):
            kept = dataclasses.replace(properties, message_expiry_interval=None)
            block = encode_properties(kept, packet=PacketType.PUBLISH)
            # decoding keeps the block as it is, without the length of one or two bytes
            raw = block[1:] if block[0] < 0x80 else block[2:]
            flags = dup << 3 | qos << 1 | retain
            # encoding puts User Properties last
            user_at = len(raw) - sum(5 + len("".join(pair).encode()) for pair in properties.user_property[-1:])
            return PublishRun(
                [(topic, payload, flags, packet_id or 0, raw, properties.message_expiry_interval, user_at)]
            )
        case _:
            return packet


@given(st.data(), VERSIONS)
def test_connect_round_trip(data: st.DataObject, version: int) -> None:
    """A CONNECT of either version survives, and tells the decoder its version."""
    connect = data.draw(connects(version))
    assert decode_all(encode(connect, version=version), version=None, role="server") == [connect]


@given(st.data(), VERSIONS)
def test_client_packets_round_trip(data: st.DataObject, version: int) -> None:
    """Whatever a client may send survives."""
    packet = data.draw(packets_from_client(version))
    assert decode_all(encode(packet, version=version), version=version, role="server") == [as_item(packet, version)]


@given(st.data(), VERSIONS)
def test_server_packets_round_trip(data: st.DataObject, version: int) -> None:
    """Whatever a server may send survives."""
    packet = data.draw(packets_from_server(version))
    assert decode_all(encode(packet, version=version), version=version, role="client") == [as_item(packet, version)]


@given(
    st.sampled_from([PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP]),
    st.lists(packet_ids, max_size=200),
    VERSIONS,
)
def test_encode_acks_as_one_by_one(ack_type: PacketType, ids: list[int], version: int) -> None:
    """A run has the bytes of its packets."""
    expected = b"".join(encode(Ack(ack_type, packet_id), version=version) for packet_id in ids)
    assert encode_acks(ack_type, ids) == expected


def test_encode_acks_on_either_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are turned round on a little-endian machine only."""
    monkeypatch.setattr("sys.byteorder", "little")
    little = encode_acks(PacketType.PUBACK, [1])
    monkeypatch.setattr("sys.byteorder", "big")
    big = encode_acks(PacketType.PUBACK, [1])
    assert {little, big} == {b"\x40\x02\x00\x01", b"\x02\x40\x01\x00"}


@pytest.mark.parametrize("kind", [PacketType.PUBREL, PacketType.PUBCOMP])
def test_unknown_identifiers_are_encoded_as_one_by_one(kind: PacketType) -> None:
    """The bytes are those of acknowledgements with 0x92."""
    acks = [Ack(kind, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND) for packet_id in (1, 256, 65_535)]
    assert encode_unknown(kind, [1, 256, 65_535]) == b"".join(encode(ack, version=5) for ack in acks)
    assert encode_unknown(kind, []) == b""
