"""MQTT 5, section 2.2.2: properties, in the table and in the fast way for PUBLISH."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.errors import ProtocolError
from fanout.mqtt.data_representation import MAX_VARINT, encode_binary, encode_string, encode_varint
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.properties import (
    NO_PROPERTIES,
    WILL,
    Properties,
    PropertyOwner,
    PublishProperties,
    decode_properties,
    encode_properties,
    split_publish_block,
    split_publish_properties,
)
from fanout.mqtt.reason_codes import ReasonCode
from tests.mqtt.strategies import properties, refused

C = PacketType
OWNERS: list[PropertyOwner] = [*(kind for kind in C if kind not in (C.PINGREQ, C.PINGRESP)), WILL]
PAIR = encode_string("name") + encode_string("value")

ENCODED: dict[int, tuple[bytes, str, object]] = {
    # identifier: (an encoded value, the field, its value), from table 2-4
    0x01: (b"\x01", "payload_format_indicator", 1),
    0x02: (b"\x00\x00\x00\x0a", "message_expiry_interval", 10),
    0x03: (encode_string("text/plain"), "content_type", "text/plain"),
    0x08: (encode_string("a/b"), "response_topic", "a/b"),
    0x09: (encode_binary(b"\x00\xff"), "correlation_data", b"\x00\xff"),
    0x0B: (b"\xff\xff\xff\x7f", "subscription_identifier", (MAX_VARINT,)),
    0x11: (b"\xff\xff\xff\xff", "session_expiry_interval", 0xFFFF_FFFF),
    0x12: (encode_string("id"), "assigned_client_identifier", "id"),
    0x13: (b"\x00\x3c", "server_keep_alive", 60),
    0x15: (encode_string("GS2"), "authentication_method", "GS2"),
    0x16: (encode_binary(b"data"), "authentication_data", b"data"),
    0x17: (b"\x00", "request_problem_information", 0),
    0x18: (b"\x00\x00\x00\x05", "will_delay_interval", 5),
    0x19: (b"\x01", "request_response_information", 1),
    0x1A: (encode_string("r"), "response_information", "r"),
    0x1C: (encode_string("other:1883"), "server_reference", "other:1883"),
    0x1F: (encode_string("why"), "reason_string", "why"),
    0x21: (b"\xff\xff", "receive_maximum", 65_535),
    0x22: (b"\x00\x00", "topic_alias_maximum", 0),
    0x23: (b"\x00\x01", "topic_alias", 1),
    0x24: (b"\x01", "maximum_qos", 1),
    0x25: (b"\x00", "retain_available", 0),
    0x26: (PAIR, "user_property", (("name", "value"),)),
    0x27: (b"\x00\x00\x00\x01", "maximum_packet_size", 1),
    0x28: (b"\x01", "wildcard_subscription_available", 1),
    0x29: (b"\x00", "subscription_identifier_available", 0),
    0x2A: (b"\x01", "shared_subscription_available", 1),
}
ALLOWED: dict[int, set[PropertyOwner]] = {
    # table 2-4, column "Packet / Will Properties"
    0x01: {C.PUBLISH, WILL},
    0x02: {C.PUBLISH, WILL},
    0x03: {C.PUBLISH, WILL},
    0x08: {C.PUBLISH, WILL},
    0x09: {C.PUBLISH, WILL},
    0x0B: {C.PUBLISH, C.SUBSCRIBE},
    0x11: {C.CONNECT, C.CONNACK, C.DISCONNECT},
    0x12: {C.CONNACK},
    0x13: {C.CONNACK},
    0x15: {C.CONNECT, C.CONNACK, C.AUTH},
    0x16: {C.CONNECT, C.CONNACK, C.AUTH},
    0x17: {C.CONNECT},
    0x18: {WILL},
    0x19: {C.CONNECT},
    0x1A: {C.CONNACK},
    0x1C: {C.CONNACK, C.DISCONNECT},
    0x1F: {C.CONNACK, C.PUBACK, C.PUBREC, C.PUBREL, C.PUBCOMP, C.SUBACK, C.UNSUBACK, C.DISCONNECT, C.AUTH},
    0x21: {C.CONNECT, C.CONNACK},
    0x22: {C.CONNECT, C.CONNACK},
    0x23: {C.PUBLISH},
    0x24: {C.CONNACK},
    0x25: {C.CONNACK},
    0x26: set(OWNERS),
    0x27: {C.CONNECT, C.CONNACK},
    0x28: {C.CONNACK},
    0x29: {C.CONNACK},
    0x2A: {C.CONNACK},
}
AUTHENTICATION_DATA = 0x16


def with_length(block: bytes) -> bytes:
    """Return a property block as it stands in a packet."""
    return encode_varint(len(block)) + block


def one(identifier: int) -> bytes:
    """Return a legal block that holds the property `identifier` (and what it needs beside it)."""
    block = bytes((identifier,)) + ENCODED[identifier][0]
    return b"\x15\x00\x01m" + block if identifier == AUTHENTICATION_DATA else block


def test_every_property_has_a_field() -> None:
    """The 27 properties of table 2-4 and the fields of `Properties` are the same."""
    assert {field for _, field, _ in ENCODED.values()} == {field.name for field in dataclasses.fields(Properties)}


@pytest.mark.parametrize("identifier", ENCODED, ids=hex)
def test_each_property_in_each_packet(identifier: int) -> None:
    """A property is decoded where table 2-4 allows it, and makes any other packet malformed (2.2.2.2)."""
    _, field, value = ENCODED[identifier]
    for owner in OWNERS:
        data = b"?" + with_length(one(identifier)) + b"?"
        if owner in ALLOWED[identifier]:
            decoded, pos = decode_properties(data, 1, packet=owner)
            assert getattr(decoded, field) == value
            assert pos == len(data) - 1
            assert encode_properties(decoded, packet=owner) == data[1:-1]
        else:
            with refused(ReasonCode.MALFORMED_PACKET):
                decode_properties(data, 1, packet=owner)


@pytest.mark.parametrize("identifier", sorted(set(ENCODED) - {0x26}), ids=hex)
def test_property_twice(identifier: int) -> None:
    """Only User Property, and Subscription Identifier in PUBLISH, may repeat; else it is a Protocol Error."""
    for owner in ALLOWED[identifier]:
        data = with_length(one(identifier) + bytes((identifier,)) + ENCODED[identifier][0])
        if identifier == 0x0B and owner is C.PUBLISH:
            decoded, _ = decode_properties(data, 0, packet=owner)
            assert decoded.subscription_identifier == (MAX_VARINT, MAX_VARINT)
        else:
            with refused(ReasonCode.PROTOCOL_ERROR):
                decode_properties(data, 0, packet=owner)


@pytest.mark.parametrize("owner", OWNERS, ids=str)
def test_user_property_repeats_in_order(owner: PropertyOwner) -> None:
    """User Properties may repeat, with the same name too, and keep their order [MQTT-3.3.2-18]."""
    block = b"\x26" + PAIR + b"\x26" + PAIR + b"\x26\x00\x00\x00\x00"
    decoded, _ = decode_properties(with_length(block), 0, packet=owner)
    assert decoded.user_property == (("name", "value"), ("name", "value"), ("", ""))


@pytest.mark.parametrize(
    ("owner", "block"),
    [
        (C.PUBLISH, b"\x01\x02"),  # Payload Format Indicator 2
        (WILL, b"\x01\xff"),
        (C.SUBSCRIBE, b"\x0b\x00"),  # Subscription Identifier 0 (section 3.8.2.1.2)
        (C.PUBLISH, b"\x0b\x00"),
        (C.CONNECT, b"\x17\x02"),  # Request Problem Information 2 (3.1.2.11.7)
        (C.CONNECT, b"\x19\x02"),  # Request Response Information 2 (3.1.2.11.6)
        (C.CONNECT, b"\x21\x00\x00"),  # Receive Maximum 0 (3.1.2.11.3)
        (C.CONNACK, b"\x21\x00\x00"),
        (C.CONNECT, b"\x27\x00\x00\x00\x00"),  # Maximum Packet Size 0 (3.1.2.11.4)
        (C.CONNACK, b"\x24\x02"),  # Maximum QoS 2 (3.2.2.3.4)
        (C.CONNACK, b"\x25\x02"),  # Retain Available 2 (3.2.2.3.5)
        (C.CONNACK, b"\x28\x02"),
        (C.CONNACK, b"\x29\x02"),
        (C.CONNACK, b"\x2a\x02"),
        (C.PUBLISH, b"\x23\x00\x00"),  # Topic Alias 0 [MQTT-3.3.2-8]
        (C.PUBLISH, b"\x08\x00\x03a/#"),  # Response Topic with a wildcard [MQTT-3.3.2-14]
        (WILL, b"\x08\x00\x01+"),
        (C.PUBLISH, b"\x08\x00\x00"),  # an empty Response Topic [MQTT-4.7.3-1]
        (C.CONNECT, b"\x16\x00\x01d"),  # Authentication Data without Method (3.1.2.11.10)
        (C.AUTH, b"\x16\x00\x01d"),
    ],
)
def test_value_not_allowed(owner: PropertyOwner, block: bytes) -> None:
    """A value outside the property's range is a Protocol Error."""
    with refused(ReasonCode.PROTOCOL_ERROR):
        decode_properties(with_length(block), 0, packet=owner)


