"""Model of a primary: a small MQTT 5 broker with sessions, QoS 0 to 2, retained values, and order.

It shares no code with fanout. Its state survives a restart, as with a broker with persistence.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Message", "Primary"]

Properties = tuple[tuple[int, bytes], ...]
"""Identifier and encoded value of each property."""

_CONNECT, _PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 1, 3, 4, 5, 6, 7
_SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ, _DISCONNECT = 8, 10, 12, 14
_SIZES: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}
_SUBSCRIPTION_ID, _EXPIRY, _RECEIVE_MAX, _TOPIC_ALIAS = 0x0B, 0x11, 0x21, 0x23
_NO_RETAIN_ON_SUBSCRIBE: Final = 2


@dataclass(frozen=True, slots=True)
class Message:
    """An Application Message."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


@dataclass(slots=True)
class _InFlight:
    """A message on its way to a client."""

    message: Message
    is_released: bool = False


@dataclass(slots=True)
class _Session:
    """The session of a client."""

    subscriptions: dict[str, tuple[int, Properties]] = field(default_factory=dict)
    """Options and Subscription Identifier by Topic Filter."""
    queue: deque[Message] = field(default_factory=deque)
    in_flight: dict[int, _InFlight] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    """Packet Identifiers of messages at QoS 2 that came and are not released."""
    packet_id: int = 0
    window: int = 65_535
    expires: bool = True
    connection: _Connection | None = None


class Primary:
    """The broker; `connect` makes the protocol of a new connection."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Begin empty.

        Args:
            tell: Takes lines of the trace.
        """
        self.tell = tell
        self.retained: dict[str, Message] = {}
        """Newest retained message by topic."""
        self.taken: Counter[bytes] = Counter()
        """Number of times that it took each payload."""
        self.sessions: dict[str, _Session] = {}
        self.has_forgotten = False
        """True once it has lost its sessions."""

    def connect(self) -> _Connection:
        """Return the protocol of a new connection."""
        return _Connection(self)

    def restart(self) -> None:
        """Forget the connections: the process has ended, and another one has read its file."""
        for client_id, session in list(self.sessions.items()):
            session.connection = None
            if session.expires:
                del self.sessions[client_id]

    def forget(self, *, values: bool) -> None:
        """Lose all sessions, as a broker without a file does when it restarts; the retained values too if `values`."""
        self.has_forgotten = True
        self.sessions.clear()
        if values:
            self.retained.clear()

    def publish(self, message: Message, *, source: _Session | None = None) -> None:
        """Take a message."""
        self.taken[message.payload] += 1
        if message.retain:
            if message.payload:
                self.retained[message.topic] = message
            else:
                self.retained.pop(message.topic, None)
        for session in self.sessions.values():
            if found := _matching(session, message.topic, source=source):
                options, identifiers = found
                retain = message.retain and bool(options & 8)
                self._give(session, message, options & 3, identifiers, retain=retain)

    def _give(
        self, session: _Session, message: Message, granted: int, identifiers: Properties, *, retain: bool
    ) -> None:
        qos = min(message.qos, granted)
        connection = session.connection
        if qos or connection is not None:
            properties = message.properties + identifiers
            session.queue.append(Message(message.topic, message.payload, qos, retain, properties))
        if connection is not None:
            connection.send_queue()

    def give_retained(self, session: _Session, topic_filter: str, options: int, identifiers: Properties) -> None:
        """Send the retained messages of a new subscription."""
        for topic, message in self.retained.items():
            if _matches(topic_filter, topic):
                self._give(session, message, options & 3, identifiers, retain=True)


