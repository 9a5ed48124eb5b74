"""Bytes of exported sessions (core): a versioned form that another member of a pool, or a later process, reads.

The form begins with `MAGIC` and one byte for the version; fields follow in a fixed order, integers in network byte
order, strings after their length. A member reads its own version and the one before, so that members can be replaced
one by one. A change of the form raises `VERSION` and keeps the reader of the former one.

The bytes come from another process, so `decode_session` believes nothing: every length is checked against what is
there, every value against its rules, and only the exact form that `encode_session` writes is accepted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

from fanout.access.identity import Identity, Means
from fanout.durable.form.fields import FieldReader
from fanout.errors import ProtocolError, SessionFormInvalid
from fanout.mqtt.delivery import SendState
from fanout.mqtt.properties import split_publish_properties
from fanout.mqtt.topics import check_topic_filter, check_topic_name, parse_shared
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.exported_session import (
    ExportedInFlight,
    ExportedMessage,
    ExportedRetained,
    ExportedSession,
    ExportedSubscription,
)
from fanout.server.session.wills import WillMessage

__all__ = [
    "MAGIC",
    "VERSION",
    "EncodedQueue",
    "SessionEncoder",
    "decode_in_steps",
    "decode_session",
    "encode_in_flight",
    "encode_one_in_flight",
    "encode_session",
    "read_owner",
]

MAGIC: Final = b"fanout session\0"
VERSION: Final = 2
"""The version that is written."""

_READABLE: Final = frozenset({1, VERSION})
_HINT: Final = "Compare the versions of the members of the pool, or of this fanout and the one that stored it"
_IN_FLIGHT: Final = struct.Struct("!HB")
"""Packet Identifier, and index of the state."""
_TERMS: Final = struct.Struct("!B?IQI")
"""Wire variant, milliseconds until it ends, number of subscriptions."""
_OPTIONS: Final = struct.Struct("!BI")
"""Flags, Subscription Identifier."""
_QUEUE: Final = struct.Struct("!HI")
"""Last Packet Identifier, number of messages in the queue."""
_DIGEST: Final = struct.Struct("!QI")
"""Digest, and number of Subscription Identifiers."""
_STATES: Final = (SendState.AWAIT_PUBACK, SendState.AWAIT_PUBREC, SendState.AWAIT_PUBCOMP)
_MEANS: Final = tuple(Means)
_IDENTIFIER_MAX: Final = 268_435_455
_STEP: Final = 256
"""Items that are read in one step."""

T = TypeVar("T")


def encode_session(session: ExportedSession, *, queue: EncodedQueue | None = None) -> bytes:
    """Return the bytes of a session.

    Args:
        session: Its value.
        queue: Its queue, if it is encoded already; None for that of the value.
    """
    return SessionEncoder().encode(session, queue=queue)


class EncodedQueue:
    """Queued messages, encoded as they come."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        """Begin without any."""
        self.count = 0
        """Their number."""
        self.parts: list[bytes] = []
        """Their bytes, those of each `add` together."""

    def add(self, messages: Sequence[ExportedMessage]) -> None:
        """Encode further ones."""
        self.count += len(messages)
        self.parts.append(b"".join(map(_message_form, messages)))


class SessionEncoder:
    """Encodes one session again and again; parts that seldom change are encoded once."""

    __slots__ = ("_head", "_seldom")

    def __init__(self) -> None:
        """Begin with nothing encoded."""
        self._seldom: tuple[object, ...] = ()
        """Arguments from which `_head` was made."""
        self._head = b""

    def encode(
        self, session: ExportedSession, *, in_flight: bytes | None = None, queue: EncodedQueue | None = None
    ) -> bytes:
        """Return the bytes of the session.

        Args:
            session: Its value now.
            in_flight: Its messages in flight, as `encode_in_flight` writes them; None for those of the value.
            queue: Its queue, if it is encoded already; None for that of the value.
        """
        seldom = (session.owner, session.owner_since, session.wire, session.expiry_left_ms, session.subscriptions)
        if seldom != self._seldom:
            form = _Writer()
            form.parts.append(MAGIC)
            form.number(VERSION, 1)
            _write_head(form, session)
            self._seldom, self._head = seldom, form.joined()
        form = _Writer()
        form.parts.append(self._head)
        form.parts.append(encode_in_flight(session.in_flight) if in_flight is None else in_flight)
        _write_rest(form, session, queue=queue)
        return form.joined()


def encode_in_flight(messages: Sequence[ExportedInFlight]) -> bytes:
    """Return the bytes of messages in flight, as they are within a session."""
    return b"".join((len(messages).to_bytes(4, "big"), *map(encode_one_in_flight, messages)))


def encode_one_in_flight(one: ExportedInFlight) -> bytes:
    """Return the bytes of one of them."""
    packet_id, state, message = one
    form = _IN_FLIGHT.pack(packet_id, _STATES.index(state))
    return form if message is None else form + _message_form(message)


def _write_head(form: _Writer, session: ExportedSession) -> None:
    form.string(session.client_id.encode())
    owner = session.owner
    form.number(owner is not None, 1)
    if owner is not None:
        form.string(owner.user.encode())
        form.string(owner.address.encode())
        form.number(_MEANS.index(owner.means), 1)
        form.number(owner.local | owner.superuser << 1, 1)
    form.number(session.owner_since, 8)
    version, stamped, packet_bytes_max = session.wire
    form.pack(_TERMS, version, stamped, packet_bytes_max, session.expiry_left_ms, len(session.subscriptions))
    for topic_filter, options in session.subscriptions:
        form.string(topic_filter)
        flags = options.qos | options.no_local << 2 | options.retain_as_published << 3
        form.pack(_OPTIONS, flags, options.identifier)


def _write_rest(form: _Writer, session: ExportedSession, *, queue: EncodedQueue | None = None) -> None:
    form.pack(_QUEUE, session.last_packet_id, len(session.queue) if queue is None else queue.count)
    if queue is None:
        for message in session.queue:
            form.message(message)
    else:
        form.parts += queue.parts
    form.number(len(session.retained), 4)
    for delivery in session.retained:
        form.string(delivery.topic_filter)
        form.number(delivery.topics is not None, 1)
        if delivery.topics is not None:
            form.number(len(delivery.topics), 4)
            for topic in delivery.topics:
                form.string(topic)
    unreleased = sorted(session.unreleased)
    form.parts.append(struct.pack(f"!I{len(unreleased)}H", len(unreleased), *unreleased))
    form.number(session.will is not None, 1)
    if session.will is not None:
        _write_will(form, session.will)
    form.optional(session.will_left_ms)


def decode_session(data: bytes, *, bytes_max: int) -> ExportedSession:
    """Return the session of some bytes.

    Args:
        data: Bytes from another member.
        bytes_max: Limit of bytes.

    Raises:
        SessionFormInvalid: They are no session, of a version that is not read, or more than `bytes_max`.
    """
    if len(data) > bytes_max:
        raise _invalid(f"it has {len(data):,} bytes, and the limit is {bytes_max:,}")
    return _read(_Reader(data))


def decode_in_steps(
    data: bytes, *, take: Callable[[Sequence[ExportedMessage]], None]
) -> Generator[None, None, ExportedSession]:
    """Return the session of some bytes without its queue, which is read in steps, each of some messages.

    Args:
        data: Bytes from another member.
        take: Takes the queued messages of a step.

    Raises:
        SessionFormInvalid: As `decode_session`.
    """
    return (yield from _read_in_steps(_Reader(data), take=take))


def read_owner(data: bytes) -> tuple[Identity | None, int]:
    """Return the owner of the session of some bytes, and since when it has it; nothing after it is read.

    Raises:
        SessionFormInvalid: They do not begin like a session.
    """
    form = _Reader(data)
    version = _read_version(form)
    try:
        client_id = form.string().decode()
        owner = _read_owner(form, client_id) if form.flag() else None
    except UnicodeDecodeError as error:
        raise _invalid("a text is not well-formed UTF-8") from error
    return owner, form.number(8) if version > 1 else 0


def _read(form: _Reader) -> ExportedSession:
    steps = _read_in_steps(form)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            session: ExportedSession = ended.value
            return session


def _read_in_steps(
    form: _Reader, *, take: Callable[[Sequence[ExportedMessage]], None] | None = None
) -> Generator[None, None, ExportedSession]:
    version = _read_version(form)
    try:
        return (yield from _read_session(form, version=version, take=take))
    except UnicodeDecodeError as error:
        raise _invalid("a text is not well-formed UTF-8") from error
    except ProtocolError as error:
        raise _invalid(error.detail) from error


def _read_version(form: _Reader) -> int:
    if form.take(len(MAGIC)) != MAGIC:
        raise _invalid("it does not begin like one")
    version = form.number(1)
    if version not in _READABLE:
        raise _invalid(f"it has version {version} of the form, and this node reads {', '.join(map(str, _READABLE))}")
    return version


def _read_session(
    form: _Reader, *, version: int, take: Callable[[Sequence[ExportedMessage]], None] | None
) -> Generator[None, None, ExportedSession]:
    client_id = form.string().decode()
    form.require(bool(client_id) and "\0" not in client_id, "the Client Identifier is not legal")
    session = ExportedSession(
        client_id=client_id,
        owner=_read_owner(form, client_id) if form.flag() else None,
        owner_since=form.number(8) if version > 1 else 0,
        wire=_read_wire(form),
        expiry_left_ms=form.number(8),
        subscriptions=form.items(_read_subscription),
        in_flight=(yield from form.items_in_steps(_read_in_flight)),
        last_packet_id=form.number(2),
        queue=(yield from form.items_in_steps(_read_queued, take=take)),
        retained=form.items(_read_retained),
        unreleased=frozenset(unreleased := form.items(_read_packet_id)),
        will=_read_will(form) if form.flag() else None,
        will_left_ms=form.optional(),
    )
    form.end()
    form.require(session.expiry_left_ms > 0, "its Session Expiry Interval has passed")
    form.require(session.will is not None or session.will_left_ms is None, "it has a Will Delay Interval and no Will")
    form.require(list(unreleased) == sorted(session.unreleased), "a Packet Identifier is there twice")
    filters = [one.topic_filter for one in session.subscriptions]
    form.require(len(set(filters)) == len(filters), "a subscription is there twice")
    in_flight = [one.packet_id for one in session.in_flight]
    form.require(len(set(in_flight)) == len(in_flight), "a Packet Identifier is there twice")
    pending = [one.topic_filter for one in session.retained]
    form.require(
        len(set(pending)) == len(pending) and set(pending) <= set(filters),
        "retained messages are due without a subscription",
    )
    return session


def _read_owner(form: _Reader, client_id: str) -> Identity:
    user, address = form.string().decode(), form.string().decode()
    means = _MEANS[form.below(len(_MEANS))]
    flags = form.below(4)
    return Identity(
        client_id=client_id,
        user=user,
        address=address,
        means=means,
        local=bool(flags & 1),
        superuser=bool(flags & 2),
    )


def _read_wire(form: _Reader) -> WireVariant:
    version = form.number(1)
    form.require(version in (4, 5), "the version of MQTT is neither 4 nor 5")
    return WireVariant(version, form.flag(), form.number(4))


def _read_subscription(form: _Reader) -> ExportedSubscription:
    topic_filter = form.string()
    shared = parse_shared(topic_filter)
    check_topic_filter(topic_filter if shared is None else shared[1])
    check_topic_filter(topic_filter)
    flags = form.below(16)
    form.require(flags & 3 < 3, "a QoS is 3")
    identifier = form.number(4)
    form.require(identifier <= _IDENTIFIER_MAX, "a Subscription Identifier is too large")
    return ExportedSubscription(
        topic_filter, SubscriptionOptions(flags & 3, bool(flags & 4), bool(flags & 8), identifier)
    )


def _read_in_flight(form: _Reader) -> ExportedInFlight:
    packet_id = _read_packet_id(form)
    state = _STATES[form.below(len(_STATES))]
    if state is SendState.AWAIT_PUBCOMP:
        return ExportedInFlight(packet_id, state, None)
    message = _read_message(form)
    form.require(message.qos == (1 if state is SendState.AWAIT_PUBACK else 2), "a message waits for another QoS")
    return ExportedInFlight(packet_id, state, message)


def _read_queued(form: _Reader) -> ExportedMessage:
    message = _read_message(form)
    form.require(message.qos > 0, "a message at QoS 0 is queued")
    return message


def _read_retained(form: _Reader) -> ExportedRetained:
    topic_filter = form.string()
    return ExportedRetained(topic_filter, form.items(_read_topic) if form.flag() else None)


def _read_topic(form: _Reader) -> bytes:
    topic = form.string()
    check_topic_name(topic)
    return topic


def _read_packet_id(form: _Reader) -> int:
    packet_id = form.number(2)
    form.require(packet_id > 0, "a Packet Identifier is 0")
    return packet_id


def _message_form(message: ExportedMessage) -> bytes:
    """Return the bytes of a message, which are made once: many sessions have the same, and each many times."""
    if message.form is None:
        left, identifiers, share = message.expiry_left_ns, message.identifiers, message.share
        levels = message.update_qos | message.qos << 2
        flags = message.retained | message.retain << 1 | message.replaces_retained << 2
        form = b"".join(
            (
                *_behind_length(2, message.topic),
                *_behind_length(4, message.payload),
                *_behind_length(4, message.properties),
                bytes((levels, flags, left is not None)),
                b"" if left is None else left.to_bytes(8, "big"),
                _DIGEST.pack(message.digest, len(identifiers)),
                *(identifier.to_bytes(4, "big") for identifier in identifiers),
                bytes((share is not None,)),
                *(() if share is None else (*_behind_length(2, share[0]), *_behind_length(2, share[1]))),
            )
        )
        message.form = form
    return message.form


def _behind_length(size: int, value: bytes) -> tuple[bytes, bytes]:
    return len(value).to_bytes(size, "big"), value


def _read_message(form: _Reader) -> ExportedMessage:
    topic = _read_topic(form)
    payload = form.blob()
    properties = form.blob()
    _check_properties(form, properties)
    levels = form.below(16)
    form.require(levels & 3 < 3 and levels >> 2 <= levels & 3, "a QoS is not legal")
    flags = form.below(8)
    return ExportedMessage(
        topic=topic,
        payload=payload,
        properties=properties,
        update_qos=levels & 3,
        qos=levels >> 2,
        retained=bool(flags & 1),
        retain=bool(flags & 2),
        replaces_retained=bool(flags & 4),
        expiry_left_ns=form.optional(),
        digest=form.number(8),
        identifiers=form.items(_read_identifier),
        share=(form.string(), form.string()) if form.flag() else None,
    )


def _read_identifier(form: _Reader) -> int:
    identifier = form.number(4)
    form.require(0 < identifier <= _IDENTIFIER_MAX, "a Subscription Identifier is not legal")
    return identifier


def _write_will(form: _Writer, will: WillMessage) -> None:
    topic, payload, flags, _, properties, expiry_s, _ = will.row
    form.string(topic)
    form.blob(payload)
    form.number(flags, 1)
    form.blob(properties)
    form.optional(expiry_s)
    form.number(will.delay_s, 4)


def _read_will(form: _Reader) -> WillMessage:
    topic, payload = _read_topic(form), form.blob()
    flags = form.below(6)
    properties = form.blob()
    user_at = _check_properties(form, properties)
    expiry_s = form.optional()
    form.require(expiry_s is None or expiry_s < 1 << 32, "a Message Expiry Interval is too large")
    return WillMessage((topic, payload, flags, 0, properties, expiry_s, user_at), delay_s=form.number(4))


def _check_properties(form: _Reader, properties: bytes) -> int:
    """Check encoded properties of a message, and return the place of the last User Property as in a `PublishRow`."""
    split = split_publish_properties(properties)
    form.require(split.kept == properties, "a property does not belong to a message")
    return split.user_at


class _Writer:
    """Collects fields."""

    def __init__(self) -> None:
        """Begin without any."""
        self.parts: list[bytes] = []

    def joined(self) -> bytes:
        """Return what was written."""
        return b"".join(self.parts)

    def message(self, message: ExportedMessage) -> None:
        """Write a message."""
        self.parts.append(_message_form(message))

    def pack(self, fields: struct.Struct, *values: int) -> None:
        """Write integers."""
        self.parts.append(fields.pack(*values))

    def number(self, value: int, size: int) -> None:
        """Write an integer of `size` bytes."""
        self.parts.append(value.to_bytes(size, "big"))

    def optional(self, value: int | None) -> None:
        """Write an integer of eight bytes, or None."""
        self.number(value is not None, 1)
        if value is not None:
            self.number(value, 8)

    def string(self, value: bytes) -> None:
        """Write bytes as long as an MQTT string."""
        self.number(len(value), 2)
        self.parts.append(value)

    def blob(self, value: bytes) -> None:
        """Write bytes as long as an MQTT packet."""
        self.number(len(value), 4)
        self.parts.append(value)


class _Reader(FieldReader):
    """Takes fields of a session."""

    def __init__(self, data: bytes) -> None:
        """Begin; `data` has the fields."""
        super().__init__(data, error=_invalid)

    def require(self, condition: bool, problem: str) -> None:
        """Raise with `problem` unless the condition holds."""
        if not condition:
            raise _invalid(problem)

    def number(self, size: int) -> int:
        """Take an integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def below(self, limit: int) -> int:
        """Take an integer of one byte that is below `limit`."""
        value = self.number(1)
        self.require(value < limit, "a field has a value that it cannot have")
        return value

    def flag(self) -> bool:
        """Take a flag."""
        return bool(self.below(2))

    def optional(self) -> int | None:
        """Take an integer of eight bytes, or None."""
        return self.number(8) if self.flag() else None

    def string(self) -> bytes:
        """Take bytes as long as an MQTT string."""
        return self.take(self.number(2))

    def blob(self) -> bytes:
        """Take bytes as long as an MQTT packet."""
        return self.take(self.number(4))

    def items(self, read: Callable[[_Reader], T]) -> tuple[T, ...]:
        """Take several items; each has a byte at least, so a false count ends with the bytes."""
        return tuple([read(self) for _ in range(self.number(4))])

    def items_in_steps(
        self, read: Callable[[_Reader], T], *, take: Callable[[Sequence[T]], None] | None = None
    ) -> Generator[None, None, tuple[T, ...]]:
        """Take several items, some in each step; return those that `take` does not."""
        taken: list[T] = []
        for left in range(self.number(4), 0, -_STEP):
            items = [read(self) for _ in range(min(left, _STEP))]
            if take is None:
                taken += items
            else:
                take(items)
            yield
        return tuple(taken)


def _invalid(problem: str) -> SessionFormInvalid:
    return SessionFormInvalid(f"The bytes are not a session: {problem}", hint=_HINT)
