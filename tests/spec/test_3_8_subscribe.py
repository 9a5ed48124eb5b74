"""Sections 3.8 to 3.11: SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Ack, PacketType, Publish, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.spec.peers import connect, expect_fault, payloads
from tests.spec.statements import statement

END = {5: b"\0", 4: b""}


def packet(first: int, version: int, rest: bytes) -> bytes:
    """Return a SUBSCRIBE or UNSUBSCRIBE with Packet Identifier 1 and any bytes behind its properties."""
    body = b"\0\x01" + END[version] + rest
    return bytes((first, len(body))) + body


@statement(v5="3.8.1-1", v4="3.8.1-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_8_1_1_flags_of_subscribe(node: NodeInMemory, version: int) -> None:
    """SUBSCRIBE with other flags than 0010 is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(packet(0x80, version, b"\0\x01t\0"))
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.8.3-1 3.10.3-1", v4="3.8.3-1 3.10.3-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_8_3_1_topic_filter_is_utf8(node: NodeInMemory, version: int) -> None:
    """A Topic Filter of SUBSCRIBE or UNSUBSCRIBE that is not UTF-8 is malformed."""
    for first, options in ((0x82, b"\0"), (0xA2, b"")):
        client = await connect(node, version=version)
        client.send_bytes(packet(first, version, b"\0\x01\xff" + options))
        await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.8.3-2 3.10.3-2", v4="3.8.3-3 3.10.3-2", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_8_3_2_at_least_one_topic_filter(node: NodeInMemory, version: int) -> None:
    """SUBSCRIBE and UNSUBSCRIBE without a Topic Filter are a Protocol Error."""
    for first in (0x82, 0xA2):
        client = await connect(node, version=version)
        client.send_bytes(packet(first, version, b""))
        await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.8.3-3")
async def test_3_8_3_3_no_local(node: NodeInMemory) -> None:
    """With No Local a client does not get its own messages, and others do."""
    async with await connect(node) as client, await connect(node) as other:
        for one in (client, other):
            await one.subscribe(Subscription(b"t", no_local=True))
        client.publish(b"t", b"x")
        assert await client.messages_until_ping() == []
        assert payloads(await other.messages_until_ping()) == [b"x"]


@statement(v5="3.8.3-4", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_8_3_4_no_local_on_a_shared_subscription(node: NodeInMemory) -> None:
    """No Local on a Shared Subscription is a Protocol Error."""
    client = await connect(node)
    client.send(Subscribe(1, (Subscription(b"$share/g/t", no_local=True),)))
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.8.3-5", v4="3-8.3-4", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_8_3_5_reserved_bits_of_the_options(node: NodeInMemory, version: int) -> None:
    """A reserved bit of the Subscription Options is malformed."""
    for options in (0x40, 0x80) if version == 5 else (0x04, 0x80, 0x03):
        client = await connect(node, version=version)
        client.send_bytes(packet(0x82, version, b"\0\x01t" + bytes((options,))))
        await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.8.3-5", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_8_3_5_values_of_the_options(node: NodeInMemory) -> None:
    """A Maximum QoS of 3 or a Retain Handling of 3 is a Protocol Error, and so is Subscription Identifier 0."""
    for options in (0x03, 0x30):
        client = await connect(node)
        client.send_bytes(packet(0x82, 5, b"\0\x01t" + bytes((options,))))
        await expect_fault(client, ReasonCode.PROTOCOL_ERROR)
    client = await connect(node)
    client.send_bytes(b"\x82\x09\0\x01\x02\x0b\0\0\x01t\0")
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(
    v5="3.8.4-1 3.8.4-2 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2 2.2.1-6",
    v4="3.8.4-1 3.8.4-2 3.8.4-5 3.9.3-1 3.9.3-2 2.3.1-7",
)
async def test_3_8_4_1_suback(node: NodeInMemory, version: int) -> None:
    """SUBACK has the Packet Identifier of SUBSCRIBE and one code for each Topic Filter, in order."""
    async with await connect(node, version=version) as client:
        filters = (b"a", b"$share//x", b"b", b"$share/g", b"c", b"$share/+/x")
        client.send(Subscribe(77, tuple(Subscription(one, index % 3) for index, one in enumerate(filters))))
        suback = await client.expect(Suback)
        bad = ReasonCode.TOPIC_FILTER_INVALID if version == 5 else 0x80
        assert (suback.packet_id, suback.reason_codes) == (77, (0, bad, 2, bad, 1, bad))


@statement(v5="3.8.4-3", v4="3.8.4-3")
async def test_3_8_4_3_subscription_is_replaced(node: NodeInMemory, version: int) -> None:
    """The same Topic Filter again replaces the subscription: its options, and retained messages again; no gap."""
    node.set(b"t", b"kept", qos=1)
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=0)
        assert [(one.payload, one.qos) for one in await client.messages(1)] == [(b"kept", 0)]
        assert (await client.subscribe(b"t", qos=1)).reason_codes == (1,)
        assert [(one.payload, one.qos) for one in await client.messages(1)] == [(b"kept", 1)]
        client.publish(b"t", b"live", qos=1)
        assert [one.qos for one in [await client.receive(), await client.receive()] if isinstance(one, Publish)] == [1]
        assert node.server.figures()["subscriptions"] == 1


