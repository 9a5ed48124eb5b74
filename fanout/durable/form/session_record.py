"""Record of a durable session on disk (core): its value, and the place in the history where its queue begins.

A record is written anew whenever its session has changed, but not for new messages. The waiting messages are found
again by dispatching the history from `position` on.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fanout.durable.form.session_format import SessionEncoder, decode_session
from fanout.errors import SessionFormInvalid
from fanout.server.session.exported_session import ExportedSession

__all__ = ["ALL_BATCHES", "ALL_UNSENT", "SessionRecord", "decode_record", "encode_record", "last_batch"]

ALL_UNSENT: Final = 0xFFFF_FFFF
"""In place of a number of messages, for a batch that has not come."""

ALL_BATCHES: Final = 2**64 - 1
"""In place of the number of a batch, in a record of a version that did not note it."""

_HEAD: Final = struct.Struct("!QBQIH")
_AS_OF: Final = struct.Struct("!Q")
_CONNECTED, _HAS_AS_OF = 1, 2


class SessionRecord(NamedTuple):
    """A session as it is on disk."""

    session: ExportedSession
    """Its value at `written_ns`; the queue has only messages that are not in the history."""
    written_ns: int
    """Unix time in nanoseconds."""
    is_connected: bool
    """True if it had a Network Connection then, so that its expiry has not begun."""
    position: int
    """Number of the first batch in the history with unsent messages for it. If all is sent: number of the next batch.
    """
    unsent: int
    """Number of unsent messages at the end of that batch; `ALL_UNSENT` if the batch has not come."""
    epochs: bytes = b""
    """Epoch of the session at this member, and at the one that it was given to, as the pool writes them; or empty."""
    as_of: int = ALL_BATCHES
    """Number of the newest batch when the record was made. Later batches may have more QoS 2 messages of the client,
    whose Packet Identifiers are not in `session`.
    """


def encode_record(
    record: SessionRecord, *, encoder: SessionEncoder | None = None, in_flight: bytes | None = None
) -> bytes:
    """Return the bytes of a record.

    Args:
        record: The record.
        encoder: Encoder of the former records of the session; None for the first.
        in_flight: As `SessionEncoder.encode` takes it.
    """
    flags = record.is_connected * _CONNECTED | _HAS_AS_OF
    head = _HEAD.pack(record.written_ns, flags, record.position, record.unsent, len(record.epochs))
    session = (encoder or SessionEncoder()).encode(record.session, in_flight=in_flight)
    return head + record.epochs + _AS_OF.pack(record.as_of) + session


def last_batch(data: bytes) -> int:
    """Return the number of the newest batch that a record knows of; 0 for one that cannot be read."""
    if len(data) < _HEAD.size:
        return 0
    _, flags, position, _, length = _HEAD.unpack_from(data)
    at = _HEAD.size + length
    if flags & _HAS_AS_OF and len(data) >= at + _AS_OF.size:
        return int(_AS_OF.unpack_from(data, at)[0])
    return int(position) - 1


def decode_record(data: bytes) -> SessionRecord:
    """Return the record of `encode_record`.

    Raises:
        SessionFormInvalid: The bytes are no record of a version that is read.
    """
    if len(data) < _HEAD.size:
        raise SessionFormInvalid("A record of a session is too short", hint="Check the disk")
    written_ns, flags, position, unsent, length = _HEAD.unpack_from(data)
    begin = _HEAD.size + length
    epochs, as_of = data[_HEAD.size : begin], ALL_BATCHES
    if flags & _HAS_AS_OF:
        if len(data) < begin + _AS_OF.size:
            raise SessionFormInvalid("A record of a session is too short", hint="Check the disk")
        (as_of,) = _AS_OF.unpack_from(data, begin)
        begin += _AS_OF.size
    session = decode_session(data[begin:], bytes_max=len(data))
    return SessionRecord(session, written_ns, bool(flags & _CONNECTED), position, unsent, epochs, as_of)
