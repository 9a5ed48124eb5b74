"""MQTT 5, section 1.5: the data types, one value at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.mqtt.data_representation import (
    MAX_STRING_BYTES,
    MAX_VARINT,
    decode_binary,
    decode_string,
    decode_u16,
    decode_u32,
    decode_varint,
    encode_binary,
    encode_string,
    encode_varint,
)
from fanout.mqtt.reason_codes import ReasonCode
from tests.mqtt.strategies import blobs, refused, texts


@given(st.integers(0, MAX_VARINT))
def test_varint_round_trip(value: int) -> None:
    """Every value survives, in its shortest form [MQTT-1.5.5-1]."""
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0) == (value, len(encoded))
    assert len(encoded) == 1 + sum(value >= limit for limit in (1 << 7, 1 << 14, 1 << 21))


@pytest.mark.parametrize("value", [-1, MAX_VARINT + 1])
def test_varint_out_of_range(value: int) -> None:
    """A value that four bytes cannot hold is our mistake."""
    with pytest.raises(ValueError, match="does not fit"):
        encode_varint(value)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\x80",
        b"\xff\xff\xff",
        b"\x80\x00",
        b"\xff\x80\x80\x00",
        b"\x80\x80\x80\x80\x01",
        b"\xff\xff\xff\xff",
    ],
    ids=bytes.hex,
)
def test_varint_malformed(encoded: bytes) -> None:
    """A Variable Byte Integer that is cut off, too long or not the shortest [MQTT-1.5.5-1] is malformed."""
    with refused(ReasonCode.MALFORMED_PACKET):
        decode_varint(encoded, 0)


CUT_OFF: list[tuple[Callable[[bytes, int], object], bytes]] = [
    (decode_u16, b"\x01"),
    (decode_u32, b"\x01\x02\x03"),
    (decode_binary, b"\x00"),
    (decode_binary, b"\x00\x03ab"),
    (decode_string, b"\x00\x03ab"),
]


@pytest.mark.parametrize(("decode", "data"), CUT_OFF)
def test_cut_off(decode: Callable[[bytes, int], object], data: bytes) -> None:
    """A value that ends before its length says is malformed."""
    with refused(ReasonCode.MALFORMED_PACKET):
        decode(data, 0)


@given(texts, blobs)
def test_string_and_binary_round_trip(text: str, data: bytes) -> None:
    """Strings and binary data survive, one behind the other."""
    encoded = encode_string(text) + encode_binary(data)
    assert decode_string(encoded, 0) == (text, 2 + len(text.encode()))
    assert decode_binary(encoded, 2 + len(text.encode())) == (data, len(encoded))


def test_string_of_the_longest_length() -> None:
    """65,535 bytes fit, one more does not (sections 1.5.4 and 1.5.6)."""
    assert decode_string(encode_string("x" * MAX_STRING_BYTES), 0)[1] == 2 + MAX_STRING_BYTES
    with pytest.raises(ValueError, match="65536 bytes"):
        encode_binary(bytes(MAX_STRING_BYTES + 1))


def test_string_keeps_the_byte_order_mark() -> None:
    """U+FEFF is never stripped [MQTT-1.5.4-3]."""
    assert decode_string(b"\x00\x04\xef\xbb\xbfA", 0) == ("\ufeffA", 6)


@pytest.mark.parametrize(
    "encoded",
    [
        b"a\x00b",  # U+0000 [MQTT-1.5.4-2]
        b"\xed\xa0\x80",  # the surrogate U+D800 [MQTT-1.5.4-1]
        b"\xed\xbf\xbf",  # the surrogate U+DFFF
        b"\xc0\x80",  # U+0000 in two bytes
        b"\xc0\xaf",  # an overlong "/"
        b"\xf4\x90\x80\x80",  # above U+10FFFF
        b"\xff",
        b"\xe2\x82",  # cut off in a character
    ],
    ids=bytes.hex,
)
def test_string_ill_formed(encoded: bytes) -> None:
    """Ill-formed UTF-8 and U+0000 are malformed [MQTT-1.5.4-1] [MQTT-1.5.4-2]."""
    with refused(ReasonCode.MALFORMED_PACKET):
        decode_string(encode_binary(encoded), 0)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_string_that_cannot_be_encoded(text: str) -> None:
    """U+0000 and surrogates in our own text are our mistake."""
    with pytest.raises(ValueError, match=r"U\+0000|surrogates"):
        encode_string(text)
