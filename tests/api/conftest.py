"""A stand-in node behind a real HTTP socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from fanout.api.app import create_app
from fanout.api.http_server import HttpServer
from tests.api.stand_in import StandInNode, ready_node


@pytest.fixture
def node() -> StandInNode:
    """Return a node that is ready; a test changes it at will."""
    return ready_node()


@pytest.fixture
async def http(node: StandInNode) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of `node`, served on a free port."""
    server = HttpServer(lambda: create_app(node), host="127.0.0.1", port=0)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client
    await server.stop()
