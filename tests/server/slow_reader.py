"""A client that stops reading, until the server's end of its socket is full."""

from __future__ import annotations

from typing import Final

from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient

__all__ = ["PIECE", "slow_down"]

PIECE: Final = b"x" * 1_000_000
_PIECES_MAX: Final = 100


async def slow_down(node: NodeInMemory, client: RawClient, *, qos: int = 0) -> None:
    """Subscribe the client to `data/#`, and send it retained values that it does not read, until its socket is full."""
    await client.subscribe(b"data/#", qos=qos)
    client.pause()
    session = next(each for each in node.server.registry if each.subscriptions)
    for number in range(_PIECES_MAX):
        node.set(b"data/%d" % (number % 4), PIECE, qos=qos)
        await node.pass_time(0)
        if session.paused:
            return
    raise AssertionError("the socket takes everything")
