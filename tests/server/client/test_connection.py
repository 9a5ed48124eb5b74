"""Tests of one Network Connection: packets in their order, faults, time, and slow clients (MQTT 5, chapter 4)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio.trsock import TransportSocket
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET

import pytest
from structlog.testing import capture_logs

from fanout.mqtt.packet_bodies import TOPIC_FILTERS_MAX
from fanout.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server import PublishVerdict
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.dispatch import SLICE_BYTES
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until


def subscribe_elsewhere(node: NodeInMemory) -> None:
    """Let a client that is away be subscribed to everything, so that no PUBLISH is without subscribers."""
    session = node.server.registry.create("elsewhere", wire=WireVariant(5))
    node.server.registry.subscribe(session, Subscribe(1, (Subscription(b"#"),)))


async def test_packets_behind_connect_need_not_wait(node: NodeInMemory) -> None:
    """A client may send on before CONNACK comes; answers come in order."""
    async with await RawClient.open(node.port) as client:
        client.send(Connect("c"), Subscribe(1, (Subscription(b"a"),)), Pingreq())
        kinds = [type(await client.receive()) for _ in range(3)]
        assert kinds == [Connack, Suback, Pingresp]


async def test_packets_may_come_in_any_pieces(node: NodeInMemory) -> None:
    """Single bytes make the same packets as one large write."""
    async with await RawClient.open(node.port) as client:
        packets = (Connect("c"), Subscribe(1, (Subscription(b"a"),)), Publish(b"a", b"x" * 300))
        for byte in b"".join(encode(packet, version=5) for packet in packets):
            client.send_bytes(bytes((byte,)))
            await asyncio.sleep(0)
        await client.expect(Connack)
        await client.expect(Suback)
        assert (await client.expect(Publish)).payload == b"x" * 300


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_published_message_is_delivered_and_acknowledged(node: NodeInMemory, version: int, qos: int) -> None:
    """A message goes from one client to another at every QoS, both handshakes to their end."""
    async with (
        await RawClient.connect(node.port, "pub", version=version) as publisher,
        await RawClient.connect(node.port, "sub", version=version) as subscriber,
    ):
        await subscriber.subscribe(b"t/#", qos=2)
        packet_id = publisher.publish(b"t/1", b"p", qos=qos)
        message = await subscriber.expect(Publish)
        assert (message.topic, message.payload, message.qos, message.retain) == (b"t/1", b"p", qos, False)
        if qos == 1:
            await publisher.expect_ack(PacketType.PUBACK, packet_id)
        if qos == 2:
            await publisher.expect_ack(PacketType.PUBREC, packet_id)
            publisher.send_bytes(b"\x62\x02" + packet_id.to_bytes(2, "big"))
            await publisher.expect_ack(PacketType.PUBCOMP, packet_id)
            subscriber.send_bytes(b"\x50\x02\x00\x01")
            await subscriber.expect_ack(PacketType.PUBREL, 1)
            subscriber.send_bytes(b"\x70\x02\x00\x01")
        assert await subscriber.messages_until_ping() == []
        assert await publisher.messages_until_ping() == []


async def test_run_of_messages_is_acknowledged_in_order(node: NodeInMemory) -> None:
    """Many messages in one write are taken as whole runs, and acknowledged one by one in order."""
    subscribe_elsewhere(node)
    async with await RawClient.connect(node.port) as client:
        client.send(*(Publish(b"t", b"%d" % number, qos=1, packet_id=number) for number in range(1, 501)))
        for number in range(1, 501):
            await client.expect_ack(PacketType.PUBACK, number)
        assert [row[1] for _, row in node.published] == [b"%d" % number for number in range(1, 501)]


async def test_refused_message_is_told_in_mqtt_5(node: NodeInMemory) -> None:
    """PUBACK and PUBREC carry the node's Reason Code; QoS 0 is dropped and counted; the client stays."""
    subscribe_elsewhere(node)
    node.verdicts[b"no"] = lambda: ReasonCode.NOT_AUTHORIZED
    async with await RawClient.connect(node.port) as client:
        client.publish(b"no", b"0")
        first = client.publish(b"no", b"1", qos=1)
        second = client.publish(b"no", b"2", qos=2)
        third = client.publish(b"yes", b"3", qos=1)
        await client.expect_ack(PacketType.PUBACK, first, ReasonCode.NOT_AUTHORIZED)
        await client.expect_ack(PacketType.PUBREC, second, ReasonCode.NOT_AUTHORIZED)
        await client.expect_ack(PacketType.PUBACK, third)
        assert node.server.figures()["dropped_total"]["refused"] == 3
        client.send_bytes(b"\x62\x02" + second.to_bytes(2, "big"))
        await client.expect_ack(PacketType.PUBCOMP, second, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


async def test_refused_message_is_acknowledged_in_mqtt_311(node: NodeInMemory) -> None:
    """MQTT 3.1.1 has no refusal: the message is dropped, acknowledged as any other, counted and named."""
    node.verdicts[b"no"] = lambda: ReasonCode.NOT_AUTHORIZED
    with capture_logs() as lines:
        async with await RawClient.connect(node.port, "old", version=4) as client:
            await client.subscribe(b"#", qos=0)
            client.publish(b"no/0", b"0")
            first, second = client.publish(b"no/\n1", b"1", qos=1), client.publish(b"no/2", b"2", qos=2)
            await client.expect_ack(PacketType.PUBACK, first)
            await client.expect_ack(PacketType.PUBREC, second)
            client.publish(b"no/2", b"2", qos=2, packet_id=second)  # a duplicate until it is released
            await client.expect_ack(PacketType.PUBREC, second)
            client.send(Ack(PacketType.PUBREL, second))
            await client.expect_ack(PacketType.PUBCOMP, second)
            client.publish(b"yes", b"3")
            assert [one.topic for one in await client.messages_until_ping()] == [b"yes"]
    assert node.server.figures()["dropped_total"]["refused"] == 3
    assert node.server.figures()["unknown_releases_total"] == 0
    named = [line for line in lines if line["event"] == "publish_refused"]
    assert [(line["topic"], line["qos"]) for line in named] == [("no/0", 0), ("no/\n1", 1), ("no/2", 2)]
    assert {(line["client_id"], line["reason"]) for line in named} == {("old", "Not authorized (0x87)")}


@pytest.mark.parametrize("qos", [1, 2])
async def test_message_that_may_be_accepted_later_closes_mqtt_311(node: NodeInMemory, qos: int) -> None:
    """The client keeps it and sends it again; MQTT 5 has a Reason Code for that."""
    node.verdicts[b"later"] = lambda: ReasonCode.SERVER_UNAVAILABLE
    node.verdicts[b"busy"] = lambda: ReasonCode.SERVER_BUSY
    for topic, code in ((b"later", 0x83), (b"busy", 0x97)):
        async with await RawClient.connect(node.port, version=4) as client:
            client.publish(topic, b"1", qos=qos)
            await client.expect_end()
        async with await RawClient.connect(node.port) as client:
            packet_id = client.publish(topic, b"1", qos=qos)
            await client.expect_ack(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, packet_id, code)


async def test_message_beyond_a_limit_is_refused_alone_in_mqtt_311(start_node: StartNode) -> None:
    """A client that does not know Maximum QoS is not closed for each attempt."""
    node = await start_node(qos_max=1)
    async with await RawClient.connect(node.port, version=4) as client:
        await client.subscribe(b"#", qos=0)
        await client.expect_ack(PacketType.PUBREC, client.publish(b"t", b"2", qos=2))
        client.publish(b"t", b"1", qos=0)
        assert [one.payload for one in await client.messages_until_ping()] == [b"1"]
    assert node.server.figures()["dropped_total"]["refused"] == 1
    node = await start_node(qos_max=1, refused_publish="close")
    async with await RawClient.connect(node.port, version=4) as client:
        client.publish(b"t", b"2", qos=2)
        await client.expect_end()


async def test_refused_message_closes_mqtt_311_if_so_configured(start_node: StartNode) -> None:
    """QoS 0 is dropped, QoS 1 and 2 close; nothing is acknowledged [MQTT-3.3.5-2]."""
    node = await start_node(refused_publish="close")
    node.verdicts[b"no"] = lambda: ReasonCode.NOT_AUTHORIZED
    for qos in (1, 2):
        async with await RawClient.connect(node.port, version=4) as client:
            client.publish(b"no", b"0")
            assert await client.messages_until_ping() == []
            first = client.publish(b"yes", b"1", qos=1)
            client.publish(b"no", b"2", qos=qos)
            await client.expect_ack(PacketType.PUBACK, first)
            await client.expect_end()


async def test_late_verdict_acknowledges_when_it_comes(node: NodeInMemory) -> None:
    """A message that is forwarded first is acknowledged with the verdict, and later ones behind it."""
    subscribe_elsewhere(node)
    forwarded: list[asyncio.Future[ReasonCode]] = []

    def forward() -> PublishVerdict:
        forwarded.append(asyncio.get_running_loop().create_future())
        return forwarded[-1]

    node.verdicts[b"forward"] = forward
    async with await RawClient.connect(node.port) as client:
        client.publish(b"forward", b"0")
        first, second = client.publish(b"forward", b"1", qos=1), client.publish(b"t", b"2", qos=1)
        assert await client.messages_until_ping() == []
        forwarded[0].set_result(ReasonCode.NOT_AUTHORIZED)
        forwarded[1].set_result(ReasonCode.QUOTA_EXCEEDED)
        await client.expect_ack(PacketType.PUBACK, first, ReasonCode.QUOTA_EXCEEDED)
        await client.expect_ack(PacketType.PUBACK, second)
        client.publish(b"forward", b"3", qos=1)
        await wait_until(lambda: len(forwarded) == 3)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    forwarded[2].set_result(ReasonCode.SUCCESS)
    await asyncio.sleep(0)


async def test_late_verdict_reaches_the_next_connection(node: NodeInMemory) -> None:
    """A verdict on a QoS 2 message is told to whatever connection the session has when it comes."""
    forwarded: asyncio.Future[ReasonCode] = asyncio.get_running_loop().create_future()
    node.verdicts[b"forward"] = lambda: forwarded
    durable = Properties(session_expiry_interval=60)
    async with await RawClient.connect(node.port, "c", properties=durable) as client:
        client.publish(b"forward", b"1", qos=2, packet_id=7)
        await wait_until(lambda: node.published)
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=durable) as client:
        client.publish(b"forward", b"1", qos=2, packet_id=7, dup=True)
        assert await client.messages_until_ping() == []
        forwarded.set_result(ReasonCode.SUCCESS)
        await client.expect_ack(PacketType.PUBREC, 7)
        assert len(node.published) == 1


