"""The way to the door that imports its library with the first connection: most nodes have no listener for AMQP."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fanout.config import ListenerConfig
from fanout.errors import ListenError
from fanout.installation import install_command

if TYPE_CHECKING:
    from fanout.amqp.connection import AmqpDoor, HostServer
    from fanout.server.accept.peers import Peer
    from fanout.server.accept.slots import ConnectionSlot

__all__ = ["LazyDoor", "check_installed"]


def check_installed(listeners: Iterable[ListenerConfig]) -> None:
    """Check that the library of AMQP is there, if a listener needs it.

    Raises:
        ListenError: It is not installed.
    """
    wanting = next((one.address for one in listeners if one.address.has_amqp), None)
    if wanting is not None and importlib.util.find_spec("cproton") is None:
        raise ListenError(f"{wanting} needs a package that is not installed", hint=f"Run: {install_command('amqp')}")


class LazyDoor:
    """Makes the door when it is needed."""

    def __init__(self, container: str) -> None:
        """Prepare.

        Args:
            container: Container id of this node.
        """
        self._container = container
        self._door: AmqpDoor | None = None

    def __call__(self, server: HostServer, peer: Peer, slot: ConnectionSlot) -> asyncio.BufferedProtocol:
        """Make the protocol of a connection, which frees its slot in the end."""
        if self._door is None:
            from fanout.amqp.connection import AmqpDoor

            self._door = AmqpDoor(self._container)
        return self._door(server, peer, slot)
