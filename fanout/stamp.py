"""How the identity of an update travels between fanout nodes: one MQTT 5 User Property, the last of a PUBLISH.

Owns its encoding and nothing else; who stamps, and who asks for stamps, is the node's business (`docs/architecture.md`,
"Update identity"). The value is text, so that any MQTT tool shows it: `primary:epoch:sequence:origin_us`. A node
identifier has no colon, which `fanout.config` enforces.
"""

from __future__ import annotations

import struct

from fanout.replica.update import Stamp

__all__ = ["ASK_FOR_STAMPS", "NODE_PROPERTY", "STAMP_PROPERTY", "encode_stamp", "split_stamp"]

STAMP_PROPERTY = "fanout-stamp"
"""Name of the User Property that carries a stamp."""

ASK_FOR_STAMPS = ("fanout-stamps", "1")
"""User Property of CONNECT by which a link asks for stamps, and of CONNACK by which a server promises them."""

NODE_PROPERTY = "fanout-node"
"""Name of the User Property by which both ends of a link tell their node identifier."""

_HEAD = b"\x26" + struct.pack(">H", len(STAMP_PROPERTY)) + STAMP_PROPERTY.encode()  # 0x26: User Property
_VALUE_AT = len(_HEAD) + 2
_DIGITS_MAX = 18
"""Numbers stay below 10**18, so that they fit 64 signed bits; microseconds reach that in the year 33658."""


def encode_stamp(stamp: Stamp) -> bytes:
    """Return `stamp` as one encoded User Property (MQTT 5, section 3.3.2.3.7), to be put behind all others."""
    value = f"{stamp.primary}:{stamp.epoch}:{stamp.sequence}:{stamp.origin_us}".encode()
    return _HEAD + len(value).to_bytes(2, "big") + value


def split_stamp(properties: bytes) -> tuple[bytes, Stamp | None]:
    """Take the stamp off the end of a PUBLISH's properties.

    Args:
        properties: Encoded properties without their length, as the codec hands them over.

    Returns:
        The properties in front of the stamp, and the stamp; the same properties and None when the last one is not a
        well-formed stamp.
    """
    at = properties.rfind(_HEAD)
    if at < 0:
        return properties, None
    start = at + _VALUE_AT
    if start + int.from_bytes(properties[start - 2 : start], "big") != len(properties):
        return properties, None
    parts = properties[start:].decode("utf-8", "replace").split(":")
    if len(parts) != 4 or not all(
        part.isdecimal() and part.isascii() and len(part) <= _DIGITS_MAX for part in parts[1:]
    ):
        return properties, None
    return properties[:at], Stamp(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))
