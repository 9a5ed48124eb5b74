"""Tests of the Topic Aliases that a client is sent."""

from __future__ import annotations

from fanout.mqtt.publish import encode_publish
from fanout.server.client.topic_aliases import TopicAliases


def test_only_publishs_are_rewritten() -> None:
    """Other packets pass as they are; the first topics get the aliases."""
    aliases = TopicAliases(1, packet_bytes_max=0)
    first = encode_publish(b"topic", b"x" * 200, version=5, qos=1, packet_id=7)
    other = encode_publish(b"other", b"x", version=5)
    data = aliases.rewrite(b"\xd0\x00" + first + other + first)
    length = len(first) - 3 + 3
    alias = b"\x03\x23\x00\x01"
    assert data == b"".join(
        (
            b"\xd0\x00",
            bytes((0x32, length & 0x7F | 0x80, length >> 7)) + b"\x00\x05topic\x00\x07" + alias + b"x" * 200,
            other,
            bytes((0x32, length - 5 & 0x7F | 0x80, length - 5 >> 7)) + b"\x00\x00\x00\x07" + alias + b"x" * 200,
        )
    )
