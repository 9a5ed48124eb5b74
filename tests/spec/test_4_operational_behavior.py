"""Section 4: sessions, QoS, order, topics, subscriptions."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Ack, PacketType, Subscription
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.spec.peers import connect, durable, leave, payloads
from tests.spec.statements import statement


@statement(v5="4.1.0-1", v4="4.1.0-1")
async def test_4_1_0_1_session_lasts_with_the_connection(node: NodeInMemory, version: int) -> None:
    """A session is not discarded while its Network Connection is open, however short its expiry."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t")
        await node.pass_time(100_000)
        node.set(b"t", b"x")
        assert payloads(await client.messages_until_ping()) == [b"x"]


@statement(v5="4.3.1-1", v4="4.3.1-1")
async def test_4_3_1_1_qos_0(node: NodeInMemory, version: int) -> None:
    """QoS 0 is delivered once, with QoS 0 and DUP 0, and is not acknowledged."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=2)
        client.publish(b"t", b"x")
        assert [(one.qos, one.dup) for one in await client.messages_until_ping()] == [(0, False)]


@statement(v5="4.3.2-1 4.3.2-2 4.3.2-3", v4="4.3.2-1")
async def test_4_3_2_1_qos_1_sender(node: NodeInMemory, version: int) -> None:
    """A QoS 1 PUBLISH has a free Packet Identifier and DUP 0, and counts as unacknowledged until PUBACK."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=1)
        node.set(b"t", b"x", qos=1)
        (message,) = await client.messages(1)
        assert (message.qos, message.dup) == (1, False)
        assert node.server.figures()["in_flight_messages"] == 1
        client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
        await client.messages_until_ping()
        assert node.server.figures()["in_flight_messages"] == 0


@statement(v5="4.3.2-5", v4="4.3.2-2")
async def test_4_3_2_5_qos_1_identifier_is_free_after_puback(node: NodeInMemory, version: int) -> None:
    """After PUBACK a PUBLISH with the same Packet Identifier is a new message, whatever its DUP flag."""
    async with await connect(node, version=version) as client:
        for dup in (False, True, False):
            client.publish(b"t", b"x", qos=1, packet_id=3, dup=dup)
            assert getattr(await client.receive(), "packet_id", 0) == 3
        assert len(node.published) == 3


@statement(
    v5="4.3.3-1 4.3.3-2 4.3.3-3 4.3.3-4 4.3.3-5 4.3.3-6 4.3.3-7",
    v4="4.3.3-1",
)
async def test_4_3_3_1_qos_2_sender(node: NodeInMemory, version: int) -> None:
    """A QoS 2 PUBLISH is followed by PUBREL after PUBREC, and is not sent again after that."""
    client = await durable(node, version=version)
    await client.subscribe(b"t", qos=2)
    node.set(b"t", b"x", qos=2, retain=False)
    (message,) = await client.messages(1)
    packet_id = message.packet_id or 0
    assert (message.qos, message.dup) == (2, False)
    client.send(Ack(PacketType.PUBREC, packet_id))
    await client.expect_ack(PacketType.PUBREL, packet_id)
    await leave(client, node)
    async with await durable(node, version=version) as client:
        await client.expect_ack(PacketType.PUBREL, packet_id)
        client.send(Ack(PacketType.PUBCOMP, packet_id))
        assert await client.messages_until_ping() == []
        assert node.server.figures()["in_flight_messages"] == 0


@statement(v5="4.3.3-8 4.3.3-10 4.3.3-11 4.3.3-12", v4="4.3.3-2")
async def test_4_3_3_10_qos_2_receiver(node: NodeInMemory, version: int) -> None:
    """Until PUBREL a PUBLISH with the same identifier is acknowledged again and not applied; also over a reconnect."""
    client = await durable(node, version=version)
    await client.subscribe(b"t")
    for dup in (False, True):
        client.publish(b"t", b"x", qos=2, packet_id=9, dup=dup)
    assert {type(await client.receive()).__name__ for _ in range(3)} == {"Publish", "Ack"}
    await leave(client, node)
    async with await durable(node, version=version) as client:
        client.publish(b"t", b"x", qos=2, packet_id=9, dup=True)
        await client.expect_ack(PacketType.PUBREC, 9)
        client.send(Ack(PacketType.PUBREL, 9))
        await client.expect_ack(PacketType.PUBCOMP, 9)
        assert len(node.published) == 1
        client.publish(b"t", b"new", qos=2, packet_id=9)
        packets = [await client.receive(), await client.receive()]
        assert Ack(PacketType.PUBREC, 9) in packets
        assert len(node.published) == 2


