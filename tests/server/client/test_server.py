"""Tests of the server as a whole: sessions, subscriptions, retained messages, wills, start and stop."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from fanout.chain.stamp import ASK_FOR_STAMPS
from fanout.errors import ListenError
from fanout.mqtt.packets import (
    Ack,
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
    Will,
    encode,
)
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import Stamp
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)


def payloads(messages: list[Publish]) -> list[bytes]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]


async def gone(node: NodeInMemory) -> None:
    """Wait until the server has noticed the end of every connection."""
    await wait_until(lambda: node.server.figures()["connections"] == 0)


# Sessions (MQTT 5, sections 3.1.2.4, 3.1.2.11.2 and 4.1).


async def test_session_without_expiry_ends_with_its_connection(node: NodeInMemory) -> None:
    """Without Session Expiry Interval nothing outlives the connection."""
    async with await RawClient.connect(node.port, "c") as client:
        await client.subscribe(b"t")
        figures = node.server.figures()
        assert (figures["connections"], figures["sessions"], figures["subscriptions"], figures["audiences"]) == (
            1,
            1,
            1,
            1,
        )
    await gone(node)
    figures = node.server.figures()
    assert (figures["connections"], figures["sessions"], figures["subscriptions"], figures["audiences"]) == (0, 0, 0, 0)


async def test_take_over_of_a_session_that_does_not_outlive_its_connection(node: NodeInMemory) -> None:
    """Closing the first connection ends such a session, so there is none to take over."""
    first = await RawClient.connect(node.port, "c", version=4)
    await first.subscribe(b"t")
    async with await RawClient.connect(node.port, "c", version=4, clean_start=False) as second:
        assert not second.connack.session_present
        await first.expect_end()
    await first.close()


async def test_session_changes_version_when_it_is_resumed(node: NodeInMemory) -> None:
    """A session made over MQTT 5 goes on over MQTT 3.1.1 in that form."""
    async with await RawClient.connect(node.port, "c", properties=DURABLE) as client:
        await client.subscribe(b"t", qos=1, identifier=5)
    await gone(node)
    node.set(b"t", b"1", qos=1)
    async with await RawClient.connect(node.port, "c", version=4, clean_start=False) as client:
        assert client.connack.session_present
        assert (await client.expect(Publish)).payload == b"1"
        node.set(b"t", b"2", qos=1)
        assert (await client.expect(Publish)).payload == b"2"


async def test_sessions_are_bounded(start_node: StartNode) -> None:
    """A client that would need one session too many is refused with 0x97; a known one is accepted."""
    node = await start_node(sessions_max=1)
    async with await RawClient.connect(node.port, "known", properties=DURABLE):
        pass
    async with await RawClient.connect(node.port, "new") as refused:
        assert refused.connack.reason_code == ReasonCode.QUOTA_EXCEEDED
        await refused.expect_end()
    async with await RawClient.connect(node.port, "known", clean_start=False) as client:
        assert client.connack.session_present


async def test_session_ends_when_more_waits_for_it_than_may(start_node: StartNode) -> None:
    """An absent session is discarded, and its client learns it from Session Present; a connected one gets 0x97."""
    node = await start_node(queue_messages_max=3, write_buffer_high_bytes=65_536, write_buffer_low_bytes=16_384)
    async with await RawClient.connect(node.port, "away", properties=DURABLE) as client:
        await client.subscribe(b"t", qos=1)
    await gone(node)
    for number in range(4):
        assert node.server.figures()["sessions"] == 1
        node.set(b"t", b"%d" % number, qos=1)
    figures = node.server.figures()
    assert (figures["sessions"], figures["sessions_overflowed_total"]) == (0, 1)
    assert (figures["dropped_total"]["session_ended"], figures["dropped_total"]["queue_full"]) == (4, 0)
    async with await RawClient.connect(node.port, "away", clean_start=False) as client:
        assert not client.connack.session_present
    limited = Properties(receive_maximum=1, session_expiry_interval=100)
    async with (
        await RawClient.connect(node.port, "slow", properties=limited) as slow,
        await RawClient.connect(node.port, "quick") as quick,
    ):
        await slow.subscribe(b"u", qos=1)
        await quick.subscribe(b"u")
        node.take([update(b"u", b"%d" % number, qos=1) for number in range(10)])
        assert (await slow.expect(Publish)).payload == b"0"
        assert (await slow.expect(Disconnect)).reason_code == ReasonCode.QUOTA_EXCEEDED
        await slow.expect_end()
        assert payloads(await quick.messages(10)) == [b"%d" % number for number in range(10)]
    figures = node.server.figures()
    assert figures["sessions_overflowed_total"] == 2
    assert figures["dropped_total"]["session_ended"] == 4 + 10


async def test_client_whose_own_message_is_one_too_many_is_disconnected(start_node: StartNode) -> None:
    """A publisher whose session ends through what it publishes itself gets no answer but the DISCONNECT."""
    node = await start_node(queue_messages_max=1)
    async with await RawClient.connect(node.port, properties=Properties(receive_maximum=1)) as client:
        await client.subscribe(b"t", qos=1)
        for number in range(3):
            client.publish(b"t", b"%d" % number, qos=1)
        assert (await client.expect(Publish)).payload == b"0"
        while not isinstance(packet := await client.receive(), Disconnect):
            assert isinstance(packet, Ack)
        assert packet.reason_code == ReasonCode.QUOTA_EXCEEDED
        await client.expect_end()
    await wait_until(lambda: node.server.figures()["sessions"] == 0)


async def test_queue_of_an_absent_session_can_drop_the_oldest(start_node: StartNode) -> None:
    """With the policy for it the oldest messages beyond the bound go, and are counted."""
    node = await start_node(queue_messages_max=3, queue_overflow="drop_oldest")
    async with await RawClient.connect(node.port, "c", properties=DURABLE) as client:
        await client.subscribe(b"t", qos=1)
    await gone(node)
    for number in range(5):
        node.set(b"t", b"%d" % number, qos=1)
    assert node.server.figures()["dropped_total"]["queue_full"] == 2
    async with await RawClient.connect(node.port, "c", clean_start=False) as client:
        assert payloads(await client.messages(3)) == [b"2", b"3", b"4"]


# Subscriptions and delivery (MQTT 5, sections 3.3.4 and 3.8).


async def test_bridge_of_mqtt_311_sees_retain(node: NodeInMemory) -> None:
    """The bridge bit of the Protocol Level gives Retain As Published, and nothing of its own back."""
    async with await RawClient.connect(node.port, "b", version=4, bridge=True) as bridge:
        await bridge.subscribe(b"t")
        bridge.publish(b"t", b"own")
        node.set(b"t", b"1")
        (message,) = await bridge.messages_until_ping()
        assert (message.payload, message.retain) == (b"1", True)


async def test_receive_maximum_of_the_client_is_honoured(node: NodeInMemory) -> None:
    """No more messages are in flight than the client allows [MQTT-3.3.4-9], and PINGREQ is answered meanwhile."""
    async with await RawClient.connect(node.port, properties=Properties(receive_maximum=2)) as client:
        await client.subscribe(b"t", qos=1)
        node.take([update(b"t", b"%d" % number, qos=1, retain=False) for number in range(5)])
        assert payloads(await client.messages_until_ping()) == [b"0", b"1"]
        client.send(Ack(PacketType.PUBACK, 1))
        assert payloads(await client.messages(1)) == [b"2"]
        client.send(Ack(PacketType.PUBACK, 2), Ack(PacketType.PUBACK, 3))
        assert payloads(await client.messages(2)) == [b"3", b"4"]


async def test_maximum_packet_size_of_the_client_is_honoured(node: NodeInMemory) -> None:
    """A message over it is not sent and counted [MQTT-3.1.2-24] [MQTT-3.1.2-25]; others come."""
    async with await RawClient.connect(node.port, properties=Properties(maximum_packet_size=100)) as client:
        await client.subscribe(b"t", qos=1)
        node.take([update(b"t", b"x" * 200, qos=1), update(b"t", b"small", qos=1)])
        assert payloads(await client.messages_until_ping()) == [b"small"]
    assert node.server.figures()["dropped_total"]["packet_too_large"] == 1


async def test_link_that_asks_gets_stamps(node: NodeInMemory) -> None:
    """Stamps are the last User Property for those who asked, and absent for others."""
    async with (
        await RawClient.connect(node.port, properties=Properties(user_property=(ASK_FOR_STAMPS,))) as link,
        await RawClient.connect(node.port) as other,
    ):
        assert link.connack.properties.user_property == (ASK_FOR_STAMPS, ("fanout-node", "node-1"))
        for client in (link, other):
            await client.subscribe(b"t")
        node.set(b"t", b"1", properties=b"\x26\x00\x01a\x00\x01b", stamp=Stamp("p", 1, 2, 3))
        message = await link.expect(Publish)
        assert message.properties.user_property == (("a", "b"), ("fanout-stamp", "p:1:2:3"))
        assert (await other.expect(Publish)).properties.user_property == (("a", "b"),)


# Retained messages (MQTT 5, sections 3.3.1.3 and 3.8.3.1).


async def test_durable_subscription_gets_retained_values_once(node: NodeInMemory) -> None:
    """T12: only the first subscription brings them; after a reconnect those not yet sent come as retained still.

    What changed since comes as a message.
    """
    for number in range(5):
        node.set(b"t/%d" % number, b"%d" % number, qos=1)
    narrow = Properties(session_expiry_interval=600, receive_maximum=2)
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=narrow) as client:
        await client.subscribe(b"t/#", qos=1)
        assert payloads(await client.messages(2)) == [b"0", b"1"]
        client.send(Ack(PacketType.PUBACK, 1))
        assert payloads(await client.messages(1)) == [b"2"]
    await gone(node)
    node.set(b"t/3", b"new", qos=1)
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=narrow) as client:
        assert client.connack.session_present
        found = await client.messages(2)
        client.send(Ack(PacketType.PUBACK, 2), Ack(PacketType.PUBACK, 3))
        found += await client.messages(2)
        assert [(one.payload, one.retain, one.dup) for one in found] == [
            (b"1", True, True),
            (b"2", True, True),
            (b"new", False, False),
            (b"4", True, False),
        ]


async def test_value_set_while_retained_values_arrive_is_seen_once(node: NodeInMemory) -> None:
    """A topic that changes meanwhile comes with its old value as retained and then the new one, or the new one."""
    count = 5000
    for number in range(count):
        node.set(b"t/%05d" % number, b"old")
    async with await RawClient.connect(node.port) as client:
        client.send(Subscribe(1, (Subscription(b"#"),)), Pingreq())
        await client.expect(Suback)
        changed = itertools.cycle(range(0, count, 7))
        seen: dict[bytes, list[bytes]] = {}
        order: list[bytes] = []
        set_topics: list[bytes] = []
        while True:
            topic = b"t/%05d" % next(changed)
            node.set(topic, b"new %d" % len(set_topics), retain=True)
            set_topics.append(topic)
            packet = await client.receive()
            if isinstance(packet, Pingresp):
                break
            assert isinstance(packet, Publish)
            seen.setdefault(packet.topic, []).append(packet.payload)
            if packet.payload != b"old" and not packet.retain:
                order.append(packet.payload)
        for packet in await client.messages_until_ping():
            seen.setdefault(packet.topic, []).append(packet.payload)
            order.append(packet.payload)
        assert len(seen) == count
        expected: dict[bytes, list[bytes]] = {}
        for number, topic in enumerate(set_topics):
            expected.setdefault(topic, []).append(b"new %d" % number)
        for topic, values in seen.items():
            assert [value for value in values if value != b"old"] == expected.get(topic, [])
            assert values.count(b"old") <= 1
            assert values[0] == b"old" or b"old" not in values
        assert order == [b"new %d" % number for number in range(len(set_topics))]


async def test_ping_behind_subscribe_is_a_barrier(node: NodeInMemory) -> None:
    """PINGRESP comes behind all retained messages of the SUBSCRIBE before it, as a link relies on."""
    count = 20_000
    node.take([update(b"t/%05d" % number, b"x" * 64) for number in range(count)])
    async with await RawClient.connect(node.port) as client:
        client.send(Subscribe(1, (Subscription(b"t/#"),)), Pingreq())
        assert await client.receive() == Suback(1, (0,))
        topics: set[bytes] = set()
        while isinstance(packet := await client.receive(), Publish):
            topics.add(packet.topic)
        assert packet == Pingresp()
        assert len(topics) == count


async def test_many_retained_messages_do_not_stop_the_others(node: NodeInMemory) -> None:
    """While one client gets very many retained messages, live messages reach another at once."""
    node.take([update(b"t/%05d" % number, b"x" * 1_000) for number in range(20_000)])
    async with await RawClient.connect(node.port) as joins, await RawClient.connect(node.port) as listens:
        await listens.subscribe(b"live")
        joins.send(Subscribe(1, (Subscription(b"t/#"),)))
        await joins.expect(Suback)
        await joins.expect(Publish)
        for number in range(5):
            node.set(b"live", b"%d" % number)
            assert (await listens.expect(Publish)).payload == b"%d" % number
        session = next(iter(node.server.registry))
        assert session.sender.pending
        joined = await joins.messages_until_ping()
        assert len(joined) == 19_999


# Will Messages (MQTT 5, section 3.1.2.5).


async def test_will_on_take_over(node: NodeInMemory) -> None:
    """A taken-over connection is closed by the server: its Will Message comes, unless a delay lets it off."""
    for delay_s, published in ((0, 1), (5, 0)):
        node.published.clear()
        will = Will(b"will", b"gone", properties=Properties(will_delay_interval=delay_s))
        first = await RawClient.connect(node.port, "c", will=will, properties=DURABLE)
        async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as second:
            assert second.connack.session_present
            await first.expect_end(ReasonCode.SESSION_TAKEN_OVER)
            await node.pass_time(10)
            assert len(node.published) == published
        await first.close()


async def test_refused_will_is_counted(node: NodeInMemory) -> None:
    """A Will Message that the node refuses is dropped like any other message."""
    node.verdicts[b"will"] = lambda: ReasonCode.NOT_AUTHORIZED
    async with await RawClient.connect(node.port, "c", will=Will(b"will", b"gone")):
        pass
    await gone(node)
    assert node.server.figures()["dropped_total"]["refused"] == 1


async def test_will_on_keep_alive_loss(node: NodeInMemory) -> None:
    """Silence beyond the Keep Alive publishes the Will Message."""
    async with await RawClient.connect(node.port, "c", keep_alive=10, will=Will(b"will", b"gone")):
        await node.pass_time(16)
        assert len(node.published) == 1


# Start and stop.


async def test_stop_tells_clients(start_node: StartNode) -> None:
    """MQTT 5 clients get DISCONNECT 0x8B, others are closed, half-open ones refused; no Will is published."""
    node = await start_node()
    modern = await RawClient.connect(node.port, "m", will=Will(b"will", b"gone"))
    old = await RawClient.connect(node.port, version=4)
    silent = await RawClient.open(node.port)
    await wait_until(lambda: node.server.figures()["connections"] == 3)
    port = node.port
    await node.server.stop()
    await modern.expect_end(ReasonCode.SERVER_SHUTTING_DOWN)
    await old.expect_end()
    await silent.expect_end()
    assert node.published == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    for client in (modern, old, silent):
        await client.close()


async def test_stop_names_another_server(start_node: StartNode) -> None:
    """With `server_reference` clients are told 0x9C and where to go, those that have not sent CONNECT included."""
    node = await start_node(server_reference="edge-2:1883 edge-3")
    client = await RawClient.connect(node.port, "m")
    old = await RawClient.connect(node.port, version=4)
    await wait_until(lambda: node.server.figures()["connections"] == 2)
    await node.server.stop()
    told = await client.expect(Disconnect)
    assert told == Disconnect(ReasonCode.USE_ANOTHER_SERVER, Properties(server_reference="edge-2:1883 edge-3"))
    await old.expect_end()
    for each in (client, old):
        await each.close()


async def test_clients_of_some_topics_are_sent_away(start_node: StartNode) -> None:
    """Those with a subscription of the kind, shared ones included, get 0x9C; others and absent sessions stay."""
    node = await start_node(server_reference="edge-2:1883")
    clients = [
        await RawClient.connect(node.port, name, properties=DURABLE) for name in ("own", "shared", "other", "absent")
    ]
    own, shared, other, absent = clients
    await own.subscribe(b"x", b"plant/#")
    await shared.subscribe(b"$share/group/plant/#")
    await other.subscribe(b"office/#")
    await absent.subscribe(b"plant/#")
    await absent.disconnect()
    await wait_until(lambda: node.server.figures()["connections"] == 3)
    assert await node.server.lifecycles.send_away(lambda topic_filter: topic_filter.startswith(b"plant")) == 2
    for client in (own, shared):
        told = await client.expect(Disconnect)
        assert told == Disconnect(ReasonCode.USE_ANOTHER_SERVER, Properties(server_reference="edge-2:1883"))
        await client.expect_end()
    assert await other.messages_until_ping() == []
    assert node.server.figures()["sessions"] == 4
    for client in clients:
        await client.close()


async def test_who_takes_only_small_packets_is_told_less(start_node: StartNode) -> None:
    """DISCONNECT goes without the Server Reference when it would be over the client's Maximum Packet Size."""
    node = await start_node(server_reference="edge-2:1883")
    async with await RawClient.connect(node.port, properties=Properties(maximum_packet_size=17)) as client:
        assert client.connack.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    async with await RawClient.connect(node.port, "c", properties=Properties(maximum_packet_size=17)) as client:
        await client.subscribe(b"t")
        await node.server.lifecycles.send_away(lambda _: True)
        assert await client.expect(Disconnect) == Disconnect(ReasonCode.USE_ANOTHER_SERVER)
        await client.expect_end()


