"""A thin line: a proxy on loopback that shapes the bytes of all its connections by rate, delay and loss.

Both directions have the rate. A piece waits in its sender until the line is free, then takes the time of its bytes and
the delay. TCP would send a lost packet again: it takes its part of the rate once more, and the following bytes wait for
a round trip. The proxy's own buffers hold less than half a second of a line of 50 kbit/s.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from types import TracebackType
from typing import Self

from bench.proxy import Proxy

__all__ = ["Line"]

_PACKET_BYTES = 512
_LOST_BYTES = 1_400
_BUFFER_BYTES = 2_304
"""SO_RCVBUF, the smallest of Linux."""
_END_S = 10.0


class _Direction:
    """One direction of a line, which its connections share."""

    def __init__(self, rate_bytes_per_s: float) -> None:
        self._rate = rate_bytes_per_s
        self._free_s = 0.0

    async def carry(self, size: int) -> None:
        """Return the time at which the line has taken `size` bytes, after earlier ones of others."""
        now = asyncio.get_running_loop().time()
        self._free_s = max(now, self._free_s) + size / self._rate
        await asyncio.sleep(self._free_s - now)


class Line(Proxy):
    """A proxy with the properties of a line; a context manager, which runs it in a thread of its own."""

    def __init__(
        self, target_port: int, *, rate_bytes_per_s: float, round_trip_s: float = 0.0, loss: float = 0.0
    ) -> None:
        """Describe a line.

        Args:
            target_port: Port of a server on loopback.
            rate_bytes_per_s: Rate of each direction.
            round_trip_s: Delay of both directions together.
            loss: Share of packets of 1,400 bytes that are lost, 0 to 1.
        """
        super().__init__(target_port)
        self.buffer_bytes = _BUFFER_BYTES
        self.packet_bytes = _PACKET_BYTES
        self._round_trip_s = round_trip_s
        self._loss = loss
        self._random = random.Random(35)
        self._up, self._down = _Direction(rate_bytes_per_s), _Direction(rate_bytes_per_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="thin line", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(_END_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        self._loop.close()

    async def _forward(self, source: socket.socket, target: socket.socket, gate: asyncio.Event, *, down: bool) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(source, under_way, down=down))
            group.create_task(self._arrive(target, under_way))

    async def _send(self, source: socket.socket, under_way: asyncio.Queue[tuple[float, bytes]], *, down: bool) -> None:
        loop = asyncio.get_running_loop()
        direction = self._down if down else self._up
        arrives_s = 0.0
        while True:
            piece = await loop.sock_recv(source, self.packet_bytes)
            if not piece:
                raise ConnectionResetError("the other side closed")
            await direction.carry(len(piece))
            arrives_s = max(arrives_s, loop.time() + self._round_trip_s / 2)
            if self._random.random() < self._loss * len(piece) / _LOST_BYTES:
                await direction.carry(len(piece))
                arrives_s = max(arrives_s, loop.time() + self._round_trip_s * 1.5)
            if down:
                self.bytes_down_total += len(piece)
            under_way.put_nowait((arrives_s, piece))

    async def _arrive(self, target: socket.socket, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            arrives_s, piece = await under_way.get()
            await asyncio.sleep(arrives_s - loop.time())
            await loop.sock_sendall(target, piece)