@statement(v5="4.3.3-9")
async def test_4_3_3_9_identifier_is_free_after_a_failing_pubrec(node: NodeInMemory) -> None:
    """After a PUBREC of 0x80 or above the Packet Identifier may be used for a new message."""
    node.verdicts[b"closed"] = lambda: ReasonCode.NOT_AUTHORIZED
    async with await connect(node) as client:
        await client.subscribe(b"open")
        client.publish(b"closed", b"x", qos=2, packet_id=4)
        await client.expect_ack(PacketType.PUBREC, 4, ReasonCode.NOT_AUTHORIZED)
        client.publish(b"open", b"x", qos=2, packet_id=4)
        assert Ack(PacketType.PUBREC, 4) in [await client.receive(), await client.receive()]


@statement(v5="4.4.0-2")
async def test_4_4_0_2_failing_puback_is_final(node: NodeInMemory) -> None:
    """A message that the client refuses with PUBACK of 0x80 or above is not sent again."""
    client = await durable(node)
    await client.subscribe(b"t", qos=1)
    node.set(b"t", b"x", qos=1, retain=False)
    (message,) = await client.messages(1)
    client.send(Ack(PacketType.PUBACK, message.packet_id or 0, ReasonCode.UNSPECIFIED_ERROR))
    await client.messages_until_ping()
    await leave(client, node)
    async with await durable(node) as client:
        assert await client.messages_until_ping() == []


