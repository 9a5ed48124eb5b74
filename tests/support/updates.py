"""Updates of a replica, and rows of a primary."""

from __future__ import annotations

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.properties import split_publish_properties
from fanout.replica.update import Stamp, Update, content_digest

__all__ = ["NOW_NS", "row", "update"]

NOW_NS = 1_700_000_000_000_000_000
"""A Unix time in nanoseconds."""


def update(
    topic: bytes,
    payload: bytes = b"1",
    *,
    retain: bool = True,
    properties: bytes = b"",
    received_ns: int = NOW_NS,
    expires_ns: int = 0,
    stamp: Stamp | None = None,
    prefix: bytes = b"",
) -> Update:
    """Return an update at QoS 1 of the local topic `prefix + topic`."""
    digest = content_digest(topic, payload)
    return (prefix + topic, payload, 1, retain, properties, received_ns, expires_ns, digest, stamp)


def row(
    topic: bytes,
    payload: bytes = b"1",
    *,
    flags: int = 1,
    packet_id: int = 0,
    properties: bytes = b"",
    expiry_s: int | None = None,
) -> PublishRow:
    """Return a PUBLISH as the decoder gives it."""
    return (topic, payload, flags, packet_id, properties, expiry_s, split_publish_properties(properties).user_at)
