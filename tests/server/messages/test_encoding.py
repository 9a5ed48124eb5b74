"""Tests of the encoding of updates for receivers."""

from __future__ import annotations

from fanout.chain.stamp import split_trailer
from fanout.mqtt.decoder import Decoder, PublishRow, PublishRun
from fanout.replica.update import Stamp
from fanout.server.messages.encoding import (
    Message,
    WireVariant,
    encode_message,
    message_bytes,
    remaining_expiry_s,
)
from tests.server.node_in_memory import update

NOW_NS = 1_000_000_000_000
CONTENT_TYPE = b"\x03\x00\x04text"
STAMP = Stamp("p", 1, 2, 3)


def decode(frame: bytes, *, version: int) -> PublishRow:
    """Decode one PUBLISH."""
    decoder = Decoder(version=version, packet_bytes_max=1 << 20, role="client")
    (run,) = decoder.feed(frame)
    assert isinstance(run, PublishRun)
    (row,) = run.rows
    return row


def test_message_for_mqtt_5_has_properties_expiry_and_identifiers() -> None:
    """MQTT 5 gets the update's properties, what is left of its expiry, and the Subscription Identifiers."""
    message: Message = (
        update(b"t", b"p", properties=CONTENT_TYPE, expires_ns=NOW_NS + 5_000_000_000),
        0,
        False,
        (3, 200),
    )
    frame = encode_message(message, wire=WireVariant(5), now_ns=NOW_NS)
    assert decode(frame, version=5) == (b"t", b"p", 0, 0, CONTENT_TYPE, 5, 7)
    assert b"\x0b\x03\x0b\xc8\x01" in frame


def test_stamp_goes_only_to_those_who_asked() -> None:
    """The stamp is the last User Property for a receiver that asked, and absent for others."""
    message: Message = (update(b"t", b"p", properties=CONTENT_TYPE, stamp=STAMP), 0, False, ())
    stamped = decode(encode_message(message, wire=WireVariant(5, stamped=True), now_ns=NOW_NS), version=5)
    assert split_trailer(stamped[4], stamped[6]) == (CONTENT_TYPE, STAMP)
    plain = decode(encode_message(message, wire=WireVariant(5), now_ns=NOW_NS), version=5)
    assert plain[4] == CONTENT_TYPE


def test_remaining_expiry_is_rounded_up_and_never_negative() -> None:
    """What has just begun is sent in full, a part of a second counts as one, the past is 0 [MQTT-3.3.2-6]."""
    assert remaining_expiry_s(NOW_NS + 10_000_000_000, NOW_NS) == 10
    assert remaining_expiry_s(NOW_NS + 10_000_000_000, NOW_NS + 1) == 10
    assert remaining_expiry_s(NOW_NS + 10_000_000_000, NOW_NS + 1_000_000_000) == 9
    assert remaining_expiry_s(NOW_NS, NOW_NS + 5) == 0
    set_back_ns = NOW_NS - 10**18  # the longest interval is longer then than four bytes hold
    assert remaining_expiry_s(NOW_NS + 0xFFFF_FFFF * 10**9, set_back_ns) == 0xFFFF_FFFF


def test_message_bytes_counts_its_parts() -> None:
    """A message counts topic, payload and properties, and a fixed share."""
    small: Message = (update(b"t", b""), 0, False, ())
    large: Message = (update(b"topic", b"payload", properties=CONTENT_TYPE), 0, False, ())
    assert message_bytes(large) - message_bytes(small) == 4 + 7 + len(CONTENT_TYPE)
    assert message_bytes(small) > 1
