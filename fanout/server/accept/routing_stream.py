"""Interface of the connection router, which decides with several workers which process serves a client.

A server with a router passes each new connection to it first; `fanout.workers.client_router` implements it.
"""

from __future__ import annotations

import abc
import asyncio
from typing import Protocol

from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot

__all__ = ["ConnectionRouter", "RoutingStream"]


class RoutingStream(asyncio.BufferedProtocol, abc.ABC):
    """Protocol of a connection that is not routed yet: it reads up to CONNECT and then hands the connection over."""

    @abc.abstractmethod
    def receive(self, data: bytes) -> None:
        """Process a part of the packet stream."""

    @abc.abstractmethod
    def end(self, fault: str) -> None:
        """Close the connection because its WebSocket has ended; `fault` is the client's error, if any."""

    @abc.abstractmethod
    def is_closing(self) -> bool:
        """Return whether it is being closed."""

    @property
    @abc.abstractmethod
    def awaits_connect(self) -> bool:
        """True until CONNECT has come."""


class ConnectionRouter(Protocol):
    """Routes the connections that this process has accepted."""

    def new_stream(self, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> RoutingStream:
        """Make the first protocol of a new connection, which hands its slot over or frees it."""
