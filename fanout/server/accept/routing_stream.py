"""What decides which process serves a client, where there are several (`fanout.workers`).

Owns this interface only: a server with a doorman lets it meet each connection before the server does.
"""

from __future__ import annotations

import abc
import asyncio
from typing import Protocol

from fanout.server.accept.peers import Peer
from fanout.server.accept.slots import ConnectionSlot

__all__ = ["ConnectionRouter", "RoutingStream"]


class RoutingStream(asyncio.BufferedProtocol, abc.ABC):
    """Reads of a connection what tells who must serve it, and hands it on with what was read."""

    @abc.abstractmethod
    def receive(self, data: bytes) -> None:
        """Take a piece of the stream of packets."""

    @abc.abstractmethod
    def end(self, fault: str) -> None:
        """Close, because the transport cannot go on, for the `fault` of the client if there is any."""

    @abc.abstractmethod
    def is_closing(self) -> bool:
        """Return whether it is being closed."""

    @property
    @abc.abstractmethod
    def awaits_connect(self) -> bool:
        """Whether CONNECT has not come."""


class ConnectionRouter(Protocol):
    """Meets the connections that this process has accepted."""

    def new_stream(self, peer: Peer, slot: ConnectionSlot, *, websocket: bool) -> RoutingStream:
        """Make what a new connection talks to first; the slot is the doorway's to hand on or to give back."""
