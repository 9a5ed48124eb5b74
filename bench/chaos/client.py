"""A small MQTT 5 client on asyncio that shows everything it gets, flags and properties included.

It frames packets by itself and leaves properties to paho, so that it shares no code with fanout. It must not know what
is right or wrong about a message.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

__all__ = ["Client", "Message", "pack_properties", "read_retained"]

_CONNACK, _PUBLISH, _PUBACK, _PUBREC, _PUBREL, _PUBCOMP = 2, 3, 4, 5, 6, 7
_SUBACK, _PINGRESP, _DISCONNECT = 9, 13, 14
_ANSWER_S = 10.0
_EXPIRY = "MessageExpiryInterval"
_RETAIN_AS_PUBLISHED = 8


@dataclass(frozen=True, slots=True)
class Message:
    """One PUBLISH packet."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    properties: dict[str, Any]
    """By paho's names, without the Message Expiry Interval and the Topic Alias."""
    expiry_s: int | None
    """Message Expiry Interval."""


def pack_properties(
    *, expiry_s: int | None = None, content_type: str = "", pairs: Sequence[tuple[str, str]] = ()
) -> bytes:
    """Return the encoded properties of a PUBLISH."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if expiry_s is not None:
        properties.MessageExpiryInterval = expiry_s
    if content_type:
        properties.ContentType = content_type
    if pairs:
        properties.UserProperty = list(pairs)
    return bytes(properties.pack())  # type: ignore[no-untyped-call]


class Client:
    """One Network Connection; `connect` makes it, and nothing makes it again when it is lost."""

    def __init__(self, receive: Callable[[Message], None]) -> None:
        self.session_present = False
        """Result in CONNACK."""
        self.asked = False
        """True if CONNECT was sent, so that there may be a session, be it that nothing answered."""
        self.lost = asyncio.Event()
        """Set when the connection has ended, for whatever reason."""
        self._receive = receive
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        """Awaited packets: packet type and Packet Identifier (0 without one) to its body."""
        self._packet_id = 0

    async def connect(self, port: int, client_id: str, *, clean: bool = True, expiry_s: int = 0) -> None:
        """Connect to a server on loopback.

        Args:
            port: Its port.
            client_id: Client Identifier.
            clean: Clean Start.
            expiry_s: Session Expiry Interval.

        Raises:
            ConnectionError: It refuses, or the connection is lost.
            TimeoutError: It does not answer.
        """
        async with asyncio.timeout(_ANSWER_S):  # wait_for of Python 3.11 may swallow a cancellation
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"chaos client {client_id}")
        self.asked = True
        body = b"\x00\x04MQTT\x05" + bytes([2 if clean else 0]) + b"\x00\x00\x05\x11" + expiry_s.to_bytes(4, "big")
        try:
            answer = await self._ask(_CONNACK, 0, 0x10, body + _text(client_id))
        except BaseException:
            await self.close()
            raise
        self.session_present = bool(answer[0] & 1)
        if answer[1]:
            await self.close()
            raise ConnectionError(f"CONNACK with Reason Code 0x{answer[1]:02x}")

    async def subscribe(self, *filters: tuple[str, int]) -> None:
        """Subscribe to Topic Filters, each with its Subscription Options, in one packet; return with SUBACK.

        Raises:
            ConnectionError: It is refused, or the connection is lost.
            TimeoutError: There is no answer.
        """
        packet_id = self._next_id()
        body = packet_id.to_bytes(2, "big") + b"\x00"
        body += b"".join(_text(topic_filter) + bytes([options]) for topic_filter, options in filters)
        answer = await self._ask(_SUBACK, packet_id, 0x82, body)
        codes = answer[-len(filters) :]
        if any(code >= 0x80 for code in codes):
            raise ConnectionError(f"SUBACK with Reason Codes {codes.hex(' ')}")

    async def ping(self) -> None:
        """Return with the answer to a PINGREQ.

        Raises:
            ConnectionError: The connection is lost.
            TimeoutError: There is no answer.
        """
        await self._ask(_PINGRESP, 0, 0xC0, b"")

    def publish(
        self, topic: str, payload: bytes, *, qos: int, retain: bool, properties: bytes = b"\x00"
    ) -> asyncio.Future[bytes] | None:
        """Publish; return what becomes done with PUBACK or PUBCOMP, or fails with the connection; None at QoS 0."""
        first = 0x30 | qos << 1 | retain
        if not qos:
            self._send(first, _text(topic) + properties + payload)
            return None
        packet_id = self._next_id()
        future = self._await(_PUBACK if qos == 1 else _PUBCOMP, packet_id)
        self._send(first, _text(topic) + packet_id.to_bytes(2, "big") + properties + payload)
        return future

    def abort(self) -> None:
        """Cut the connection without DISCONNECT."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Cut the connection, and wait until nothing of it runs any more."""
        if self._reading is None:
            return
        self.abort()
        self._reading.cancel()
        await asyncio.wait((self._reading,))  # unlike awaiting it, this tells its cancellation from our own

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65535 + 1
        return self._packet_id

    def _send(self, first: int, body: bytes) -> None:
        if self.lost.is_set():
            raise ConnectionResetError("the connection is lost")
        self._writer.write(bytes([first]) + _variable(len(body)) + body)

    def _await(self, kind: int, packet_id: int) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
        self._answers[kind, packet_id] = future
        return future

    async def _ask(self, kind: int, packet_id: int, first: int, body: bytes) -> bytes:
        future = self._await(kind, packet_id)
        self._send(first, body)
        async with asyncio.timeout(_ANSWER_S):
            return await future

    async def _read(self) -> None:
        try:
            while True:
                first = (await self._reader.readexactly(1))[0]
                body = await self._reader.readexactly(await self._length())
                self._on_packet(first, body)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the server, or the network, ended it
        finally:
            self.lost.set()
            self._writer.transport.abort()
            answers, self._answers = self._answers, {}
            for future in answers.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the connection is lost"))

    async def _length(self) -> int:
        length = shift = 0
        while True:
            byte = (await self._reader.readexactly(1))[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return length

    def _on_packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == _PUBLISH:
            self._on_publish(first, body)
        elif kind == _DISCONNECT:
            raise ConnectionResetError("DISCONNECT")
        elif kind == _PUBREL:
            self._send(_PUBCOMP << 4, body[:2])
        elif kind == _PUBREC:
            self._send(_PUBREL << 4 | 2, body[:2])
        else:
            packet_id = int.from_bytes(body[:2], "big") if kind in (_PUBACK, _PUBCOMP, _SUBACK) else 0
            future = self._answers.pop((kind, packet_id), None)
            if future is not None and not future.done():
                future.set_result(body)

    def _on_publish(self, first: int, body: bytes) -> None:
        qos = first >> 1 & 3
        at = 2 + int.from_bytes(body[:2], "big")
        topic = body[2:at].decode()
        packet_id = body[at : at + 2] if qos else b""
        at += len(packet_id)
        properties: dict[str, Any] = {}
        if body[at]:
            parsed = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            at += parsed.unpack(body[at:])[1]  # type: ignore[no-untyped-call]
            properties = parsed.json()  # type: ignore[no-untyped-call]
        else:
            at += 1
        expiry_s = properties.pop(_EXPIRY, None)
        properties.pop("TopicAlias", None)
        self._receive(Message(topic, body[at:], qos, bool(first & 1), bool(first & 8), properties, expiry_s))
        if qos:
            self._send((_PUBACK if qos == 1 else _PUBREC) << 4, packet_id)


async def read_retained(port: int, client_id: str, filters: Sequence[str]) -> dict[str, Message]:
    """Return what a new client reads: each topic's newest retained message, until the answer to a PINGREQ after all.

    Raises:
        ConnectionError: The server refuses, or the connection is lost.
        TimeoutError: It does not answer.
    """
    values: dict[str, Message] = {}

    def take(message: Message) -> None:
        if message.payload and message.retain:
            values[message.topic] = message
        elif message.retain:
            values.pop(message.topic, None)

    client = Client(take)
    await client.connect(port, client_id)
    try:
        for topic_filter in filters:
            await client.subscribe((topic_filter, _RETAIN_AS_PUBLISHED))
        await client.ping()
    finally:
        await client.close()
    return values


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("!H", len(data)) + data


def _variable(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | (0x80 if value else 0))
        if not value:
            return bytes(encoded)
