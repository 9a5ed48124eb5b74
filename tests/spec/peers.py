"""Short ways of saying what spec tests say again and again."""

from __future__ import annotations

from typing import Any

from fanout.mqtt.packets import Publish
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

__all__ = ["connect", "durable", "expect_fault", "gone", "leave", "payloads"]


async def connect(node: NodeInMemory, client_id: str = "", *, version: int = 5, **more: Any) -> RawClient:
    """Return a client that is connected; see `RawClient.connect`."""
    return await RawClient.connect(node.port, client_id, version=version, **more)


async def durable(node: NodeInMemory, client_id: str = "durable", *, version: int = 5, **more: Any) -> RawClient:
    """Return a client whose session outlives its Network Connection, and is resumed if there is one."""
    properties = Properties(session_expiry_interval=600) if version == 5 else NO_PROPERTIES
    more = {"clean_start": False, "properties": properties, **more}
    return await RawClient.connect(node.port, client_id, version=version, **more)


async def expect_fault(client: RawClient, code: ReasonCode) -> None:
    """Wait until the server closed the Network Connection, after a DISCONNECT with `code` over MQTT 5."""
    await client.expect_end(code if client.version == 5 else None)
    await client.close()


async def leave(client: RawClient, node: NodeInMemory) -> None:
    """Close one Network Connection, without DISCONNECT, and wait until the server has noticed."""
    before = node.server.figures()["connections"]
    await client.close()
    await wait_until(lambda: node.server.figures()["connections"] < before)


async def gone(node: NodeInMemory) -> None:
    """Wait until the server has noticed the end of every connection."""
    await wait_until(lambda: node.server.figures()["connections"] == 0)


def payloads(messages: list[Publish]) -> list[bytes]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]
