"""Tests of the check of the Payload Format Indicator."""

from __future__ import annotations

import pytest

from fanout.server.client.payload_format import breaks_payload_format

STRINGS = b"\x26\x00\x02\x01\x01\x00\x02\x01\x01" + b"\x03\x00\x02\x01\x01"


@pytest.mark.parametrize(
    ("payload", "properties", "broken"),
    [
        (b"\xff", b"", False),
        (b"\xff", b"\x01\x01", True),
        (b"\xff", STRINGS, False),
        (b"\xff", STRINGS + b"\x01\x00", False),
        (b"\xff", STRINGS + b"\x01\x01", True),
        ("ä".encode(), STRINGS + b"\x01\x01", False),
        (b"a", b"\x01\x01", False),
    ],
)
def test_payload_is_checked_when_it_is_said_to_be_text(payload: bytes, properties: bytes, broken: bool) -> None:
    """Only the indicator itself counts, not bytes like it in other properties, and only a payload that is no UTF-8."""
    assert breaks_payload_format((b"t", payload, 0, 0, properties, None, 0)) is broken
