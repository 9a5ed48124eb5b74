"""What local clients publish at a secondary: refused inside a selector, forwarded where it says so, free outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.mqtt.packets import Ack, PacketType, Publish
from tests.acceptance.conftest import Mirror
from tests.support.clients import mosquitto_sub, subscriber
from tests.support.mosquitto import Mosquitto, load_retained, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = pytest.mark.mosquitto

NOT_AUTHORIZED = 0x87


@pytest.mark.parametrize("qos", [1, 2])
async def test_write_inside_a_selector_is_refused(mirror: Mirror, qos: int) -> None:
    """Done when: a local PUBLISH inside a selector is refused: 0x87 in PUBACK or PUBREC; nothing changes anywhere."""
    answer = PacketType.PUBACK if qos == 1 else PacketType.PUBREC
    async with await RawClient.connect(mirror.secondary.port, f"writer-{qos}") as client:
        await client.subscribe(b"plant/writes/#", b"hq/office/x/state", qos=1)
        for topic in (b"plant/writes/1", b"hq/office/x/state"):
            packet_id = client.publish(topic, b"local", qos=qos, retain=True)
            await client.expect_ack(answer, packet_id, NOT_AUTHORIZED)
        assert await client.messages_until_ping() == []
        client.publish(b"plant/writes/0", b"local", qos=0, retain=True)
        assert await client.messages_until_ping() == []
    with subscriber(mirror.mosquitto.port, "plant/writes/#", "office/x/state", qos=1) as at_primary:
        with publisher(mirror.mosquitto.port) as source:
            publish_all(source, [(f"plant/writes/end-{qos}", b"")], retain=False)
        at_primary.wait_for(f"plant/writes/end-{qos}")
        assert at_primary.topics == [f"plant/writes/end-{qos}"]
    assert mirror.secondary.document("/v1/status")["server"]["dropped_total"]["refused"] > 0


async def test_topics_outside_the_selectors_are_the_nodes_own(mirror: Mirror) -> None:
    """Also what an exclude leaves out; the primary never sees them, and a prefix parts equal names."""
    port = mirror.secondary.port
    async with await RawClient.connect(port, "own") as client:
        await client.subscribe(b"own/#", b"plant/debug/own", b"office/own/state", qos=1)
        for topic in (b"own/1", b"plant/debug/own", b"office/own/state"):
            packet_id = client.publish(topic, b"local", qos=1, retain=True)
            received = [await client.receive() for _ in range(2)]
            assert Ack(PacketType.PUBACK, packet_id, 0) in received
            (message,) = [one for one in received if isinstance(one, Publish)]
            assert (message.topic, message.payload) == (topic, b"local")
            client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
    assert mosquitto_sub(port, "own/1", count=1)[0].retain
    with subscriber(mirror.mosquitto.port, "#", qos=1) as at_primary:
        with publisher(mirror.mosquitto.port) as source:
            publish_all(source, [("end", b"")], retain=False)
        at_primary.wait_for("end")
        assert not {"own/1", "plant/debug/own", "office/own/state"} & set(at_primary.topics)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_forwarded_write_goes_to_the_primary_first(mirror: Mirror, qos: int) -> None:
    """Done when: `writes = "forward"`: the primary gets it, and from there it comes back to local subscribers."""
    topic, port = f"set/{qos}", mirror.secondary.port
    with (
        subscriber(mirror.mosquitto.port, topic, qos=2) as at_primary,
        subscriber(port, topic, qos=2) as local,
        publisher(port) as client,
    ):
        publish_all(client, [(topic, b"wish")], qos=qos)
        # At QoS 1 and 2 the acknowledgement says that the primary has it already.
        if qos:
            assert mosquitto_sub(mirror.mosquitto.port, topic, count=1)[0].payload == b"wish"
        at_primary.wait_for(topic, b"wish")
        local.wait_for(topic, b"wish")
        wait_until_blocking(lambda: len(mosquitto_sub(port, topic, count=1)) == 1, what="the retained value")
        publish_all(client, [(topic, b"")], qos=qos)
        for inbox in (local, at_primary):
            inbox.wait_for(topic, b"")
        assert local.payloads(topic) == at_primary.payloads(topic) == [b"wish", b""]


async def test_forwarding_without_a_primary(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """When the link is down, the write is refused at once, with a code that PUBACK may have; nothing is kept."""
    node = nodes.secondary(link(mosquitto.port, selector("set/#", writes="forward"), settings=QUICK))
    await node.begin()
    mosquitto.stop()
    await wait_until(lambda: not node.ready, what="503 without a primary")
    async with await RawClient.connect(node.port, "forward") as client:
        client.publish(b"set/1", b"x", qos=1, retain=True, packet_id=7)
        answer = await client.expect(Ack)
        assert (answer.type, answer.packet_id) == (PacketType.PUBACK, 7)
        assert answer.reason_code >= 0x80
    mosquitto.start()
    await node.until_ready()
    assert node.topics() == 0


async def test_a_refusal_with_an_unexpected_code_costs_its_publisher_only(nodes: Nodes) -> None:
    """Mosquitto with `message_size_limit` says 0x95 in PUBACK and PUBREC, which no table has."""
    with Mosquitto(nodes.directory, settings=["message_size_limit 1000"]) as mosquitto:
        node = nodes.secondary(link(mosquitto.port, selector("set/#", qos=2, writes="forward")))
        await node.begin()
        before = node.link_status()
        async with await RawClient.connect(node.port) as client:
            for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
                packet_id = client.publish(b"set/large", b"x" * 2000, qos=qos)
                await client.expect_ack(kind, packet_id, 0x97)
                await client.expect_ack(PacketType.PUBACK, client.publish(b"set/small", b"x", qos=1))
        after = node.link_status()
        assert (after["epoch"], after["reconnects_total"]) == (before["epoch"], before["reconnects_total"])
        assert node.document("/v1/status")["server"]["dropped_total"]["refused"] == 2
        assert "topic=set/large" in node.log_text()
        assert "Quota exceeded (0x97)" in node.log_text()


async def test_a_mosquitto_bridge_below_a_secondary_gets_everything(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """By default it publishes its state to `$SYS` here, which is refused, and must not end it."""
    load_retained(mosquitto.port, [(f"plant/{number}", b"x") for number in range(30)])
    node = nodes.secondary(link(mosquitto.port, selector("plant/#")))
    await node.begin()
    settings = ["connection up", f"address 127.0.0.1:{node.port}", "topic # in 1", "bridge_protocol_version mqttv50"]
    with Mosquitto(nodes.directory, name="below", settings=settings) as below:
        with subscriber(below.port, "plant/#", qos=1) as inbox:
            await asyncio.to_thread(inbox.wait, 30)
        assert sorted(inbox.newest()) == sorted(f"plant/{number}" for number in range(30))
    assert "topic=$SYS/broker/connection/" in node.log_text()


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        ("max_packet_size 2000", 0x83, {"payload": b"x" * 3000}),
        ("max_qos 0", 0x83, {}),
        ("retain_available false", 0x83, {"retain": True}),
    ],
)
async def test_a_limit_that_mqtt_3_1_1_cannot_tell_costs_its_message_only(
    nodes: Nodes, setting: str, code: int, message: dict[str, Any]
) -> None:
    """A message beyond it tears nothing down: the link stays, others arrive, and the publisher is told."""
    with Mosquitto(nodes.directory, settings=[setting]) as mosquitto:
        if "retain" not in setting:
            load_retained(mosquitto.port, [(f"set/{number}", b"x") for number in range(5)])
        evidence = 'min_evidence = "two-pass"\nsnapshot_quiet_s = 0.3\n' if "retain" in setting else ""
        settings = f"{QUICK}version = 4\n{evidence}"
        node = nodes.secondary(link(mosquitto.port, selector("set/#", qos=2, writes="forward"), settings=settings))
        await node.begin()
        before = node.link_status()
        async with await RawClient.connect(node.port) as client, await RawClient.connect(node.port) as other:
            bad = client.publish(b"set/bad", **{"payload": b"x", "qos": 1, **message})
            good = other.publish(b"set/good", b"x", qos=1)
            answer = await client.expect(Ack)
            assert (answer.packet_id, answer.reason_code) == (bad, code)
            await other.expect_ack(PacketType.PUBACK, good, code if setting == "max_qos 0" else 0)
        after = node.link_status()
        assert (after["epoch"], after["state"], node.ready) == (before["epoch"], "live", True)
        assert (after["topics"], after["reconnects_total"]) == (before["topics"], before["reconnects_total"])
        refused = 2 if setting == "max_qos 0" else 1
        assert node.document("/v1/status")["server"]["dropped_total"]["refused"] == refused
        if setting != "max_qos 0":
            assert after["skipped_newest"][0]["topic"] == "set/bad"
