"""A small MQTT client that shows every packet: for tests that must see what a library hides.

It sends what it is told, right or wrong, and answers nothing by itself. It is made from fanout's own codec, so tests
of the codec do not use it; but every byte that it gets passes the oracle (`tests.oracle`), which is not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import TypeVar

from fanout.mqtt.data_representation import decode_binary, decode_u16, decode_varint
from fanout.mqtt.packet_bodies import decode_body
from fanout.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)
from fanout.mqtt.properties import NO_PROPERTIES, Properties, decode_properties
from tests.oracle.streams import ServerStream

__all__ = ["RawClient", "ServerClosed"]

P = TypeVar("P", bound=Packet)

_READ_BYTES = 1 << 16


class ServerClosed(Exception):
    """The server closed the Network Connection."""


class RawClient:
    """One Network Connection to a server.

    Attributes:
        version: 4 or 5.
        connack: The CONNACK of `connect`.
        stream: The oracle, which is told what the client writes.
    """

    connack: Connack

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, version: int, deadline_s: float = 60.0
    ) -> None:
        self.version = version
        self._reader = reader
        self._writer = writer
        self._deadline_s = deadline_s
        self._buffer = b""
        self._received: deque[Packet] = deque()
        self._packet_id = 0
        self.stream = ServerStream(version=version)

    @classmethod
    async def open(cls, port: int, *, version: int = 5, deadline_s: float = 60.0) -> RawClient:
        """Open a Network Connection without sending anything.

        Args:
            port: The server's port on the loopback address.
            version: 4 or 5.
            deadline_s: How long every `receive` may take, in seconds.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, version=version, deadline_s=deadline_s)

    @classmethod
    async def connect(
        cls,
        port: int,
        client_id: str = "",
        *,
        version: int = 5,
        clean_start: bool = True,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
        bridge: bool = False,
    ) -> RawClient:
        """Open a Network Connection, send CONNECT and wait for a CONNACK, which may refuse."""
        client = await cls.open(port, version=version)
        client.send(
            Connect(
                client_id=client_id,
                version=version,
                clean_start=clean_start,
                keep_alive=keep_alive,
                username=username,
                password=password,
                will=will,
                properties=properties,
                bridge=bridge,
            )
        )
        try:
            client.connack = await client.expect(Connack)
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> RawClient:
        """Give itself; the Network Connection is closed in the end."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the Network Connection without DISCONNECT."""
        await self.close()

    def send(self, *packets: Packet) -> None:
        """Write packets, all in one piece."""
        self.send_bytes(b"".join(encode(packet, version=self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Write bytes, packets or not."""
        self.stream.note(data)
        self._writer.write(data)

    async def receive(self) -> Packet:
        """Return the next packet.

        Raises:
            ServerClosed: The server closed the Network Connection, and nothing is left.
            TimeoutError: Nothing came in time.
        """
        while not self._received:
            async with asyncio.timeout(self._deadline_s):
                try:
                    data = await self._reader.read(_READ_BYTES)
                except ConnectionError:
                    data = b""
            if not data:
                raise ServerClosed
            self._decode(data)
        return self._received.popleft()

    async def expect(self, kind: type[P]) -> P:
        """Return the next packet, which must be a `kind`."""
        packet = await self.receive()
        assert isinstance(packet, kind), f"expected {kind.__name__}, got {packet}"
        return packet

    async def expect_ack(self, kind: PacketType, packet_id: int, reason_code: int = 0) -> None:
        """Take the next packet, which must be this acknowledgement."""
        assert await self.receive() == Ack(kind, packet_id, reason_code)

    async def expect_end(self, reason_code: int | None = None) -> None:
        """Wait until the server closed the Network Connection, after a DISCONNECT with `reason_code` if given."""
        if reason_code is not None:
            assert (await self.expect(Disconnect)).reason_code == reason_code
        try:
            packet = await self.receive()
        except ServerClosed:
            return
        raise AssertionError(f"expected the end, got {packet}")

    async def subscribe(
        self, *subscriptions: Subscription | bytes, qos: int = 0, identifier: int | None = None
    ) -> Suback:
        """Send one SUBSCRIBE and wait for its SUBACK, which must come before any PUBLISH.

        Args:
            subscriptions: With all options, or Topic Filters, for which `qos` counts.
            qos: Maximum QoS of the Topic Filters.
            identifier: Subscription Identifier; None for none.
        """
        wanted = tuple(one if isinstance(one, Subscription) else Subscription(one, qos) for one in subscriptions)
        properties = Properties(subscription_identifier=() if identifier is None else (identifier,))
        self.send(Subscribe(self.next_packet_id(), wanted, properties))
        return await self.expect(Suback)

    async def unsubscribe(self, *topic_filters: bytes) -> Unsuback:
        """Send one UNSUBSCRIBE and wait for its UNSUBACK, which must be the next packet."""
        self.send(Unsubscribe(self.next_packet_id(), topic_filters))
        return await self.expect(Unsuback)

    def publish(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """Send one PUBLISH and return its Packet Identifier, 0 at QoS 0."""
        if qos and packet_id is None:
            packet_id = self.next_packet_id()
        self.send(Publish(topic, payload, qos, retain, dup, packet_id, properties))
        return packet_id or 0

    async def messages(self, count: int) -> list[Publish]:
        """Return the next `count` packets, which must be PUBLISHs."""
        return [await self.expect(Publish) for _ in range(count)]

    async def messages_until_ping(self) -> list[Publish]:
        """Send PINGREQ and return the PUBLISHs that come before the PINGRESP."""
        self.send(Pingreq())
        messages: list[Publish] = []
        while not isinstance(packet := await self.receive(), Pingresp):
            assert isinstance(packet, Publish), f"expected PUBLISH or PINGRESP, got {packet}"
            messages.append(packet)
        return messages

    def next_packet_id(self) -> int:
        """Return a Packet Identifier that was not used before."""
        self._packet_id += 1
        return self._packet_id

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport below."""
        return self._writer.transport

    def pause(self) -> None:
        """Read no more from the socket."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a ReadTransport too

    def resume(self) -> None:
        """Read from the socket again."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]  # it is a ReadTransport too

    async def disconnect(self, reason_code: int = 0, properties: Properties = NO_PROPERTIES) -> None:
        """Send DISCONNECT and close the Network Connection."""
        self.send(Disconnect(reason_code, properties))
        await self.close()

    async def close(self) -> None:
        """Close the Network Connection."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):  # the server may have been first
            await self._writer.wait_closed()

    def _decode(self, data: bytes) -> None:
        """Decode whole packets one by one: unlike fanout's own decoder, nothing in a PUBLISH is left out."""
        self.stream.feed(data)
        buffer, pos = self._buffer + data, 0
        while any(byte < 0x80 for byte in buffer[pos + 1 : pos + 5]):
            length, start = decode_varint(buffer, pos + 1)
            if start + length > len(buffer):
                break
            kind, body = PacketType(buffer[pos] >> 4), buffer[start : start + length]
            if kind is PacketType.PUBLISH:
                self._received.append(_decode_publish(buffer[pos], body, self.version))
            else:
                self._received.append(decode_body(kind, body, version=self.version))
            pos = start + length
        self._buffer = buffer[pos:]


def _decode_publish(first: int, body: bytes, version: int) -> Publish:
    topic, pos = decode_binary(body, 0)
    qos = first >> 1 & 3
    packet_id: int | None = None
    if qos:
        packet_id, pos = decode_u16(body, pos)
    properties = NO_PROPERTIES
    if version == 5:
        properties, pos = decode_properties(body, pos, packet=PacketType.PUBLISH)
    return Publish(topic, body[pos:], qos, bool(first & 1), bool(first & 8), packet_id, properties)
