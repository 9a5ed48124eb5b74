"""Section 3.3: PUBLISH."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Ack, PacketType, Pingreq, Pingresp, Publish, Subscription, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.node_in_memory import NodeInMemory
from tests.spec.peers import connect, durable, expect_fault, leave, payloads
from tests.spec.statements import statement

EVERYTHING = Properties(
    payload_format_indicator=1,
    content_type="text/ä",
    response_topic="answers/1",
    correlation_data=b"\x00\xff",
    user_property=(("b", "1"), ("a", "2"), ("b", "3"), ("a", "2")),
)


@statement(v5="3.3.1-1 3.1.2-5 4.4.0-1", v4="3.3.1-1 4.4.0-1")
async def test_3_3_1_1_dup_on_redelivery(node: NodeInMemory, version: int) -> None:
    """Only after a reconnect, unacknowledged PUBLISHs and PUBRELs come again, same identifiers, DUP set, in order."""
    client = await durable(node, version=version)
    await client.subscribe(b"t", qos=2)
    for number in range(4):
        node.set(b"t", b"%d" % number, qos=1 + number % 2, retain=False)
    first = await client.messages(4)
    assert [one.dup for one in first] == [False] * 4
    client.send(Ack(PacketType.PUBREC, first[1].packet_id or 0))
    await client.expect_ack(PacketType.PUBREL, first[1].packet_id or 0)
    assert await client.messages_until_ping() == []
    await leave(client, node)
    async with await durable(node, version=version) as client:
        await client.expect_ack(PacketType.PUBREL, first[1].packet_id or 0)
        again = await client.messages(3)
        assert [(one.packet_id, one.payload, one.dup) for one in again] == [
            (one.packet_id, one.payload, True) for one in (first[0], first[2], first[3])
        ]


@statement(v5="3.3.1-2", v4="3.3.1-2", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_3_1_2_dup_at_qos_0(node: NodeInMemory, version: int) -> None:
    """DUP at QoS 0 is refused."""
    client = await connect(node, version=version)
    client.send_bytes(b"\x38\x04\x00\x01t\x00")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.3.1-3", v4="3.3.1-3")
async def test_3_3_1_3_dup_is_not_propagated(node: NodeInMemory, version: int) -> None:
    """DUP of a PUBLISH that comes in says nothing about the one that goes out."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=1)
        packet_id = client.publish(b"t", b"x", qos=1, dup=True)
        packets = [await client.receive(), await client.receive()]
        assert [one.dup for one in packets if isinstance(one, Publish)] == [False]
        assert Ack(PacketType.PUBACK, packet_id) in packets


@statement(v5="3.3.1-4", v4="3.3.1-4", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_3_1_4_qos_3(node: NodeInMemory, version: int) -> None:
    """A PUBLISH with both QoS bits set is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(b"\x36\x06\x00\x01t\x00\x01\x00")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.3.1-5 3.3.1-9", v4="3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8")
async def test_3_3_1_5_retained_message(node: NodeInMemory, version: int) -> None:
    """The last retained message of each topic, at any QoS, is kept, and sent with RETAIN 1 to a new subscription."""
    async with await connect(node, version=version) as client:
        for qos in (2, 1, 0):
            client.publish(b"r/%d" % qos, b"old", qos=0, retain=True)
            client.publish(b"r/%d" % qos, b"new", qos=qos, retain=True)
            if qos:
                await client.expect(Ack)
        async with await connect(node, version=version) as other:
            await other.subscribe(b"r/+", qos=2)
            messages = await other.messages(3)
            assert sorted((one.topic, one.payload, one.qos, one.retain) for one in messages) == [
                (b"r/%d" % qos, b"new", qos, True) for qos in range(3)
            ]


@statement(v5="3.3.1-6 3.3.1-7", v4="3.3.1-10 3.3.1-11")
async def test_3_3_1_6_zero_length_retained(node: NodeInMemory, version: int) -> None:
    """A retained PUBLISH without payload removes the retained message, and is delivered as an ordinary one."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t")
        client.publish(b"t", b"x", retain=True)
        client.publish(b"t", b"", retain=True)
        messages = await client.messages_until_ping()
        assert [(one.payload, one.retain) for one in messages] == [(b"x", False), (b"", False)]
        async with await connect(node, version=version) as other:
            await other.subscribe(b"t")
            assert await other.messages_until_ping() == []


