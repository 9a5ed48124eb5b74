"""How one topic is delivered to one client, as `fanout explain --client` shows it."""

from __future__ import annotations

import structlog

from fanout.access.gate import Gate
from fanout.mqtt.properties import Properties
from fanout.server.session.client_delivery import FILTERS_MAX, ClientDelivery
from tests.access.pieces import ManualClock
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.server.test_access import access_config
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)


async def delivery(node: NodeInMemory, topic: bytes) -> ClientDelivery:
    """Return how a topic is delivered to the client c."""
    found = await node.server.client_delivery("c", topic)
    assert found is not None
    return found


async def test_matching_filters_of_a_client(node: NodeInMemory) -> None:
    """Also shared ones, as the client sent them; a client without a session is not known."""
    assert await node.server.client_delivery("c", b"plant/1") is None
    async with await RawClient.connect(node.port, "c") as client:
        await client.subscribe(b"plant/+", b"plant/2", b"$share/g/#")
        found = await delivery(node, b"plant/1")
        assert found == ClientDelivery(True, (b"plant/+", b"$share/g/#"), 3, "", 0, 0, 0)
        assert (await delivery(node, b"$SYS/x")).filters == ()
        many = [b"+/" * number + b"#" for number in range(20)]
        await client.subscribe(*many)
        assert len((await delivery(node, b"a/" * 20 + b"a")).filters) == FILTERS_MAX


async def test_messages_wait_for_a_client_that_is_away(node: NodeInMemory) -> None:
    """Its session is there, its connection is not."""
    async with await RawClient.connect(node.port, "c", properties=DURABLE) as client:
        await client.subscribe(b"plant/#", qos=1)
    await wait_until(lambda: not node.server.connections, what="the connection being gone")
    node.set(b"plant/1", b"x" * 100, qos=1)
    found = await delivery(node, b"plant/1")
    assert (found.connected, found.queued_messages) == (False, 1)
    assert found.queued_bytes > 100


async def test_the_rule_that_denies_a_topic(start_node: StartNode) -> None:
    """By its place in the configuration; or none allows it."""
    config = access_config(rule=[{"deny": "read", "filter": "plant/secret/#"}, {"allow": "read", "filter": "plant/#"}])
    gate = Gate(config, passwords=None, monotonic=ManualClock(), logger=structlog.get_logger())
    node = await start_node(gate=gate)
    async with await RawClient.connect(node.port, "c"):
        for topic, denied_by in (
            (b"plant/secret/1", "access.rule[0] denies it"),
            (b"plant/1", ""),
            (b"office/1", "no access rule allows it"),
            (b"$share/x", ""),
        ):
            assert (await delivery(node, topic)).denied_by == denied_by
    await gate.close()
