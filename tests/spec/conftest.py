"""Fixtures of the spec tests: a node in memory that listens on a free port."""

from __future__ import annotations

from tests.server.conftest import node, start_node

__all__ = ["node", "start_node"]
