"""Tests of the client router of one worker, when the worker that owns a client cannot take its connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosedOK
from websockets.typing import Subprotocol

from fanout.config import Address
from fanout.mqtt.packets import Connack, Connect, encode
from fanout.mqtt.reason_codes import ReasonCode
from fanout.workers.client_router import ClientRouter, new_handover_sockets
from fanout.workers.ownership import owner_of
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

ELSEWHERE = Connect(next(name for name in map(str, range(100)) if owner_of(name, 2) == 1))
"""CONNECT of a client that the other worker serves."""
REFUSED = Connack(session_present=False, reason_code=ReasonCode.SERVER_UNAVAILABLE)


@pytest_asyncio.fixture
async def node() -> AsyncIterator[NodeInMemory]:
    """Return the first worker of two, listening for MQTT and for WebSocket; the second takes nothing."""
    handovers, own = new_handover_sockets()
    others_end, gone = new_handover_sockets()
    others_end.close()
    connection_router = ClientRouter(number=0, handovers=handovers, others=[own, gone])
    listen = (Address("mqtt", "127.0.0.1", 0), Address("ws", "127.0.0.1", 0))
    node = NodeInMemory(connection_router=connection_router, workers=2, listen=listen)
    connection_router.server = node.server
    await node.server.start()
    connection_router.open()
    yield node
    connection_router.close()
    await node.server.stop(deadline_s=0.1)
    await connection_router.end()
    for one in (handovers, own, gone):
        one.close()


async def test_client_of_a_worker_that_takes_nothing_is_told_to_come_again(node: NodeInMemory) -> None:
    """Server unavailable, and the end; its place is free again."""
    async with await RawClient.open(int(node.server.addresses[0].rpartition(":")[2])) as client:
        client.send(ELSEWHERE)
        assert (await client.expect(Connack)).reason_code == ReasonCode.SERVER_UNAVAILABLE
        await client.expect_end(None)
    stats = node.server.stats()
    assert (stats.connections, stats.connections_refused_total) == (0, 1)


@pytest.mark.parametrize("cannot", ["send", "make"])
async def test_client_over_websocket_is_told_too(
    node: NodeInMemory, monkeypatch: pytest.MonkeyPatch, cannot: str
) -> None:
    """And closed in good order, whether its relay cannot be sent or not even be made; nothing of it is left."""
    port = node.server.addresses[1].rpartition(":")[2]
    async with websocket_connect(f"ws://127.0.0.1:{port}/mqtt", subprotocols=[Subprotocol("mqtt")]) as web:
        if cannot == "make":
            monkeypatch.setattr(socket, "socketpair", no_descriptors)
        await web.send(encode(ELSEWHERE, version=5))
        async with asyncio.timeout(30):
            assert await web.recv() == encode(REFUSED, version=5)
            with pytest.raises(ConnectionClosedOK):
                await web.recv()
        # The server closes first; only afterwards the client would, which takes ten seconds.
        await wait_until(web.transport.is_closing, deadline_s=4)
    assert node.server.stats().connections_refused_total == 1


def no_descriptors() -> None:
    """Fail as the system does when a process has as many descriptors as it may."""
    raise OSError(24, "Too many open files")
