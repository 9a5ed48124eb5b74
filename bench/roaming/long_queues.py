"""Clients with long queues: thousands of messages come while they are away, and they take them at several members."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from bench.roaming import packets

__all__ = ["LongQueue", "fill"]

_TOPIC: Final = "roam/long"
_ANSWER_S: Final = 10.0
"""Time for the next bytes; a member that is stopped says nothing."""
_BEGIN_S: Final = 60.0
_WINDOW: Final = 100


class LongQueue:
    """One client that goes to members in turn, and is cut after a part of its waiting messages."""

    def __init__(self, client_id: str, *, ports: Sequence[int], count: int, draw: random.Random) -> None:
        """Describe it.

        Args:
            client_id: Client Identifier.
            ports: Of the members.
            count: Messages that will wait for it.
            draw: Decides where it goes, and when it is cut.
        """
        self.client_id = client_id
        self.got: set[int] = set()
        """Numbers of the messages that came."""
        self.sessions_lost = 0
        """Number of visits without its session."""
        self.moves = 0
        """Number of visits with it, at a member."""
        self._ports, self._count, self._draw = ports, count, draw

    @property
    def missing(self) -> int:
        """Number of messages that have not come."""
        return self._count - len(self.got)

    async def subscribe(self) -> None:
        """Begin the session, and leave it."""
        reader, writer = await self._connect_in_time(self._ports[0])
        writer.write(packets.subscribe({_TOPIC: 1}, packet_id=1, version=4))
        async with asyncio.timeout(_ANSWER_S):
            while not any(packet.kind == packets.SUBACK for packet in await _read(reader, bytearray())):
                pass
        writer.transport.abort()

    async def run(self) -> None:
        """Take everything, at members in turn; ends when all has come, or the session is lost."""
        while self.missing and not self.sessions_lost:
            try:
                await self._visit(self._draw.choice(self._ports))
            except (OSError, TimeoutError, EOFError):
                await asyncio.sleep(self._draw.uniform(0.1, 0.5))

    async def _connect_in_time(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, again while a member asks to come later: it waits for what others know of the session."""
        async with asyncio.timeout(_BEGIN_S):
            while True:
                try:
                    return await self._connect(port)
                except EOFError:
                    await asyncio.sleep(self._draw.uniform(0.1, 0.5))

    async def _visit(self, port: int) -> None:
        """Take a part of what waits at a member."""
        wanted = len(self.got) + self._draw.randint(1, max(1, self._count // 4))
        reader, writer = await self._connect(port)
        buffer = bytearray()
        try:
            while self.missing and len(self.got) < wanted:
                async with asyncio.timeout(_ANSWER_S):
                    came = await _read(reader, buffer)
                for packet in came:
                    if packet.kind == packets.PUBLISH:
                        message = packets.read_publish(packet, version=4)
                        self.got.add(int(message.payload))
                        writer.write(packets.short(packets.PUBACK, message.packet_id))
                        if len(self.got) >= wanted:
                            break  # what came with it has no PUBACK, and comes again
                await writer.drain()
        finally:
            writer.transport.abort()

    async def _connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect with Clean Start 0.

        Raises:
            EOFError: It is to come later.
        """
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(packets.connect(self.client_id, version=4, keep_alive_s=0))
                head = await reader.readexactly(4)
                if head[3]:
                    raise EOFError
            except BaseException:
                writer.transport.abort()
                raise
        if head[2] & 1:
            self.moves += 1
        elif self.moves or self.got:
            self.sessions_lost += 1
            writer.transport.abort()
            raise EOFError
        return reader, writer


async def fill(port: int, count: int) -> None:
    """Publish the messages at the primary."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(packets.connect("long-queues", version=4, keep_alive_s=0))
    await reader.readexactly(4)
    for first in range(0, count, _WINDOW):
        window = range(first, min(count, first + _WINDOW))
        for number in window:
            payload = b"%020d" % number
            writer.write(packets.publish(_TOPIC, payload, qos=1, packet_id=number - first + 1, dup=False, version=4))
        await reader.readexactly(4 * len(window))
    writer.transport.abort()


async def _read(reader: asyncio.StreamReader, buffer: bytearray) -> list[packets.Packet]:
    data = await reader.read(65_536)
    if not data:
        raise EOFError
    buffer += data
    return packets.take_packets(buffer)