@statement(v5="3.8.4-5", v4="3.8.4-4")
async def test_3_8_4_5_several_topic_filters(node: NodeInMemory, version: int) -> None:
    """Several Topic Filters in one SUBSCRIBE are like a sequence of SUBSCRIBEs: the last of equals counts."""
    async with await connect(node, version=version) as client:
        assert (await client.subscribe(Subscription(b"t", 2), Subscription(b"t", 0))).reason_codes == (2, 0)
        node.set(b"t", b"x", qos=2)
        assert [one.qos for one in await client.messages_until_ping()] == [0]


@statement(v5="3.8.4-8", v4="3.8.4-6")
async def test_3_8_4_8_effective_qos(node: NodeInMemory, version: int) -> None:
    """A message comes at the lower of its QoS and the Maximum QoS of the subscription."""
    async with await connect(node, version=version) as client:
        await client.subscribe(*(Subscription(b"t/%d" % granted, granted) for granted in range(3)))
        for granted in range(3):
            for qos in range(3):
                node.set(b"t/%d" % granted, b"x", qos=qos, retain=False)
        messages = await client.messages_until_ping()
        assert [one.qos for one in messages] == [min(qos, granted) for granted in range(3) for qos in range(3)]


@statement(v5="3.8.4-7", refused=ReasonCode.QUOTA_EXCEEDED)
async def test_3_8_4_7_too_many_subscriptions(start_node: StartNode) -> None:
    """A subscription over the limit of one session is refused in SUBACK."""
    node = await start_node(subscriptions_max=1)
    async with await connect(node) as client:
        assert (await client.subscribe(b"a", b"b")).reason_codes == (0, ReasonCode.QUOTA_EXCEEDED)


@statement(v5="3.10.1-1", v4="3.10.1-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_10_1_1_flags_of_unsubscribe(node: NodeInMemory, version: int) -> None:
    """UNSUBSCRIBE with other flags than 0010 is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(packet(0xA0, version, b"\0\x01t"))
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.10.4-1 3.10.4-2", v4="3.10.4-1 3.10.4-2")
async def test_3_10_4_1_unsubscribe(node: NodeInMemory, version: int) -> None:
    """A Topic Filter that is the same character by character is removed, and no new message is added."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"a/+", b"a/b", b"A/b")
        await client.unsubscribe(b"a/b")
        for topic in (b"a/b", b"A/b"):
            client.publish(topic, b"x")
        assert [one.topic for one in await client.messages_until_ping()] == [b"a/b", b"A/b"]
        await client.unsubscribe(b"a/+")
        client.publish(b"a/b", b"x")
        assert await client.messages_until_ping() == []


@statement(v5="3.10.4-3", v4="3.10.4-3")
async def test_3_10_4_3_delivery_is_completed(node: NodeInMemory, version: int) -> None:
    """Deliveries at QoS 1 and 2 that began before UNSUBSCRIBE are completed after it."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=2)
        node.set(b"t", b"x", qos=2, retain=False)
        packet_id = (await client.messages(1))[0].packet_id or 0
        await client.unsubscribe(b"t")
        client.send(Ack(PacketType.PUBREC, packet_id))
        await client.expect_ack(PacketType.PUBREL, packet_id)


@statement(v5="3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2", v4="3.10.4-4 3.10.4-5 3.10.4-6")
async def test_3_10_4_4_unsuback(node: NodeInMemory, version: int) -> None:
    """UNSUBACK has the Packet Identifier, and over MQTT 5 one code for each Topic Filter: 0x00, or 0x11 for none."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"a", b"$share/g/b")
        client.send(Unsubscribe(99, (b"a", b"none", b"a", b"$share/g/b", b"$share/g/b")))
        unsuback = await client.expect(Unsuback)
        assert unsuback.packet_id == 99
        assert unsuback.reason_codes == ((0, 0x11, 0x11, 0, 0x11) if version == 5 else ())


@statement(v5="3.8.4-1", v4="3.8.4-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_3_8_4_1_retained_messages_follow_suback(node: NodeInMemory, version: int, qos: int) -> None:
    """Retained messages come after SUBACK, each once, with the Subscription Identifier."""
    for number in range(20):
        node.set(b"t/%d" % number, b"x", qos=2)
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t/#", qos=qos, identifier=9 if version == 5 else None)
        messages = await client.messages_until_ping()
        assert len({one.topic for one in messages}) == len(messages) == 20
        assert {(one.qos, one.retain) for one in messages} == {(qos, True)}
        if version == 5:
            assert {one.properties for one in messages} == {Properties(subscription_identifier=(9,))}