@pytest.mark.parametrize(
    ("owner", "data"),
    [
        (C.PUBLISH, b""),  # no Property Length
        (C.PUBLISH, b"\x05\x01\x00"),  # the length is beyond the packet
        (C.PUBLISH, b"\x80\x00"),  # the length is not in its shortest form [MQTT-1.5.5-1]
        (C.PUBLISH, b"\x01\x01"),  # the value of a Byte is behind the block
        (C.CONNECT, b"\x02\x21\x00\x05"),  # a Two Byte Integer reaches out of the block
        (C.PUBLISH, b"\x04\x02\x00\x00\x00\x00"),  # a Four Byte Integer does
        (C.PUBLISH, b"\x04\x03\x00\x02ab"),  # a string does
        (C.PUBLISH, b"\x06\x26\x00\x01a\x00\x01b"),  # the value of a pair does
        (C.PUBLISH, b"\x03\x0b\x80\x00"),  # a Subscription Identifier that is not in its shortest form
        (C.PUBLISH, b"\x02\x00\x00"),  # identifier 0 does not exist
        (C.PUBLISH, b"\x02\x7f\x00"),
        (C.PUBLISH, b"\x03\x81\x00\x00"),  # a longer form of identifier 1
        (C.PUBLISH, b"\x04\x03\x00\x01\x00"),  # U+0000 [MQTT-1.5.4-2]
        (C.PUBLISH, b"\x06\x03\x00\x03\xed\xa0\x80"),  # a surrogate [MQTT-1.5.4-1]
    ],
)
def test_malformed(owner: PropertyOwner, data: bytes) -> None:
    """A block that cannot be parsed makes a Malformed Packet."""
    with refused(ReasonCode.MALFORMED_PACKET):
        decode_properties(data, 0, packet=owner)


