"""Section 1.5: data representation."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Publish, encode
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.node_in_memory import NodeInMemory
from tests.spec.peers import connect, expect_fault
from tests.spec.statements import statement

END_OF_TOPIC = {5: b"\0", 4: b""}


def publish(topic: bytes, version: int) -> bytes:
    """Return a PUBLISH at QoS 0 with any bytes as its Topic Name."""
    body = len(topic).to_bytes(2, "big") + topic + END_OF_TOPIC[version] + b"x"
    return bytes((0x30, len(body))) + body


@statement(v5="1.5.4-1", v4="1.5.3-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_1_5_4_1_ill_formed_utf8(node: NodeInMemory, version: int) -> None:
    """A string that is not well-formed UTF-8, surrogates included, ends the Network Connection."""
    for topic in (b"a\xff", b"\xed\xa0\x80", b"\xc0\xaf"):
        client = await connect(node, version=version)
        client.send_bytes(publish(topic, version))
        await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="1.5.4-2", v4="1.5.3-2", refused=ReasonCode.MALFORMED_PACKET)
async def test_1_5_4_2_null_character(node: NodeInMemory, version: int) -> None:
    """A string with U+0000 ends the Network Connection."""
    client = await connect(node, version=version)
    client.send_bytes(publish(b"a\0b", version))
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="1.5.4-3", v4="1.5.3-3")
async def test_1_5_4_3_byte_order_mark_stays(node: NodeInMemory, version: int) -> None:
    """0xEF 0xBB 0xBF is U+FEFF wherever it stands, and is not stripped."""
    async with await connect(node, version=version) as client:
        await client.subscribe("\ufeffa".encode())
        client.publish("\ufeffa".encode(), b"with")
        client.publish(b"a", b"without")
        assert [one.payload for one in await client.messages_until_ping()] == [b"with"]


@statement(v5="1.5.5-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_1_5_5_1_shortest_variable_byte_integer(node: NodeInMemory) -> None:
    """A Variable Byte Integer that is not in its shortest form is malformed."""
    client = await connect(node)
    client.send_bytes(b"\x30\x85\x00\x00\x01t\x00x")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="1.5.7-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_1_5_7_1_string_pair_is_utf8(node: NodeInMemory) -> None:
    """Both strings of a User Property must be UTF-8."""
    good = encode(Publish(b"t", b"", properties=Properties(user_property=(("k", "v"),))), version=5)
    for name, value in ((b"\xff", b"v"), (b"k", b"\xff")):
        client = await connect(node)
        client.send_bytes(good.replace(b"\x00\x01k\x00\x01v", b"\x00\x01" + name + b"\x00\x01" + value))
        await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="2.1.3-1", v4="2.2.2-2", refused=ReasonCode.MALFORMED_PACKET)
@pytest.mark.parametrize("first", [0x80, 0xA0, 0x60, 0xC1, 0xE1, 0x41, 0x51, 0x71])
async def test_2_1_3_1_reserved_flags(node: NodeInMemory, version: int, first: int) -> None:
    """A fixed header with flags other than the specification's is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(bytes((first, 2, 0, 1)) if first < 0xC0 else bytes((first, 0)))
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="2.2.1-2", v4="2.3.1-5")
async def test_2_2_1_2_qos_0_has_no_packet_identifier(node: NodeInMemory, version: int) -> None:
    """A PUBLISH at QoS 0 from the server has no Packet Identifier."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=2)
        client.publish(b"t", b"\x00\x01payload")
        (message,) = await client.messages(1)
        assert (message.packet_id, message.payload) == (None, b"\x00\x01payload")


@statement(v5="2.2.1-3", v4="2.3.1-1", refused=ReasonCode.PROTOCOL_ERROR)
async def test_2_2_1_3_packet_identifier_zero(node: NodeInMemory, version: int) -> None:
    """SUBSCRIBE, UNSUBSCRIBE and PUBLISH with QoS above 0 need a Packet Identifier that is not zero."""
    extra = END_OF_TOPIC[version]
    for first, body in (
        (0x82, b"\0\0" + extra + b"\0\x01t\0"),
        (0xA2, b"\0\0" + extra + b"\0\x01t"),
        (0x32, b"\0\x01t\0\0" + extra),
    ):
        client = await connect(node, version=version)
        client.send_bytes(bytes((first, len(body))) + body)
        await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="2.2.1-4", v4="2.3.1-4")
async def test_2_2_1_4_server_uses_free_packet_identifiers(node: NodeInMemory, version: int) -> None:
    """Messages in flight at QoS 1 and 2 have Packet Identifiers of their own, none of them zero."""
    async with await connect(node, version=version) as client:
        await client.subscribe(b"t", qos=2)
        for number in range(10):
            node.set(b"t", b"x", qos=1 + number % 2, retain=False)
        ids = [one.packet_id for one in await client.messages(10)]
        assert len(set(ids)) == 10
        assert 0 not in ids


@statement(v5="2.2.2-1")
async def test_2_2_2_1_property_length_zero(node: NodeInMemory) -> None:
    """A packet without properties says so with a Property Length of zero."""
    async with await connect(node) as client:
        await client.subscribe(b"t")
        assert node.server.figures()["subscriptions"] == 1
        client.publish(b"t", b"x")
        assert (await client.messages(1))[0].properties == Properties()
