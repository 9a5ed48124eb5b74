"""Tests of what JMS applications publish (`fanout.amqp.publisher`)."""

from __future__ import annotations

import asyncio

import pytest

from fanout.amqp import publisher
from fanout.amqp.values import described, map_of, string, symbol
from fanout.mqtt.packets import Publish, Suback, Subscribe, Subscription
from fanout.mqtt.reason_codes import ReasonCode
from tests.amqp.conftest import Connect, StartNode, amqp_port
from tests.amqp.jms_peer import TYPE, JmsPeer, Message, Producer, byte, bytes_message, text_message
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


def value_of(node: NodeInMemory, topic: bytes) -> bytes | None:
    """Return the retained value of a topic; None without one."""
    values = node.get_many([topic])
    return values[0][1] if values else None


async def test_a_message_with_retain_1_is_a_retained_message_of_mqtt(
    node: NodeInMemory, connect: Connect, mqtt: RawClient
) -> None:
    """Clients of MQTT get it as live, and as retained later; without the property, or with 0, it is not retained."""
    mqtt.send(Subscribe(1, (Subscription(b"plant/#", qos=1),)))
    await mqtt.expect(Suback)
    producer = await (await connect()).producer("plant/a")
    assert await producer.send(text_message("21 °C", retain=1)) is None
    assert await producer.send(bytes_message(b"not kept", retain=0)) is None
    assert await producer.send(bytes_message(b"nor this")) is None
    first, *_ = [await mqtt.expect(Publish) for _ in range(3)]
    assert (first.payload, first.retain, first.properties.payload_format_indicator) == ("21 °C".encode(), False, 1)
    assert value_of(node, b"plant/a") == "21 °C".encode()


@pytest.mark.parametrize(
    "empty", [text_message(None, retain=1), text_message("", retain=1), bytes_message(b"", retain=1)]
)
async def test_an_empty_message_does_not_clear(
    node: NodeInMemory, connect: Connect, mqtt: RawClient, empty: Message
) -> None:
    """A null, empty or zero-length message is delivered and clears nothing; an empty message of MQTT does."""
    peer = await connect()
    producer = await peer.producer("plant/a")
    await producer.send(text_message("kept", retain=1))
    subscription = await peer.subscribe("plant/a")
    await subscription.wait(1)
    assert await producer.send(empty) is None
    await subscription.wait(2)
    assert value_of(node, b"plant/a") == b"kept"
    mqtt.send(Publish(b"plant/a", b"", retain=True))
    await subscription.wait(3)
    assert value_of(node, b"plant/a") is None


async def test_a_queue_ignores_retain(node: NodeInMemory, connect: Connect) -> None:
    """A message to a queue goes to subscribers of the topic with its name, and is not kept."""
    peer = await connect()
    subscription = await peer.subscribe("orders")
    producer = await peer.producer("orders", capability="queue")
    assert await producer.send(text_message("1", retain=1)) is None
    await subscription.wait(1)
    assert value_of(node, b"orders") is None


async def test_an_expiry_is_that_of_the_message(node: NodeInMemory, connect: Connect) -> None:
    """A retained message with a time to live is gone after it."""
    producer = await (await connect()).producer("plant/a")
    await producer.send(text_message("short", retain=1, ttl=2.5))
    (value,) = node.get_many([b"plant/a"])
    assert value[6] == node.clock.now_ns() + 3_000_000_000


async def test_a_producer_without_destination_names_it_in_each_message(node: NodeInMemory, connect: Connect) -> None:
    """The address of each message is its topic."""
    producer = await (await connect()).producer(None)
    assert await producer.send(text_message("1", retain=1, address="plant/a")) is None
    refused = await producer.send(text_message("1"))
    assert refused is not None
    assert "topic" in refused.description
    assert value_of(node, b"plant/a") == b"1"


@pytest.mark.parametrize(("kind", "name"), [(1, "ObjectMessage"), (2, "MapMessage"), (4, "StreamMessage")])
async def test_other_messages_are_refused(node: NodeInMemory, connect: Connect, kind: int, name: str) -> None:
    """Only text and bytes are published; the application is told, and the connection goes on."""
    message = text_message("x", retain=1)
    message.annotations[TYPE] = byte(kind)
    producer = await (await connect()).producer("plant/a")
    refused = await producer.send(message)
    assert refused is not None
    assert name in refused.description
    assert "TextMessage" in refused.description
    assert await producer.send(text_message("fine")) is None


async def test_the_servers_refusal_is_told(node: NodeInMemory, connect: Connect) -> None:
    """A message that the node refuses is rejected with the reason."""
    node.verdicts[b"plant/"] = lambda: ReasonCode.NOT_AUTHORIZED
    producer = await (await connect()).producer("plant/a")
    refused = await producer.send(text_message("x"))
    assert refused is not None
    assert refused.name == "amqp:unauthorized-access"


@pytest.mark.parametrize("topic", ["plant/#", "plant/+"])
async def test_a_topic_that_is_none_is_refused(connect: Connect, topic: str) -> None:
    """A producer to a filter is refused when it is made."""
    producer = await (await connect()).producer(topic)
    assert producer.error is not None
    assert producer.error.name == "amqp:invalid-field"


