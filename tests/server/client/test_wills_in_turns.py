"""Will Messages of many clients that are gone at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from fanout.mqtt.packets import Will
from fanout.mqtt.properties import Properties
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

CLIENTS = 300


@pytest.fixture
async def clients() -> AsyncIterator[AsyncExitStack]:
    """Close clients at the end."""
    async with AsyncExitStack() as stack:
        yield stack


async def drop_many(node: NodeInMemory, clients: AsyncExitStack, *, last: str = "") -> None:
    """End the connections of many clients at once, whose Will Messages take longer than one turn, and of `last`."""
    for number in range(60):
        subscriber = await clients.enter_async_context(await RawClient.connect(node.port, f"s{number}"))
        await subscriber.subscribe(b"status/#")
    for number in range(CLIENTS):
        will = Will(b"status/%d" % number, b"x" * 20_000, retain=True)
        await clients.enter_async_context(await RawClient.connect(node.port, f"c{number}", will=will))
    found = {one.session.client_id: one for one in node.server.connections if one.session is not None}
    for client_id in sorted(found, key=last.__eq__):
        if client_id.startswith("c"):
            found[client_id].abort()


async def test_a_will_comes_before_anything_of_the_next_connection(
    start_node: StartNode, clients: AsyncExitStack
) -> None:
    """The client says that it is online again: its former Will Message is no newer than that."""
    node = await start_node()
    will = Will(b"status/dev", b"offline", retain=True)
    await clients.enter_async_context(await RawClient.connect(node.port, "dev", will=will))
    await drop_many(node, clients)
    again = await clients.enter_async_context(await RawClient.connect(node.port, "dev", will=will))
    again.publish(b"status/dev", b"online", retain=True)
    await wait_until(lambda: node.server.figures()["wills_total"] == CLIENTS + 1, 20)
    late = await clients.enter_async_context(await RawClient.connect(node.port, "late"))
    await late.subscribe(b"status/dev")
    assert [message.payload for message in await late.messages_until_ping()] == [b"online"]


async def test_a_session_that_its_own_will_ends_is_not_resumed(start_node: StartNode, clients: AsyncExitStack) -> None:
    """The Will Message overflows the queue that it waits in, so its client begins anew."""
    node = await start_node(queue_messages_max=1)
    durable = Properties(session_expiry_interval=600, receive_maximum=1)
    will = Will(b"own/will", b"gone", qos=1)
    former = await clients.enter_async_context(
        await RawClient.connect(node.port, "c", clean_start=False, will=will, properties=durable)
    )
    await former.subscribe(b"own/#", qos=1)
    node.take([update(b"own/data", b"x", qos=1, retain=False)] * 2)
    await drop_many(node, clients, last="c")
    again = await clients.enter_async_context(
        await RawClient.connect(node.port, "c", clean_start=False, properties=durable)
    )
    assert node.server.figures()["sessions_overflowed_total"] == 1
    assert not again.connack.session_present
    session = node.server.registry.get("c")
    assert session is not None
    assert session.is_connected


async def test_no_will_is_lost_when_the_server_stops(start_node: StartNode, clients: AsyncExitStack) -> None:
    """Those that wait for their turn are published before it has stopped."""
    node = await start_node()
    await drop_many(node, clients)
    await wait_until(lambda: len(node.server.connections) <= 60, 20)
    await node.server.stop(deadline_s=0.1)
    assert node.server.figures()["wills_total"] == CLIENTS
