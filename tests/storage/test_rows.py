"""One retained value as the file has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.replica.update import Stamp, Update
from fanout.storage.rows import decode_update, encode_value

uint64 = st.integers(0, 2**64 - 1)
stamps = st.none() | st.builds(Stamp, st.text(max_size=64), uint64, uint64, uint64)
updates = st.tuples(
    st.binary(min_size=1),
    st.binary(min_size=1),
    st.integers(0, 2),
    st.just(True),
    st.binary() | st.integers(65_534, 65_537).map(bytes) | st.integers(65_536, 300_000).map(bytes),
    uint64,
    uint64,
    uint64,
    stamps,
)


@given(updates)
def test_a_value_comes_back_as_it_was(update: Update) -> None:
    """Payload, QoS, properties, times, digest and stamp are kept."""
    assert decode_update(update[0], encode_value(update)) == update


@pytest.mark.parametrize("stamp", [None, Stamp("hub", 1, 2, 3)])
@pytest.mark.parametrize("properties", [b"properties", bytes(65_536)])
def test_a_value_that_is_cut_off_is_refused(stamp: Stamp | None, properties: bytes) -> None:
    """Less than a head, a stamp and properties, and one byte of payload, is no value."""
    value = encode_value((b"a", b"p", 1, True, properties, 1, 0, 2, stamp))
    for length in {*range(min(100, len(value))), len(value) - 1}:
        with pytest.raises(ValueError, match=r"too short|unpack"):
            decode_update(b"a", value[:length])


def test_a_long_head_does_not_hide_a_wrong_qos() -> None:
    """The mark of long properties stands beside the QoS, which is looked at all the same."""
    value = encode_value((b"a", b"p", 1, True, bytes(70_000), 1, 0, 2, None))
    assert value[0] == 0x81
    for wrong in (b"\x83", b"\xff", b"\x91"):
        with pytest.raises(ValueError, match="QoS"):
            decode_update(b"a", wrong + value[1:])
