"""Clients of the oracle: they check every byte that they get, and answer as a client must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.oracle.encoding import encode_ack, encode_connect, encode_subscribe
from tests.oracle.packets import Kind, Packet, Properties, Violation
from tests.oracle.streams import ServerStream

__all__ = ["Client"]


class Client(asyncio.Protocol):
    """One client of a node, over one Network Connection after another.

    Attributes:
        name: For findings.
        findings: What its node sent and may not send; empty for nothing.
        codes: Reason Codes of PUBACKs and failing PUBRECs, by Packet Identifier.
        is_closed: Whether the node ended the Network Connection.
    """

    def __init__(self, name: str, client_id: bytes, *, version: int, take: Callable[[Packet], None]) -> None:
        """Describe a client.

        Args:
            name: See above.
            client_id: Its Client Identifier.
            version: 4 or 5.
            take: Gets every PUBLISH.
        """
        self.name = name
        self.client_id = client_id
        self.version = version
        self.findings: list[str] = []
        self.codes: dict[int, int] = {}
        self.is_closed = False
        self.answers = True
        """Whether it acknowledges what it gets."""
        self.stream: ServerStream | None = None
        self.connack: Packet | None = None
        self._take = take
        self._answered = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._packet_id = 0
        self._subacks: list[Packet] = []

    async def connect(
        self,
        port: int,
        *,
        properties: Properties = (),
        clean_start: bool = True,
        will: Packet | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        """Open a Network Connection and wait for CONNACK."""
        self.stream = ServerStream(version=self.version, earlier=self.stream)
        self.connack, self.is_closed = None, False
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port)
        self.send(
            encode_connect(
                self.client_id, version=self.version, properties=properties, clean_start=clean_start, will=will
            )
        )
        await self._wait(lambda: self.connack is not None, "CONNACK", deadline_s)

    async def subscribe(
        self, filters: Sequence[tuple[bytes, int]], *, properties: Properties = (), deadline_s: float = 60.0
    ) -> None:
        """Subscribe and wait for SUBACK."""
        self._packet_id += 1
        self.send(encode_subscribe(self._packet_id, filters, version=self.version, properties=properties))
        await self._wait(lambda: bool(self._subacks), "SUBACK", deadline_s)
        codes = self._subacks.pop().codes
        assert max(codes) < 0x80, f"{self.name}: {filters} refused with {codes}"

    def send(self, data: bytes) -> None:
        """Write bytes."""
        assert self.stream is not None
        self.stream.note(data)
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Read no more."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the Network Connection without a word."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def lose(self) -> None:
        """End the Network Connection, and return when it is gone."""
        self.abort()
        await self._wait(lambda: self.is_closed, "end", 10.0, may_be_closed=True)

    def data_received(self, data: bytes) -> None:
        """Check what came, and answer it."""
        if self.findings or self.stream is None or self._transport is None:
            return
        try:
            packets = self.stream.feed(data)
        except Violation as violation:
            self.findings.append(f"{self.name}: the node sent what it may not: {violation}")
            self.abort()
            return
        answers: list[bytes] = []
        for packet in packets:
            kind = packet.kind
            if kind is Kind.PUBLISH:
                if packet.qos and self.answers:
                    answers.append(encode_ack(Kind.PUBACK if packet.qos == 1 else Kind.PUBREC, packet.packet_id))
                self._take(packet)
            elif kind is Kind.PUBREL:
                answers.append(encode_ack(Kind.PUBCOMP, packet.packet_id))
            elif kind is Kind.PUBACK:
                self.codes[packet.packet_id] = packet.codes[0]
            elif kind is Kind.PUBREC:
                if packet.codes[0] >= 0x80:
                    self.codes[packet.packet_id] = packet.codes[0]
                else:
                    answers.append(encode_ack(Kind.PUBREL, packet.packet_id))
            elif kind is Kind.PUBCOMP:
                self.codes[packet.packet_id] = packet.codes[0]
            elif kind is Kind.CONNACK:
                self.connack = packet
            elif kind is Kind.SUBACK:
                self._subacks.append(packet)
            elif kind is Kind.DISCONNECT:
                self.findings.append(f"{self.name}: the node disconnected: {packet}")
        if answers:
            self.send(b"".join(answers))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.is_closed = True

    async def _wait(
        self, condition: Callable[[], bool], what: str, deadline_s: float, *, may_be_closed: bool = False
    ) -> None:
        end = asyncio.get_running_loop().time() + deadline_s
        while not condition():
            if self.findings or (self.is_closed and not may_be_closed) or asyncio.get_running_loop().time() > end:
                raise AssertionError(f"{self.name}: no {what}; {self.findings}")
            await asyncio.sleep(0.005)
