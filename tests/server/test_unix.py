"""MQTT over a Unix socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanout.config import Address
from fanout.mqtt.packets import Connack, Connect
from tests.server.conftest import StartNode
from tests.server.test_clients import PahoClient
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


@pytest.mark.parametrize("version", [4, 5])
async def test_paho_over_a_unix_socket(start_node: StartNode, tmp_path: Path, version: int) -> None:
    """A paho client gets retained values and its own messages."""
    path = tmp_path / "mqtt.sock"
    node = await start_node(listen=(Address("unix", str(path), 0),))
    node.set(b"t/retained", b"value")
    client = PahoClient(1, version=version, transport="unix", host=str(path))
    try:
        await client.subscribe("t/#", 1)
        client.client.publish("t/live", "x", qos=1)
        await wait_until(lambda: len(client.messages) == 2)
        assert client.seen() == [("t/retained", b"value", 0, True), ("t/live", b"x", 1, False)]
    finally:
        client.close()


async def test_the_client_is_local_and_has_no_address(start_node: StartNode, tmp_path: Path) -> None:
    """Only this machine reaches the socket; it goes with the server."""
    path = tmp_path / "mqtt.sock"
    node = await start_node(listen=(Address("unix", str(path), 0),))
    async with RawClient(*await asyncio.open_unix_connection(str(path)), version=5) as client:
        client.send(Connect("c"))
        await client.expect(Connack)
        [connection] = node.server.connections
        assert (connection.peer.local, connection.peer.host, connection.address) == (True, "", "unix")
        await node.server.stop(deadline_s=0.1)
    assert not path.exists()
