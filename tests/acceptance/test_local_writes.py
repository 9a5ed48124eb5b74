"""What local clients publish at a secondary: refused inside a selector, forwarded where it says so, free outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanout.mqtt.packets import Ack, PacketType, Publish
from fanout.mqtt.properties import Properties
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


async def test_write_inside_a_selector_by_mqtt_3_1_1(mirror: Mirror) -> None:
    """MQTT 3.1.1 has no code for it: the message is acknowledged and dropped, so that it is not sent for ever."""
    async with await RawClient.connect(mirror.secondary.port, "old-writer", version=4) as client:
        await client.subscribe(b"plant/writes/#")
        await client.expect_ack(PacketType.PUBACK, client.publish(b"plant/writes/1", b"local", qos=1))
        assert await client.messages_until_ping() == []


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


async def test_unknown_pubrel_at_a_secondary(mirror: Mirror) -> None:
    """T17: PUBCOMP 0x92; after the refusal of a QoS 2 PUBLISH its Packet Identifier is free again."""
    async with await RawClient.connect(mirror.secondary.port, "pubrel") as client:
        client.send(Ack(PacketType.PUBREL, 42))
        await client.expect_ack(PacketType.PUBCOMP, 42, 0x92)
        client.publish(b"plant/writes/2", b"x", qos=2, packet_id=7)
        await client.expect_ack(PacketType.PUBREC, 7, NOT_AUTHORIZED)
        client.send(Ack(PacketType.PUBREL, 7))
        await client.expect_ack(PacketType.PUBCOMP, 7, 0x92)
        client.publish(b"own/2", b"x", qos=2, packet_id=7)
        await client.expect_ack(PacketType.PUBREC, 7, 0x10)  # accepted; nobody has subscribed
        client.send(Ack(PacketType.PUBREL, 7))
        await client.expect_ack(PacketType.PUBCOMP, 7)


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


async def test_forwarded_write_keeps_its_properties(mirror: Mirror) -> None:
    """What the primary's own clients get is what the local client published."""
    sent = Properties(content_type="text/plain", user_property=(("a", "1"),), response_topic="answers")
    with subscriber(mirror.mosquitto.port, "set/properties", qos=1) as at_primary:
        async with await RawClient.connect(mirror.secondary.port, "forward") as client:
            packet_id = client.publish(b"set/properties", b"x", qos=1, properties=sent)
            await client.expect_ack(PacketType.PUBACK, packet_id)
        (message,) = at_primary.wait(1)
        assert message.properties == {
            "ContentType": "text/plain",
            "ResponseTopic": "answers",
            "UserProperty": [("a", "1")],
        }


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


async def test_what_the_primary_closes_at_costs_its_publisher_only(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """The defaults of a link: live again after each, its epoch goes on, others arrive, and it is named."""
    node = nodes.secondary(link(mosquitto.port, selector("set/#", qos=2, writes="forward")))
    await node.begin()
    epoch = node.link_status()["epoch"]
    bad = [b"set/\x01", b"set/\x7f", "set/\uffff".encode(), b"/".join([b"set", *[b"l"] * 299])]
    with subscriber(mosquitto.port, "set/#", qos=1) as at_primary:
        for number, topic in enumerate(bad):
            async with (
                await RawClient.connect(node.port, "bad") as client,
                await RawClient.connect(node.port, "good") as other,
            ):
                packet_id = client.publish(topic, b"x", qos=1)
                others = [other.publish(f"set/{number}-{one}".encode(), b"x", qos=1) for one in range(20)]
                await client.expect_ack(PacketType.PUBACK, packet_id, 0x83)
                for one in others:
                    await other.expect_ack(PacketType.PUBACK, one)
            await wait_until(lambda: node.link_state() == "live", what="the link live again")
        at_primary.wait_for(f"set/{len(bad) - 1}-19")
        assert set(at_primary.topics) == {f"set/{number}-{one}" for number in range(len(bad)) for one in range(20)}
    status = node.link_status()
    assert (status["epoch"], status["skipped_total"]["closes_connection"]) == (epoch, len(bad))
    assert [one["topic"] for one in status["skipped_newest"]][::-1][:3] == ["set/\\x01", "set/\\x7f", "set/\\uffff"]
    assert node.log_text().count("published by a local client, and the primary closes the connection at it") == len(bad)
    assert r"topic=set/\x01" in node.log_text()


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


@pytest.mark.parametrize("version", [4, 5])
async def test_what_is_said_of_a_primary_at_qos_0(nodes: Nodes, version: int) -> None:
    """The node is ready, by the barrier; the log names the limit and no access rights."""
    with Mosquitto(nodes.directory, settings=["max_qos 0"]) as mosquitto:
        load_retained(mosquitto.port, [("set/1", b"x")])
        node = nodes.secondary(link(mosquitto.port, selector("set/#"), settings=f"{QUICK}version = {version}\n"))
        await node.begin()
        assert node.link_status()["evidence"] == "barrier"
        why = "the primary accepts no messages at QoS 1 (CONNACK: Maximum QoS 0)"
        assert (why if version == 5 else "the primary closes the connection at a message at QoS 1") in node.log_text()
        assert "publish and read below" not in node.log_text()


async def test_what_is_said_of_a_primary_without_retained_messages(nodes: Nodes) -> None:
    """The reason is that there are none, and the key that it names makes the node ready."""
    with Mosquitto(nodes.directory, settings=["retain_available false"]) as mosquitto:
        settings = f"{QUICK}snapshot_quiet_s = 0.3\n"
        node = nodes.secondary(link(mosquitto.port, selector("set/#"), settings=settings))
        node.start()
        await wait_until(lambda: "Retain Available 0" in str(node.probe()[1]["reasons"]), what="the reason")
        assert "$SYS" not in str(node.probe()[1]["reasons"])
        live_only = selector("set/#") + "live_only = true\n"
        await nodes.secondary(link(mosquitto.port, live_only, settings=settings), name="edge-2").begin()
