"""Thousands of clients with durable sessions: all of them subscribe, some go away, and all come back.

A client notes the number of each message as its application gets it. Only so many connect at a time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from bench.roaming import packets

__all__ = ["RECEIVERS", "Client", "Crowd", "Publisher", "judge"]

RECEIVERS = 8
"""Sessions that get a message: one of each kind."""
_DISCONNECT = b"\xe0\x00"
_ANSWER_S = 10.0
_AGAIN_S = (0.2, 0.6)
_TICK_S = 0.01
_PAYLOAD_BYTES = 64


def topic_of(number: int) -> str:
    """Return the Topic Name of a row of messages."""
    return f"roam/{number}"


class _Connection(asyncio.Protocol):
    """One Network Connection of a client, from its CONNECT to its end."""

    def __init__(self, client: Client) -> None:
        self.transport: asyncio.Transport | None = None
        self._client = client
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write CONNECT."""
        self.transport = cast("asyncio.Transport", transport)
        client = self._client
        self.transport.write(packets.connect(client.client_id, version=client.version, keep_alive_s=0))

    def data_received(self, data: bytes) -> None:
        """Answer all that came, in one write."""
        self._buffer += data
        answers = b"".join(map(self._client.receive, packets.take_packets(self._buffer)))
        if answers and self.transport is not None:
            self.transport.write(answers)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the client."""
        self._client.lost(self)


class Client:
    """A client with a durable session, of MQTT 3.1.1 or 5; its state outlives its connections."""

    def __init__(self, number: int, *, port: int, crowd: Crowd) -> None:
        """Describe a client; half of each kind are at QoS 2, away, and of MQTT 5.

        Args:
            number: Its number.
            port: Port to connect to, on loopback.
            crowd: Is told when its connection ends.
        """
        self.client_id = f"take-{number}"
        self.qos = 1 + number % 2
        """Of its subscription."""
        self.is_away = bool(number // 2 % 2)
        """True if it goes away once it has subscribed, and comes back at the end."""
        self.version = 4 + number // 4 % 2
        self.topic = number // RECEIVERS
        """Number of its topic."""
        self.received: list[int] = []
        """Numbers of the messages as its application got them."""
        self.present = 0
        """CONNACKs with Session Present 1."""
        self.absent = 0
        """CONNACKs with Session Present 0, the first one not counted."""
        self.came_at = 0.0
        """When it had its session last."""
        self.is_waiting = False
        """True if it waits for its turn to connect."""
        self._port, self._crowd = port, crowd
        self._held: set[int] = set()
        self._is_subscribed = False
        self._connection: _Connection | None = None
        self._answer: asyncio.Future[int] | None = None
        self._subscribed: asyncio.Future[int] | None = None

    @property
    def is_connected(self) -> bool:
        """True if it has a connection with its session."""
        return self._connection is not None and self._is_subscribed and self.came_at > 0 and not self.is_waiting

    async def come(self) -> int:
        """Connect anew; return the Reason Code of CONNACK, or -1 when none came."""
        self.abort()
        loop = asyncio.get_running_loop()
        connection = self._connection = _Connection(self)
        answer: asyncio.Future[int] = loop.create_future()
        self._answer = answer
        try:
            async with asyncio.timeout(_ANSWER_S):
                await loop.create_connection(lambda: connection, "127.0.0.1", self._port)
                code = await answer
                if not code and not self._is_subscribed:
                    subscribed: asyncio.Future[int] = loop.create_future()
                    self._subscribed = subscribed
                    filters = {topic_of(self.topic): self.qos}
                    assert connection.transport is not None
                    connection.transport.write(packets.subscribe(filters, packet_id=1, version=self.version))
                    code = await subscribed
        except (OSError, TimeoutError):
            code = -1
        if code:
            self.abort()
        return code if self._connection is connection or code else -1

    def go(self) -> None:
        """Disconnect; the session stays."""
        if self._connection is not None and self._connection.transport is not None:
            connection, self._connection = self._connection, None
            assert connection.transport is not None
            connection.transport.write(_DISCONNECT)
            connection.transport.close()

    def abort(self) -> None:
        """End the connection without a word."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    def lost(self, connection: _Connection) -> None:
        """Note the end of a connection."""
        if connection is not self._connection:
            return
        self._connection = None
        is_coming = False
        for each in (self._answer, self._subscribed):
            if each is not None and not each.done():
                each.set_result(-1)
                is_coming = True
        if not is_coming:
            self._crowd.queue(self)

    def receive(self, packet: packets.Packet) -> bytes:
        """Take a packet and return the answer to it."""
        if packet.kind == packets.PUBLISH:
            publish = packets.read_publish(packet, version=self.version)
            if publish.qos < 2 or publish.packet_id not in self._held:
                self.received.append(int(publish.payload))
            if publish.qos == 2:
                self._held.add(publish.packet_id)
                return packets.short(packets.PUBREC, publish.packet_id)
            self._crowd.acknowledged += 1
            return packets.short(packets.PUBACK, publish.packet_id)
        if packet.kind == packets.PUBREL:
            self._held.discard(packet.packet_id)
            self._crowd.acknowledged += 1
            return packets.short(packets.PUBCOMP, packet.packet_id)
        if packet.kind == packets.CONNACK and self._answer is not None and not self._answer.done():
            self._on_connack(is_present=bool(packet.body[0] & 1), code=packet.body[1])
            self._answer.set_result(packet.body[1])
        elif packet.kind == packets.SUBACK and self._subscribed is not None and not self._subscribed.done():
            self._is_subscribed = True
            self._subscribed.set_result(0)
        return b""

    def _on_connack(self, *, is_present: bool, code: int) -> None:
        if code:
            return
        self.came_at = time.monotonic()
        if is_present:
            self.present += 1
            return
        self.absent += self._is_subscribed
        self._is_subscribed = False
        self._held.clear()


