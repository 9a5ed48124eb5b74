"""The least that a hop in Python can do, for `light`. `python -m bench.hop PORT PRIMARY_PORT ROOT`.

It subscribes to ROOT/# at the primary and hands the bytes of each read on to every subscriber, undecoded, on the event
loop that fanout uses. So its latency is that of system, event loop and interpreter alone.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from bench.load import VERSION, connect, expect
from fanout.mqtt.packets import Subscribe, Subscription, encode

__all__ = ["hop"]

_CONNACK = b"\x20\x02\x00\x00"


class _Upstream(asyncio.BufferedProtocol):
    """The connection to the primary."""

    def __init__(self, subscribers: dict[_Subscriber, asyncio.Transport]) -> None:
        self._subscribers = subscribers
        self._buffer = memoryview(bytearray(256 * 1024))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        for transport in self._subscribers.values():
            transport.write(data)


class _Subscriber(asyncio.Protocol):
    """One subscriber; all of them get everything."""

    def __init__(self, subscribers: dict[_Subscriber, asyncio.Transport]) -> None:
        self._subscribers = subscribers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data[0] == 0x10:
            self._transport.write(_CONNACK)
        elif data[0] == 0x82:
            self._transport.write(b"\x90\x03" + data[2:4] + data[-1:])
            self._subscribers[self] = self._transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._subscribers.pop(self, None)


async def hop(port: int, primary_port: int, root: str) -> None:
    """Hand on what the primary sends below `root`, until the process is ended."""
    loop = asyncio.get_running_loop()
    subscribers: dict[_Subscriber, asyncio.Transport] = {}
    upstream = connect(primary_port, f"bench-hop-{root}")
    subscription = Subscription(f"{root}/#".encode(), 0)
    upstream.sendall(encode(Subscribe(packet_id=1, subscriptions=(subscription,)), version=VERSION))
    expect(upstream, 5, b"\x90")
    upstream.setblocking(False)
    await loop.create_connection(lambda: _Upstream(subscribers), sock=upstream)
    server = await loop.create_server(lambda: _Subscriber(subscribers), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(hop(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
