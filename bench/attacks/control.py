"""Control of the ordinary client: a server that does nothing but answer pings, beside the node under attack.

Its pings wait for the client, the network and the attackers' processor only. So the node's answers can be compared with
these, on a machine that attackers share.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

__all__ = ["control"]

_CONNACK, _PINGRESP = b"\x20\x03\x00\x00\x00", b"\xd0\x00"
_CONNECT = 0x10


class _Answering(asyncio.Protocol):
    """Answers CONNECT with CONNACK, and everything else as if it were PINGREQ."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer."""
        self._transport.write(_CONNACK if data[0] == _CONNECT else _PINGRESP)


@contextlib.contextmanager
def control() -> Iterator[int]:
    """Give the port of a running control, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="control", daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(told: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