def test_empty_block_is_shared() -> None:
    """No properties are one byte, and always the same object."""
    decoded, pos = decode_properties(b"\x00\x01", 0, packet=C.PUBLISH)
    assert decoded is NO_PROPERTIES
    assert pos == 1
    assert encode_properties(Properties(), packet=C.PUBLISH) == b"\x00"
    assert encode_properties(NO_PROPERTIES, packet=C.PUBLISH) == b"\x00"


@given(st.data(), st.sampled_from(OWNERS))
@settings(max_examples=300)
def test_round_trip(data: st.DataObject, owner: PropertyOwner) -> None:
    """Whatever a packet may hold survives."""
    drawn = data.draw(properties(owner))
    encoded = encode_properties(drawn, packet=owner)
    assert decode_properties(encoded, 0, packet=owner) == (drawn, len(encoded))


@pytest.mark.parametrize(
    ("owner", "wrong", "text"),
    [
        (C.CONNECT, Properties(topic_alias=1), "does not belong"),
        (C.CONNECT, Properties(receive_maximum=0), "must not be 0"),
        (C.PUBLISH, Properties(topic_alias=65_536), "must not be 65536"),
        (C.SUBSCRIBE, Properties(subscription_identifier=(1, 2)), "allowed once"),
        (C.PUBLISH, Properties(subscription_identifier=(0,)), "must not be 0"),
        (C.PUBLISH, Properties(response_topic="a/+"), "wildcard"),
        (C.PUBLISH, Properties(content_type="\0"), r"U\+0000"),
    ],
)
def test_encode_refuses(owner: PropertyOwner, wrong: Properties, text: str) -> None:
    """What MQTT forbids is never written: it is our mistake, not the peer's."""
    with pytest.raises(ValueError, match=text):
        encode_properties(wrong, packet=owner)


