"""How an update gets its identity, and how that travels: one MQTT 5 User Property, the last of a PUBLISH.

Owns the encoding and the node's count; who stamps, and who asks for stamps, is the node's business
(`docs/architecture.md`, "Update identity"). The value is text, so that any MQTT tool shows it:
`primary:epoch:sequence:origin_us`, where `primary` is a name as `fanout.config` allows for nodes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fanout.replica.update import Stamp, Update

__all__ = [
    "ASK_FOR_STAMPS",
    "COUNT_PROPERTY",
    "NODE_PROPERTY",
    "STAMP_HEAD",
    "STAMP_PROPERTY",
    "Count",
    "StampCount",
    "decode_count",
    "encode_stamp",
    "split_stamp",
]

STAMP_PROPERTY = "fanout-stamp"
"""Name of the User Property that carries a stamp."""

ASK_FOR_STAMPS = ("fanout-stamps", "1")
"""User Property of CONNECT by which a link asks for stamps, and of CONNACK by which a server promises them."""

NODE_PROPERTY = "fanout-node"
"""Name of the User Property by which both ends of a link tell their node identifier."""

COUNT_PROPERTY = "fanout-count"
"""Name of the User Property of CONNACK by which a `fanout primary` tells a link how far it has counted."""

STAMP_HEAD = b"\x26" + struct.pack(">H", len(STAMP_PROPERTY)) + STAMP_PROPERTY.encode()  # 0x26: User Property
"""How an encoded stamp begins: properties without this have none."""

_VALUE_AT = len(STAMP_HEAD) + 2
_NAME = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})"
_VALUE = re.compile(_NAME.encode() + rb":([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")
"""The name is one that a node could have, since it becomes part of file names. Numbers stay below 10**18, so that they
fit 64 signed bits; microseconds reach that in the year 33658."""

_ORIGIN_US_END = 253_402_300_800_000_000
"""The year 10000, from which on a time is none to what reads the log."""


_COUNT = re.compile(_NAME + r":([0-9]{1,18}):([0-9]{1,18})")


class Count(NamedTuple):
    """How far a node has counted what it stamped."""

    primary: str
    """The node that stamps."""
    epoch: int
    """The epoch of its stamps."""
    sequence: int
    """Sequence of its newest stamp; 0 before the first."""

    def __str__(self) -> str:
        return f"{self.primary}:{self.epoch}:{self.sequence}"


def decode_count(text: str | None) -> Count | None:
    """Return what the User Property says; None when it is missing or is none."""
    match = _COUNT.fullmatch(text or "")
    return None if match is None else Count(match[1], int(match[2]), int(match[3]))


class StampCount:
    """The one count of a node's stamps, for all that stamps in it.

    Attributes:
        sequence: Sequence of the newest stamp; 0 before the first.
    """

    def __init__(self, *, node: str, epoch: int) -> None:
        """Start at 1.

        Args:
            node: The node that stamps.
            epoch: Unix time in microseconds at which it started: the epoch of its stamps.
        """
        self.node = node
        self.epoch = epoch
        self.sequence = 0

    @property
    def now(self) -> Count:
        """How far it has counted."""
        return Count(self.node, self.epoch, self.sequence)

    def complete(self, updates: Sequence[Update], *, live: bool) -> list[Update]:
        """Return updates of a primary that does not stamp with this node's stamps, in order.

        A stamp that the publisher gave stays, unless it claims to be this node's. Only live updates get a stamp: what
        an update a retained copy is of is not known.

        Args:
            updates: One batch; all were received at the same time.
            live: Whether they are live updates.
        """
        # Measured (2 shared cores, Python 3.11): 0.4 us an update.
        node, epoch, sequence = self.node, self.epoch, self.sequence
        origin_us = updates[0][5] // 1000 if updates else 0
        completed: list[Update] = []
        append = completed.append
        for update in updates:
            topic, payload, qos, retain, properties, received_ns, expires_ns, digest, stamp = update
            if stamp is not None and stamp.primary != node:
                append(update)
                continue
            if live:
                sequence += 1
                stamp = Stamp(node, epoch, sequence, origin_us)
            else:
                stamp = None
            append((topic, payload, qos, retain, properties, received_ns, expires_ns, digest, stamp))
        self.sequence = sequence
        return completed


def encode_stamp(stamp: Stamp) -> bytes:
    """Return `stamp` as one encoded User Property (MQTT 5, section 3.3.2.3.7), to be put behind all others."""
    value = f"{stamp.primary}:{stamp.epoch}:{stamp.sequence}:{stamp.origin_us}".encode()
    return STAMP_HEAD + len(value).to_bytes(2, "big") + value


def split_stamp(properties: bytes) -> tuple[bytes, Stamp | None]:
    """Take the stamp off the end of a PUBLISH's properties.

    Args:
        properties: Encoded properties without their length, as the codec hands them over.

    Returns:
        The properties in front of the stamp, and the stamp; the same properties and None when the last one is not a
        well-formed stamp.
    """
    at = properties.rfind(STAMP_HEAD)
    if at < 0:
        return properties, None
    start = at + _VALUE_AT
    if start + int.from_bytes(properties[start - 2 : start], "big") != len(properties):
        return properties, None
    value = _VALUE.fullmatch(properties, start)
    if value is None:
        return properties, None
    primary, epoch, sequence, origin = value.groups()
    origin_us = int(origin)
    if origin_us >= _ORIGIN_US_END:
        return properties, None
    return properties[:at], Stamp(primary.decode(), int(epoch), int(sequence), origin_us)
