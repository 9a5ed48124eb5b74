"""A client of MQTT 3.1.1 or 5 that keeps the Session State a correct client keeps, and loses its connection on purpose.

It publishes numbered messages and notes what came. A countdown of steps, drawn anew for each connection, ends the
connection at any point of a handshake: after a packet that was read, or one that was written.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.roaming import packets
from bench.roaming.records import Lapse, Received, Sent, Subscriber

__all__ = ["Figures", "RoamingClient", "payload_of", "read_payload", "topic_of"]

_IN_FLIGHT_MAX = 10
_SILENCE_S = 4.0
_PING_S = 1.0
_KEEP_ALIVE_S = 10
_PINGREQ = b"\xc0\x00"


def topic_of(publisher: str, qos: int) -> str:
    """Return the Topic Name of a publisher's messages at one QoS."""
    return f"roam/{publisher}/{qos}"


def payload_of(message: Sent) -> bytes:
    """Return the payload of a numbered message."""
    return f"{message.publisher} {message.qos} {message.number}".encode()


def read_payload(payload: bytes) -> Received:
    """Return the message of a payload, as received now."""
    publisher, qos, number = payload.decode().split()
    return Received(publisher, int(qos), int(number), time.monotonic())


@dataclass(slots=True)
class Figures:
    """Common counters of all clients of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    """Refusals, cuts, sessions present and absent, and other events, by name."""
    moves_s: list[float] = field(default_factory=list)
    """From CONNECT to a CONNACK with Session Present 1."""


class _Ended(Exception):
    """The connection has ended, on purpose or not."""


@dataclass(slots=True)
class _Outgoing:
    """A message in flight to the server."""

    message: Sent
    released: bool = False
    """True if PUBREC came, so that only PUBREL is sent again."""


class RoamingClient:
    """One client, from its first connection to `finish`; `run` is its only task."""

    def __init__(
        self,
        client_id: str,
        *,
        port: int,
        version: int,
        publishers: Mapping[str, int],
        draw: random.Random,
        figures: Figures,
        kills: bool,
        steps_max: int,
        retains: bool = False,
    ) -> None:
        """Describe a client.

        Args:
            client_id: Client Identifier.
            port: The load balancer's, on loopback.
            version: 4 or 5.
            publishers: Publishers that it subscribes to, and the QoS.
            draw: Decides its cuts and pauses.
            figures: Its counters.
            kills: True if members are killed, so that a message that it sends again may come
                twice.
            steps_max: Steps of handshakes that one connection lives for at most.
            retains: True if it publishes every other message with RETAIN.
        """
        self.client_id = client_id
        self.subscriber = Subscriber(publishers)
        """Messages that it got."""
        self.sent: list[Sent] = []
        """Messages that it published."""
        self.subscribed = asyncio.Event()
        """Set once its subscriptions were acknowledged for the first time."""
        self.connected = False
        self.cutting = False
        """True if its connections are cut."""
        self._port, self._version, self._draw, self._figures = port, version, draw, figures
        self._kills, self._steps_max, self._retains = kills, steps_max, retains
        self._waiting: deque[Sent] = deque()
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: set[int] = set()
        self._packet_id = 0
        self._has_subscriptions = False
        self._lost_at = 0.0
        self._steps = 0
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._buffer = bytearray()
        self._subscribe_id = 0

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"roaming {self.client_id}")

    async def finish(self) -> None:
        """Close the connection and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def failure(self) -> BaseException | None:
        """Why it ended by itself, which it never should."""
        task = self._task
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    @property
    def is_done(self) -> bool:
        """True if each message that it published, or got at QoS 2, has come to its end, and it is connected."""
        return self.connected and not (self._outgoing or self._waiting or self._incoming)

    def publish(self, qos: int, number: int) -> None:
        """Publish a numbered message, at once or as soon as there is a connection with room."""
        self._waiting.append(Sent(self.client_id, qos, number, 0.0))
        self.sent.append(self._waiting[-1])
        if self.connected:
            try:
                self._send_waiting()
            except (_Ended, OSError):
                self._abort()  # the reader finds the end

    async def _run(self) -> None:
        while True:
            try:
                await self._connection()
            except (_Ended, OSError, TimeoutError):
                pass
            finally:
                if self.connected and self._has_subscriptions:  # else what was lost before is not there again yet
                    self._lost_at = time.monotonic()
                self.connected = False
                self._abort()
            await asyncio.sleep(self._draw.uniform(0.0, 0.3))

    async def _connection(self) -> None:
        """Serve one Network Connection until it ends."""
        # A server that is stopped accepts by its kernel, and then says nothing.
        self._steps = self._draw.randint(1, self._steps_max)
        async with asyncio.timeout(_SILENCE_S):
            reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._buffer.clear()
        began = time.monotonic()
        self._writer.write(packets.connect(self.client_id, version=self._version, keep_alive_s=_KEEP_ALIVE_S))
        self._step("CONNECT written")
        (answer, *others) = await self._read(reader)
        code = answer.body[1]
        if answer.kind != packets.CONNACK or code:
            self._figures.counts["refused to come later" if code in packets.LATER else f"CONNACK 0x{code:02x}"] += 1
            raise _Ended
        self._on_connack(bool(answer.body[0] & 1), time.monotonic() - began)
        self.connected = True
        self._step("CONNACK read")
        self._resume()
        for packet in others:
            self._on_packet(packet)
        while True:
            for packet in await self._read(reader):
                self._on_packet(packet)
            self._send_waiting()

    async def _read(self, reader: asyncio.StreamReader) -> list[packets.Packet]:
        """Return the next packets; ask whether the server is there when nothing comes."""
        asked = 0
        while not (found := packets.take_packets(self._buffer)):
            try:
                async with asyncio.timeout(_PING_S):
                    data = await reader.read(65_536)
            except TimeoutError:
                asked += 1
                if asked > _SILENCE_S / _PING_S:
                    self._figures.counts["given up as silent"] += 1
                    raise
                if self.connected:
                    self._write(_PINGREQ)
                continue
            if not data:
                self._figures.counts["closed by the server"] += 1
                raise _Ended
            self._buffer += data
        return found

    def _on_connack(self, present: bool, took_s: float) -> None:
        """Keep or forget the Session State, as the server has it."""
        if present:
            self._figures.counts["session present"] += 1
            self._figures.moves_s.append(took_s)
            return
        first = not self.subscribed.is_set()
        self._figures.counts["first session" if first else "session absent"] += 1
        self._has_subscriptions = False
        self._incoming.clear()
        outgoing, self._outgoing = self._outgoing, {}
        anew = [each.message for each in outgoing.values() if not each.released]
        for message in anew:
            message.at_risk = True
        self._waiting.extendleft(reversed(anew))

    def _resume(self) -> None:
        """Send again what is in flight, in order, and subscribe where there is no subscription."""
        for packet_id, each in list(self._outgoing.items()):
            if each.released:
                self._write(packets.short(packets.PUBREL, packet_id))
                self._step("PUBREL written again")
            else:
                # A member may have forwarded it, and have been killed before it told anybody.
                each.message.at_risk |= self._kills and each.message.qos == 2
                self._send(packet_id, each.message, dup=True)
        if not self._has_subscriptions:
            self._subscribe_id = self._next_id()
            filters = {f"roam/{name}/#": qos for name, qos in self.subscriber.publishers.items()}
            self._write(packets.subscribe(filters, packet_id=self._subscribe_id, version=self._version))
            self._step("SUBSCRIBE written")
        else:
            self._send_waiting()

    def _on_packet(self, packet: packets.Packet) -> None:
        if packet.kind == packets.PUBLISH:
            self._on_publish(packets.read_publish(packet, version=self._version))
        elif packet.kind == packets.PUBREL:
            self._step("PUBREL read")
            self._incoming.discard(packet.packet_id)
            self._write(packets.short(packets.PUBCOMP, packet.packet_id))
            self._step("PUBCOMP written")
        elif packet.kind in (packets.PUBACK, packets.PUBREC, packets.PUBCOMP):
            self._on_acknowledgement(packet)
        elif packet.kind == packets.SUBACK and packet.packet_id == self._subscribe_id:
            self._on_suback(packet)
        elif packet.kind == packets.DISCONNECT:
            self._figures.counts[f"DISCONNECT 0x{packet.body[0] if packet.body else 0:02x}"] += 1
            raise _Ended

    def _on_publish(self, publish: packets.PublishPacket) -> None:
        self._step("PUBLISH read")
        if publish.qos < 2 or publish.packet_id not in self._incoming:
            self._on_message(publish.payload)
        if publish.qos == 2:
            self._incoming.add(publish.packet_id)
        if publish.qos:
            self._step("PUBLISH taken")
            self._write(packets.short(packets.PUBREC if publish.qos == 2 else packets.PUBACK, publish.packet_id))
            self._step("PUBREC or PUBACK written")

    def _on_message(self, payload: bytes) -> None:
        self.subscriber.received.append(read_payload(payload))

    def _on_acknowledgement(self, packet: packets.Packet) -> None:
        self._step("PUBREC, PUBCOMP or PUBACK read")
        each = self._outgoing.get(packet.packet_id)
        if each is None:
            self._figures.counts["acknowledgements of nothing"] += 1
            return
        if packet.reason_code >= 0x80 and not each.released:
            self._figures.counts[f"refused with 0x{packet.reason_code:02x}"] += 1
            del self._outgoing[packet.packet_id]
            each.message.at_risk = True
            self._waiting.appendleft(each.message)
            return
        each.message.acknowledged = True
        if packet.kind == packets.PUBREC:
            each.released = True
            self._write(packets.short(packets.PUBREL, packet.packet_id))
            self._step("PUBREL written")
        else:
            del self._outgoing[packet.packet_id]

    def _on_suback(self, packet: packets.Packet) -> None:
        codes = packet.body[-len(self.subscriber.publishers) :]
        if max(codes) > 2:
            raise ValueError(f"the server refuses a subscription: {codes.hex()}")
        if self.subscribed.is_set():
            self.subscriber.lapses.append(Lapse(self._lost_at, time.monotonic()))
        self._has_subscriptions = True
        self.subscribed.set()
        self._step("SUBACK read")

    def _send_waiting(self) -> None:
        while self._waiting and len(self._outgoing) < _IN_FLIGHT_MAX:
            message = self._waiting.popleft()
            packet_id = self._next_id()
            self._outgoing[packet_id] = _Outgoing(message)
            message.at = message.at or time.monotonic()
            self._send(packet_id, message, dup=False)

    def _send(self, packet_id: int, message: Sent, *, dup: bool) -> None:
        topic, payload = topic_of(self.client_id, message.qos), payload_of(message)
        retain = self._retains and message.number % 2 == 1
        self._write(
            packets.publish(
                topic, payload, qos=message.qos, packet_id=packet_id, dup=dup, version=self._version, retain=retain
            )
        )
        self._step("PUBLISH written")

    def _next_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self._outgoing:
                return self._packet_id

    def _write(self, data: bytes) -> None:
        if self._writer is None or self._writer.is_closing():
            raise _Ended
        self._writer.write(data)

    def _step(self, where: str) -> None:
        """Count one step of a handshake; end the connection when it is the last one."""
        self._steps -= 1
        if self.cutting and self._steps < 0:
            self._figures.counts[f"cut: {where}"] += 1
            raise _Ended

    def _abort(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None or writer.is_closing():
            return
        if self._draw.random() < 0.5:  # RST: what a lost connection looks like
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