def test_split_cuts_out_what_does_not_travel() -> None:
    """Topic Alias, Subscription Identifiers and expiry are cut, the rest keeps its order [MQTT-3.3.2-18]."""
    first, second, third = b"\x26\x00\x01a\x00\x01b", b"\x01\x01", b"\x03\x00\x01t"
    raw = b"\x0b\x07" + first + b"\x23\x00\x05" + b"\x02\x00\x00\x01\x00" + second + b"\x0b\x80\x01" + third
    assert split_publish_properties(raw) == PublishProperties(first + second + third, 256, 5, (7, 128), 13)
    assert split_publish_properties(first + b"\x02\x00\x00\x00\x09").kept == first
    assert split_publish_properties(b"\x23\x00\x00").topic_alias == 0


@pytest.mark.parametrize("cut", [b"", b"\x02\x00\x00\x00\x09", b"\x0b\x07\x23\x00\x05"])
@pytest.mark.parametrize("other", [b"\x01\x01", b"\x03\x00\x01t", b"\x08\x00\x01t", b"\x09\x00\x07" + PAIR[:7]])
def test_split_says_where_the_last_user_property_is(cut: bytes, other: bytes) -> None:
    """If it is the last property of those that travel on, whatever is cut out around it; else nowhere."""
    pair = b"\x26" + PAIR
    for raw, user_at in (
        (cut + pair, 0),
        (pair + cut, 0),
        (pair + cut + pair, len(pair)),
        (other + cut + pair, len(other)),
        (other + pair + cut, len(other)),
        (pair + cut + other, len(pair + other)),
        (pair + other + cut, len(pair + other)),
        (cut, 0),
    ):
        assert split_publish_properties(raw).user_at == user_at


def test_split_keeps_the_same_object_when_nothing_is_cut() -> None:
    """A block that travels whole is not copied."""
    raw = b"\x26\x00\x01a\x00\x01b\x01\x00"
    assert split_publish_properties(raw).kept is raw


def slow_split(raw: bytes) -> tuple[int | None, int | None, tuple[int, ...], Properties] | ReasonCode:
    """Return what the table makes of a PUBLISH's block, or the Reason Code with which it refuses it."""
    try:
        decoded, _ = decode_properties(with_length(raw), 0, packet=C.PUBLISH)
    except ProtocolError as error:
        return error.reason_code
    kept = dataclasses.replace(decoded, message_expiry_interval=None, topic_alias=None, subscription_identifier=())
    return decoded.message_expiry_interval, decoded.topic_alias, decoded.subscription_identifier, kept


def fast_split(raw: bytes) -> tuple[int | None, int | None, tuple[int, ...], Properties] | ReasonCode:
    """Return the same from `split_publish_block`."""
    try:
        kept, expiry_s, topic_alias, identifiers, user_at = split_publish_block(raw)
    except ProtocolError as error:
        return error.reason_code
    if topic_alias == 0:
        return ReasonCode.PROTOCOL_ERROR  # left to the decoder, which calls it Topic Alias invalid
    pairs = decode_properties(with_length(kept), 0, packet=C.PUBLISH)[0].user_property
    last = decode_properties(with_length(kept[user_at:]), 0, packet=C.PUBLISH)[0]
    assert last == Properties(user_property=pairs[-1:] if user_at < len(kept) else ())
    return expiry_s, topic_alias, identifiers, decode_properties(with_length(kept), 0, packet=C.PUBLISH)[0]


text_bytes = st.sampled_from([b"", b"a", "é".encode(), b"\0", b"\xed\xa0\x80", b"\xff", b"a/+", b"a/b"])
lengths = st.sampled_from([b"\x00\x00", b"\x00\x01", b"\x00\x02", b"\x01\x00"])
pieces = st.one_of(
    st.builds(lambda value: b"\x01" + value, st.sampled_from([b"\x00", b"\x01", b"\x02"])),
    st.builds(lambda value: b"\x02" + value.to_bytes(4, "big"), st.integers(0, 0xFFFF_FFFF)),
    st.builds(
        lambda identifier, text: bytes((identifier,)) + encode_binary(text),
        st.sampled_from([3, 8, 9]),
        text_bytes,
    ),
    st.builds(lambda value: b"\x0b" + encode_varint(value), st.integers(0, 300)),
    st.builds(lambda value: b"\x23" + value.to_bytes(2, "big"), st.integers(1, 65_535)),
    st.builds(lambda name, value: b"\x26" + encode_binary(name) + encode_binary(value), text_bytes, text_bytes),
    st.sampled_from([b"\x26\x00", b"\x03\x00\x05", b"\x02\x00", b"\x23", b"\x11\x00\x00\x00\x00", b"\x00", b"\xff"]),
    st.builds(lambda identifier, length: bytes((identifier,)) + length, st.integers(0, 0x2B), lengths),
)


