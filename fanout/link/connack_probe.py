"""Probe of a primary's address: one CONNECT on a short connection, to see what CONNACK says."""

from __future__ import annotations

from fanout.config import Address, LinkConfig
from fanout.errors import FanoutError
from fanout.link.protocol.handshake import Handshake
from fanout.link.short_connection import short_connection

__all__ = ["ask"]

_SUFFIX = "probe"


async def ask(address: Address, config: LinkConfig, *, node_id: str) -> Handshake | None:
    """Return the content of CONNACK from a primary at `address`; None when it does not accept the connection.

    Args:
        address: Address to probe.
        config: The link's configuration.
        node_id: This node.
    """
    try:
        async with short_connection(address, config, node_id=node_id, name=_SUFFIX) as connection:
            return connection.handshake
    except FanoutError:
        return None
