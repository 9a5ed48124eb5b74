"""Fixtures for tests of the door: a node in memory with a listener for AMQP, and applications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from fanout.access.gate import Gate
from fanout.config import Address
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient

if TYPE_CHECKING:
    from tests.amqp.jms_peer import JmsPeer


__all__ = ["Connect", "StartNode", "amqp_port"]

AMQP = Address("amqp", "127.0.0.1", 0)
MQTT = Address("mqtt", "127.0.0.1", 0)

StartNode = Callable[..., Awaitable[NodeInMemory]]
Connect = Callable[..., Awaitable["JmsPeer"]]


def amqp_port(node: NodeInMemory) -> int:
    """Return the port of its listener for AMQP."""
    address = next(one for one in node.server.addresses if one.startswith("amqp"))
    return int(address.rpartition(":")[2])


@pytest.fixture
async def start_node() -> AsyncIterator[StartNode]:
    """Give a function that starts a node with some settings of `[server]`; all are stopped after the test."""
    nodes: list[NodeInMemory] = []

    async def start(*, gate: Gate | None = None, **settings: object) -> NodeInMemory:
        node = NodeInMemory(gate=gate, **{"listen": (MQTT, AMQP), **settings})
        await node.server.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        await node.server.stop(deadline_s=0.1)


@pytest.fixture
async def node(start_node: StartNode) -> NodeInMemory:
    """Give a started node."""
    return await start_node()


@pytest.fixture
async def connect(node: NodeInMemory) -> AsyncIterator[Connect]:
    """Give a function that connects an application to the node; all are disconnected after the test."""
    from tests.amqp.jms_peer import JmsPeer

    peers: list[JmsPeer] = []

    async def connect_one(container: str = "app", **more: Any) -> JmsPeer:
        peer = await JmsPeer.connect(amqp_port(node), container, **more)
        peers.append(peer)
        return peer

    yield connect_one
    for peer in peers:
        if not peer.ended:
            await peer.vanish()


@pytest.fixture
async def mqtt(node: NodeInMemory) -> AsyncIterator[RawClient]:
    """Give a connected client of MQTT."""
    async with await RawClient.connect(node.port) as client:
        yield client