async def test_many_messages_are_all_published_in_order(node: NodeInMemory, connect: Connect) -> None:
    """More messages than there is credit for come in order, settled ones too, with a Receive Maximum below them."""
    producer = await (await connect()).producer("plant/a")
    for number in range(320):
        await producer.send(bytes_message(b"%d" % number), settled=number % 80 != 79)
    assert [row[1] for _, row in node.published] == [b"%d" % number for number in range(320)]


async def test_properties_of_the_application_go_with_the_message(node: NodeInMemory, connect: Connect) -> None:
    """Text, numbers and booleans become User Properties, and text of a JMS consumer."""
    peer = await connect()
    subscription = await peer.subscribe("plant/a")
    message = text_message("x", retain=1)
    message.properties |= {"unit": "K", "count": 3, "good": True}
    await (await peer.producer("plant/a")).send(message)
    (received,) = await subscription.wait(1)
    del received.properties["JMS_IBM_Retain"]
    assert received.properties == {"unit": "K", "count": "3", "good": "true"}


async def test_a_server_without_retained_messages_says_so(start_node: StartNode) -> None:
    """A message for a topic of a server that takes QoS 0 only is accepted all the same."""
    node = await start_node(qos_max=0)
    peer = await JmsPeer.connect(amqp_port(node))
    producer = await peer.producer("a")
    assert await producer.send(text_message("x", retain=1)) is None
    assert value_of(node, b"a") == b"x"
    await peer.close()


def send_on(producer: Producer, data: bytes) -> None:
    """Send a message, and do not wait for its verdict."""
    producer.sent += 1
    producer.link.delivery(f"t{producer.sent}")
    producer.link.stream(data)
    producer.link.advance()
    producer.peer.flush()


async def send_until_read(node: NodeInMemory, producer: Producer) -> None:
    """Send a message, and wait until the server has read it."""
    before = node.server.counters.received_bytes
    send_on(producer, text_message("x").encode())
    await wait_until(lambda: node.server.counters.received_bytes > before)


async def test_credit_is_renewed_at_the_verdict(node: NodeInMemory, connect: Connect) -> None:
    """While the server takes nothing a producer sends what its credit was, and all of it arrives later."""
    peer = await connect()
    producer, other = await peer.producer("a"), await peer.producer("b", "other")
    node.server.pause_publishers(True)
    for _ in range(100):
        send_on(producer, text_message("x").encode())
    refused = await other.send(b"not a message")
    assert refused is not None, "the server has read all that was sent before"
    assert producer.link.credit == 0
    node.server.pause_publishers(False)
    await wait_until(lambda: len(node.published) == 100)
    await wait_until(lambda: producer.link.credit == 100)


async def test_properties_count_among_the_bytes_that_wait(node: NodeInMemory, connect: Connect) -> None:
    """Large properties make the server wait with reading as a large payload does."""
    peer = await connect()
    producer = await peer.producer("a")
    node.server.pause_publishers(True)
    before = node.server.counters.received_bytes
    data = described(0x74, map_of(string(b"k"), string(b"x" * 50_000))) + described(0x77, string(b""))
    for _ in range(100):
        send_on(producer, data)
    await wait_until(lambda: node.server.counters.received_bytes - before > 1_000_000)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert node.server.counters.received_bytes - before < 1_500_000
    node.server.pause_publishers(False)
    await wait_until(lambda: len(node.published) == 100)


async def test_an_aborted_message_gives_its_credit_back(node: NodeInMemory, connect: Connect) -> None:
    """A producer may abort more messages than it has credit for."""
    peer = await connect()
    producer = await peer.producer("a")
    heard: list[int] = []
    for number in range(150):
        await wait_until(lambda: producer.link.credit > 0)
        delivery = producer.link.delivery(f"aborted-{number}")
        producer.link.stream(b"\x00\x53\x77")
        heard.append(node.server.counters.received_bytes)
        peer.flush()
        await wait_until(lambda: node.server.counters.received_bytes > heard[-1])
        delivery.abort()
        peer.flush()
    assert await producer.send(text_message("whole")) is None
    assert len(node.published) == 1


async def test_a_destination_of_an_odd_type_is_a_topic(node: NodeInMemory, connect: Connect) -> None:
    """An annotation that cannot be looked up breaks nothing."""
    producer = await (await connect()).producer("a")
    odd = described(0x72, map_of(symbol("x-opt-jms-dest"), b"\x45"))
    assert await producer.send(odd + described(0x77, string(b"x"))) is None


async def test_a_peer_that_the_server_does_not_read_is_not_silent(
    node: NodeInMemory, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle time waits while the server makes its publishers wait, and holds again afterwards."""
    monkeypatch.setattr(publisher, "_WAITING_BYTES", 0)
    peer = await connect()
    producer = await peer.producer("a")
    node.server.pause_publishers(True)
    for _ in range(2):  # the server learns from the first that it publishes
        await send_until_read(node, producer)
    for _ in range(4):
        await node.pass_time(59)
    node.server.pause_publishers(False)
    await wait_until(lambda: len(node.published) == 2)
    assert await producer.send(text_message("still there")) is None
    await node.pass_time(61)
    await node.pass_time(61)
    await wait_until(lambda: peer.ended)
