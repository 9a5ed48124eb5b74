"""The strict decoder itself: a table of packets that MQTT allows, and one of packets that it does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.encoding import encode_properties, encode_publish, encode_subscribe, packet, sized
from tests.oracle.packets import (
    PROPERTIES,
    Packet,
    Properties,
    Sender,
    ValueType,
    Violation,
    decode_packets,
    is_utf8,
    is_valid_filter,
    packet_length,
)

TOPIC = sized(b"t")


def test_nothing_of_the_product_is_imported() -> None:
    """The reader and the encoder stand on the specification alone."""
    for name in ("packets", "streams", "encoding"):
        tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text())
        found = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        found += [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
        assert not [one for one in found if one.split(".")[0] in {"fanout", "bench"}]


def one(data: bytes, *, version: int = 5, sender: Sender = "server") -> Packet:
    """Decode bytes that are one packet."""
    (decoded,) = decode_packets(data, version=version, sender=sender)
    return decoded


VALUES: dict[ValueType, object] = {
    ValueType.BYTE: 1,
    ValueType.TWO_BYTES: 300,
    ValueType.FOUR_BYTES: 70_000,
    ValueType.VARIABLE: 268_435_455,
    ValueType.STRING: "ä€𝄞".encode(),
    ValueType.BINARY: bytes(range(256)),
    ValueType.PAIR: (b"", "ä".encode()),
}


@pytest.mark.parametrize("identifier", PROPERTIES)
def test_every_property_is_read_by_its_type(identifier: int) -> None:
    """In a packet that may hold it, whatever stands around it; and not in one that may not."""
    rule = PROPERTIES[identifier]
    value = VALUES[rule.type]
    block = encode_properties(((0x15, b"m"), (0x16, b"d")) if identifier == 0x16 else ((identifier, value),))  # type: ignore[arg-type]
    makes: dict[str, tuple[Sender, bytes]] = {
        "PUBLISH": ("server", packet(0x30, TOPIC, block)),
        "CONNACK": ("server", packet(0x20, b"\0\0", block)),
        "SUBACK": ("server", packet(0x90, b"\0\1", block, b"\0")),
        "UNSUBACK": ("server", packet(0xB0, b"\0\1", block, b"\0")),
        "PUBACK": ("server", packet(0x40, b"\0\1\0", block)),
        "PUBREC": ("server", packet(0x50, b"\0\1\0", block)),
        "PUBREL": ("server", packet(0x62, b"\0\1\0", block)),
        "PUBCOMP": ("server", packet(0x70, b"\0\1\0", block)),
        "DISCONNECT": ("server", packet(0xE0, b"\x8b", block)),
        "CONNECT": ("client", packet(0x10, sized(b"MQTT"), b"\5\2\0\0", block, sized(b"c"))),
        "WILL": ("client", packet(0x10, sized(b"MQTT"), b"\5\6\0\0\0", sized(b"c"), block, TOPIC, sized(b"x"))),
        "SUBSCRIBE": ("client", packet(0x82, b"\0\1", block, TOPIC, b"\0")),
        "UNSUBSCRIBE": ("client", packet(0xA2, b"\0\1", block, TOPIC)),
    }
    allowed = 0
    for owner, (sender, data) in makes.items():
        if owner in (rule.server if sender == "server" else rule.client):
            decoded = one(data, sender=sender)
            holder = decoded.will if owner == "WILL" else decoded
            assert holder is not None
            assert (identifier, value) in holder.properties or identifier == 0x16
            allowed += 1
        else:
            with pytest.raises(Violation, match="does not belong"):
                one(data, sender=sender)
    assert allowed >= 1


VALID: list[tuple[int, Sender, bytes]] = [
    (5, "server", b"\x20\x03\x01\x00\x00"),
    (4, "server", b"\x20\x02\x00\x05"),
    (4, "server", b"\x30\x04\x00\x01tx"),
    (5, "server", b"\x30\x05\x00\x01t\x00x"),
    (5, "server", b"\x3b\x08\x00\x01t\xff\xff\x00\x00\x00"),
    (5, "server", b"\x30\x06\x00\x00\x03\x23\x00\x07"),
    (4, "server", b"\x40\x02\x00\x01"),
    (5, "server", b"\x40\x03\x00\x01\x10"),
    (5, "server", b"\x40\x04\x00\x01\x00\x00"),
    (5, "server", b"\x62\x03\x00\x01\x92"),
    (4, "server", b"\x90\x04\x00\x01\x02\x80"),
    (5, "server", b"\x90\x05\x00\x01\x00\x02\xa2"),
    (4, "server", b"\xb0\x02\x00\x01"),
    (5, "server", b"\xb0\x04\x00\x01\x00\x11"),
    (5, "server", b"\xd0\x00"),
    (5, "server", b"\xe0\x00"),
    (5, "server", b"\xe0\x02\x8b\x00"),
    (5, "server", b"\xf0\x06\x18\x04\x15\x00\x01m"),
    (5, "client", b"\xf0\x06\x19\x04\x15\x00\x01m"),
    (4, "client", b"\x82\x06\x00\x01\x00\x01#\x02"),
    (5, "client", b"\xc0\x00\xe0\x02\x04\x00"),
    (4, "client", b"\xe0\x00"),
]
"""Version, sender and bytes."""


@pytest.mark.parametrize(("version", "sender", "data"), VALID)
def test_valid_packets(version: int, sender: Sender, data: bytes) -> None:
    """They are read, and no prefix of them is a whole packet."""
    assert sum(each.size for each in decode_packets(data, version=version, sender=sender)) == len(data)
    with pytest.raises(Violation, match="cut off"):
        decode_packets(data[:-1], version=version, sender=sender)


INVALID: list[tuple[int, Sender, bytes, int, str]] = [
    # The fixed header.
    (5, "server", b"\x00\x00", 0, "reserved"),
    (4, "server", b"\xf0\x00", 0, "reserved"),
    (5, "server", b"\xd1\x00", 0, "flags 0001"),
    (5, "server", b"\x60\x02\x00\x01", 0, "flags 0000"),
    (5, "client", b"\x80\x06\x00\x01\x00\x00\x01#\x00", 0, "flags"),
    (5, "server", b"\x36\x05\x00\x01t\x00\x01", 0, "QoS is 3"),
    (5, "server", b"\x38\x04\x00\x01t\x00", 0, "DUP is set at QoS 0"),
    (5, "server", b"\xd0\x80\x00", 2, "shortest form"),
    (5, "server", b"\xd0\xff\xff\xff\xff\x7f", 1, "more than four bytes"),
    (5, "server", b"\xd0\x01\x00", 2, "1 bytes behind the end"),
    (5, "server", b"\xc0\x00", 0, "must not send PINGREQ"),
    (5, "client", b"\xd0\x00", 0, "must not send PINGRESP"),
    (4, "server", b"\xe0\x00", 0, "must not send DISCONNECT"),
    # PUBLISH.
    (5, "server", b"\x30\x01\x00", 2, "ends before its Topic Name"),
    (5, "server", b"\x30\x03\x00\x05t", 2, "longer than the packet"),
    (4, "server", b"\x30\x02\x00\x00", 4, "no Topic Name"),
    (5, "server", b"\x30\x03\x00\x00\x00", 2, "neither"),
    (4, "server", b"\x30\x04\x00\x02a+", 4, "no Topic Name"),
    (4, "server", b"\x30\x04\x00\x02a\x00", 4, "no Topic Name"),
    (4, "server", b"\x30\x05\x00\x03\xed\xa0\x80", 4, "no Topic Name"),
    (4, "server", b"\x30\x04\x00\x02\xc0\x80", 4, "no Topic Name"),
    (5, "server", b"\x32\x04\x00\x01t\x00", 5, "ends before its Packet Identifier"),
    (5, "server", b"\x32\x06\x00\x01t\x00\x00\x00", 5, "Packet Identifier is 0"),
    (5, "server", b"\x30\x03\x00\x01t", 5, "cut off"),
    (5, "server", b"\x30\x05\x00\x01t\x05x", 6, "beyond the packet"),
    (5, "server", b"\x30\x06\x00\x01t\x80\x00x", 6, "shortest form"),
    (5, "server", b"\x30\x08\x00\x01t\x02\x01\x01\xffx", 8, "not the UTF-8"),
    # Properties.
    (5, "server", b"\x30\x06\x00\x01t\x02\x04\x00", 6, "0x04 is no property"),
    (5, "server", b"\x30\x06\x00\x01t\x02\x01\x02", 6, "Payload Format Indicator is 2"),
    (5, "server", b"\x30\x08\x00\x01t\x04\x01\x00\x01\x00", 8, "there twice"),
    (5, "server", b"\x30\x07\x00\x01t\x03\x23\x00\x00", 6, "Topic Alias is 0"),
    (5, "server", b"\x30\x06\x00\x01t\x02\x0b\x00", 6, "Subscription Identifier is 0"),
    (5, "server", b"\x30\x07\x00\x01t\x03\x0b\x81\x00", 8, "shortest form"),
    (5, "client", b"\x30\x06\x00\x01t\x02\x0b\x01", 6, "does not belong into PUBLISH of a client"),
    (5, "server", b"\x30\x08\x00\x01t\x04\x02\x00\x00\x00", 7, "cut off"),
    (5, "server", b"\x30\x08\x00\x01t\x04\x09\x00\x02a", 7, "1 bytes beyond its end"),
    (5, "server", b"\x30\x09\x00\x01t\x05\x03\x00\x02\xff\xff", 9, "no UTF-8"),
    (5, "server", b"\x30\x0a\x00\x01t\x06\x26\x00\x01\x00\x00\x00", 9, "no UTF-8"),
    (5, "server", b"\x30\x09\x00\x01t\x05\x26\x00\x00\x00\x01x", 9, "1 bytes beyond its end"),
    (5, "server", b"\x30\x08\x00\x01t\x04\x08\x00\x01#", 6, "Response Topic"),
    (5, "server", b"\x30\x07\x00\x01t\x03\x08\x00\x00", 6, "Response Topic"),
    # Other packets.
    (5, "server", b"\x20\x03\x02\x00\x00", 2, "Connect Acknowledge Flags"),
    (5, "server", b"\x20\x03\x01\x87\x00", 0, "Session Present is set in a refusal"),
    (5, "server", b"\x20\x03\x00\x8b\x00", 3, "0x8B is no Reason Code of CONNACK"),
    (4, "server", b"\x20\x02\x00\x06", 3, "Return Code is 6"),
    (4, "server", b"\x20\x03\x00\x00\x00", 4, "behind the end"),
    (5, "server", b"\x20\x02\x00\x00", 4, "cut off"),
    (5, "server", b"\x20\x05\x00\x00\x02\x24\x02", 5, "Maximum QoS is 2"),
    (5, "server", b"\x20\x06\x00\x00\x03\x21\x00\x00", 5, "Receive Maximum is 0"),
    (5, "server", b"\x40\x03\x00\x01\x92", 4, "0x92 is no Reason Code of PUBACK"),
    (4, "server", b"\x40\x03\x00\x01\x00", 4, "behind the end"),
    (5, "server", b"\x70\x02\x00\x00", 2, "Packet Identifier is 0"),
    (5, "server", b"\x70\x01\x00", 3, "is missing"),
    (5, "server", b"\x90\x03\x00\x01\x00", 5, "without a Reason Code"),
    (5, "server", b"\x90\x04\x00\x01\x00\x03", 5, "0x03 is no Reason Code of SUBACK"),
    (4, "server", b"\x90\x03\x00\x01\x87", 4, "Return Code is 135"),
    (4, "server", b"\xb0\x03\x00\x01\x00", 4, "behind the end"),
    (5, "server", b"\xe0\x01\x04", 2, "0x04 is no Reason Code of DISCONNECT"),
    (5, "server", b"\xe0\x07\x00\x05\x11\x00\x00\x00\x01", 4, "does not belong into DISCONNECT of a server"),
    (5, "server", b"\xf0\x02\x18\x00", 0, "without an Authentication Method"),
    (5, "server", b"\xf0\x06\x18\x04\x16\x00\x01d", 8, "Authentication Data without"),
    (4, "client", b"\x82\x02\x00\x01", 4, "without a Topic Filter"),
    (4, "client", b"\x82\x07\x00\x01\x00\x02a#\x00", 4, "no Topic Filter"),
    (4, "client", b"\x82\x06\x00\x01\x00\x01#\x03", 7, "Subscription Options"),
    (4, "client", b"\x82\x06\x00\x01\x00\x01#\x04", 7, "Subscription Options"),
    (5, "client", b"\x82\x07\x00\x01\x00\x00\x01#\x30", 8, "Subscription Options"),
    (5, "client", encode_subscribe(1, [(b"$share/g/t", 4)], version=5), 17, "No Local for a shared subscription"),
    (4, "client", b"\xa2\x02\x00\x01", 4, "without a Topic Filter"),
    (4, "client", b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00", 0, "Protocol Name"),
    (4, "client", b"\x10\x0c\x00\x04MQTT\x06\x02\x00\x00\x00\x00", 8, "Protocol Level is 6"),
    (4, "client", b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", 9, "reserved Connect Flag"),
    (4, "client", b"\x10\x0c\x00\x04MQTT\x04\x22\x00\x00\x00\x00", 9, "flags of the Will"),
    (4, "client", b"\x10\x0c\x00\x04MQTT\x04\x42\x00\x00\x00\x00", 9, "password without a User Name"),
    (4, "client", b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00", 14, "empty Client Identifier"),
]
"""Version, sender, bytes, and the offset and the reason of the fault."""


@pytest.mark.parametrize(("version", "sender", "data", "offset", "reason"), INVALID)
def test_invalid_packets(version: int, sender: Sender, data: bytes, offset: int, reason: str) -> None:
    """They are refused with the place and the reason, also behind another packet."""
    ahead = b"\xd0\x00" if sender == "server" else b"\xc0\x00"
    for before in (b"", ahead):
        with pytest.raises(Violation) as caught:
            decode_packets(before + data, version=version, sender=sender)
        assert reason in caught.value.reason
        assert caught.value.offset == offset + len(before)


@pytest.mark.parametrize(
    ("topic_filter", "valid"),
    [
        (b"#", True),
        (b"+/+/#", True),
        (b"/", True),
        (b"a/#/b", False),
        (b"a+", False),
        (b"", False),
        (b"$share/g/a/#", True),
        (b"$share/g", False),
        (b"$share//a", False),
        (b"$share/+/a", False),
        (b"\xff", False),
    ],
)
def test_topic_filters(topic_filter: bytes, valid: bool) -> None:
    """Wildcards are whole levels, the multi-level one is the last, and a share has a name."""
    assert is_valid_filter(topic_filter) is valid


@given(st.binary(max_size=8))
def test_utf8_is_what_the_table_of_unicode_says(data: bytes) -> None:
    """Bytes are a string exactly when they are the encoding of code points that are no surrogates and not U+0000."""
    text = data.decode("utf-8", "surrogateescape")
    is_legal = not any(0xD800 <= ord(each) < 0xE000 or each == "\0" for each in text)
    assert is_utf8(data) is is_legal


@given(st.integers(0, 268_435_455))
def test_lengths(length: int) -> None:
    """Each length has one encoding, with as many bytes as table 1-1 says."""
    data = b"\x30"
    left = length
    while True:
        left, low = left >> 7, left & 0x7F
        data += bytes((low | (0x80 if left else 0),))
        if not left:
            break
    start = 2 + (length >= 128) + (length >= 16_384) + (length >= 2_097_152)
    assert packet_length(data, version=5) == (start, start + length)


PROPERTY = st.one_of(
    st.tuples(st.just(0x26), st.tuples(st.text().map(str.encode), st.text().map(str.encode))),
    st.tuples(st.just(0x0B), st.integers(1, 268_435_455)),
)


@given(
    st.text(min_size=1).filter(lambda text: not set(text) & set("+#\0")).map(str.encode),
    st.binary(),
    st.integers(0, 2),
    st.booleans(),
    st.lists(PROPERTY.filter(lambda each: b"\0" not in b"".join(each[1]) if isinstance(each[1], tuple) else True)),
)
def test_what_a_publish_says_is_read_back(
    topic: bytes, payload: bytes, qos: int, retain: bool, properties: list[tuple[int, int | tuple[bytes, bytes]]]
) -> None:
    """Topic, payload, flags and properties in their order."""
    wanted: Properties = tuple(properties)
    data = encode_publish(
        topic, payload, version=5, qos=qos, retain=retain, packet_id=7 if qos else 0, properties=wanted
    )
    read = one(data)
    assert (read.topic, read.payload, read.qos, read.retain, read.properties) == (topic, payload, qos, retain, wanted)
