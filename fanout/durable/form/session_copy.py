"""Copy of a durable session at another member of a pool (core): its value, without data that this member has.

Every member gets the same messages from the primary. So a copy names the place of the first unsent message in the
stream of each link, and the places of messages in flight; `fanout.replica.recent` finds both at the other member. Only
messages that are in no stream are copied whole: retained messages under way, and messages that one member alone has
found.

The bytes come from another process, so a reader believes nothing: each length is checked, and the session in it by
`session_format`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from typing import Final, NamedTuple

from fanout.access.identity import Identity
from fanout.durable.form.fields import FieldReader, text_form
from fanout.durable.form.session_format import EncodedQueue, decode_session, encode_session
from fanout.durable.form.session_format import read_owner as read_session_owner
from fanout.errors import SessionFormInvalid
from fanout.mqtt.delivery import SendState
from fanout.replica.recent import Place, RecentUpdates
from fanout.server.messages.encoding import Message
from fanout.server.session.exported_session import ExportedInFlight, ExportedSession
from fanout.server.session.session_export import ExportedMessages

__all__ = [
    "COPIED_MESSAGES_MAX",
    "CopiedMessage",
    "SessionCopy",
    "decode_copy",
    "decode_places",
    "encode_copy",
    "encode_places",
    "has_qos_2",
    "read_needs",
    "read_owner",
    "with_in_flight",
]

COPIED_MESSAGES_MAX: Final = 5_000
"""Maximum number of whole messages in a copy: more would take long, each time."""
_VERSION: Final = 1
_HINT: Final = "Compare the versions of the members of the pool"
_HEAD: Final = struct.Struct("!BBI")
"""Version, flags, number of messages in flight."""
_PLACE: Final = struct.Struct("!IQ")
"""Updates after the heartbeat, digest of the last of them."""
_MESSAGE: Final = struct.Struct("!HHBHIQH")
"""Place among the messages in flight, Packet Identifier, flags, place of the heartbeat in the table, updates after it,
digest, number of Subscription Identifiers."""
_U16: Final = struct.Struct("!H")
_U32: Final = struct.Struct("!I")
_CONNECTED: Final = 1
_EXACT: Final = 2
_QOS_2: Final = 2
_STATES: Final = (SendState.AWAIT_PUBACK, SendState.AWAIT_PUBREC)
_QOS: Final = {SendState.AWAIT_PUBACK: 1, SendState.AWAIT_PUBREC: 2}


class CopiedMessage(NamedTuple):
    """A message in flight that both members have in a stream."""

    order: int
    """Its place among all messages in flight."""
    packet_id: int
    """Packet Identifier."""
    state: SendState
    """Packet that it waits for: PUBACK or PUBREC."""
    link: str
    """Link in whose stream it is."""
    place: Place
    """Place in front of it; its digest is not set."""
    digest: int
    """Its `message_digest`."""
    retain: bool
    """RETAIN flag with which the client gets it."""
    identifiers: tuple[int, ...]
    """Subscription Identifiers."""


class SessionCopy(NamedTuple):
    """A session as another member keeps it."""

    session: ExportedSession
    """Its value. Its queue, and its messages in flight, are those that are in no stream, or that need no message."""
    is_connected: bool
    """True if it had a Network Connection."""
    is_exact: bool
    """True if nothing may come twice: it has to do with QoS 2."""
    places: Mapping[str, Place]
    """Place of its next message in the stream of each link; without links whose place had no name."""
    in_flight: tuple[CopiedMessage, ...] = ()
    """Messages in flight that are in a stream, in order."""


def has_qos_2(*, qos_max: int, unreleased: Sized, states: Iterable[SendState]) -> bool:
    """Return whether messages at QoS 2 go to a session, or are under way in either direction.

    Args:
        qos_max: Highest Maximum QoS of its subscriptions; 0 without any.
        unreleased: Packet Identifiers of messages of its client that wait for PUBREL.
        states: Packets that its messages in flight wait for.
    """
    return qos_max == _QOS_2 or len(unreleased) > 0 or any(state is not SendState.AWAIT_PUBACK for state in states)


def encode_places(places: Mapping[str, Place]) -> bytes:
    """Return the bytes of places by link."""
    parts = [_U16.pack(len(places))]
    for link, place in places.items():
        parts += map(text_form, (link, place.node, place.marker))
        parts.append(_PLACE.pack(place.updates, place.digest))
    return b"".join(parts)


def decode_places(data: bytes) -> dict[str, Place]:
    """Return the places of `encode_places`.

    Raises:
        SessionFormInvalid: The bytes are none.
    """
    form = FieldReader(data, error=_invalid)
    places = _read_places(form)
    form.end()
    return places


def read_needs(data: bytes) -> list[tuple[str, Place]]:
    """Return the place on each link from which on a copy needs messages, for its queue and its messages in flight.

    Nothing else of it is read.

    Raises:
        SessionFormInvalid: The bytes are no copy, or one of a version that is not read.
    """
    form = FieldReader(data, error=_invalid)
    _read_head(form)
    places = _read_places(form)
    return [*places.items(), *((link, Place(node, marker, 0, 0)) for link, node, marker in _read_keys(form))]


def read_owner(data: bytes) -> tuple[Identity | None, int]:
    """Return the owner of the session of a copy, and since when it has it.

    Raises:
        SessionFormInvalid: The bytes are no copy, or one of a version that is not read.
    """
    form = FieldReader(data, error=_invalid)
    _, count = _read_head(form)
    _read_places(form)
    _read_keys(form)
    for _ in range(count):
        form.take(_U32.size * form.unpack(_MESSAGE)[-1])
    return read_session_owner(form.rest())


def encode_copy(copy: SessionCopy, *, queue: EncodedQueue | None = None) -> bytes:
    """Return the bytes of a copy.

    Args:
        copy: The copy.
        queue: Its queue, if it is encoded already; None for that of the copy.
    """
    flags = copy.is_connected * _CONNECTED | copy.is_exact * _EXACT
    parts = [_HEAD.pack(_VERSION, flags, len(copy.in_flight)), encode_places(copy.places)]
    keys: dict[tuple[str, str, str], int] = {}
    for one in copy.in_flight:
        keys.setdefault((one.link, one.place.node, one.place.marker), len(keys))
    parts.append(_U16.pack(len(keys)))
    for key in keys:
        parts += map(text_form, key)
    for one in copy.in_flight:
        parts.append(
            _MESSAGE.pack(
                one.order,
                one.packet_id,
                _STATES.index(one.state) | one.retain << 1,
                keys[one.link, one.place.node, one.place.marker],
                one.place.updates,
                one.digest,
                len(one.identifiers),
            )
        )
        parts += map(_U32.pack, one.identifiers)
    parts.append(encode_session(copy.session, queue=queue))
    return b"".join(parts)


def decode_copy(data: bytes, *, bytes_max: int) -> SessionCopy:
    """Return the copy of some bytes.

    Args:
        data: Bytes from another member.
        bytes_max: Limit of bytes.

    Raises:
        SessionFormInvalid: They are no copy, of a version that is not read, or more than `bytes_max`.
    """
    form = FieldReader(data, error=_invalid)
    flags, count = _read_head(form)
    places = _read_places(form)
    keys = _read_keys(form)
    in_flight: list[CopiedMessage] = []
    for _ in range(count):
        order, packet_id, message_flags, key, updates, digest, identifiers = form.unpack(_MESSAGE)
        if key >= len(keys) or not packet_id or message_flags > 3:
            raise _invalid("a message in flight is not legal")
        link, node, marker = keys[key]
        in_flight.append(
            CopiedMessage(
                order,
                packet_id,
                _STATES[message_flags & 1],
                link,
                Place(node, marker, updates, 0),
                digest,
                bool(message_flags & 2),
                tuple(form.unpack(_U32)[0] for _ in range(identifiers)),
            )
        )
    session = decode_session(form.rest(), bytes_max=bytes_max)
    used = {one.packet_id for one in session.in_flight}
    if len({one.packet_id for one in in_flight} | used) != len(in_flight) + len(used):
        raise _invalid("a Packet Identifier is there twice")
    return SessionCopy(session, bool(flags & _CONNECTED), bool(flags & _EXACT), places, tuple(in_flight))


def with_in_flight(copy: SessionCopy, recent: RecentUpdates, *, messages: ExportedMessages) -> ExportedSession | None:
    """Return the value of a session with all of its messages in flight.

    Args:
        copy: The copy.
        recent: The recent updates of this node.
        messages: Values of messages at this time.

    Returns:
        None when one of them is not there any more.
    """
    found: list[ExportedInFlight] = list(copy.session.in_flight)
    for one in copy.in_flight:
        update = recent.get(one.link, one.place, digest=one.digest)
        if update is None:
            return None
        message: Message = update, _QOS[one.state], one.retain, one.identifiers
        found.insert(one.order, ExportedInFlight(one.packet_id, one.state, messages.of(message)))
    return replace(copy.session, in_flight=tuple(found))


def _read_head(form: FieldReader) -> tuple[int, int]:
    """Read the flags, and the number of messages in flight."""
    version, flags, count = form.unpack(_HEAD)
    if version != _VERSION:
        raise _invalid(f"it has version {version}, and this node reads {_VERSION}")
    return flags, count


def _read_places(form: FieldReader) -> dict[str, Place]:
    (count,) = form.unpack(_U16)
    places: dict[str, Place] = {}
    for _ in range(count):
        link, node, marker = form.text(), form.text(), form.text()
        places[link] = Place(node, marker, *form.unpack(_PLACE))
    return places


def _read_keys(form: FieldReader) -> list[tuple[str, str, str]]:
    """Read the heartbeats in front of messages in flight: link, member and heartbeat."""
    (count,) = form.unpack(_U16)
    return [(form.text(), form.text(), form.text()) for _ in range(count)]


def _invalid(problem: str) -> SessionFormInvalid:
    return SessionFormInvalid(f"A copy of a session cannot be read: {problem}", hint=_HINT)
