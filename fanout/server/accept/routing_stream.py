"""Interface of the connection router, which decides with several workers which process serves a client.

A server with a router passes each new connection to it first; `fanout.workers.client_router` implements it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot
from fanout.server.accept.websocket import PacketStream

__all__ = ["ConnectionRouter", "RoutingStream"]


class RoutingStream(asyncio.BufferedProtocol, PacketStream):
    """Protocol of a connection that is not routed yet: it reads up to CONNECT and then hands the connection over."""


class ConnectionRouter(Protocol):
    """Routes the connections that this process has accepted."""

    def new_stream(self, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> RoutingStream:
        """Make the first protocol of a new connection, which hands its slot over or frees it."""
