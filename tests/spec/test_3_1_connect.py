"""Section 3.1: CONNECT."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from fanout.mqtt.properties import NO_PROPERTIES, Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.spec.peers import connect, durable, expect_fault, gone, leave, payloads
from tests.spec.statements import statement
from tests.support.raw_client import RawClient, ServerClosed


def connect_bytes(
    *, version: int, name: bytes = b"\0\x04MQTT", level: int | None = None, flags: int = 2, payload: bytes = b"\0\x01c"
) -> bytes:
    """Return a CONNECT with any protocol name, level, flags and payload."""
    properties = b"\0" if version == 5 else b""
    body = name + bytes((version if level is None else level, flags)) + b"\0\0" + properties + payload
    return bytes((0x10, len(body))) + body


async def refusal(client: RawClient) -> int | None:
    """Return the code of the CONNACK that refuses, None without one, and wait for the end."""
    try:
        connack = await client.expect(Connack)
    except ServerClosed:
        return None
    finally:
        await client.close()
    assert not connack.session_present
    return connack.reason_code


@statement(v5="3.1.0-1", v4="3.1.0-1", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_1_0_1_first_packet_is_connect(node: NodeInMemory, version: int) -> None:
    """A Network Connection whose first packet is not CONNECT is closed."""
    client = await RawClient.open(node.port, version=version)
    client.send(Pingreq())
    await client.expect_end()
    await client.close()


@statement(v5="3.1.0-2", v4="3.1.0-2", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_1_0_2_second_connect(node: NodeInMemory, version: int) -> None:
    """A second CONNECT is a Protocol Error."""
    client = await connect(node, "c", version=version)
    client.send(Connect("c", version=version))
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.1.2-1", v4="3.1.2-1", refused=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
async def test_3_1_2_1_protocol_name(node: NodeInMemory, version: int) -> None:
    """A Protocol Name other than MQTT is not served."""
    for name in (b"\0\x04mqtt", b"\0\x02hj", b"\0\x06MQIsdp"):
        client = await RawClient.open(node.port, version=version)
        client.send_bytes(connect_bytes(version=version, name=name))
        assert await refusal(client) in {None, 0x84, 0x01}


@statement(v5="3.1.2-2", v4="3.1.2-2", refused=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
async def test_3_1_2_2_protocol_version(node: NodeInMemory, version: int) -> None:
    """A Protocol Version that is not supported gets 0x84, or 0x01 in the format of MQTT 3.1.1."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, level=6 if version == 5 else 2))
    assert await refusal(client) == (0x84 if version == 5 else 0x01)


