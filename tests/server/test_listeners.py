"""Tests of the listening sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fanout.config import Address
from fanout.errors import ListenError
from fanout.server.listeners import Listeners


async def test_addresses_have_the_real_ports() -> None:
    """Port 0 becomes the port that the system chose, on every address."""
    listeners = Listeners()
    await listeners.open([Address("mqtt", "127.0.0.1", 0), Address("mqtt", "127.0.0.1", 0)], asyncio.Protocol)
    addresses = listeners.addresses
    assert len(set(addresses)) == 2
    assert all(address.startswith("mqtt://127.0.0.1:") for address in addresses)
    port = int(addresses[0].rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    listeners.close()
    assert listeners.addresses == []


async def test_address_in_use_opens_none() -> None:
    """When one address cannot be bound, the error names it and the others are closed again."""
    listeners = Listeners()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on mqtt://127.0.0.1:{port}: .*in use"):
            await listeners.open(
                [Address("mqtt", "127.0.0.1", 0), Address("mqtt", "127.0.0.1", port)], asyncio.Protocol
            )
    assert listeners.addresses == []
