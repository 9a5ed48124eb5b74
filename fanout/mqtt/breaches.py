"""Breaches of the specification by a server, and limits, that cost one message or nothing, never the connection.

`docs/reference/tolerance.md` has the rule for each packet; `fanout.mqtt.tolerance` implements them.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["SKIP_TEXTS", "Deviation", "SkipReason"]


class SkipReason(enum.StrEnum):
    """Reason to skip a message: it is acknowledged and not replicated."""

    INVALID_TOPIC = "invalid_topic"
    """The Topic Name breaks MQTT, or is missing."""
    MALFORMED = "malformed"
    """Another field of the PUBLISH is cut off or not allowed."""
    PACKET_TOO_LARGE = "packet_too_large"
    """The packet is larger than `packet_bytes_max` of the link."""
    TOPIC_TOO_LONG = "topic_too_long"
    """The local name, with the prefix, is longer than a Topic Name may be."""
    CLOSES_CONNECTION = "closes_connection"
    """A message of a local client that was forwarded: the primary closes the connection at it."""


SKIP_TEXTS: Final = {
    SkipReason.INVALID_TOPIC: "the Topic Name is not valid",
    SkipReason.MALFORMED: "the PUBLISH is malformed",
    SkipReason.PACKET_TOO_LARGE: "larger than packet_bytes_max",
    SkipReason.TOPIC_TOO_LONG: "the local name is longer than 65,535 bytes",
    SkipReason.CLOSES_CONNECTION: "published by a local client, and the primary closes the connection at it",
}
"""The reasons for an operator."""


class Deviation(enum.StrEnum):
    """Breach of the specification that costs no message."""

    PROPERTY = "property"
    """A property of a PUBLISH is not allowed; the message is delivered without it."""
    FLAGS = "flags"
    """Flags of a fixed header, or the form of its length, are wrong; they are ignored."""
    FIELD = "field"
    """A field of another packet is wrong; the rest of the packet counts."""
    PACKET = "packet"
    """A packet does not belong there; it is ignored."""
    RECEIVE_MAXIMUM = "receive_maximum"
    """More messages were under way than the link's Receive Maximum; they are taken."""
