"""Fixtures for tests of the server: a node in memory that listens on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
import uvloop

from fanout.access.gate import Gate
from tests.server.node_in_memory import NodeInMemory

StartNode = Callable[..., Awaitable[NodeInMemory]]

TRANSPORT_TESTS = {"accept", "test_connection.py"}
"""Folder and module whose tests depend on the transports of the event loop."""


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests with uvloop, which a node uses, and tests of connections with asyncio's own event loop too."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if TRANSPORT_TESTS.intersection(item.path.parts):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


@pytest.fixture
async def start_node() -> AsyncIterator[StartNode]:
    """Give a function that starts a node with some settings of `[server]`; all are stopped after the test."""
    nodes: list[NodeInMemory] = []

    async def start(*, gate: Gate | None = None, **settings: object) -> NodeInMemory:
        node = NodeInMemory(gate=gate, **settings)
        await node.server.start()
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        await node.server.stop(deadline_s=0.1)


@pytest.fixture
async def node(start_node: StartNode) -> NodeInMemory:
    """Give a started node with the default settings."""
    return await start_node()