@statement(v5="3.1.2-3", v4="3.1.2-3", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_1_2_3_reserved_flag(node: NodeInMemory, version: int) -> None:
    """The reserved Connect Flag must be 0."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, flags=3))
    assert await refusal(client) == (0x81 if version == 5 else None)


@statement(v5="3.1.2-4 3.2.2-2", v4="3.1.2-6 3.2.2-1")
async def test_3_1_2_4_clean_start_discards_the_session(node: NodeInMemory, version: int) -> None:
    """With Clean Start the existing session is discarded, and Session Present is 0."""
    client = await durable(node, version=version)
    await client.subscribe(b"t", qos=1)
    await leave(client, node)
    async with await durable(node, version=version, clean_start=True) as client:
        assert not client.connack.session_present
        node.set(b"t", b"x", qos=1)
        assert await client.messages_until_ping() == []


@statement(v5="3.1.2-5 3.2.2-3", v4="3.1.2-4 3.1.2-5 3.2.2-2")
async def test_3_1_2_5_session_is_resumed(node: NodeInMemory, version: int) -> None:
    """Without Clean Start the session goes on: its subscriptions, and what came at QoS 1 and 2 meanwhile."""
    client = await durable(node, version=version)
    await client.subscribe(b"t", qos=2)
    await leave(client, node)
    for qos in range(3):
        node.set(b"t", b"%d" % qos, qos=qos, retain=False)
    async with await durable(node, version=version) as client:
        assert client.connack.session_present
        assert payloads(await client.messages(2)) == [b"1", b"2"]


@statement(v5="3.1.2-6", v4="3.2.2-3")
async def test_3_1_2_6_new_session_without_clean_start(node: NodeInMemory, version: int) -> None:
    """Without Clean Start and without a session there is a new one, with Session Present 0."""
    async with await durable(node, version=version) as client:
        assert not client.connack.session_present


@statement(v4="3.1.2-7")
async def test_v4_3_1_2_7_retained_messages_outlive_the_session(node: NodeInMemory) -> None:
    """A retained message is no part of the session that published it."""
    client = await connect(node, version=4)
    client.publish(b"t", b"kept", retain=True)
    await client.messages_until_ping()
    await leave(client, node)
    async with await connect(node, version=4) as client:
        await client.subscribe(b"t")
        assert payloads(await client.messages(1)) == [b"kept"]


@statement(v5="3.1.2-7 3.1.2-8", v4="3.1.2-8")
async def test_3_1_2_8_will_is_published(node: NodeInMemory, version: int) -> None:
    """When a Network Connection ends without DISCONNECT its Will Message is published, at its QoS."""
    async with await connect(node, version=version) as listener:
        await listener.subscribe(b"will", qos=2)
        client = await connect(node, version=version, will=Will(b"will", b"gone", 1))
        await client.close()
        (message,) = await listener.messages(1)
        assert (message.payload, message.qos, message.retain) == (b"gone", 1, False)


@statement(v5="3.1.2-8", v4="3.1.2-8")
async def test_3_1_2_8_will_after_a_protocol_error(node: NodeInMemory, version: int) -> None:
    """The Will Message is published when the server closes because of a Protocol Error."""
    async with await connect(node, version=version) as listener:
        await listener.subscribe(b"will")
        client = await connect(node, version=version, will=Will(b"will", b"gone"))
        client.send_bytes(b"\x00\x00")
        assert payloads(await listener.messages(1)) == [b"gone"]
        await client.close()


@statement(v5="3.1.2-10 3.14.4-3", v4="3.1.2-10 3.14.4-3")
async def test_3_14_4_3_disconnect_discards_the_will(node: NodeInMemory, version: int) -> None:
    """After a normal DISCONNECT the Will Message is discarded and never published."""
    async with await connect(node, version=version) as listener:
        await listener.subscribe(b"will")
        client = await connect(node, version=version, will=Will(b"will", b"gone"))
        await client.disconnect()
        await node.pass_time(1)
        client = await connect(node, version=version)
        await leave(client, node)
        assert await listener.messages_until_ping() == []


@statement(
    v5="3.1.2-9 3.1.2-11 3.1.2-12 3.1.2-13",
    v4="3.1.2-9 3.1.2-11 3.1.2-13 3.1.2-14 3.1.2-15",
    refused=ReasonCode.MALFORMED_PACKET,
)
@pytest.mark.parametrize("flags", [0x0A, 0x12, 0x22, 0x1E, 0x06])
async def test_3_1_2_11_will_flags(node: NodeInMemory, version: int, flags: int) -> None:
    """Will QoS 3, Will QoS or Will Retain without Will Flag, or a Will Flag without a Will are malformed."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, flags=flags))
    assert await refusal(client) == (0x81 if version == 5 else None)


@statement(v5="3.1.2-14 3.1.2-15", v4="3.1.2-16 3.1.2-17")
@pytest.mark.parametrize("retain", [False, True])
async def test_3_1_2_15_will_retain(node: NodeInMemory, version: int, retain: bool) -> None:
    """A Will Message is published as a retained message if and only if Will Retain is set."""
    client = await connect(node, version=version, will=Will(b"will", b"gone", retain=retain))
    await leave(client, node)
    async with await connect(node, version=version) as listener:
        await listener.subscribe(b"will")
        assert payloads(await listener.messages_until_ping()) == ([b"gone"] if retain else [])


@statement(
    v5="3.1.2-16 3.1.2-17 3.1.2-18 3.1.2-19",
    v4="3.1.2-18 3.1.2-19 3.1.2-20 3.1.2-21",
    refused=ReasonCode.MALFORMED_PACKET,
)
@pytest.mark.parametrize(
    ("flags", "payload"),
    [(0x82, b"\0\x01c"), (0xC2, b"\0\x01c\0\x01u"), (0x02, b"\0\x01c\0\x01u"), (0x82, b"\0\x01c\0\x01u\0\x01p")],
)
async def test_3_1_2_16_user_name_and_password_flags(
    node: NodeInMemory, version: int, flags: int, payload: bytes
) -> None:
    """User Name and Password are there if and only if their flags say so."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, flags=flags, payload=payload))
    assert await refusal(client) == (0x81 if version == 5 else None)


@statement(v4="3.1.2-22", refused=ReasonCode.MALFORMED_PACKET)
async def test_v4_3_1_2_22_password_without_user_name(node: NodeInMemory) -> None:
    """MQTT 3.1.1 has no Password without a User Name."""
    client = await RawClient.open(node.port, version=4)
    client.send_bytes(connect_bytes(version=4, flags=0x42, payload=b"\0\x01c\0\x01p"))
    assert await refusal(client) is None


@statement(v5="3.1.2-22", v4="3.1.2-24", refused=ReasonCode.KEEP_ALIVE_TIMEOUT)
async def test_3_1_2_22_keep_alive(node: NodeInMemory, version: int) -> None:
    """A client that is silent for one and a half times its Keep Alive is disconnected."""
    client = await connect(node, version=version, keep_alive=10)
    await node.pass_time(14)
    assert await client.messages_until_ping() == []
    await node.pass_time(14)
    assert node.server.figures()["connections"] == 1
    await node.pass_time(2)
    await expect_fault(client, ReasonCode.KEEP_ALIVE_TIMEOUT)


@statement(v5="3.1.2-22", v4="3.1.2-24")
async def test_3_1_2_22_keep_alive_zero(node: NodeInMemory, version: int) -> None:
    """A Keep Alive of zero turns it off."""
    async with await connect(node, version=version, keep_alive=0) as client:
        await node.pass_time(1_000_000)
        assert await client.messages_until_ping() == []


@statement(v5="3.1.2-23 4.1.0-2")
async def test_3_1_2_23_session_expiry(node: NodeInMemory) -> None:
    """The session is kept for the Session Expiry Interval after the Network Connection, and no longer."""
    for seconds, present in ((599, True), (601, False)):
        await leave(await durable(node), node)
        await node.pass_time(seconds)
        async with await durable(node) as client:
            assert client.connack.session_present is present
        await gone(node)


@statement(v5="3.1.2-24 3.1.2-25")
async def test_3_1_2_24_maximum_packet_size(node: NodeInMemory) -> None:
    """A PUBLISH over the client's Maximum Packet Size is not sent, and counts as delivered."""
    async with await connect(node, properties=Properties(maximum_packet_size=64)) as client:
        await client.subscribe(b"t", qos=1)
        for qos in (0, 1):
            node.set(b"t", b"x" * 64, qos=qos, retain=False)
            node.set(b"t", b"fits", qos=qos, retain=False)
        assert payloads(await client.messages_until_ping()) == [b"fits", b"fits"]
        assert node.server.figures()["in_flight_messages"] == 1


@statement(v5="3.1.2-24")
async def test_3_1_2_24_no_answer_over_the_maximum_packet_size(node: NodeInMemory) -> None:
    """An answer over the client's Maximum Packet Size is not sent: the client is refused, or ended with 0x95."""
    async with await RawClient.open(node.port) as client:
        client.send(Connect("", properties=Properties(maximum_packet_size=20)))
        assert (await client.expect(Connack)).reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        await client.expect_end()
    async with await connect(node, "c", properties=Properties(maximum_packet_size=40)) as client:
        assert len((await client.subscribe(*(b"a/%d" % number for number in range(35)))).reason_codes) == 35
        filters = tuple(b"a/%d" % number for number in range(36))
        client.send(Subscribe(1, tuple(map(Subscription, filters))))
        await client.expect_end(ReasonCode.PACKET_TOO_LARGE)
    async with await connect(node, "c", properties=Properties(maximum_packet_size=40)) as client:
        client.send(Unsubscribe(1, filters))
        await client.expect_end(ReasonCode.PACKET_TOO_LARGE)
    assert node.server.figures()["sessions"] == 0


@statement(v5="3.1.2-26 3.1.2-27")
@pytest.mark.parametrize("maximum", [None, 0])
async def test_3_1_2_27_no_topic_alias_unasked(node: NodeInMemory, maximum: int | None) -> None:
    """A client without a Topic Alias Maximum, or with 0, is sent no Topic Alias."""
    async with await connect(node, properties=Properties(topic_alias_maximum=maximum)) as client:
        await client.subscribe(b"t")
        for _ in range(3):
            client.publish(b"t", b"x")
        assert {(one.topic, one.properties.topic_alias) for one in await client.messages(3)} == {(b"t", None)}


@statement(v5="3.1.2-28")
async def test_3_1_2_28_response_information(node: NodeInMemory) -> None:
    """No Response Information is sent to a client that did not ask for it."""
    async with await connect(node) as client:
        assert client.connack.properties.response_information is None


@statement(v5="3.1.2-29")
async def test_3_1_2_29_request_problem_information(node: NodeInMemory) -> None:
    """With Request Problem Information 0 no acknowledgement has a Reason String or User Properties."""
    async with await connect(node, properties=Properties(request_problem_information=0)) as client:
        suback = await client.subscribe(Subscription(b"$share//t"))
        assert suback.reason_codes[0] >= 0x80
        assert suback.properties == NO_PROPERTIES


@statement(v5="3.1.2-30 4.12.0-1", refused=ReasonCode.BAD_AUTHENTICATION_METHOD)
async def test_3_1_2_30_authentication_method(node: NodeInMemory) -> None:
    """An Authentication Method, none of which is supported, is refused in CONNACK."""
    client = await connect(node, properties=Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"x"))
    assert client.connack.reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD
    await client.expect_end()
    await client.close()


