"""Sessions on disk: clients of a secondary that is restarted go on, beside a real Mosquitto."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fanout.link.snapshot.retained_set import KEEPS_QOS_TOPICS
from tests.support.durable import DURABLE, publish_numbers
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

DISC = '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n'


@pytest.fixture
def node(nodes: Nodes, patient: Mosquitto) -> LiveNode:
    """Describe a secondary with its sessions on disk, beside a Mosquitto that keeps every message for its session."""
    return nodes.secondary(DISC, link(patient.port, selector("plant/#", qos=2), settings=QUICK))


@pytest.mark.parametrize(("topics", "payload"), [(200, b"x" * 2_000), (12_000, b"x")], ids=["few", "many"])
async def test_a_kill_in_a_comparison_loses_nothing_or_says_so(
    patient: Mosquitto, nodes: Nodes, topics: int, payload: bytes
) -> None:
    """The session at the primary goes on collecting. With very many topics it cannot, and clients are told."""
    with publisher(patient.port) as client:
        publish_all(client, [(f"plant/set/{number}", payload) for number in range(topics)], qos=1)
    async with Proxy(patient.port) as proxy:
        proxy.accepting = False
        both = link(proxy.port, selector("plant/#", qos=2), other_ports=[patient.port], settings=QUICK)
        node = nodes.secondary(DISC, both)
        await node.begin()
        await node.until_ready()
        async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
            await client.subscribe(b"plant/n", qos=2)
        await asyncio.to_thread(node.kill)
        proxy.accepting, proxy.throttle_bytes_per_s = True, 2_000.0
        await node.begin()
        await wait_until(lambda: node.link_state() == "verifying", what="the comparison")
        await asyncio.to_thread(node.kill)
        proxy.throttle_bytes_per_s = None
        await publish_numbers(patient, 0, 20)
        await node.begin()
        async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
            if topics > KEEPS_QOS_TOPICS:
                assert not client.connack.session_present
                assert "sessions of clients ended" in node.log_text()
                return
            assert client.connack.session_present
            assert [message.payload for message in await client.messages(20)] == [b"%d" % each for each in range(20)]


async def test_sessions_that_wait_are_not_kept_for_later(nodes: Nodes, node: LiveNode) -> None:
    """A node that is started without storage removes them: they would be outdated when it has storage again."""
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE):
        pass
    await asyncio.to_thread(node.stop)
    kept = node.links
    node.links = kept.replace('[sessions]\nstorage = "disc"\n', "")
    await node.begin()
    assert "sessions of an earlier process removed" in node.log_text()
    await asyncio.to_thread(node.stop)
    node.links = kept
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
        assert not client.connack.session_present


async def test_a_start_that_fails_leaves_the_sessions_to_the_next(nodes: Nodes, node: LiveNode) -> None:
    """The address of the listener is taken: what was read is written again by the stop."""
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE):
        pass
    await asyncio.to_thread(node.stop)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", node.port))
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(node.start)
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
        assert client.connack.session_present