async def test_sending_many_away_gives_turns_to_others(node: NodeInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a number of checks everything else has its turn; who has left meanwhile is not counted."""
    monkeypatch.setattr("fanout.server.client.session_lifecycle._CHECKED_MAX", 2)
    clients = [await RawClient.connect(node.port, f"c{number}") for number in range(6)]
    for client in clients:
        await client.subscribe(b"t")
    sender = asyncio.create_task(node.server.lifecycles.send_away(lambda _: True))
    await asyncio.sleep(0)
    assert not sender.done()
    node.server.lifecycles.connection_of[node.server.registry.get("c5")].abort()  # type: ignore[index]
    await sender
    await gone(node)
    for client in clients:
        await client.close()


async def test_stop_waits_for_what_is_under_way(start_node: StartNode) -> None:
    """Messages in flight to a client are acknowledged before it is told to leave; nobody waits for it meanwhile."""
    node = await start_node()
    slow = await RawClient.connect(node.port, "slow")
    quick = await RawClient.connect(node.port, "quick")
    await slow.subscribe(b"t", qos=1)
    node.take([update(b"t", b"v", qos=1)])
    (message,) = await slow.messages(1)
    stopping = asyncio.create_task(node.server.stop(deadline_s=30))
    await quick.expect_end(ReasonCode.SERVER_SHUTTING_DOWN)
    assert not stopping.done()
    assert message.packet_id is not None
    slow.send(Ack(PacketType.PUBACK, message.packet_id))
    await slow.expect_end(ReasonCode.SERVER_SHUTTING_DOWN)
    await stopping
    for client in (slow, quick):
        await client.close()


async def test_stop_gives_up_what_is_under_way(start_node: StartNode) -> None:
    """A client that never acknowledges is told to leave at the deadline."""
    node = await start_node()
    async with await RawClient.connect(node.port, "mute") as mute:
        await mute.subscribe(b"t", qos=1)
        node.take([update(b"t", b"v", qos=1)])
        await mute.messages(1)
        await node.server.stop(deadline_s=0.05)
        await mute.expect_end(ReasonCode.SERVER_SHUTTING_DOWN)


async def test_stop_does_not_wait_for_ever(start_node: StartNode) -> None:
    """A client that does not read what was written is given up at the deadline."""
    node = await start_node()
    client = await RawClient.connect(node.port)
    await client.subscribe(b"t")
    client.pause()
    connection = next(iter(node.server._connections))
    while connection._transport.get_write_buffer_size() == 0:
        node.take([update(b"t", b"x" * 100_000)])
    await node.server.stop(deadline_s=0.05)
    assert node.server.figures()["connections"] == 0
    await client.close()


async def test_start_fails_when_the_address_is_taken(node: NodeInMemory) -> None:
    """A second server on the same port says so."""
    second = NodeInMemory()
    second.server.config = type(second.config)(listen=(type(second.config.listen[0])("mqtt", "127.0.0.1", node.port),))
    with pytest.raises(ListenError, match="in use"):
        await second.server.start()


async def test_timer_runs_by_itself(node: NodeInMemory) -> None:
    """What is due is done without anybody asking for it."""
    done: list[str] = []
    node.server.context.timer.after(0.02, lambda: done.append("late"))
    node.server.context.timer.after(0.01, lambda: done.append("early"))
    node.server.context.timer.after(0.015, lambda: done.append("never")).cancel()
    node.clock.advance(0.02)
    await wait_until(lambda: len(done) == 2)
    assert done == ["early", "late"]


async def test_connect_while_stopping_is_refused(node: NodeInMemory) -> None:
    """A connection that is accepted after the stop began gets nothing."""
    async with await RawClient.open(node.port) as client:
        await wait_until(lambda: node.server.figures()["connections"] == 1)
        node.server.lifecycles.stopping = True
        async with await RawClient.open(node.port) as late:
            late.send(Connect("c"))
            await late.expect_end()
        node.server.lifecycles.stopping = False
        client.send(Connect("c"))
        assert (await client.expect(Connack)).reason_code == 0


async def test_publishers_wait_while_they_are_paused(node: NodeInMemory) -> None:
    """What comes first is taken, what comes behind waits; who only reads is served on, and nothing is lost."""
    async with await RawClient.connect(node.port, "w") as writer, await RawClient.connect(node.port, "r") as reader:
        await reader.subscribe(b"a", qos=1)
        node.server.pause_publishers(True)
        await writer.expect_ack(PacketType.PUBACK, writer.publish(b"a", b"0", qos=1))
        writer.publish(b"a", b"1", qos=1)
        writer.publish(b"a", b"2", qos=1)
        assert (await reader.expect(Publish)).payload == b"0"
        assert await reader.messages_until_ping() == []
        node.server.pause_publishers(False)
        assert [message.payload for message in await reader.messages(2)] == [b"1", b"2"]
        node.server.pause_publishers(True)
        writer.publish(b"a", b"3", qos=1)
        assert (await reader.expect(Publish)).payload == b"3"
    node.server.pause_publishers(False)  # the client is gone


async def test_a_publisher_that_is_taken_over_while_it_waits_is_forgotten(node: NodeInMemory) -> None:
    """What it had sent is not kept until publishers are let go on, however often its client comes again."""
    node.server.pause_publishers(True)
    first = await RawClient.connect(node.port, "w")
    await first.expect_ack(PacketType.PUBACK, first.publish(b"a", b"0", qos=1), ReasonCode.NO_MATCHING_SUBSCRIBERS)
    (connection,) = node.server.connections
    assert connection.is_suspended
    async with first, await RawClient.connect(node.port, "w"):
        await first.expect_end(ReasonCode.SESSION_TAKEN_OVER)
        await wait_until(lambda: connection not in node.server.connections)
        assert not node.server._packet_handlers._waiting_publishers
    node.server.pause_publishers(False)


async def test_what_comes_behind_the_end_is_ignored(node: NodeInMemory) -> None:
    """A transport may still have a piece when the connection is being closed: no defect, and no packet is taken."""
    async with await RawClient.connect(node.port, "c") as client:
        (connection,) = node.server.connections
        received = node.server.figures()["received_bytes_total"]
        connection.disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
        connection.receive(encode(Pingreq(), version=5))
        await client.expect_end(ReasonCode.ADMINISTRATIVE_ACTION)
    assert node.server.figures()["received_bytes_total"] == received
