"""Fixtures of the tests of the server."""

from tests.server.conftest import node, pytest_asyncio_loop_factories, start_node

__all__ = ["node", "pytest_asyncio_loop_factories", "start_node"]
