"""MQTT 5, section 3.3: the bytes of a PUBLISH."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.mqtt.data_representation import MAX_VARINT
from fanout.mqtt.decoder import Decoder, PublishRun
from fanout.mqtt.packet_types import PacketType
from fanout.mqtt.properties import Properties, encode_properties
from fanout.mqtt.publish import encode_publish
from tests.mqtt.strategies import topic_names


def test_the_example_of_the_specification() -> None:
    """Topic `a/b`, QoS 1, Packet Identifier 10: figures 3-8 and 3-9, in both versions."""
    assert encode_publish(b"a/b", b"!", version=4, qos=1, packet_id=10) == b"\x32\x08\x00\x03a/b\x00\x0a!"
    assert encode_publish(b"a/b", b"!", version=5, qos=1, packet_id=10) == b"\x32\x09\x00\x03a/b\x00\x0a\x00!"


def test_properties_are_put_together() -> None:
    """Kept properties come first, then expiry, then the Subscription Identifiers."""
    encoded = encode_publish(
        b"a",
        b"x",
        version=5,
        properties=b"\x01\x01",
        expiry_s=5,
        subscription_identifiers=(1, 128),
    )
    assert encoded == b"\x30\x11\x00\x01a\x0c\x01\x01\x02\x00\x00\x00\x05\x0b\x01\x0b\x80\x01x"


@pytest.mark.parametrize("payload_bytes", [0, 1, 120, 121, 122, 123, 124, 125, 126, 127, 16_370, 16_390, 2_097_160])
@pytest.mark.parametrize("version", [4, 5])
def test_remaining_length_of_every_size(payload_bytes: int, version: int) -> None:
    """The Remaining Length is right and shortest around each of its limits [MQTT-1.5.5-1]."""
    encoded = encode_publish(b"a", bytes(payload_bytes), version=version)
    decoder = Decoder(version=version, packet_bytes_max=len(encoded), role="client")
    assert decoder.feed(encoded) == [PublishRun([(b"a", bytes(payload_bytes), 0, 0, b"", None, 0)])]
    assert decoder.fault is None
    length_bytes = 1 + sum(len(encoded) - 2 - extra >= 1 << 7 * (1 + extra) for extra in range(3))
    assert encoded[1 + length_bytes : 4 + length_bytes] == b"\x00\x01a"


def test_too_long_to_say() -> None:
    """A packet beyond the largest Remaining Length is our mistake."""

    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_VARINT

    with pytest.raises(ValueError, match="does not fit"):
        encode_publish(b"a", Huge(), version=5)


@given(
    topic_names,
    st.binary(max_size=200),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 65_535),
    st.none() | st.integers(0, 0xFFFF_FFFF),
    st.lists(st.integers(1, MAX_VARINT), max_size=3),
    st.sampled_from([4, 5]),
)
@settings(max_examples=300)
def test_decodes_to_what_was_encoded(
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    packet_id: int,
    expiry_s: int | None,
    identifiers: list[int],
    version: int,
) -> None:
    """A row of the decoder holds what went in; Subscription Identifiers do not travel further."""
    kept = encode_properties(Properties(user_property=(("k", "v"),)), packet=PacketType.PUBLISH)[1:]
    encoded = encode_publish(
        topic,
        payload,
        version=version,
        qos=qos,
        retain=retain,
        dup=qos > 0,
        packet_id=packet_id,
        properties=kept,
        expiry_s=expiry_s,
        subscription_identifiers=identifiers,
    )
    row = (
        topic,
        payload,
        (qos > 0) << 3 | qos << 1 | retain,
        packet_id if qos else 0,
        kept if version == 5 else b"",
        expiry_s if version == 5 else None,
        0,
    )
    decoder = Decoder(version=version, packet_bytes_max=10_000, role="client")
    assert decoder.feed(encoded) == [PublishRun([row])]
