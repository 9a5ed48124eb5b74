"""Sections 3.4 to 3.7 and 3.12 to 3.15: flags and codes of acknowledgements, PINGREQ, DISCONNECT, AUTH."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Ack, Auth, Disconnect, PacketType, Pingreq, Pingresp, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.node_in_memory import NodeInMemory
from tests.spec.peers import connect, durable, expect_fault, gone, payloads
from tests.spec.statements import statement


@statement(v5="3.6.1-1", v4="3.6.1-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_6_1_1_flags_of_pubrel(node: NodeInMemory, version: int) -> None:
    """PUBREL with other flags than 0010 is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(b"\x60\x02\0\x01")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.6.2-1 3.7.2-1")
async def test_3_7_2_1_unknown_packet_identifier(node: NodeInMemory) -> None:
    """PUBREL and PUBREC with an unknown Packet Identifier are answered with 0x92."""
    async with await connect(node) as client:
        client.send(Ack(PacketType.PUBREL, 5))
        await client.expect_ack(PacketType.PUBCOMP, 5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
        client.send(Ack(PacketType.PUBREC, 6))
        await client.expect_ack(PacketType.PUBREL, 6, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


@statement(v5="3.12.4-1", v4="3.12.4-1")
async def test_3_12_4_1_pingresp(node: NodeInMemory, version: int) -> None:
    """Each PINGREQ is answered with PINGRESP."""
    async with await connect(node, version=version) as client:
        client.send(Pingreq(), Pingreq())
        await client.expect(Pingresp)
        await client.expect(Pingresp)


@statement(v5="3.14.1-1", v4="3.14.1-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_14_1_1_flags_of_disconnect(node: NodeInMemory, version: int) -> None:
    """DISCONNECT with reserved bits set is malformed."""
    client = await connect(node, version=version)
    client.send_bytes(b"\xe1\x00")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="3.14.2-1 3.1.2-10")
@pytest.mark.parametrize("code", [ReasonCode.DISCONNECT_WITH_WILL_MESSAGE, ReasonCode.UNSPECIFIED_ERROR])
async def test_3_14_2_1_disconnect_with_will(node: NodeInMemory, code: ReasonCode) -> None:
    """DISCONNECT with 0x04 or with a failure publishes the Will Message."""
    async with await connect(node) as listener:
        await listener.subscribe(b"will")
        client = await connect(node, will=Will(b"will", b"gone"))
        await client.disconnect(code)
        assert payloads(await listener.messages(1)) == [b"gone"]


@statement(v5="3.14.2-2 3.1.2-23")
async def test_3_14_2_2_session_expiry_of_disconnect(node: NodeInMemory) -> None:
    """The Session Expiry Interval of DISCONNECT takes the place of that of CONNECT."""
    for seconds, present in ((0, False), (100, True)):
        await (await durable(node)).disconnect(0, Properties(session_expiry_interval=seconds))
        await gone(node)
        await node.pass_time(50)
        async with await durable(node) as client:
            assert client.connack.session_present is present
            await client.disconnect(0, Properties(session_expiry_interval=0))
        await gone(node)


@statement(v5="3.14.2-2", refused=ReasonCode.PROTOCOL_ERROR)
async def test_3_14_2_2_session_expiry_after_zero(node: NodeInMemory) -> None:
    """A Session Expiry Interval in DISCONNECT after one of 0 in CONNECT is a Protocol Error."""
    client = await connect(node)
    client.send(Disconnect(0, Properties(session_expiry_interval=10)))
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="3.14.4-1 3.14.4-2", v4="3.14.4-1 3.14.4-2")
async def test_3_14_4_1_nothing_after_disconnect(node: NodeInMemory, version: int) -> None:
    """After DISCONNECT the Network Connection is closed, and what follows is ignored."""
    client = await connect(node, version=version)
    client.send_bytes(b"\xe0\x00\xc0\x00")
    await client.expect_end()
    await client.close()


@statement(v5="3.15.1-1", refused=ReasonCode.MALFORMED_PACKET)
async def test_3_15_1_1_flags_of_auth(node: NodeInMemory) -> None:
    """AUTH with reserved bits set is malformed."""
    client = await connect(node)
    client.send_bytes(b"\xf1\x00")
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="4.12.0-6")
async def test_4_12_0_6_no_authentication_unasked(node: NodeInMemory) -> None:
    """Without an Authentication Method in CONNECT there is none in CONNACK, and no AUTH from the server."""
    async with await connect(node) as client:
        assert client.connack.properties.authentication_method is None
        assert client.connack.properties.authentication_data is None
        assert await client.messages_until_ping() == []


@statement(v5="4.12.0-7", refused=ReasonCode.PROTOCOL_ERROR)
@pytest.mark.parametrize("code", [0x18, 0x19])
async def test_4_12_0_7_auth_without_a_method(node: NodeInMemory, code: int) -> None:
    """AUTH from a client that sent no Authentication Method in CONNECT is a Protocol Error."""
    client = await connect(node)
    client.send(Auth(code, Properties(authentication_method="x")))
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)


@statement(v5="4.13.1-1 4.13.2-1", v4="4.8.0-1", refused=ReasonCode.MALFORMED_PACKET)
@pytest.mark.parametrize("data", [b"\x00\x00", b"\x30\xff\xff\xff\xff\x01", b"\x40\x01\x00", b"\xc0\x01\x00"])
async def test_4_13_1_1_malformed_packet(node: NodeInMemory, version: int, data: bytes) -> None:
    """A Malformed Packet closes the Network Connection, over MQTT 5 after a DISCONNECT that says why."""
    client = await connect(node, version=version)
    client.send_bytes(data)
    await expect_fault(client, ReasonCode.MALFORMED_PACKET)


@statement(v5="4.13.1-1", v4="4.8.0-1", refused=ReasonCode.PROTOCOL_ERROR)
@pytest.mark.parametrize("data", [b"\x90\x03\0\x01\0", b"\xb0\x02\0\x01", b"\xd0\x00", b"\x20\x02\0\0"])
async def test_4_13_1_1_packets_of_a_server(node: NodeInMemory, version: int, data: bytes) -> None:
    """A packet that only a Server sends closes the Network Connection."""
    client = await connect(node, version=version)
    client.send_bytes(data)
    await expect_fault(client, ReasonCode.PROTOCOL_ERROR)