class Crowd:
    """All clients, and the few of them that connect at a time."""

    def __init__(self, count: int, *, ports: Sequence[int], at_once: int, draw: random.Random) -> None:
        """Describe a crowd.

        Args:
            count: Number of clients.
            ports: Those of the load balancers, on loopback; clients use them in turn.
            at_once: Clients that connect at a time.
            draw: Decides the order in which they come back, and their pauses.
        """
        self.counts: Counter[str] = Counter()
        """Refusals and failures, by name."""
        self.acknowledged = 0
        """Messages whose PUBACK or PUBCOMP was sent."""
        self.clients = [Client(number, port=ports[number % len(ports)], crowd=self) for number in range(count)]
        self._at_once, self._draw = at_once, draw
        self._queue: asyncio.Queue[Client] = asyncio.Queue(count)
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect those that are queued."""
        self._workers = [asyncio.create_task(self._work(), name=f"crowd-{each}") for each in range(self._at_once)]

    async def finish(self) -> None:
        """Close all connections and end."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for client in self.clients:
            client.abort()

    def queue(self, client: Client) -> None:
        """Let a client connect when it is its turn, once."""
        if not client.is_waiting:
            client.is_waiting = True
            self._queue.put_nowait(client)

    async def bring(self, clients: Sequence[Client], *, deadline_s: float) -> None:
        """Let clients connect, in any order, and wait until all of them have their sessions.

        Raises:
            TimeoutError: This takes longer than `deadline_s`.
        """
        begun = time.monotonic()
        for client in self._draw.sample(clients, len(clients)):
            self.queue(client)
        while not all(client.came_at >= begun and client.is_connected for client in clients):
            if time.monotonic() > begun + deadline_s:
                missing = sum(client.came_at < begun for client in clients)
                raise TimeoutError(f"{missing} clients have no session after {deadline_s:g} s: {dict(self.counts)}")
            await asyncio.sleep(0.05)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client = await self._queue.get()
            code = await client.come()
            client.is_waiting = bool(code)
            if code:
                self.counts["refused to come later" if code in packets.LATER else f"CONNACK {code}"] += 1
                loop.call_later(self._draw.uniform(*_AGAIN_S), self._queue.put_nowait, client)


class Publisher(asyncio.Protocol):
    """Publishes numbered messages at QoS 2 at the primary, in a row of topics, at an even rate."""

    def __init__(self) -> None:
        self.published = 0
        """Messages, numbered from 0."""
        self._left = 0
        """Messages whose PUBCOMP has not come, of all that are to be published."""
        self._completed = asyncio.Event()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._connected = asyncio.Event()

    async def run(self, port: int, *, topics: int, per_s: float, seconds: float) -> None:
        """Publish for some time, and wait until the primary has all."""
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        await self._connected.wait()
        assert self._transport is not None
        begun, total = time.monotonic(), int(per_s * seconds)
        self._left = total
        while self.published < total:
            due = min(total, int((time.monotonic() - begun) * per_s) + 1)
            self._transport.write(b"".join(_message(number, topics) for number in range(self.published, due)))
            self.published = due
            await asyncio.sleep(_TICK_S)
        async with asyncio.timeout(60):
            if self._left:
                await self._completed.wait()
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Write CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(packets.connect("take-publisher", version=4, keep_alive_s=0))

    def data_received(self, data: bytes) -> None:
        """Go on with the handshakes."""
        self._buffer += data
        answers = []
        for packet in packets.take_packets(self._buffer):
            if packet.kind == packets.PUBREC:
                answers.append(packets.short(packets.PUBREL, packet.packet_id))
            elif packet.kind == packets.PUBCOMP:
                self._left -= 1
                if not self._left:
                    self._completed.set()
            elif packet.kind == packets.CONNACK:
                self._connected.set()
        if answers and self._transport is not None:
            self._transport.write(b"".join(answers))


def _message(number: int, topics: int) -> bytes:
    payload = b"%0*d" % (_PAYLOAD_BYTES, number)
    packet_id = number % 65_535 + 1
    return packets.publish(topic_of(number % topics), payload, qos=2, packet_id=packet_id, dup=False, version=4)


def judge(clients: Iterable[Client], published: int, topics: int) -> Mapping[str, int]:
    """Return how many messages are expected, were lost, came twice at QoS 2 and were repeated at QoS 1."""
    totals: Counter[str] = Counter(expected=0, lost=0, doubled=0, repeated=0)
    for client in clients:
        expected = range(client.topic, published, topics)
        counts = Counter(client.received)
        totals["expected"] += len(expected)
        totals["lost"] += sum(number not in counts for number in expected)
        totals["doubled" if client.qos == 2 else "repeated"] += sum(counts.values()) - len(counts)
    return totals
