"""Bytes of the history of messages in the file."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

from fanout.replica.history import HistoryBatch, Origin
from fanout.replica.update import Stamp, Update

__all__ = ["decode_batches", "encode_batches"]

_BATCH: Final = struct.Struct("<QQHI")
"""Number, dispatched_ns, length of the origin's Client Identifier, number of updates with the two flags below."""
_HAS_PACKET_IDS: Final = 0x8000_0000
"""The origin's Packet Identifiers follow its Client Identifier."""
_HAS_ORIGIN: Final = 0x4000_0000
"""There is an origin. Files without this flag have the length plus one, and 0 for none; 65,535 did not fit."""
_FLAGS: Final = _HAS_PACKET_IDS | _HAS_ORIGIN
_U16: Final = struct.Struct("<H")
_UPDATE: Final = struct.Struct("<BHIIQQQB")
"""QoS and RETAIN << 2, lengths of topic, payload and properties, received_ns, expires_ns, digest, length of the
stamping node's name plus one (0: none)."""
_STAMP: Final = struct.Struct("<QQQ")


def encode_batches(batches: Iterable[HistoryBatch]) -> bytes:
    """Return the bytes of batches."""
    parts: list[bytes] = []
    for position, dispatched_ns, origin, updates in batches:
        name, packet_ids = (b"", ()) if origin is None else (origin.client_id.encode(), origin.packet_ids)
        flags = (_HAS_PACKET_IDS if packet_ids else 0) | (0 if origin is None else _HAS_ORIGIN)
        parts.append(_BATCH.pack(position, dispatched_ns, len(name), len(updates) | flags))
        parts.append(name)
        if packet_ids:
            parts.append(struct.pack(f"<H{len(packet_ids)}H", len(packet_ids), *packet_ids))
        for topic, payload, qos, retain, properties, received_ns, expires_ns, digest, stamp in updates:
            primary = b"" if stamp is None else stamp.primary.encode()
            named = 0 if stamp is None else len(primary) + 1
            head = (len(topic), len(payload), len(properties), received_ns, expires_ns, digest, named)
            parts += (_UPDATE.pack(qos | retain << 2, *head), topic, payload, properties)
            if stamp is not None:
                parts += (_STAMP.pack(stamp.epoch, stamp.sequence, stamp.origin_us), primary)
    return b"".join(parts)


def decode_batches(data: bytes) -> Iterator[HistoryBatch]:
    """Yield the batches of `encode_batches`.

    Raises:
        ValueError: The bytes are no batches.
    """
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        taken = data[at : at + count]
        if len(taken) < count:
            raise ValueError("the history of messages ends in the middle of a batch")
        at += count
        return taken

    while at < len(data):
        position, dispatched_ns, named, count = _BATCH.unpack(take(_BATCH.size))
        length = named if count & _HAS_ORIGIN else named - 1
        origin = None if length < 0 else Origin(take(length).decode())
        if origin is not None and count & _HAS_PACKET_IDS:
            (length,) = _U16.unpack(take(_U16.size))
            origin = Origin(origin.client_id, struct.unpack(f"<{length}H", take(2 * length)))
        updates: list[Update] = []
        for _ in range(count & ~_FLAGS):
            flags, topic, payload, properties, received_ns, expires_ns, digest, named = _UPDATE.unpack(
                take(_UPDATE.size)
            )
            content = take(topic), take(payload), flags & 3, bool(flags & 4), take(properties)
            stamp: Stamp | None = None
            if named:
                numbers = _STAMP.unpack(take(_STAMP.size))
                stamp = Stamp(take(named - 1).decode(), *numbers)
            updates.append((*content, received_ns, expires_ns, digest, stamp))
        yield HistoryBatch(position, dispatched_ns, origin, updates)
