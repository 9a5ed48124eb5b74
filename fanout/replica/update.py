"""Update: one message from the read that brings it to the writes that deliver it.

An `Update` is a plain tuple, built once by a link or by the server's ingress, kept as it is in the replica, and handed
as it is to the replication log and to dispatch. It is a plain tuple, not a dataclass or a NamedTuple, because one is
built for every message: a literal takes a third of the time, and the garbage collector stops tracking exact tuples of
atomic values, which matters with a million of them. Code off the hot path unpacks it by name.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from xxhash import xxh3_64_intdigest

__all__ = [
    "DIGEST",
    "EXPIRES_NS",
    "PAYLOAD",
    "PROPERTIES",
    "QOS",
    "RECEIVED_NS",
    "RETAIN",
    "STAMP",
    "TOPIC",
    "ChangeKind",
    "Changes",
    "Phase",
    "Stamp",
    "Update",
    "content_digest",
]


class Stamp(NamedTuple):
    """The identity of an update, given once per primary (`docs/explanation/update-identity.md`)."""

    primary: str
    """Identifier of the node that stamped: a `fanout primary`, or the first-tier node beside a broker."""
    epoch: int
    """The stamping node's epoch: Unix time in microseconds at which its sequence started at 1."""
    sequence: int
    """Position in that epoch, from 1, without gaps."""
    origin_us: int
    """When the stamping node received the update, Unix time in microseconds by its own clock."""


Update: TypeAlias = tuple[bytes, bytes, int, bool, bytes, int, int, int, Stamp | None]
"""(topic, payload, qos, retain, properties, received_ns, expires_ns, digest, stamp).

topic:        local Topic Name (after the selector's prefix), UTF-8, already validated.
payload:      Application Message; empty with retain set means "the retained value is removed".
qos:          0, 1 or 2: the QoS at which it may be delivered at most.
retain:       whether the publisher set RETAIN (so the value is retained).
properties:   encoded MQTT 5 properties that travel with the message, without the length in front and without
              Topic Alias, Subscription Identifier, Message Expiry Interval and stamp; empty for none.
received_ns:  Unix time in nanoseconds of the read that brought it (one int per batch).
expires_ns:   Unix time in nanoseconds after which it must not be delivered; 0 means never.
digest:       `content_digest` of the topic at the primary (before the prefix) and the payload, so that nodes
              with different prefixes can be compared.
stamp:        its identity, or None when nobody stamped it.
"""
# Positions in an `Update`, for code off the hot path; in the loops over a batch a literal is faster.
TOPIC: Final = 0
PAYLOAD: Final = 1
QOS: Final = 2
RETAIN: Final = 3
PROPERTIES: Final = 4
RECEIVED_NS: Final = 5
EXPIRES_NS: Final = 6
DIGEST: Final = 7
STAMP: Final = 8


def content_digest(topic: bytes, payload: bytes) -> int:
    """Return the 64-bit xxh3 digest of a topic and its payload, unsigned.

    A Topic Name cannot contain U+0000 [MQTT-4.7.3-2], so the separator makes the pair unambiguous. xxh3 is
    not proof against an adversary who builds collisions.
    """
    return xxh3_64_intdigest(topic + b"\0" + payload)


class Phase(enum.IntEnum):
    """Why an update arrived."""

    LIVE = 0
    """After the snapshot was complete, or published at this node."""
    SNAPSHOT = 1
    """While the retained set of a new epoch was arriving."""
    AUDIT = 2
    """A second retained set inside a running session (unchanged values are not dispatched), or a removal that is no
    update of the primary: by expiry, by a pass that did not bring the topic, by a tear-down, by a skipped message."""


class ChangeKind(enum.IntEnum):
    """Effect of an update on the replica; written to the replication log."""

    NEW = 1
    """The topic had no retained value."""
    REPLACED = 2
    """The topic had a retained value; this one took its place."""
    REMOVED = 3
    """A zero-length payload removed the retained value."""
    MESSAGE = 4
    """Not retained (or the removal of a value that was not there): delivered, nothing stored."""
    UNCHANGED = 5
    """A snapshot or audit copy of the value already held: neither stored nor delivered again."""
    REFUSED = 6
    """Over a limit of the replica: delivered without RETAIN, not stored, counted; a value held before is removed."""


@dataclass(slots=True)
class Changes:
    """Effect of one batch on a replica."""

    updates: list[Update]
    """Every update of the batch, in the order of arrival."""
    kinds: bytearray
    """The `ChangeKind` of each of `updates`."""
    dispatch: list[Update]
    """Updates to deliver to subscribers, in order; the list object of `updates` for all of them unchanged."""
    phase: Phase
    """Why the batch arrived."""
    corrected: Sequence[Update] = ()
    """Values with only the expiry changed, as they are now: for holders of a copy, not for subscribers."""
    position: int = 0
    """Number of the batch in the history of messages on disk; 0 when it is not there."""