@statement(v5="3.1.3-1 3.1.3-2 3.1.3-3", v4="3.1.3-1 3.1.3-2 3.1.3-3")
async def test_3_1_3_2_client_identifier_is_the_key(node: NodeInMemory, version: int) -> None:
    """Each Client Identifier has a session of its own."""
    client = await durable(node, "one", version=version)
    await leave(client, node)
    async with await durable(node, "other", version=version) as client:
        assert not client.connack.session_present
    async with await durable(node, "one", version=version) as client:
        assert client.connack.session_present


@statement(v5="3.1.3-4", v4="3.1.3-4", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_1_3_4_client_identifier_is_utf8(node: NodeInMemory, version: int) -> None:
    """A Client Identifier that is not UTF-8 is malformed."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, payload=b"\0\x01\xff"))
    assert await refusal(client) == (0x81 if version == 5 else None)


@statement(v5="3.1.3-5", v4="3.1.3-5")
async def test_3_1_3_5_client_identifiers_allowed(node: NodeInMemory, version: int) -> None:
    """Client Identifiers of 1 to 23 bytes of letters and digits are allowed, and others too."""
    for client_id in ("a", "0123456789abcdefghijklm", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "/ä #+" * 100):
        async with await connect(node, client_id, version=version) as client:
            assert client.connack.reason_code == 0


@statement(v5="3.1.3-6 3.1.3-7 3.2.2-16")
async def test_3_1_3_6_assigned_client_identifier(node: NodeInMemory) -> None:
    """A client without an identifier is assigned one that nobody else has, also without Clean Start."""
    names = set()
    for clean_start in (True, False):
        async with await connect(node, clean_start=clean_start) as client:
            names.add(client.connack.properties.assigned_client_identifier)
    assert len(names - {None, ""}) == 2


@statement(v4="3.1.3-6")
async def test_v4_3_1_3_6_empty_client_identifier(node: NodeInMemory) -> None:
    """An empty ClientId is allowed with Clean Session, for several clients at a time."""
    async with await connect(node, version=4) as one, await connect(node, version=4) as other:
        assert await one.messages_until_ping() == []
        assert await other.messages_until_ping() == []


@statement(v4="3.1.3-7 3.1.3-8 3.1.3-9", refused=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
async def test_v4_3_1_3_8_empty_client_identifier_without_clean_session(node: NodeInMemory) -> None:
    """An empty ClientId without Clean Session is refused with return code 0x02, and closed."""
    client = await connect(node, version=4, clean_start=False)
    assert client.connack.reason_code == 0x02
    await client.expect_end()
    await client.close()


@statement(v5="3.1.3-9")
async def test_3_1_3_9_will_delay(node: NodeInMemory) -> None:
    """The Will Message comes after the Will Delay Interval, and not at all when the client is back before."""
    will = Will(b"will", b"gone", properties=Properties(will_delay_interval=10))
    async with await connect(node) as listener:
        await listener.subscribe(b"will")
        await leave(await durable(node, will=will), node)
        await node.pass_time(9)
        await leave(await durable(node, will=will), node)
        await node.pass_time(9)
        assert await listener.messages_until_ping() == []
        await node.pass_time(2)
        assert payloads(await listener.messages(1)) == [b"gone"]


@statement(v5="3.1.3-9")
async def test_3_1_3_9_will_at_the_end_of_the_session(node: NodeInMemory) -> None:
    """The Will Message does not wait longer than the session lives."""
    will = Will(b"will", b"gone", properties=Properties(will_delay_interval=1000))
    async with await connect(node) as listener:
        await listener.subscribe(b"will")
        await leave(await durable(node, will=will, properties=Properties(session_expiry_interval=5)), node)
        assert await listener.messages_until_ping() == []
        await node.pass_time(6)
        assert payloads(await listener.messages(1)) == [b"gone"]


@statement(v5="3.1.3-10")
async def test_3_1_3_10_properties_of_the_will(node: NodeInMemory) -> None:
    """The properties of a Will Message are published with it, User Properties in order."""
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text",
        response_topic="r",
        correlation_data=b"c",
        user_property=(("b", "1"), ("a", "2"), ("b", "1")),
    )
    async with await connect(node) as listener:
        await listener.subscribe(b"will")
        await (await connect(node, will=Will(b"will", b"gone", properties=properties))).close()
        assert (await listener.messages(1))[0].properties == properties


@statement(v5="3.1.3-11", v4="3.1.3-10", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_1_3_11_will_topic_is_utf8(node: NodeInMemory, version: int) -> None:
    """A Will Topic that is not UTF-8 is malformed."""
    client = await RawClient.open(node.port, version=version)
    properties = b"\0" if version == 5 else b""
    client.send_bytes(connect_bytes(version=version, flags=6, payload=b"\0\x01c" + properties + b"\0\x01\xff\0\x01x"))
    assert await refusal(client) == (0x81 if version == 5 else None)


@statement(v5="3.1.3-12", v4="3.1.3-11", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_1_3_12_user_name_is_utf8(node: NodeInMemory, version: int) -> None:
    """A User Name that is not UTF-8 is malformed."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, flags=0x82, payload=b"\0\x01c\0\x01\xff"))
    assert await refusal(client) == (0x81 if version == 5 else None)


@statement(v5="3.1.4-1 3.1.4-2", v4="3.1.4-1", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_1_4_1_connect_is_validated(node: NodeInMemory, version: int) -> None:
    """A CONNECT against the rules of section 3.1 is refused, and the Network Connection closed."""
    client = await RawClient.open(node.port, version=version)
    if version == 5:  # Receive Maximum 0
        client.send_bytes(b"\x10\x11\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\x01c")
        assert await refusal(client) == ReasonCode.PROTOCOL_ERROR
    else:
        client.send_bytes(connect_bytes(version=4, payload=b"\0\x01c more"))
        assert await refusal(client) is None


@statement(v5="3.1.4-3", v4="3.1.4-2")
async def test_3_1_4_3_take_over(node: NodeInMemory, version: int) -> None:
    """A second Network Connection with the same Client Identifier ends the first, with 0x8E over MQTT 5."""
    first = await durable(node, version=version)
    await first.subscribe(b"t", qos=1)
    async with await durable(node, version=version) as second:
        assert second.connack.session_present
        await expect_fault(first, ReasonCode.SESSION_TAKEN_OVER)
        node.set(b"t", b"x", qos=1)
        assert payloads(await second.messages(1)) == [b"x"]


@statement(v5="3.1.4-3", v4="3.1.4-2")
async def test_3_1_4_3_will_of_a_client_that_is_taken_over(node: NodeInMemory, version: int) -> None:
    """The Will Message of a Network Connection that is taken over is published when it has no delay."""
    async with await connect(node, version=version) as listener:
        await listener.subscribe(b"will")
        first = await durable(node, version=version, will=Will(b"will", b"taken over"))
        async with await durable(node, version=version):
            assert payloads(await listener.messages(1)) == [b"taken over"]
        await first.close()


@statement(v5="3.1.4-4 3.1.4-5", v4="3.1.4-3 3.1.4-4")
async def test_3_1_4_5_connack_success(node: NodeInMemory, version: int) -> None:
    """A CONNECT that is accepted is answered with CONNACK and code 0."""
    async with await connect(node, version=version) as client:
        assert client.connack.reason_code == 0


@statement(v5="3.1.4-6", v4="3.1.4-5")
async def test_3_1_4_6_nothing_after_a_refused_connect(node: NodeInMemory, version: int) -> None:
    """Packets after a refused CONNECT are not processed."""
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(
        connect_bytes(version=version, level=6 if version == 5 else 2)
        + encode(Publish(b"t", b"x", retain=True), version=version)
    )
    await refusal(client)
    assert node.published == []


@statement(v5="3.2.0-1 3.2.0-2", v4="3.2.0-1")
async def test_3_2_0_1_connack_is_first(node: NodeInMemory, version: int) -> None:
    """CONNACK is the first packet that the server sends, and the only CONNACK, whatever the client sends early."""
    node.set(b"t", b"kept")
    client = await RawClient.open(node.port, version=version)
    client.send(Connect("c", version=version), Subscribe(1, (Subscription(b"t"),)), Pingreq())
    await client.expect(Connack)
    packets = [await client.receive() for _ in range(3)]
    assert [type(one).__name__ for one in packets] == ["Suback", "Publish", "Pingresp"]
    client.send(Pingreq())
    await client.expect(Pingresp)
    await client.close()


@statement(v5="3.2.2-1 3.2.2-6 3.2.2-7 3.2.2-8", v4="3.2.2-4 3.2.2-5 3.2.2-6")
async def test_3_2_2_6_refusing_connack(node: NodeInMemory, version: int) -> None:
    """A CONNACK with a failure has Session Present 0, and the Network Connection is closed after it."""
    await leave(await durable(node, "c", version=version), node)
    client = await RawClient.open(node.port, version=version)
    client.send_bytes(connect_bytes(version=version, level=6 if version == 5 else 2, flags=0))
    assert not (await client.expect(Connack)).session_present
    await client.expect_end()
    await client.close()


@statement(v5="3.2.2-9 3.2.2-10 3.2.2-11")
async def test_3_2_2_9_maximum_qos(start_node: StartNode) -> None:
    """A server with a lower Maximum QoS says so, grants it, and refuses a PUBLISH above it with 0x9B."""
    node = await start_node(qos_max=1)
    client = await connect(node)
    assert client.connack.properties.maximum_qos == 1
    assert (await client.subscribe(b"t", qos=2)).reason_codes == (1,)
    client.publish(b"t", b"x", qos=2)
    await expect_fault(client, ReasonCode.QOS_NOT_SUPPORTED)


@statement(v5="3.2.2-12", refused=ReasonCode.QOS_NOT_SUPPORTED)
async def test_3_2_2_12_will_above_the_maximum_qos(start_node: StartNode) -> None:
    """A Will QoS above the Maximum QoS is refused."""
    node = await start_node(qos_max=1)
    async with await connect(node, will=Will(b"w", b"", 2)) as client:
        assert client.connack.reason_code == ReasonCode.QOS_NOT_SUPPORTED


@statement(v5="3.2.2-15", refused=ReasonCode.PACKET_TOO_LARGE)
async def test_3_2_2_15_packet_too_large(start_node: StartNode) -> None:
    """A packet over the Maximum Packet Size that CONNACK told ends the Network Connection."""
    node = await start_node(packet_bytes_max=200)
    client = await connect(node)
    assert client.connack.properties.maximum_packet_size == 200
    client.publish(b"t", b"x" * 200)
    await expect_fault(client, ReasonCode.PACKET_TOO_LARGE)


@statement(v5="3.2.2-21 3.2.2-22")
async def test_3_2_2_21_server_keep_alive(start_node: StartNode) -> None:
    """A Server Keep Alive is told when it is shorter than the client's Keep Alive, and it counts then."""
    node = await start_node(keep_alive_max_s=60)
    for keep_alive, told in ((30, None), (60, None), (61, 60), (0, 60)):
        async with await connect(node, keep_alive=keep_alive) as client:
            assert client.connack.properties.server_keep_alive == told
    client = await connect(node, keep_alive=600)
    await node.pass_time(91)
    await expect_fault(client, ReasonCode.KEEP_ALIVE_TIMEOUT)
