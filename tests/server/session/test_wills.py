"""Tests of Will Messages."""

from __future__ import annotations

from fanout.mqtt.packets import Will as WillPacket
from fanout.mqtt.properties import Properties, split_publish_properties
from fanout.server.session.wills import WillMessage, will_of


def test_will_becomes_a_row() -> None:
    """A Will Message is published like any PUBLISH of its topic, payload, QoS and RETAIN."""
    assert will_of(WillPacket(b"t", b"p", qos=2, retain=True)) == WillMessage((b"t", b"p", 0b101, 0, b"", None, 0), 0)


def test_will_properties_go_along() -> None:
    """All properties that a PUBLISH may have are kept; expiry and delay are taken out."""
    long_value = "x" * 200
    properties = Properties(
        will_delay_interval=7,
        message_expiry_interval=60,
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"c",
        user_property=(("a", "1"), ("a", long_value)),
    )
    will = will_of(WillPacket(b"t", b"p", properties=properties))
    assert will.delay_s == 7
    assert will.row[5] == 60
    assert split_publish_properties(will.row[4]).kept == will.row[4]
    assert long_value.encode() in will.row[4]
    assert b"text/plain" in will.row[4]
