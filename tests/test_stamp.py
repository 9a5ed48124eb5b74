"""The stamp as a User Property: encoded last, taken off again, and never invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.replica.update import Stamp
from fanout.stamp import Count, StampCount, decode_count, encode_stamp, split_stamp

YEAR_10000_US = 253_402_300_800_000_000

STAMP = Stamp("plant-1", 1_700_000_000_000_000, 42, 1_700_000_000_123_456)

stamps = st.builds(
    Stamp,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    st.integers(0, 10**18 - 1),
    st.integers(1, 10**18 - 1),
    st.integers(0, YEAR_10000_US - 1),
)


@given(stamps, st.binary(max_size=40))
def test_split_returns_what_was_encoded(stamp: Stamp, before: bytes) -> None:
    """A stamp survives the way over the wire, and the properties in front of it stay as they were."""
    assert split_stamp(before + encode_stamp(stamp)) == (before, stamp)


def test_encode_is_one_user_property() -> None:
    """The encoding is identifier 0x26, then name and value as UTF-8 strings with their lengths."""
    encoded = encode_stamp(STAMP)
    assert encoded[:15] == b"\x26\x00\x0cfanout-stamp"
    value = encoded[17:]
    assert int.from_bytes(encoded[15:17], "big") == len(value)
    assert value == b"plant-1:1700000000000000:42:1700000000123456"


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"\x01\x01",
        encode_stamp(STAMP) + b"\x01\x01",
        encode_stamp(STAMP)[:-1],
        b"\x26\x00\x0cfanout-stamp\x00\x05a:b:c",
        b"\x26\x00\x0cfanout-stamp\x00\x071:2:3:x",
        b"\x26\x00\x0cfanout-stamp",
        b"\x26\x00\x0cfanout-stamp\x00\x19a:1:1:" + b"9" * 19,
        encode_stamp(STAMP._replace(origin_us=YEAR_10000_US)),
        encode_stamp(STAMP._replace(primary="")),
        encode_stamp(STAMP._replace(primary="../plant")),
        encode_stamp(STAMP._replace(primary="a:b")),
        encode_stamp(STAMP._replace(primary="a" * 65)),
    ],
)
def test_split_leaves_properties_without_a_stamp(properties: bytes) -> None:
    """Nothing is taken for a stamp that is not one, whole, at the end."""
    assert split_stamp(properties) == (properties, None)


def test_count_is_read_as_it_is_written() -> None:
    """Whose count, since when, and how far; anything else is none."""
    count = StampCount(node="plant-1", epoch=7)
    assert decode_count(str(count.now)) == Count("plant-1", 7, 0)
    for text in (None, "", "plant-1:7", "plant-1:7:x", "plant-1:7:1:2", "a/b:7:1"):
        assert decode_count(text) is None