@statement(v5="3.3.1-8", v4="3.3.1-12")
async def test_3_3_1_8_not_retained(node: NodeInMemory, version: int) -> None:
    """A PUBLISH with RETAIN 0 neither is kept nor replaces what is."""
    async with await connect(node, version=version) as client:
        client.publish(b"t", b"kept", retain=True)
        client.publish(b"t", b"passing")
        client.publish(b"t", b"")
        await client.subscribe(b"t")
        assert payloads(await client.messages_until_ping()) == [b"kept"]


@statement(v5="3.3.1-9 3.3.1-10 3.3.1-11 3.8.4-4")
@pytest.mark.parametrize(("handling", "expected"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
async def test_3_3_1_10_retain_handling(node: NodeInMemory, handling: int, expected: list[int]) -> None:
    """Retained messages come at every SUBSCRIBE, at a new subscription only, or never."""
    node.set(b"t", b"kept")
    async with await connect(node) as client:
        for count in expected:
            await client.subscribe(Subscription(b"t", retain_handling=handling))
            assert len(await client.messages_until_ping()) == count


@statement(v5="3.3.1-12 3.3.1-13")
async def test_3_3_1_12_retain_as_published(node: NodeInMemory) -> None:
    """RETAIN of a live message is 0, or as published when the subscription asks for it."""
    async with await connect(node) as client:
        await client.subscribe(Subscription(b"plain"), Subscription(b"asked", retain_as_published=True))
        for topic in (b"plain", b"asked"):
            for retain in (True, False):
                client.publish(topic, b"x", retain=retain)
        messages = await client.messages_until_ping()
        assert [one.retain for one in messages] == [False, False, True, False]


@statement(v4="3.3.1-9")
async def test_v4_3_3_1_9_live_messages_have_no_retain(node: NodeInMemory) -> None:
    """RETAIN is 0 for an established subscription, however the message was published."""
    async with await connect(node, version=4) as client:
        await client.subscribe(b"t")
        client.publish(b"t", b"x", retain=True)
        assert [one.retain for one in await client.messages_until_ping()] == [False]


@statement(v5="3.3.2-1 3.3.2-2", v4="3.3.2-1 3.3.2-2", refused=ReasonCode.TOPIC_NAME_INVALID)
@pytest.mark.parametrize("topic", [b"a/#", b"+/a", b"#", b"a+"])
async def test_3_3_2_2_wildcard_in_topic_name(node: NodeInMemory, version: int, topic: bytes) -> None:
    """A Topic Name with a wildcard character is invalid."""
    client = await connect(node, version=version)
    body = len(topic).to_bytes(2, "big") + topic + (b"\0" if version == 5 else b"")
    client.send_bytes(bytes((0x30, len(body))) + body)
    await expect_fault(client, ReasonCode.TOPIC_NAME_INVALID)


@statement(v5="3.3.2-3 4.5.0-1", v4="3.3.2-3 4.5.0-1")
async def test_3_3_2_3_only_matching_topics(node: NodeInMemory, version: int) -> None:
    """A client gets the messages that its Topic Filters match, with the Topic Name as published, and no others."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"a/+/c", b"x/#")
        for topic in (b"a/b/c", b"a/b/d", b"x", b"x/y", b"a/b/c/d", b"X"):
            client.publish(topic, b"m")
        assert [one.topic for one in await client.messages_until_ping()] == [b"a/b/c", b"x", b"x/y"]


@statement(v5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_3_3_2_18_properties_are_unaltered(node: NodeInMemory, qos: int) -> None:
    """Format, Content Type, Response Topic, Correlation Data and User Properties pass unaltered and in order."""
    async with await connect(node) as client, await connect(node) as other:
        await other.subscribe(b"t", qos=2)
        client.publish(b"t", b"x", qos=qos, retain=True, properties=EVERYTHING)
        assert (await other.messages(1))[0].properties == EVERYTHING
        async with await connect(node) as later:
            await later.subscribe(b"t", qos=2)
            assert (await later.messages(1))[0].properties == EVERYTHING


@statement(v5="3.3.2-5 3.3.2-6")
async def test_3_3_2_5_message_expiry(node: NodeInMemory) -> None:
    """A message that has waited longer than its expiry is not delivered; another carries what is left of it."""
    client = await durable(node)
    await client.subscribe(b"t", qos=1)
    await leave(client, node)
    async with await connect(node) as client:
        for expiry_s, payload in ((5, b"short"), (100, b"long")):
            client.publish(b"t", payload, qos=1, properties=Properties(message_expiry_interval=expiry_s))
        for _ in range(2):
            await client.expect(Ack)
    await node.pass_time(40)
    async with await durable(node) as client:
        (message,) = await client.messages_until_ping()
        assert (message.payload, message.properties.message_expiry_interval) == (b"long", 60)


@statement(v5="3.3.2-5 3.3.2-6")
async def test_3_3_2_6_expiry_of_a_retained_message(node: NodeInMemory) -> None:
    """A retained message is sent with what is left of its expiry, and not at all after it."""
    async with await connect(node) as client:
        client.publish(b"t", b"x", retain=True, properties=Properties(message_expiry_interval=10))
        await client.messages_until_ping()
        await node.pass_time(4)
        await client.subscribe(b"t")
        assert (await client.messages(1))[0].properties.message_expiry_interval == 6
        await node.pass_time(7)
        await client.subscribe(b"t")
        assert await client.messages_until_ping() == []


@statement(v5="3.3.2-7", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_3_2_7_topic_alias_ends_with_the_connection(node: NodeInMemory) -> None:
    """A Topic Alias means something on the Network Connection that set it only."""
    alias = Properties(topic_alias=1)
    client = await durable(node)
    client.publish(b"t", b"x", properties=alias)
    assert await client.messages_until_ping() == []
    await leave(client, node)
    client = await durable(node)
    client.publish(b"", b"x", properties=alias)
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.3.2-8 3.3.2-9 3.2.2-17", refused=ReasonCode.TOPIC_ALIAS_INVALID)
async def test_3_3_2_8_topic_alias_out_of_range(node: NodeInMemory) -> None:
    """A Topic Alias of 0, or above the Topic Alias Maximum of CONNACK, is invalid."""
    for alias in (b"\0\0", b"\0\x21"):
        client = await connect(node)
        assert client.connack.properties.topic_alias_maximum == 32
        client.send_bytes(b"\x30\x07\x00\x01t\x03\x23" + alias)
        await expect_fault(client, ReasonCode.TOPIC_ALIAS_INVALID)


@statement(v5="3.3.2-12")
async def test_3_3_2_12_topic_aliases_are_taken(node: NodeInMemory) -> None:
    """Every Topic Alias up to the maximum is taken, may be set anew, and belongs to one direction."""
    async with await connect(node) as client:
        await client.subscribe(b"t/#", qos=1)
        for alias in range(1, 33):
            client.publish(b"t/%d" % alias, b"set", properties=Properties(topic_alias=alias))
        client.publish(b"", b"used", properties=Properties(topic_alias=32))
        client.publish(b"t/new", b"anew", properties=Properties(topic_alias=32))
        client.publish(b"", b"used", properties=Properties(topic_alias=32))
        messages = await client.messages_until_ping()
        assert [one.topic for one in messages[-3:]] == [b"t/32", b"t/new", b"t/new"]
        assert {one.properties.topic_alias for one in messages} == {None}


@statement(v5="3.3.2-13 3.3.2-14", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_3_2_14_wildcard_in_response_topic(node: NodeInMemory) -> None:
    """A Response Topic with a wildcard character is a Protocol Error."""
    client = await connect(node)
    client.send_bytes(b"\x30\x08\x00\x01t\x04\x08\x00\x01#")
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.3.2-19", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_3_2_19_content_type_is_utf8(node: NodeInMemory) -> None:
    """A Content Type that is not UTF-8 is malformed."""
    client = await connect(node)
    client.send_bytes(b"\x30\x08\x00\x01t\x04\x03\x00\x01\xff")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.3.4-1 4.3.2-4 4.3.3-8", v4="3.3.4-1 4.3.2-2 4.3.3-2")
async def test_3_3_4_1_acknowledgements(node: NodeInMemory, version: int) -> None:
    """QoS 1 is answered with PUBACK, QoS 2 with PUBREC and then PUBCOMP, with the same Packet Identifier."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"other")
        async with await connect(node, version=version) as listener:
            await listener.subscribe(b"t")
            client.publish(b"t", b"x", qos=0)
            client.publish(b"t", b"x", qos=1, packet_id=7)
            await client.expect_ack(PacketType.PUBACK, 7)
            client.publish(b"t", b"x", qos=2, packet_id=65535)
            await client.expect_ack(PacketType.PUBREC, 65535)
            client.send(Ack(PacketType.PUBREL, 65535))
            await client.expect_ack(PacketType.PUBCOMP, 65535)


@statement(v5="3.3.4-2 3.3.4-3 3.3.4-4", v4="3.3.5-1")
async def test_3_3_4_2_overlapping_subscriptions(node: NodeInMemory, version: int) -> None:
    """Overlapping subscriptions bring one copy at the highest QoS, with all Subscription Identifiers."""
    async with await connect(node, version=version) as client:
        for number, topic_filter in enumerate((b"a/#", b"a/b", b"a/+"), start=1):
            await client.subscribe(topic_filter, qos=number % 3, identifier=number if version == 5 else None)
        node.set(b"a/b", b"x", qos=2, retain=False)
        (message,) = await client.messages_until_ping()
        assert message.qos == 2
        assert message.properties.subscription_identifier == ((1, 2, 3) if version == 5 else ())


@statement(v5="3.3.4-6", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_3_4_6_subscription_identifier_from_a_client(node: NodeInMemory) -> None:
    """A PUBLISH from a client with a Subscription Identifier is a Protocol Error."""
    client = await connect(node)
    client.publish(b"t", b"x", properties=Properties(subscription_identifier=(1,)))
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.3.4-7 3.3.4-8", refused=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
async def test_3_3_4_7_receive_maximum_of_the_server(node: NodeInMemory) -> None:
    """More QoS 2 messages than the Receive Maximum, none released, end the Network Connection with 0x93."""
    client = await connect(node)
    maximum = client.connack.properties.receive_maximum or 65535
    for _ in range(maximum):
        client.publish(b"t", b"x", qos=2)
    for _ in range(maximum):
        await client.expect(Ack)
    client.send(Pingreq())
    await client.expect(Pingresp)
    client.publish(b"t", b"x", qos=2)
    while isinstance(packet := await client.receive(), Ack):
        pass
    assert getattr(packet, "reason_code", None) == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    await client.expect_end()
    await client.close()


@statement(v5="3.3.4-9 4.9.0-1 4.9.0-2 4.9.0-3 3.3.4-10")
async def test_3_3_4_9_receive_maximum_of_the_client(node: NodeInMemory) -> None:
    """No more than the client's Receive Maximum are unacknowledged, while everything else goes on."""
    async with await connect(node, properties=Properties(receive_maximum=2)) as client:
        await client.subscribe(b"t", qos=2)
        for number in range(5):
            node.set(b"t", b"%d" % number, qos=1 + number % 2, retain=False)
        first, second = await client.messages_until_ping()
        assert (await client.unsubscribe(b"nothing")).reason_codes == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
        client.send(Ack(PacketType.PUBACK, first.packet_id or 0))
        assert (await client.messages(1))[0].payload == b"2"
        client.send(Ack(PacketType.PUBREC, second.packet_id or 0))
        await client.expect_ack(PacketType.PUBREL, second.packet_id or 0)
        assert await client.messages_until_ping() == []  # PUBREC gives nothing back
        client.send(Ack(PacketType.PUBCOMP, second.packet_id or 0))
        assert (await client.messages(1))[0].payload == b"3"


@statement(v5="3.3.4-9")
async def test_3_3_4_9_failing_pubrec_gives_the_quota_back(node: NodeInMemory) -> None:
    """A PUBREC of 0x80 or above ends the exchange: no PUBREL, and the place is free."""
    async with await connect(node, properties=Properties(receive_maximum=1)) as client:
        await client.subscribe(b"t", qos=2)
        node.set(b"t", b"1", qos=2, retain=False)
        node.set(b"t", b"2", qos=2, retain=False)
        (message,) = await client.messages(1)
        client.send(Ack(PacketType.PUBREC, message.packet_id or 0, ReasonCode.QUOTA_EXCEEDED))
        assert payloads(await client.messages(1)) == [b"2"]


@statement(v4="3.3.5-2")
async def test_v4_3_3_5_2_refused_publish(node: NodeInMemory) -> None:
    """A PUBLISH that is not allowed is acknowledged as any other, and dropped."""
    node.verdicts[b"closed/"] = lambda: ReasonCode.NOT_AUTHORIZED
    async with await connect(node, version=4) as client:
        await client.subscribe(b"#")
        for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            await client.expect_ack(kind, client.publish(b"closed/t", b"x", qos=qos))
        assert await client.messages_until_ping() == []


@statement(v5="3.4.2-1 3.5.2-1")
@pytest.mark.parametrize(("qos", "kind"), [(1, PacketType.PUBACK), (2, PacketType.PUBREC)])
async def test_3_4_2_1_refused_publish(node: NodeInMemory, qos: int, kind: PacketType) -> None:
    """A PUBLISH that is not allowed is answered with 0x87 in PUBACK or PUBREC, and ends nothing."""
    node.verdicts[b"closed/"] = lambda: ReasonCode.NOT_AUTHORIZED
    async with await connect(node) as client:
        packet_id = client.publish(b"closed/t", b"x", qos=qos)
        await client.expect_ack(kind, packet_id, ReasonCode.NOT_AUTHORIZED)
        assert await client.messages_until_ping() == []


@statement(v5="4.7.3-1", v4="4.7.3-1", refused=ReasonCode.PROTOCOL_ERROR)
async def test_4_7_3_1_empty_topic_name(node: NodeInMemory, version: int) -> None:
    """A Topic Name has at least one character, unless a Topic Alias takes its place."""
    client = await connect(node, version=version)
    client.send_bytes(b"\x30\x03\0\0\0" if version == 5 else b"\x30\x02\0\0")
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="2.2.1-5", v4="2.3.1-6")
async def test_2_2_1_5_acknowledgements_have_the_identifier(node: NodeInMemory, version: int) -> None:
    """PUBACK, PUBREC, PUBREL and PUBCOMP carry the Packet Identifier of their PUBLISH."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=2)
        node.set(b"t", b"x", qos=2, retain=False)
        packet_id = (await client.messages(1))[0].packet_id or 0
        client.send(Ack(PacketType.PUBREC, packet_id))
        await client.expect_ack(PacketType.PUBREL, packet_id)
        client.send(Ack(PacketType.PUBCOMP, packet_id))
        assert await client.messages_until_ping() == []
        assert node.server.figures()["in_flight_messages"] == 0


@statement(v5="3.4.2-1 3.5.2-1")
async def test_3_4_2_1_no_matching_subscribers(node: NodeInMemory) -> None:
    """A PUBLISH at QoS 1 or 2 that nobody has subscribed to is acknowledged with 0x10, retained or not."""
    async with await connect(node) as client:
        for qos, kind in ((1, PacketType.PUBACK), (2, PacketType.PUBREC)):
            packet_id = client.publish(b"t/1", b"x", qos=qos, retain=True)
            await client.expect_ack(kind, packet_id, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        client.send(Ack(PacketType.PUBREL, packet_id))
        await client.expect_ack(PacketType.PUBCOMP, packet_id)
        async with await connect(node) as other:
            await other.subscribe(b"$share/g/t/+")
            packet_id = client.publish(b"t/1", b"x", qos=1)
            await client.expect_ack(PacketType.PUBACK, packet_id)


@statement(v5="3.4.2-1 3.5.2-1", refused=ReasonCode.PAYLOAD_FORMAT_INVALID)
async def test_3_4_2_1_payload_format(node: NodeInMemory) -> None:
    """A payload that is said to be UTF-8, and is not, is refused with 0x99, and others around it are not."""
    said = Properties(user_property=(("\x01\x01", "\x01\x01"),), payload_format_indicator=1, content_type="a")
    binary = Properties(user_property=(("\x01\x01", "\x01\x01"),), payload_format_indicator=0, content_type="\x01\x01")
    async with await connect(node) as client, await connect(node) as other:
        await other.subscribe(b"t")
        for qos in range(3):
            client.publish(b"t", b"\xff", qos=qos, properties=binary)
            client.publish(b"t", b"\xff", qos=qos, properties=said)
            client.publish(b"t", "ä".encode(), qos=qos, properties=said)
        answers = [await client.expect(Ack) for _ in range(6)]
        assert [one.reason_code for one in answers] == [0, 0x99, 0] * 2
        assert payloads(await other.messages_until_ping()) == [b"\xff", "ä".encode()] * 3


@statement(v5="3.1.4-2", refused=ReasonCode.PAYLOAD_FORMAT_INVALID)
async def test_3_1_4_2_payload_format_of_the_will(node: NodeInMemory) -> None:
    """A Will Payload that is said to be UTF-8, and is not, is refused in CONNACK."""
    will = Will(b"t", b"\xff", properties=Properties(payload_format_indicator=1))
    async with await connect(node, will=will) as client:
        assert client.connack.reason_code == ReasonCode.PAYLOAD_FORMAT_INVALID


@statement(v5="3.1.2-26 3.3.2-10 3.3.2-11")
async def test_3_1_2_26_topic_aliases_of_the_server(node: NodeInMemory) -> None:
    """A client with a Topic Alias Maximum is sent so many aliases at most, each set before it is used."""
    async with await connect(node, "c", properties=Properties(topic_alias_maximum=2, maximum_packet_size=40)) as client:
        await client.subscribe(b"t/#", b"s", qos=2)
        node.set(b"s", b"x" * 34, retain=False)  # fits without its alias only
        for qos, topic in enumerate((b"t/1", b"t/2", b"t/3")):
            node.set(topic, b"x", qos=qos, retain=False)
            node.set(topic, b"x" * 20, qos=qos, properties=b"\x26\x00\x01a\x00\x01b", retain=False)
        messages = await client.messages_until_ping()
        assert [(one.topic, one.properties.topic_alias) for one in messages] == [
            (b"s", None),
            (b"t/1", 1),
            (b"", 1),
            (b"t/2", 2),
            (b"", 2),
            (b"t/3", None),
            (b"t/3", None),
        ]
        assert payloads(messages) == [b"x" * 34] + [b"x", b"x" * 20] * 3
        assert [one.properties.user_property for one in messages[1:3]] == [(), (("a", "b"),)]