@statement(v5="4.6.0-5 4.6.0-6", v4="4.6.0-5 4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_4_6_0_5_order(node: NodeInMemory, version: int, qos: int) -> None:
    """Messages of one publisher, topic and QoS arrive in the order of publishing."""
    async with await connect(node, version=version) as client, await connect(node, version=version) as other:
        await other.subscribe(b"t", qos=qos)
        for number in range(300):
            client.publish(b"t", b"%d" % number, qos=qos)
        assert payloads(await other.messages(300)) == [b"%d" % number for number in range(300)]


@statement(v5="4.6.0-2 4.6.0-3 4.6.0-4", v4="4.6.0-2 4.6.0-3 4.6.0-4")
async def test_4_6_0_2_order_of_acknowledgements(node: NodeInMemory, version: int) -> None:
    """PUBACKs come in the order of the PUBLISHs, PUBRECs likewise, and PUBRELs in the order of the PUBRECs."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=2)
        for qos in (1, 2):
            ids = [client.publish(b"q", b"x", qos=qos) for _ in range(5)]
            assert [getattr(await client.receive(), "packet_id", 0) for _ in ids] == ids
        for _ in range(3):
            node.set(b"t", b"x", qos=2, retain=False)
        ids = [one.packet_id or 0 for one in await client.messages(3)]
        for packet_id in (ids[2], ids[0], ids[1]):
            client.send(Ack(PacketType.PUBREC, packet_id))
            await client.expect_ack(PacketType.PUBREL, packet_id)


@statement(v5="4.7.1-1 4.7.1-2", v4="4.7.1-1 4.7.1-2 4.7.1-3", refused=ReasonCode.TOPIC_FILTER_INVALID)
@pytest.mark.parametrize("topic_filter", [b"a/#/b", b"a#", b"#a", b"a+", b"+a/b", b"a/b+", b"##"])
async def test_4_7_1_1_misplaced_wildcards(node: NodeInMemory, version: int, topic_filter: bytes) -> None:
    """A multi-level wildcard that is not the last level, or a wildcard that is not a whole level, is invalid."""
    client = await connect(node, version=version)
    body = b"\0\x01" + (b"\0" if version == 5 else b"") + len(topic_filter).to_bytes(2, "big") + topic_filter + b"\0"
    client.send_bytes(bytes((0x82, len(body))) + body)
    await client.expect_end(ReasonCode.TOPIC_FILTER_INVALID if version == 5 else None)
    await client.close()


@statement(v5="4.7.1-1 4.7.1-2 4.7.0-1", v4="4.7.1-2 4.7.1-3 3.8.3-2")
@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (b"sport/#", [b"sport", b"sport/", b"sport/a", b"sport/a/b"]),
        (b"#", [b"/", b"/a", b"a", b"sport", b"sport/", b"sport/a", b"sport/a/b"]),
        (b"+", [b"a", b"sport"]),
        (b"+/+", [b"/", b"/a", b"sport/", b"sport/a"]),
        (b"/+", [b"/", b"/a"]),
        (b"sport/+", [b"sport/", b"sport/a"]),
        (b"+/a/#", [b"/a", b"sport/a", b"sport/a/b"]),
        (b"/", [b"/"]),
    ],
)
async def test_4_7_1_2_wildcards(node: NodeInMemory, version: int, topic_filter: bytes, expected: list[bytes]) -> None:
    """Wildcards match as section 4.7.1 says, for live and for retained messages."""
    topics = [b"/", b"/a", b"a", b"sport", b"sport/", b"sport/a", b"sport/a/b"]
    async with await connect(node, version=version) as client:
        await client.subscribe(topic_filter)
        for topic in topics:
            client.publish(topic, b"x", retain=True)
        assert [one.topic for one in await client.messages_until_ping()] == expected
        await client.subscribe(topic_filter)
        assert sorted(one.topic for one in await client.messages_until_ping()) == expected


@statement(v5="4.7.2-1", v4="4.7.2-1")
async def test_4_7_2_1_dollar_topics(node: NodeInMemory, version: int) -> None:
    """A Topic Filter that begins with a wildcard does not match a Topic Name that begins with `$`."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"#", b"+/b", b"$a/#")
        client.publish(b"$a/b", b"x", retain=True)
        client.publish(b"$b/b", b"x", retain=True)
        assert [one.topic for one in await client.messages_until_ping()] == [b"$a/b"]
        await client.subscribe(b"#", b"+/b")
        assert await client.messages_until_ping() == []


@statement(v5="4.7.3-1", v4="4.7.3-1", refused=ReasonCode.TOPIC_FILTER_INVALID)
async def test_4_7_3_1_empty_topic_filter(node: NodeInMemory, version: int) -> None:
    """A Topic Filter has at least one character."""
    client = await connect(node, version=version)
    client.send_bytes(b"\x82\x06\0\x01\0\0\0\0" if version == 5 else b"\x82\x05\0\x01\0\0\0")
    await client.expect_end(ReasonCode.TOPIC_FILTER_INVALID if version == 5 else None)
    await client.close()


@statement(v5="4.7.3-2", v4="4.7.3-2", refused=ReasonCode.MALFORMED_PACKET)
async def test_4_7_3_2_null_character_in_topic_filter(node: NodeInMemory, version: int) -> None:
    """A Topic Filter with U+0000 is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(b"\x82\x07\0\x01\0\0\x01\0\0" if version == 5 else b"\x82\x06\0\x01\0\x01\0\0")
    await client.expect_end(ReasonCode.MALFORMED_PACKET if version == 5 else None)
    await client.close()


@statement(v5="4.7.3-3", v4="4.7.3-3")
async def test_4_7_3_3_longest_topic(start_node: StartNode, version: int) -> None:
    """Topic Names and Topic Filters may have 65,535 bytes, and as many levels as `filter_levels_max` grants."""
    node = await start_node(filter_levels_max=32_768)
    topic = b"t/" * 32_767 + b"t"
    async with await connect(node, version=version) as client:
        await client.subscribe(topic)
        client.publish(topic, b"x")
        assert [one.topic == topic for one in await client.messages_until_ping()] == [True]


@statement(v5="4.7.3-4", v4="4.7.3-4")
async def test_4_7_3_4_no_normalisation(node: NodeInMemory, version: int) -> None:
    """Topics are compared character by character: no normalisation, no folding of case, spaces count."""
    async with await connect(node, version=version) as client:
        await client.subscribe("caf\u00e9".encode())
        for topic in ("cafe\u0301", "CAF\u00c9", "caf\u00e9 ", "caf\u00e9"):
            client.publish(topic.encode(), b"x")
        assert [one.topic.decode() for one in await client.messages_until_ping()] == ["caf\u00e9"]


@statement(v5="4.8.2-1 4.8.2-2", refused=ReasonCode.TOPIC_FILTER_INVALID)
async def test_4_8_2_1_form_of_a_shared_subscription(node: NodeInMemory) -> None:
    """A ShareName has at least one character and no wildcard, and a Topic Filter follows it."""
    async with await connect(node) as client:
        suback = await client.subscribe(b"$share//t", b"$share/+/t", b"$share/g", b"$share/g/", b"$share/g/t")
        assert suback.reason_codes == (0x8F, 0x8F, 0x8F, 0x8F, 0)


@statement(v5="4.8.2-3")
async def test_4_8_2_3_qos_of_a_shared_subscription(node: NodeInMemory) -> None:
    """Each message goes to one member, at the QoS granted to it; every group and subscription gets its own."""
    async with await connect(node) as one, await connect(node) as other:
        await one.subscribe(b"$share/g/t", qos=0)
        await other.subscribe(b"$share/g/t", qos=1)
        await other.subscribe(b"t", qos=0)
        for number in range(10):
            node.set(b"t", b"%d" % number, qos=2, retain=False)
        mine, theirs = await one.messages_until_ping(), await other.messages_until_ping()
        assert {message.qos for message in mine} == {0}
        assert sorted(message.qos for message in theirs) == [0] * 10 + [1] * (10 - len(mine))
        assert len(mine) == 5


@statement(v5="4.8.2-3")
async def test_4_8_2_3_no_retained_messages_for_shared_subscriptions(node: NodeInMemory) -> None:
    """A Shared Subscription brings no retained messages, and its live messages follow Retain As Published."""
    node.set(b"t", b"kept")
    async with await connect(node) as client:
        await client.subscribe(Subscription(b"$share/g/t", retain_as_published=True))
        assert await client.messages_until_ping() == []
        node.set(b"t", b"live")
        assert [one.retain for one in await client.messages_until_ping()] == [True]


@statement(v5="4.8.2-6")
async def test_4_8_2_6_refused_by_the_member(node: NodeInMemory) -> None:
    """A message that a member refuses goes to no other member."""
    async with await connect(node) as one, await connect(node) as other:
        await one.subscribe(b"$share/g/t", qos=1)
        node.set(b"t", b"x", qos=1, retain=False)
        (message,) = await one.messages(1)
        await other.subscribe(b"$share/g/t", qos=1)
        one.send(Ack(PacketType.PUBACK, message.packet_id or 0, ReasonCode.UNSPECIFIED_ERROR))
        await one.messages_until_ping()
        await leave(one, node)
        assert await other.messages_until_ping() == []


@statement(v5="4.8.2-4 4.8.2-5")
@pytest.mark.parametrize(("qos", "expected"), [(1, [b"1", b"2"]), (2, [b"2"])])
async def test_4_8_2_5_session_of_a_member_ends(node: NodeInMemory, qos: int, expected: list[bytes]) -> None:
    """A message at QoS 1 without an acknowledgement, or unsent, goes to another member; one sent at QoS 2 does not."""
    properties = Properties(receive_maximum=1)
    async with await connect(node) as other:
        one = await connect(node, properties=properties)
        await one.subscribe(b"$share/g/t", qos=2)
        for payload in (b"1", b"2"):
            node.set(b"t", payload, qos=qos, retain=False)
        await other.subscribe(b"$share/g/t", qos=2)
        assert len(await one.messages_until_ping()) == 1
        await leave(one, node)
        assert payloads(await other.messages_until_ping()) == expected