async def test_topic_alias_stands_for_the_topic(node: NodeInMemory) -> None:
    """A Topic Alias set by one PUBLISH serves the next [MQTT-3.3.2-12]; one above the maximum is a fault."""
    async with await RawClient.connect(node.port) as client:
        await client.subscribe(b"long/topic")
        client.publish(b"long/topic", b"1", properties=Properties(topic_alias=3))
        client.publish(b"", b"2", properties=Properties(topic_alias=3))
        messages = [await client.expect(Publish) for _ in range(2)]
        assert [(one.topic, one.payload) for one in messages] == [(b"long/topic", b"1"), (b"long/topic", b"2")]
        client.publish(b"t", b"3", properties=Properties(topic_alias=33))
        await client.expect_end(ReasonCode.TOPIC_ALIAS_INVALID)


async def test_stop_of_a_run_at_a_fault_keeps_what_came_before(node: NodeInMemory) -> None:
    """Messages before a malformed packet are taken and acknowledged; then comes the DISCONNECT [MQTT-4.13.1-1]."""
    subscribe_elsewhere(node)
    async with await RawClient.connect(node.port) as client:
        client.send_bytes(encode(Publish(b"t", b"1", qos=1, packet_id=1), version=5) + b"\x36\x05\x00\x01t\x00\x01")
        await client.expect_ack(PacketType.PUBACK, 1)
        await client.expect_end(ReasonCode.MALFORMED_PACKET)
    assert node.server.figures()["protocol_errors_total"] == 1


