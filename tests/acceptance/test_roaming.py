"""Clients that change between two secondaries in the middle of a QoS 2 handshake (docs/how-to/haproxy.md)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fanout.mqtt.packets import Ack, PacketType
from fanout.mqtt.properties import Properties
from tests.support.clients import Inbox, subscriber
from tests.support.mosquitto import Mosquitto, find_mosquitto
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.mosquitto

DURABLE = Properties(session_expiry_interval=60)
NOT_FOUND = 0x92


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, LiveNode, LiveNode]]:
    """Give a primary and two secondaries that forward what clients publish below `set`."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    directory = tmp_path_factory.mktemp("pool")
    nodes = Nodes(directory)
    with Mosquitto(directory) as mosquitto:
        to_primary = link(mosquitto.port, selector("set/#", qos=2, writes="forward"), settings=QUICK)
        try:
            first, second = (nodes.secondary(to_primary, name=name).started() for name in ("edge-1", "edge-2"))
            yield mosquitto, first, second
        finally:
            nodes.end()


async def roam(node: LiveNode, client_id: str, *, version: int) -> RawClient:
    """Connect as a client that resumes its session where there is one."""
    properties = DURABLE if version == 5 else Properties()
    return await RawClient.connect(node.port, client_id, version=version, clean_start=False, properties=properties)


def payloads(watcher: Inbox) -> list[bytes]:
    """Return what a subscriber at the primary has got."""
    return [message.payload for message in watcher.messages]


@pytest.mark.parametrize("version", [5, 4])
async def test_pubrel_at_another_node(pool: tuple[Mosquitto, LiveNode, LiveNode], version: int) -> None:
    """The primary had the message before PUBREC, so nothing is lost; no PUBCOMP claims more than the node knows.

    Over MQTT 3.1.1 there is no code for that, and PUBCOMP must be sent [MQTT-4.3.3-2].
    """
    mosquitto, first, second = pool
    topic, client_id = f"set/pubrel/{version}", f"roamer-{version}"
    with subscriber(mosquitto.port, f"{topic}/#", qos=2) as watcher:
        async with await roam(first, client_id, version=version) as client:
            client.publish(topic.encode(), b"once", qos=2, packet_id=7)
            await client.expect_ack(PacketType.PUBREC, 7)
        async with await roam(second, client_id, version=version) as client:
            assert not client.connack.session_present
            client.send(Ack(PacketType.PUBREL, 7))
            await client.expect_ack(PacketType.PUBCOMP, 7, NOT_FOUND if version == 5 else 0)
            client.publish(f"{topic}/end".encode(), b"end", qos=2, packet_id=7)  # the identifier is free
            await client.expect_ack(PacketType.PUBREC, 7)
            client.send(Ack(PacketType.PUBREL, 7))
            await client.expect_ack(PacketType.PUBCOMP, 7)
        watcher.wait_for(f"{topic}/end")
        assert payloads(watcher) == [b"once", b"end"]


@pytest.mark.parametrize("version", [5, 4])
async def test_publish_again_at_another_node(pool: tuple[Mosquitto, LiveNode, LiveNode], version: int) -> None:
    """What had no PUBREC is published again there: at least once. The node that knows it takes it once."""
    mosquitto, first, second = pool
    topic, client_id = f"set/publish/{version}", f"repeater-{version}"
    with subscriber(mosquitto.port, f"{topic}/#", qos=2) as watcher:
        async with await roam(first, client_id, version=version) as client:
            client.publish(topic.encode(), b"value", qos=2, packet_id=8)
            watcher.wait_for(topic)  # its PUBREC is lost with the connection
        async with await roam(first, client_id, version=version) as client:
            assert client.connack.session_present
            client.publish(topic.encode(), b"value", qos=2, dup=True, packet_id=8)
            await client.expect_ack(PacketType.PUBREC, 8)
        async with await roam(second, client_id, version=version) as client:
            client.publish(topic.encode(), b"value", qos=2, dup=True, packet_id=8)
            await client.expect_ack(PacketType.PUBREC, 8)
            client.send(Ack(PacketType.PUBREL, 8))
            await client.expect_ack(PacketType.PUBCOMP, 8)
            client.publish(f"{topic}/end".encode(), b"end", qos=2, packet_id=8)  # order holds within one QoS only
            await client.expect_ack(PacketType.PUBREC, 8)
        watcher.wait_for(f"{topic}/end")
        assert payloads(watcher) == [b"value", b"value", b"end"]
