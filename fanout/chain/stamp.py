"""Stamp of an update, its identity, and its encoding: one MQTT 5 User Property, the last of a PUBLISH.

See `docs/explanation/update-identity.md`. The value is text, so that any MQTT tool shows it:
`primary:epoch:sequence:origin_us`, where `primary` is a name as `fanout.config` allows for nodes.

Between two nodes the property is a trailer: the sender puts it after all properties of the message, and the receiver
removes exactly one. `;copy` after the stamp, or in place of one, marks a value that the nodes below have already, with
only the expiry changed. Clients that have the value do not get it again. A node below must get it, or it would remove
the value too early, or serve it too long. A message without a stamp gets an empty trailer when its own properties could
end with bytes that look like a trailer. So nothing that a publisher sends is ever taken for the trailer
(`docs/decisions/0013-trailer-between-nodes.md`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Stamp, Update

__all__ = [
    "ASK_FOR_STAMPS",
    "COUNT_PROPERTY",
    "NODE_PROPERTY",
    "STAMP_PROPERTY",
    "Count",
    "StampCount",
    "StampReader",
    "TrailerReader",
    "as_copy",
    "decode_count",
    "encode_stamp",
    "has_copies",
    "is_copy",
    "split_publisher_stamp",
    "split_trailer",
    "with_trailer",
]

STAMP_PROPERTY = "fanout-stamp"
"""Name of the User Property that carries a stamp."""

ASK_FOR_STAMPS = ("fanout-stamps", "1")
"""User Property of CONNECT by which a link asks for stamps, and of CONNACK by which a server promises them."""

NODE_PROPERTY = "fanout-node"
"""Name of the User Property with the node identifier, in CONNECT and CONNACK of a link."""

COUNT_PROPERTY = "fanout-count"
"""Name of the User Property of CONNACK with the stamp count of a `fanout primary`."""

StampReader: TypeAlias = Callable[[bytes, int], tuple[bytes, Stamp | None]]
"""Splits the stamp off the properties of a PUBLISH, as `split_trailer` and `split_publisher_stamp` do."""

_HEAD = b"\x26" + struct.pack(">H", len(STAMP_PROPERTY)) + STAMP_PROPERTY.encode()  # 0x26: User Property
_PROPERTIES = itemgetter(4)
_EMPTY = _HEAD + b"\0\0"
_COPY = b";copy"
_NAME = r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})"
_STAMP = _NAME.encode() + rb":([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})"
"""The name must be valid for a node, because it becomes part of file names. Numbers stay below 10**18, so that they fit
64 signed bits; microseconds reach that in the year 33658."""
# Behind the name of the property stands the length of the value, which the decoder has checked.
_PUBLISHER_STAMP = re.compile(re.escape(_HEAD) + b"(?s:..)" + _STAMP)
_TRAILER = re.compile(re.escape(_HEAD) + b"(?s:..)(?:" + _STAMP + b")?(" + _COPY + b")?")

_DIGITS_MAX: Final = 18

_ORIGIN_US_END = 253_402_300_800_000_000
"""The year 10000; readers of the log take no time from then on."""


_COUNT = re.compile(_NAME + r":([0-9]{1,18}):([0-9]{1,18})")


class Count(NamedTuple):
    """Stamp count of a node at one moment."""

    primary: str
    """Identifier of the node that stamps."""
    epoch: int
    """Epoch of its stamps."""
    sequence: int
    """Sequence of its newest stamp; 0 before the first."""

    def __str__(self) -> str:
        return f"{self.primary}:{self.epoch}:{self.sequence}"


def decode_count(text: str | None) -> Count | None:
    """Decode the User Property; None when it is missing or invalid."""
    match = _COUNT.fullmatch(text or "")
    return None if match is None else Count(match[1], int(match[2]), int(match[3]))


class StampCount:
    """Stamp counter of a node, shared by all parts of it that stamp.

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
        """The present count."""
        return Count(self.node, self.epoch, self.sequence)

    def complete(self, updates: Sequence[Update], *, live: bool) -> list[Update]:
        """Return updates of a primary that does not stamp, with stamps of this node, in order.

        A stamp of the publisher stays, unless it claims to be of this node. Only live updates get a stamp, because it
        is unknown which update a retained copy is of.

        Args:
            updates: Updates of one run, all received at the same time.
            live: True if they are live updates.
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


class _CopyStamp(Stamp):
    """Stamp of an update that is sent as a copy; with an empty `primary` the update has none."""

    __slots__ = ()


def as_copy(update: Update) -> Update:
    """Return an update that is encoded with the mark of a copy, for sessions of nodes below."""
    return (*update[:8], _CopyStamp(*(update[8] or ("", 0, 0, 0))))


def encode_stamp(stamp: Stamp) -> bytes:
    """Return `stamp` as one encoded User Property (MQTT 5, section 3.3.2.3.7), for a place after all others."""
    return with_trailer(b"", stamp)


def with_trailer(properties: bytes, stamp: Stamp | None) -> bytes:
    """Return the properties of a message for a node that asked for stamps.

    Args:
        properties: Encoded properties of the message, without their length.
        stamp: The stamp of the update; None when it has none.
    """
    if stamp is None:
        # These bytes may stand inside another property; the empty trailer is then superfluous but harmless.
        return properties + _EMPTY if properties.find(_HEAD) >= 0 else properties  # half the time of `in`
    primary, epoch, sequence, origin_us = stamp
    value = f"{primary}:{epoch}:{sequence}:{origin_us}".encode()
    if type(stamp) is _CopyStamp:
        value = (value if primary else b"") + _COPY
    return properties + _HEAD + len(value).to_bytes(2, "big") + value


def split_trailer(properties: bytes, user_at: int) -> tuple[bytes, Stamp | None]:
    """Split the trailer off the properties of a PUBLISH of a node that promised stamps.

    Args:
        properties: Properties from the decoder.
        user_at: Offset, from the decoder, of the User Property that ends them.

    Returns:
        The properties of the message, and its stamp; the same properties and None when they have no trailer.
    """
    trailer = _TRAILER.fullmatch(properties, user_at)
    if trailer is None:
        return properties, None
    primary, epoch, sequence, origin, _ = trailer.groups()
    if primary is None:
        return properties[:user_at], None
    origin_us = int(origin)
    if origin_us >= _ORIGIN_US_END:
        return properties, None
    return properties[:user_at], Stamp(primary.decode(), int(epoch), int(sequence), origin_us)


class TrailerReader:
    """Reader of the trailers of one primary (a hot path).

    They differ in two numbers: what is before these, the name of the stamping node and its epoch, is parsed when it
    changes, and all stamps share it.
    """

    __slots__ = ("_beginning", "_epoch", "_primary")

    def __init__(self) -> None:
        self._beginning = b"\0"  # no property begins like this
        """The newest stamp as it came, up to its sequence."""
        self._primary = ""
        self._epoch = 0

    def split(self, properties: bytes, user_at: int) -> tuple[bytes, Stamp | None]:
        """Split the trailer off the properties of a PUBLISH; the contract is that of `split_trailer`."""
        # Measured (2 shared cores, Python 3.11): 0.7 us, where `split_trailer` takes 1.3 us.
        beginning = self._beginning
        if properties.startswith(beginning, user_at):
            sequence, _, origin = properties[user_at + len(beginning) :].partition(b":")
            if (
                sequence.isdigit()
                and origin.isdigit()
                and len(sequence) <= _DIGITS_MAX
                and len(origin) <= _DIGITS_MAX
                and (origin_us := int(origin)) < _ORIGIN_US_END
            ):
                # The generated `Stamp.__new__` makes the same call, one frame later.
                stamp = tuple.__new__(Stamp, (self._primary, self._epoch, int(sequence), origin_us))
                return properties[:user_at], stamp
        rest, other = split_trailer(properties, user_at)
        if other is not None:
            self._primary, self._epoch = other.primary, other.epoch
            name_at = user_at + len(_HEAD) + 2
            sequence_at = properties.index(b":", properties.index(b":", name_at) + 1) + 1
            self._beginning = properties[user_at:sequence_at]
        return rest, other


def split_publisher_stamp(properties: bytes, user_at: int) -> tuple[bytes, Stamp | None]:
    """Split the stamp of a publisher off the properties of a PUBLISH, as `split_trailer` does.

    Only a well-formed stamp counts; a publisher cannot use the other forms of a trailer.
    """
    if _PUBLISHER_STAMP.fullmatch(properties, user_at) is None:
        return properties, None
    return split_trailer(properties, user_at)


def has_copies(rows: Sequence[PublishRow]) -> bool:
    """Say whether some PUBLISH packets of a node that promised stamps may be copies; never false when one is."""
    return _COPY in b"".join(map(_PROPERTIES, rows))


def is_copy(row: PublishRow) -> bool:
    """Say whether a PUBLISH of a node that promised stamps is marked as a copy."""
    trailer = _TRAILER.fullmatch(row[4], row[6])
    return trailer is not None and trailer[5] is not None
