"""The stamp as a User Property: encoded last, taken off again, and never invented."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanout.chain.stamp import (
    Count,
    StampCount,
    TrailerReader,
    as_copy,
    decode_count,
    encode_stamp,
    has_copies,
    is_copy,
    split_publisher_stamp,
    split_trailer,
    with_trailer,
)
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.properties import split_publish_properties
from fanout.replica.update import Stamp
from tests.server.node_in_memory import update

YEAR_10000_US = 253_402_300_800_000_000

STAMP = Stamp("plant-1", 1_700_000_000_000_000, 42, 1_700_000_000_123_456)

stamps = st.builds(
    Stamp,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    st.integers(0, 10**18 - 1),
    st.integers(1, 10**18 - 1),
    st.integers(0, YEAR_10000_US - 1),
)


EMPTY = b"\x26\x00\x0cfanout-stamp\x00\x00"


def row(properties: bytes) -> PublishRow:
    """Return a PUBLISH with these properties as the decoder gives it."""
    kept, expiry_s, _, _, user_at = split_publish_properties(properties)
    return (b"plant/1", b"x", 1, 0, kept, expiry_s, user_at)


def user(name: bytes, value: bytes) -> bytes:
    """Return an encoded User Property."""
    return b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


def correlation(data: bytes) -> bytes:
    """Return an encoded Correlation Data."""
    return b"\x09" + len(data).to_bytes(2, "big") + data


OURS = st.one_of(
    stamps.map(encode_stamp),
    stamps.map(lambda stamp: with_trailer(b"", as_copy(update(b"t", b"x", stamp=stamp))[8])),
    st.sampled_from([b"", b";copy", b"x", b"a:1:2"]).map(lambda value: user(b"fanout-stamp", value)),
)
"""Properties that look like a trailer."""

blocks = st.lists(
    st.one_of(
        OURS,
        st.tuples(st.binary(max_size=9), OURS, st.binary(max_size=9)).map(lambda parts: correlation(b"".join(parts))),
        st.sampled_from([user(b"unit", b"K"), user(b"fanout-copy", b"1"), b"\x01\x01", b"\x03\x00\x01t"]),
    ),
    max_size=4,
    unique_by=lambda block: block[0] if block[0] != 0x26 else block,
).map(b"".join)
"""Properties of a message, as a publisher may choose them."""


@given(blocks, st.none() | stamps, st.booleans(), st.sampled_from([b"", b"\x02\x00\x00\x00\x09\x0b\x07"]))
def test_a_node_gets_the_properties_that_were_sent_to_it(
    properties: bytes, stamp: Stamp | None, copy: bool, behind: bytes
) -> None:
    """Whatever a message holds: its properties, its stamp, and whether it is a copy; the server adds more behind."""
    sent = update(b"t", b"x", properties=properties, stamp=stamp)
    came = row(with_trailer(properties, (as_copy(sent) if copy else sent)[8]) + behind)
    assert split_trailer(came[4], came[6]) == (properties, stamp)
    assert is_copy(came) is copy
    assert has_copies([row(b""), came]) or not copy


alike = st.builds(
    lambda stamp, tail: user(b"fanout-stamp", b"%s:%d:%s" % (stamp.primary.encode(), stamp.epoch, tail)),
    st.sampled_from([STAMP, STAMP._replace(primary="a" * 20), STAMP._replace(epoch=0)]),
    st.from_regex(rb"[0-9:]{0,3}[0-9]{1,18}:[0-9;]{1,19}(;copy)?", fullmatch=True),
)
"""Properties that begin like a stamp that came before, most of them stamps themselves."""


@given(st.lists(st.one_of(alike, st.tuples(blocks, st.none() | stamps).map(lambda sent: with_trailer(*sent)))))
@example([user(b"fanout-stamp", b"a:1:%s:1" % digits) for digits in (b"1", b"2", b"1_0", b" 9", b"+3", b"")])
@example([user(b"fanout-stamp", b"a:1:1:%s" % digits) for digits in (b"1", b"9" * 18, b"9" * 19, b"-1", b"1:1")])
@example([user(b"fanout-stamp", b"a" * name + b":1:1:1") for name in (52, 52, 51)])
def test_a_reader_of_many_trailers_says_what_is_said_of_each(sent: list[bytes]) -> None:
    """Whatever came before: among stamps whose length looks like a colon, too."""
    reader = TrailerReader()
    for properties in sent:
        came = row(properties)
        assert reader.split(came[4], came[6]) == split_trailer(came[4], came[6])


def test_stamps_of_a_primary_share_what_they_have_in_common() -> None:
    """A million retained values hold its name once."""
    reader = TrailerReader()
    first, second = (reader.split(encode_stamp(STAMP._replace(sequence=count)), 0)[1] for count in (1, 2))
    assert first is not None
    assert second is not None
    assert first.primary is second.primary
    assert first.epoch is second.epoch


def test_others_are_no_copies() -> None:
    """Neither without properties, nor with others; and then nothing needs a second look."""
    others = [row(b""), row(user(b"unit", b"K")), row(encode_stamp(STAMP)), row(user(b"fanout-copy", b"1"))]
    assert not has_copies(others)
    assert not any(map(is_copy, others))


def test_a_copy_is_shown_as_text() -> None:
    """Any MQTT 5 tool can show the mark; behind the stamp, or alone."""
    value = update(b"t", b"x", stamp=Stamp("hub", 1, 2, 3))
    assert with_trailer(b"", as_copy(value)[8]) == user(b"fanout-stamp", b"hub:1:2:3;copy")
    assert with_trailer(b"", as_copy(update(b"t", b"x"))[8]) == user(b"fanout-stamp", b";copy")


def test_an_empty_trailer_stands_where_it_is_needed() -> None:
    """Behind what looks like a trailer, and nowhere else."""
    assert with_trailer(b"", None) == b""
    assert with_trailer(user(b"unit", b"K"), None) == user(b"unit", b"K")
    assert with_trailer(encode_stamp(STAMP), None) == encode_stamp(STAMP) + EMPTY
    assert with_trailer(EMPTY, STAMP) == EMPTY + encode_stamp(STAMP)


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
        correlation(b"abc" + encode_stamp(STAMP)),
        user(b"fanout-stamp", b"a:b:c"),
        user(b"fanout-stamp", b"1:2:3:x"),
        user(b"fanout-stamp", b"a:1:1:" + b"9" * 19),
        user(b"fanout-stamp", b"a:1:1:1;"),
        user(b"fanout-stamps", b"1"),
        encode_stamp(STAMP._replace(origin_us=YEAR_10000_US)),
        encode_stamp(STAMP._replace(primary="../plant")),
        encode_stamp(STAMP._replace(primary="a:b")),
        encode_stamp(STAMP._replace(primary="a" * 65)),
    ],
)
def test_what_is_no_stamp_stays(properties: bytes) -> None:
    """Nothing is taken for a stamp that is not one, whole, at the end."""
    came = row(properties)
    assert split_trailer(came[4], came[6]) == (properties, None)
    assert split_publisher_stamp(came[4], came[6]) == (properties, None)


@pytest.mark.parametrize("value", [b"", b";copy", b"hub:1:2:3;copy"])
def test_what_nodes_tell_each_other_is_no_stamp_of_a_publisher(value: bytes) -> None:
    """A publisher can say who published when, and nothing else."""
    came = row(user(b"fanout-stamp", value))
    assert split_publisher_stamp(came[4], came[6]) == (came[4], None)
    stamped = row(user(b"unit", b"K") + encode_stamp(STAMP))
    assert split_publisher_stamp(stamped[4], stamped[6]) == (user(b"unit", b"K"), STAMP)


def test_count_is_read_as_it_is_written() -> None:
    """Whose count, since when, and how far; anything else is none."""
    count = StampCount(node="plant-1", epoch=7)
    assert decode_count(str(count.now)) == Count("plant-1", 7, 0)
    for text in (None, "", "plant-1:7", "plant-1:7:x", "plant-1:7:1:2", "a/b:7:1"):
        assert decode_count(text) is None
