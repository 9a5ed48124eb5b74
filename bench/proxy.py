"""A TCP proxy that cuts, pauses and throttles, to stand between a client and a real server."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

_BUFFER_BYTES = 32 * 1024


class Proxy:
    """Forwards TCP connections from a free port of 127.0.0.1 to a server on 127.0.0.1.

    Its own buffers are small, so that a server notices when the client's side does not read. All methods must
    be called on the event loop on which it was started.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.connections_total = 0
        self.buffer_bytes = _BUFFER_BYTES
        """Size of its receive buffers, as it asks the system for them; set before it starts."""
        self.bytes_down_total = 0
        """Bytes forwarded from the server to its clients."""
        self.accepting = True
        """When false, new connections are closed at once."""
        self.cut_after_bytes: int | None = None
        """Abort everything once this many bytes in total went down; None never does."""
        self.throttle_bytes_per_s: float | None = None
        """Rate of the bytes that go down; None for no limit."""
        self.delay_s = 0.0
        """Added to every piece, in both directions."""
        self._open = asyncio.Event()
        self._open.set()
        self._gates: set[asyncio.Event] = set()
        """One of each connection, clear while it is paused by itself."""
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Its address, as a link's configuration writes it."""
        return f"mqtt://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen on a free port."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.buffer_bytes != _BUFFER_BYTES:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    async def stop(self) -> None:
        """Abort every connection and stop listening."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Abort every connection (RST on both sides); new ones are accepted as `accepting` says."""
        for task in list(self._connections):
            task.cancel()

    def pause(self) -> None:
        """Forward nothing in either direction until `resume`; connections stay open."""
        self._open.clear()

    def pause_present(self) -> None:
        """Forward nothing on the connections that are open now until `resume`; others are not touched."""
        for gate in self._gates:
            gate.clear()

    def resume(self) -> None:
        """Forward again after `pause` and `pause_present`."""
        self._open.set()
        for gate in self._gates:
            gate.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except BlockingIOError:  # gone again
            return
        client.setblocking(False)
        if not self.accepting:
            _abort(client)
            return
        self.connections_total += 1
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: _abort(client))  # also of a task that is cut before it has begun

    async def _serve(self, client: socket.socket) -> None:
        gate = asyncio.Event()
        gate.set()
        self._gates.add(gate)
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        server.setblocking(False)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(server, ("127.0.0.1", self.target_port))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(client, server, gate, down=False))
                group.create_task(self._forward(server, client, gate, down=True))
        except* OSError:
            pass  # one side is gone: so is the other, below
        finally:
            self._gates.discard(gate)
            _abort(server)

    async def _forward(self, source: socket.socket, target: socket.socket, gate: asyncio.Event, *, down: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._open.wait()
            piece = await loop.sock_recv(source, _BUFFER_BYTES)
            if not piece:
                raise ConnectionResetError("the other side closed")
            await self._open.wait()
            await gate.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if down:
                rest = None if self.cut_after_bytes is None else self.cut_after_bytes - self.bytes_down_total
                if rest is not None and len(piece) >= rest:
                    await loop.sock_sendall(target, piece[: max(rest, 0)])
                    self.bytes_down_total += max(rest, 0)
                    self.cut_after_bytes = None
                    self.cut()
                    return
                self.bytes_down_total += len(piece)
            await loop.sock_sendall(target, piece)
            if down and self.throttle_bytes_per_s is not None:
                await asyncio.sleep(len(piece) / self.throttle_bytes_per_s)


def _abort(connection: socket.socket) -> None:
    # A zero linger time makes close() send RST: what a lost connection looks like.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