@given(st.lists(pieces, max_size=5).map(b"".join))
@settings(max_examples=500)
def test_split_agrees_with_the_table(raw: bytes) -> None:
    """The fast way accepts what the table accepts, with the same values, and refuses the rest.

    Which fault is named may differ when a block has two of them; that it is one of the two kinds is enough.
    """
    fast, slow = fast_split(raw), slow_split(raw)
    if isinstance(slow, ReasonCode):
        assert fast in (ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)
    else:
        assert fast == slow


@given(st.data())
def test_split_of_legal_blocks(data: st.DataObject) -> None:
    """`kept` is empty or decodes, for whatever a PUBLISH may hold."""
    drawn = data.draw(properties(C.PUBLISH))
    encoded = encode_properties(drawn, packet=C.PUBLISH)
    raw = encoded[len(encode_varint(len(encoded) - 1)) :] if len(encoded) <= 128 else encoded[2:]
    expiry_s, topic_alias, identifiers, kept = slow_split(raw)  # type: ignore[misc]
    assert fast_split(raw) == (expiry_s, topic_alias, identifiers, kept)


@pytest.mark.timeout(30)
def test_time_is_linear_in_repeated_properties() -> None:
    """A packet full of properties that may be repeated is decoded in a moment; a quadratic way would take minutes."""
    user_properties = b"\x26\0\0\0\0" * 200_000
    found, _ = decode_properties(encode_varint(len(user_properties)) + user_properties, 0, packet=C.CONNECT)
    assert len(found.user_property) == 200_000
    assert split_publish_properties(b"\x0b\x01" * 500_000).subscription_identifiers == (1,) * 500_000


@pytest.mark.parametrize(
    ("raw", "reason_code"),
    [
        (b"\x0b\x00", ReasonCode.PROTOCOL_ERROR),  # Subscription Identifier 0
        (b"\x01\x02", ReasonCode.PROTOCOL_ERROR),
        (b"\x02\x00\x00\x00\x01" * 2, ReasonCode.PROTOCOL_ERROR),
        (b"\x23\x00\x01" * 2, ReasonCode.PROTOCOL_ERROR),
        (b"\x01\x00" * 2, ReasonCode.PROTOCOL_ERROR),
        (b"\x03\x00\x00" * 2, ReasonCode.PROTOCOL_ERROR),
        (b"\x08\x00\x01#", ReasonCode.PROTOCOL_ERROR),
        (b"\x08\x00\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\x08\x00\x01\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x03\x00\x02a", ReasonCode.MALFORMED_PACKET),
        (b"\x03\x00\x01\xff", ReasonCode.MALFORMED_PACKET),
        (b"\x09\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x26\x00\x01a\x00\x02b", ReasonCode.MALFORMED_PACKET),
        (b"\x26\x00\x01\x00\x00\x01b", ReasonCode.MALFORMED_PACKET),
        (b"\x26\x00\x01a\x00\x01\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x26\x00\x01a\x00\x01\xff", ReasonCode.MALFORMED_PACKET),
        (b"\x26\x00\x01\xff\x00\x01a", ReasonCode.MALFORMED_PACKET),
        (b"\x26\x00\x09a", ReasonCode.MALFORMED_PACKET),
        (b"\x1f\x00\x00", ReasonCode.MALFORMED_PACKET),  # Reason String in a PUBLISH
        (b"\x01", ReasonCode.MALFORMED_PACKET),
    ],
)
def test_split_refuses(raw: bytes, reason_code: ReasonCode) -> None:
    """The fast way names the fault as the table does."""
    assert slow_split(raw) is reason_code
    with refused(reason_code):
        split_publish_properties(raw)