FAULTS = {
    "second CONNECT": (encode(Connect("c"), version=5), ReasonCode.PROTOCOL_ERROR),
    "reserved packet type": (b"\x00\x00", ReasonCode.MALFORMED_PACKET),
    "packet of a server": (b"\x20\x03\x00\x00\x00", ReasonCode.PROTOCOL_ERROR),
    "AUTH without a method in CONNECT": (
        encode(Auth(0x18, Properties(authentication_method="x")), version=5),
        ReasonCode.PROTOCOL_ERROR,
    ),
    "packet over the maximum": (b"\x30\xff\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE),
    "topic with a wildcard": (b"\x30\x05\x00\x01#\x00x", ReasonCode.TOPIC_NAME_INVALID),
    "filter with a misplaced wildcard": (b"\x82\x08\x00\x01\x00\x00\x02a#\x00", ReasonCode.TOPIC_FILTER_INVALID),
    "longer session than none": (
        encode(Disconnect(0, Properties(session_expiry_interval=5)), version=5),
        ReasonCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_is_told_by_disconnect(node: NodeInMemory, fault: str) -> None:
    """A client that breaks MQTT 5 gets DISCONNECT with the Reason Code, and is closed [MQTT-4.13.1-1]."""
    data, reason_code = FAULTS[fault]
    async with await RawClient.connect(node.port, "c") as client:
        client.send_bytes(data + encode(Pingreq(), version=5))
        await client.expect_end(reason_code)
    await wait_until(lambda: node.server.figures()["connections"] == 0)


async def test_fault_closes_mqtt_311(node: NodeInMemory) -> None:
    """An MQTT 3.1.1 client that breaks the protocol is closed without a word [MQTT-4.8.0-1]."""
    for data in (b"\xf0\x00", b"\x10\x00", b"\x30\x02\x00\x00"):
        async with await RawClient.connect(node.port, version=4) as client:
            client.send_bytes(data)
            await client.expect_end()


async def test_receive_maximum_is_enforced(start_node: StartNode) -> None:
    """More unanswered QoS 2 messages than the Receive Maximum end the connection with 0x93 [MQTT-3.3.4-9]."""
    node = await start_node(receive_maximum=2)
    subscribe_elsewhere(node)
    async with await RawClient.connect(node.port) as client:
        assert client.connack.properties.receive_maximum == 2
        ids = [client.publish(b"t", b"%d" % number, qos=2) for number in range(3)]
        for packet_id in ids:
            await client.expect_ack(PacketType.PUBREC, packet_id)
        await client.expect_end(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
    assert len(node.published) == 3


async def test_bad_connect_is_refused_by_connack(node: NodeInMemory) -> None:
    """A CONNECT that is understood so far is answered in its version [MQTT-4.13.1-1]."""
    reserved_flag = b"\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c"
    async with await RawClient.open(node.port) as client:
        client.send_bytes(reserved_flag)
        assert (await client.expect(Connack)).reason_code == ReasonCode.MALFORMED_PACKET
        await client.expect_end()
    async with await RawClient.open(node.port, version=4) as client:
        client.send(Connect("", version=4, clean_start=False))
        assert (await client.expect(Connack)).reason_code == 2
        await client.expect_end()
    async with await RawClient.open(node.port, version=4) as client:
        client.send_bytes(b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x00\x00\x01c")
        assert (await client.expect(Connack)).reason_code == 1
        await client.expect_end()


async def test_connect_must_come_in_time(node: NodeInMemory) -> None:
    """A connection without CONNECT is closed after the time allowed, one with it stays."""
    async with await RawClient.open(node.port) as silent, await RawClient.connect(node.port) as client:
        await wait_until(lambda: node.server.figures()["connections"] == 2)
        await node.pass_time(4.9)
        assert await client.messages_until_ping() == []
        await node.pass_time(0.2)
        await silent.expect_end()
        assert await client.messages_until_ping() == []


async def test_connections_are_bounded(start_node: StartNode) -> None:
    """One connection too many is closed at once and counted; later there is room again."""
    node = await start_node(connections_max=1)
    async with await RawClient.connect(node.port), await RawClient.open(node.port) as refused:
        await refused.expect_end()
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    async with await RawClient.connect(node.port) as client:
        assert client.connack.reason_code == 0
    assert node.server.figures()["connections_refused_total"] == 1


async def test_slow_reader_of_qos_0_loses_the_oldest_only(start_node: StartNode) -> None:
    """Beyond socket and queue the oldest messages go, counted; others lose nothing, and memory stays bounded."""
    node = await start_node(queue_messages_max=100, write_buffer_high_bytes=65_536, write_buffer_low_bytes=16_384)
    async with await RawClient.connect(node.port, "slow") as slow, await RawClient.connect(node.port) as quick:
        for client in (slow, quick):
            await client.subscribe(b"t")
        slow.pause()
        total, payload = 0, b"x" * 10_000

        def dropped() -> int:
            return int(node.server.figures()["dropped_total"]["queue_full"])

        while dropped() < 300:
            batch = [update(b"t", b"%08d" % (total + number) + payload, retain=False) for number in range(100)]
            node.take(batch)
            total += len(batch)
            for expected in batch:
                assert (await quick.expect(Publish)).payload == expected[1]
            assert node.server.figures()["queued_messages"] <= 100
        slow.resume()
        numbers = [int((await slow.expect(Publish)).payload[:8])]
        while numbers[-1] != total - 1:
            numbers.append(int((await slow.expect(Publish)).payload[:8]))
        assert numbers == sorted(numbers)
        assert total - len(numbers) == dropped()
        assert numbers[-100:] == list(range(total - 100, total))


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system has no such option")
async def test_system_takes_little_for_a_client_that_does_not_read(start_node: StartNode) -> None:
    """What a stalled client does not read waits at the node, where clients share it, not in copies of the system."""
    node = await start_node(write_buffer_high_bytes=65_536, write_buffer_low_bytes=16_384)
    async with await RawClient.connect(node.port) as stalled:
        await stalled.subscribe(b"t")
        stalled.pause()
        for _ in range(150):
            node.take([update(b"t", b"x" * 10_000, retain=False)])
            await asyncio.sleep(0)
        assert node.server.figures()["queued_bytes"] > 500_000
        stalled.resume()
        for _ in range(150):
            await stalled.expect(Publish)


async def test_stalled_reader_of_qos_0_gets_the_newest_value_of_each_topic(start_node: StartNode) -> None:
    """After 100,000 updates of 100 topics it gets what the socket held, then each newest value: as the store has it."""
    high = 65_536
    node = await start_node(write_buffer_high_bytes=high, write_buffer_low_bytes=16_384)
    topics = [b"t/%d" % number for number in range(100)]
    async with await RawClient.connect(node.port, "slow") as slow:
        await slow.subscribe(b"#")
        slow.pause()
        padding = b"x" * 200
        for number in range(1_000):
            node.take([update(topic, b"%06d" % number + padding) for topic in topics])
            figures = node.server.figures()
            assert figures["conflated_topics"] <= 100
            assert figures["queued_messages"] == 0
            if number % 100 == 0:
                await asyncio.sleep(0)
        node.take([update(topic, b"") for topic in topics[:10]])
        assert node.server.figures()["conflated_topics"] == node.server.conflated_topics_max == 100
        (connection,) = node.server.connections
        assert connection._transport.get_write_buffer_size() < high + SLICE_BYTES + 1_000
        slow.resume()
        seen: dict[bytes, list[bytes]] = {topic: [] for topic in topics}
        count = 0
        while count + node.server.figures()["conflated_total"] < 100_010:
            packet = await slow.expect(Publish)
            seen[packet.topic].append(packet.payload[:6])
            count += 1
        assert node.server.figures()["conflated_topics"] == node.server.conflated_topics_max == 0
        final = {topic: values[-1] for topic, values in seen.items()}
        assert final == {topic: b"" if number < 10 else b"000999" for number, topic in enumerate(topics)}
        assert all(values[:-1] == sorted(set(values[:-1])) for values in seen.values())
        node.set(b"t/0", b"after")
        assert (await slow.expect(Publish)).payload == b"after"


async def test_stalled_reader_of_too_many_topics_is_ended(start_node: StartNode) -> None:
    """The newest values that wait are bounded by `queue_bytes_max` too; one that were left out would never be told."""
    node = await start_node(write_buffer_high_bytes=65_536, write_buffer_low_bytes=16_384, queue_bytes_max=131_072)
    async with await RawClient.connect(node.port, "slow") as slow:
        await slow.subscribe(b"#")
        slow.pause()
        number = 0
        while node.server.figures()["sessions"]:
            node.take([update(b"t/%d" % one, b"x" * 1_000) for one in range(number, number + 100)])
            number += 100
            assert node.server.figures()["conflated_topics"] <= 1_024
            await asyncio.sleep(0)
        figures = node.server.figures()
        assert (figures["sessions_overflowed_total"], figures["conflated_topics"]) == (1, 0)


async def test_client_that_reads_no_answers_is_not_read_from(start_node: StartNode) -> None:
    """A client that asks without reading fills no memory: it is read from again when it has caught up."""
    node = await start_node(write_buffer_high_bytes=16_384, write_buffer_low_bytes=4_096)
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(encode(Connect("c"), version=5))
    assert await reader.read(1_000)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a ReadTransport too
    client_socket: TransportSocket = writer.get_extra_info("socket")
    # Else the system takes some million answers. With still less room it drops what comes, acknowledgements of
    # what the client has sent among it, and sends again ever more slowly.
    client_socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 16_384)
    sent = 0
    connection = next(iter(node.server._connections))
    socket: TransportSocket = connection._transport.get_extra_info("socket")
    socket.setsockopt(SOL_SOCKET, SO_SNDBUF, 16_384)
    while connection._reading:
        writer.write(encode(Pingreq(), version=5) * 1_000)
        sent += 1_000
        await asyncio.sleep(0)
    assert connection._transport.get_write_buffer_size() < 1_000_000
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(60):
        assert await reader.readexactly(2 * sent) == encode(Pingresp(), version=5) * sent
    writer.close()
    await writer.wait_closed()


async def test_client_that_never_reads_is_dropped_after_the_linger(start_node: StartNode) -> None:
    """A connection that is closed with unread bytes is given up after some seconds."""
    node = await start_node(write_buffer_high_bytes=65_536, write_buffer_low_bytes=16_384)
    client = await RawClient.connect(node.port, "c")
    await client.subscribe(b"t")
    client.pause()
    connection = next(iter(node.server._connections))
    while connection._transport.get_write_buffer_size() == 0:
        node.take([update(b"t", b"x" * 100_000)])
    client.send_bytes(b"\x00\x00")
    await wait_until(connection.is_closing)
    await asyncio.sleep(0)
    assert node.server.figures()["connections"] == 1
    assert not connection.pump()
    connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    await node.pass_time(6)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    client.resume()
    with contextlib.suppress(ServerClosed):
        while True:
            await client.receive()
    await client.close()


async def test_a_flood_of_packets_does_not_hold_up_others(node: NodeInMemory) -> None:
    """Of what one client sends at once, a part is taken in each turn of the event loop; all of it is answered."""
    async with await RawClient.connect(node.port) as client:
        before = node.server.counters.sent_bytes
        client.send_bytes(b"\xc0\x00" * 20_000)
        turns: list[int] = []
        while node.server.counters.sent_bytes - before < 40_000:
            sent = node.server.counters.sent_bytes
            await asyncio.sleep(0)
            turns.append(node.server.counters.sent_bytes - sent)
        assert max(turns) <= 2 * 2 * 256  # the client's write may be read in two pieces
        for _ in range(20_000):
            assert await client.receive() == Pingresp()
        client.send(Pingreq())
        assert await client.receive() == Pingresp()


@pytest.mark.parametrize("verdict_first", [True, False])
async def test_a_flood_waits_while_suspended(node: NodeInMemory, verdict_first: bool) -> None:
    """While a connection is held, nothing of it is taken; what was left comes in its order then."""
    subscribe_elsewhere(node)
    async with await RawClient.connect(node.port, "flood") as client:
        connection = next(iter(node.server.connections))
        connection.suspend()
        await asyncio.sleep(0)
        data = b"\xc0\x00" * 600 + encode(Publish(b"t", b"last", 1, packet_id=9), version=5)
        if verdict_first:
            connection.resume()
        client.stream.note(data)
        connection.receive(data)
        if not verdict_first:
            connection.resume()
        for _ in range(600):
            assert await client.receive() == Pingresp()
        await client.expect_ack(PacketType.PUBACK, 9)
    assert [row[1] for _, row in node.published] == [b"last"]


@pytest.mark.parametrize("version", [5, 4])
async def test_too_many_topic_filters_in_one_packet(node: NodeInMemory, version: int) -> None:
    """Such a client is told, as far as its protocol can, and has no subscription by it."""
    async with await RawClient.connect(node.port, "c", version=version) as client:
        client.send(Subscribe(1, (Subscription(b"a"),) * (TOPIC_FILTERS_MAX + 1)))
        await client.expect_end(ReasonCode.QUOTA_EXCEEDED if version == 5 else None)
    assert (node.server.figures()["subscriptions"], node.server.figures()["ended_total"]) == (0, {"quota_exceeded": 1})
