"""Fixtures of the tests of the server, on the event loop that a node uses: those of the server run on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop

from tests.server.conftest import node, start_node

__all__ = ["node", "start_node"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test with uvloop."""
    return {"uvloop": uvloop.new_event_loop}