class _Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, primary: Primary) -> None:
        self._primary = primary
        self._buffer = bytearray()
        self._transport: Any = None
        self._session: _Session | None = None
        self._client_id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        session = self._session
        if session is not None and session.connection is self:
            session.connection = None
            if session.expires:
                self._primary.sessions.pop(self._client_id, None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (found := _take(self._buffer)) is not None:
            kind, flags, body = found
            self._on_packet(kind, flags, body)

    def _on_packet(self, kind: int, flags: int, body: bytes) -> None:
        if kind == _CONNECT:
            self._on_connect(body)
            return
        session = self._session
        assert session is not None, "a packet before CONNECT"
        if kind == _PUBLISH:
            self._on_publish(session, flags, body)
        elif kind == _SUBSCRIBE:
            self._on_subscribe(session, body)
        elif kind == _UNSUBSCRIBE:
            self._on_unsubscribe(session, body)
        elif kind == _PINGREQ:
            self._write(0xD0, b"")
        elif kind == _DISCONNECT:
            self._transport.close()
        else:
            self._on_acknowledgement(session, kind, int.from_bytes(body[:2], "big"))

    def _on_connect(self, body: bytes) -> None:
        assert body[:7] == b"\x00\x04MQTT\x05", "not MQTT 5"
        flags = body[7]
        properties, at = _read_properties(body, 10)
        assert not flags & 0x04, "no Will"
        length = int.from_bytes(body[at : at + 2], "big")
        self._client_id = body[at + 2 : at + 2 + length].decode()
        old = self._primary.sessions.get(self._client_id)
        if old is not None and old.connection is not None:
            before, old.connection = old.connection, None
            before._write(0xE0, b"\x8e\x00")
            before._transport.close()
        present = old is not None and not flags & 2
        session = old if present and old is not None else _Session()
        # A session that begins anew is the newest: messages go to sessions in the order in which they began.
        self._primary.sessions[self._client_id] = session
        self._session, session.connection = session, self
        given = dict(properties)
        session.expires = not int.from_bytes(given.get(_EXPIRY, b"\0"), "big")
        session.window = int.from_bytes(given.get(_RECEIVE_MAX, b"\xff\xff"), "big")
        self._primary.tell(f"{self._client_id} connects, Session Present {int(present)}")
        self._write(0x20, bytes((present, 0)) + b"\x00")
        for packet_id, each in session.in_flight.items():
            if each.is_released:
                self._write(0x62, packet_id.to_bytes(2, "big"))
            else:
                self._send(each.message, packet_id, dup=True)
        self.send_queue()

    def _on_publish(self, session: _Session, flags: int, body: bytes) -> None:
        qos, retain = flags >> 1 & 3, bool(flags & 1)
        length = int.from_bytes(body[:2], "big")
        topic, at = body[2 : 2 + length].decode(), 2 + length
        assert topic, "a Topic Alias"
        packet_id = 0
        if qos:
            packet_id, at = int.from_bytes(body[at : at + 2], "big"), at + 2
        properties, at = _read_properties(body, at)
        message = Message(topic, body[at:], qos, retain, tuple(one for one in properties if one[0] != _TOPIC_ALIAS))
        if qos == 2:
            is_new = packet_id not in session.received
            session.received.add(packet_id)
        else:
            is_new = True
        if is_new:
            self._primary.publish(message, source=session)
        if qos:
            self._write(0x40 if qos == 1 else 0x50, packet_id.to_bytes(2, "big"))

    def _on_subscribe(self, session: _Session, body: bytes) -> None:
        packet_id = body[:2]
        properties, at = _read_properties(body, 2)
        identifiers = tuple(one for one in properties if one[0] == _SUBSCRIPTION_ID)
        codes, asked = bytearray(), []
        while at < len(body):
            length = int.from_bytes(body[at : at + 2], "big")
            topic_filter, options = body[at + 2 : at + 2 + length].decode(), body[at + 2 + length]
            at += 3 + length
            handling = options >> 4 & 3
            if handling == 0 or (handling == 1 and topic_filter not in session.subscriptions):
                asked.append((topic_filter, options))
            session.subscriptions[topic_filter] = (options, identifiers)
            codes.append(options & 3)
        self._write(0x90, packet_id + b"\x00" + codes)
        for topic_filter, options in asked:
            self._primary.give_retained(session, topic_filter, options, identifiers)

    def _on_unsubscribe(self, session: _Session, body: bytes) -> None:
        _, at = _read_properties(body, 2)
        codes = bytearray()
        while at < len(body):
            length = int.from_bytes(body[at : at + 2], "big")
            found = session.subscriptions.pop(body[at + 2 : at + 2 + length].decode(), None)
            codes.append(0x11 if found is None else 0)
            at += 2 + length
        self._write(0xB0, body[:2] + b"\x00" + codes)

    def _on_acknowledgement(self, session: _Session, kind: int, packet_id: int) -> None:
        data = packet_id.to_bytes(2, "big")
        if kind == _PUBREL:
            known = packet_id in session.received
            session.received.discard(packet_id)
            self._write(0x70, data if known else data + b"\x92")
            return
        each = session.in_flight.get(packet_id)
        if kind == _PUBREC:
            if each is not None:
                each.is_released = True
            self._write(0x62, data if each is not None else data + b"\x92")
            return
        if each is not None:
            del session.in_flight[packet_id]
        self.send_queue()

    def send_queue(self) -> None:
        """Send what waits, as far as the window allows."""
        session = self._session
        assert session is not None
        while session.queue and len(session.in_flight) < session.window:
            message = session.queue.popleft()
            packet_id = 0
            if message.qos:
                packet_id = _free_id(session)
                session.in_flight[packet_id] = _InFlight(message)
            self._send(message, packet_id, dup=False)

    def _send(self, message: Message, packet_id: int, *, dup: bool) -> None:
        topic = message.topic.encode()
        head = len(topic).to_bytes(2, "big") + topic + (packet_id.to_bytes(2, "big") if message.qos else b"")
        properties = b"".join(bytes((number,)) + value for number, value in message.properties)
        first = 0x30 | dup << 3 | message.qos << 1 | message.retain
        self._write(first, head + _variable(len(properties)) + properties + message.payload)

    def _write(self, first: int, body: bytes) -> None:
        self._transport.write(bytes((first,)) + _variable(len(body)) + body)


def _free_id(session: _Session) -> int:
    while True:
        session.packet_id = session.packet_id % 65_535 + 1
        if session.packet_id not in session.in_flight:
            return session.packet_id


def _matching(session: _Session, topic: str, *, source: _Session | None) -> tuple[int, Properties] | None:
    """Return the options, with the highest QoS, and the identifiers of the subscriptions that a topic matches."""
    best = -1
    identifiers: list[tuple[int, bytes]] = []
    for topic_filter, (options, own) in session.subscriptions.items():
        if not _matches(topic_filter, topic) or (options & 4 and source is session):
            continue
        if best < 0 or options & 3 > best & 3:
            best = options
        identifiers += own
    return None if best < 0 else (best, tuple(identifiers))


@functools.cache
def _matches(topic_filter: str, topic: str) -> bool:
    if topic.startswith("$") and topic_filter[:1] in "#+":
        return False
    levels = topic.split("/")
    for place, wanted in enumerate(topic_filter.split("/")):
        if wanted == "#":
            return True
        if place >= len(levels) or (wanted != "+" and wanted != levels[place]):
            return False
    return topic_filter.count("/") == len(levels) - 1


def _take(buffer: bytearray) -> tuple[int, int, bytes] | None:
    """Remove a whole packet from the begin of a buffer; None when there is none."""
    length = 0
    for at in range(1, min(5, len(buffer))):
        length |= (buffer[at] & 0x7F) << 7 * (at - 1)
        if buffer[at] < 0x80:
            end = at + 1 + length
            if len(buffer) < end:
                return None
            packet = buffer[0] >> 4, buffer[0] & 15, bytes(buffer[at + 1 : end])
            del buffer[:end]
            return packet
    return None


def _read_properties(body: bytes, at: int) -> tuple[Properties, int]:
    """Return the properties that begin somewhere, and where they end."""
    length, at = _read_variable(body, at)
    end = at + length
    return tuple(_properties(body, at, end)), end


def _properties(body: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    while at < end:
        number, begin = body[at], at + 1
        if number in _SIZES:
            at = begin + _SIZES[number]
        elif number == _SUBSCRIPTION_ID:
            _, at = _read_variable(body, begin)
        else:
            at = begin + 2 + int.from_bytes(body[begin : begin + 2], "big")
            if number == 0x26:  # a User Property has two texts
                at += 2 + int.from_bytes(body[at : at + 2], "big")
        yield number, body[begin:at]


def _read_variable(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _variable(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | (0x80 if value else 0))
        if not value:
            return bytes(encoded)
