"""Tests of subscriptions of JMS applications (`fanout.amqp.subscriber`)."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Publish
from fanout.mqtt.properties import Properties
from tests.amqp.conftest import Connect, StartNode, amqp_port
from tests.amqp.jms_peer import DESTINATION, TYPE, Delivery, JmsPeer, Subscription, bytes_message, text_message
from tests.server.node_in_memory import NodeInMemory
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


async def test_retained_comes_first_with_1_and_live_with_0(node: NodeInMemory, connect: Connect) -> None:
    """A retained value is delivered with JMS_IBM_Retain 1, and what is published then with 0."""
    node.set(b"plant/a", b"old")
    subscription = await (await connect()).subscribe("plant/#")
    await subscription.wait(1)
    node.set(b"plant/a", b"new")
    await subscription.wait(2)
    assert subscription.bodies == [(b"old", 1), (b"new", 0)]


async def test_a_non_durable_subscription_gets_retained_values_each_time(node: NodeInMemory, connect: Connect) -> None:
    """A client that comes again makes a new subscription, and gets the same value again, as retained."""
    node.set(b"plant/a", b"old")
    for _ in range(2):
        peer = await connect()
        subscription = await peer.subscribe("plant/a")
        await subscription.wait(1)
        assert subscription.bodies == [(b"old", 1)]
        await peer.close()
    assert node.server.session_count == 0


async def test_a_durable_subscription_gets_retained_values_once(node: NodeInMemory, connect: Connect) -> None:
    """What was published while it was away comes as live, and the retained value not again."""
    node.set(b"plant/a", b"old")
    peer = await connect()
    subscription = await peer.subscribe("plant/#", "sub", durable=True)
    await subscription.wait(1)
    await peer.vanish()
    await wait_until(lambda: node.server.connection_count == 0)
    node.set(b"plant/a", b"meanwhile", qos=1)
    again = await (await connect()).subscribe("plant/#", "sub", durable=True)
    await again.wait(1)
    node.set(b"plant/a", b"now", qos=1)
    await again.wait(2)
    assert subscription.bodies == [(b"old", 1)]
    assert again.bodies == [(b"meanwhile", 0), (b"now", 0)]


async def test_retained_values_that_were_not_delivered_come_as_retained_later(
    node: NodeInMemory, connect: Connect
) -> None:
    """A client that leaves before it has the retained values of a new durable subscription gets them as retained."""
    for number in range(10):
        node.set(b"plant/%d" % number, b"%d" % number, qos=1)
    peer = await connect()
    subscription = await peer.subscribe("plant/#", "sub", durable=True, credit=3)
    await subscription.wait(3)
    await peer.vanish()
    await wait_until(lambda: node.server.connection_count == 0)
    again = await (await connect()).subscribe("plant/#", "sub", durable=True)
    await again.wait(7)
    assert {body for body, _ in subscription.bodies + again.bodies} == {b"%d" % number for number in range(10)}
    assert {retain for _, retain in again.bodies} == {1}


async def test_a_closed_consumer_keeps_its_durable_subscription(node: NodeInMemory, connect: Connect) -> None:
    """A detached link keeps its subscription on the same connection, and a message that was not settled comes again."""
    peer = await connect()
    first = await peer.subscribe("plant/#", "sub", durable=True, accept=False)
    node.set(b"plant/a", b"1", qos=1)
    await first.wait(1)
    await first.end(closed=False)
    node.set(b"plant/a", b"2", qos=1)
    second = await peer.subscribe("plant/#", "sub", durable=True)
    await second.wait(2)
    assert second.bodies == [(b"1", 0), (b"2", 0)]
    assert [message.delivery_count for message in second.messages] == [1, 0]


async def test_unsubscribe_ends_a_durable_subscription(node: NodeInMemory, connect: Connect) -> None:
    """`unsubscribe` attaches the link without a source, and closes it: the subscription is gone."""
    peer = await connect()
    first = await peer.subscribe("plant/#", "sub", durable=True)
    await first.end(closed=False)
    await wait_until(lambda: node.server.connection_count == 1)
    assert node.server.session_count == 2
    found = await peer.subscribe(None, "sub", credit=0)
    assert found.link.remote_source.address == "plant/#"
    await found.end()
    await wait_until(lambda: node.server.session_count == 1)
    missing = await peer.subscribe(None, "sub", credit=0)
    assert missing.error is not None
    assert missing.error.name == "amqp:not-found"
    await wait_until(lambda: node.server.session_count == 1)


async def test_another_topic_makes_a_durable_subscription_anew(node: NodeInMemory, connect: Connect) -> None:
    """The name with another topic ends the former subscription, with what waits, and the new one gets its values."""
    node.set(b"b", b"retained")
    peer = await connect()
    first = await peer.subscribe("a", "sub", durable=True)
    await first.end(closed=False)
    node.set(b"a", b"waits", qos=1)
    second = await peer.subscribe("b", "sub", durable=True)
    await second.wait(1)
    node.set(b"a", b"not of it", qos=1)
    node.set(b"b", b"live", qos=1)
    await second.wait(2)
    assert second.bodies == [(b"retained", 1), (b"live", 0)]


async def test_durable_subscriptions_belong_to_the_container(node: NodeInMemory, connect: Connect) -> None:
    """The same name with another client id is another subscription."""
    for container in ("one", "two"):
        subscription = await (await connect(container)).subscribe("plant/#", "sub", durable=True)
        await subscription.end(closed=False)
    assert node.server.session_count == 4


async def test_text_and_bytes_have_their_type(node: NodeInMemory, connect: Connect, mqtt: RawClient) -> None:
    """A payload with Payload Format Indicator 1 is a TextMessage, others are BytesMessages; User Properties stay."""
    subscription = await (await connect()).subscribe("plant/#")
    properties = Properties(payload_format_indicator=1, user_property=(("unit", "°C"),), message_expiry_interval=60)
    mqtt.send(Publish(b"plant/a", "21 °C".encode(), properties=properties), Publish(b"plant/b", b"\xff"))
    text, octets = await subscription.wait(2)
    assert (text.body, text.annotations[TYPE], text.properties["unit"]) == ("21 °C", 5, "°C")
    assert (octets.body, octets.annotations[TYPE]) == (b"\xff", 3)
    assert (text.address, text.annotations[DESTINATION], text.ttl) == ("plant/a", 1, 60.0)
    assert not text.durable


async def test_credit_is_the_limit_and_the_server_keeps_the_rest(node: NodeInMemory, connect: Connect) -> None:
    """A consumer gets as many messages as it gave credit for; more come in order with more credit."""
    subscription = await (await connect()).subscribe("plant/#", credit=2)
    for number in range(800):
        node.set(b"plant/a", b"%d" % number, qos=1)
    await subscription.wait(2)
    subscription.flow(798)
    await subscription.wait(800)
    assert [message.body for message in subscription.messages] == [b"%d" % number for number in range(800)]


@pytest.mark.parametrize(
    ("topic", "more", "condition", "word"),
    [
        ("plant/#", {"selector": "a = 1"}, "amqp:not-implemented", "selectors"),
        ("plant", {"capability": "queue"}, "amqp:not-implemented", "queues"),
        ("plant", {"capability": "temporary-topic"}, "amqp:not-implemented", "temporary"),
        ("plant/#/a", {}, "amqp:invalid-field", "wildcard"),
        ("", {}, "amqp:invalid-field", "topic"),
        ("$share/group/a", {}, "amqp:not-implemented", "shares"),
    ],
)
async def test_what_is_not_here_is_refused_with_a_word(
    node: NodeInMemory, connect: Connect, topic: str, more: dict[str, str], condition: str, word: str
) -> None:
    """A consumer that asks for something else is refused, and the connection goes on."""
    peer = await connect()
    refused = await peer.subscribe(topic, "refused", **more)  # type: ignore[arg-type]  # as the table has them
    assert refused.error is not None
    assert refused.error.name == condition
    assert word in refused.error.description
    node.set(b"a", b"1")
    await (await peer.subscribe("a")).wait(1)
    await wait_until(lambda: node.server.connection_count == 2)


async def test_a_kicked_client_is_told(node: NodeInMemory, connect: Connect) -> None:
    """The client of a subscription, and that of the connection, end as those of MQTT do."""
    peer = await connect()
    subscription = await peer.subscribe("a")
    node.server.lifecycles.kick("app|consumer")
    await wait_until(lambda: subscription.error is not None)
    assert subscription.error is not None
    assert subscription.error.name == "amqp:link:detach-forced"
    node.server.lifecycles.kick("app")
    await wait_until(lambda: peer.ended)
    assert peer.connection.remote_condition.name == "amqp:connection:forced"


async def test_a_container_id_that_is_to_be_alone_is_taken_once(node: NodeInMemory, connect: Connect) -> None:
    """A second connection with the id of one that wants to be alone is refused as JMS expects, until that has gone."""
    first = await connect("clerk", sole=True)
    second = await connect("clerk", sole=True)
    condition = second.connection.remote_condition
    assert condition.name == "amqp:invalid-field"
    assert condition.info == {"invalid-field": "container-id"}
    await first.close()
    third = await connect("clerk", sole=True)
    await third.subscribe("a")
    assert not third.ended


async def test_limits_of_connections_hold_for_subscriptions(start_node: StartNode) -> None:
    """A subscription counts as a connection, and one beyond the limit is refused."""
    node = await start_node(connections_max=2)
    peer = await JmsPeer.connect(amqp_port(node))
    await peer.subscribe("a", "one")
    refused = await peer.subscribe("a", "two")
    assert refused.error is not None
    assert refused.error.name == "amqp:resource-limit-exceeded"
    await peer.close()
    await wait_until(lambda: node.server.connection_count == 0)


async def test_no_local_keeps_back_live_messages_and_delivers_earlier_retained_ones(
    node: NodeInMemory, connect: Connect
) -> None:
    """With `noLocal` retained messages of the same connection come, its live ones do not; those of others do."""
    peer, other = await connect("one"), await connect("two")
    producer = await peer.producer("plant/a")
    await producer.send(text_message("earlier", retain=1))
    subscription = await peer.subscribe("plant/a", no_local=True)
    await subscription.wait(1)
    await producer.send(text_message("own", retain=1))
    await (await other.producer("plant/a")).send(bytes_message(b"another's"))
    await subscription.wait(2)
    assert subscription.bodies == [("earlier", 1), (b"another's", 0)]


def say(
    subscription: Subscription, number: int, state: int = 0, *, failed: bool = False, undeliverable: bool = False
) -> None:
    """Settle a delivery with a state, 0 for none; with RECEIVED leave it unsettled."""
    delivery = subscription.deliveries[number]
    delivery.local.failed, delivery.local.undeliverable = failed, undeliverable
    if state:
        delivery.update(state)
    if state != Delivery.RECEIVED:
        delivery.settle()
    subscription.peer.flush()


async def test_accepted_rejected_and_undeliverable_messages_are_over(node: NodeInMemory, connect: Connect) -> None:
    """They are acknowledged; RECEIVED says nothing yet, and a message settled without an outcome comes again."""
    peer = await connect()
    first = await peer.subscribe("a", "sub", durable=True, accept=False)
    for number in range(5):
        node.set(b"a", b"%d" % number, qos=1)
    await first.wait(5)
    say(first, 0, Delivery.ACCEPTED)
    say(first, 1, Delivery.REJECTED)
    say(first, 2, Delivery.MODIFIED, failed=True, undeliverable=True)
    say(first, 3, Delivery.RECEIVED)
    say(first, 4)
    await first.wait(6)
    assert first.messages[5].body == b"4"
    await first.end(closed=False)
    second = await peer.subscribe("a", "sub", durable=True)
    node.set(b"a", b"end", qos=1)
    await second.wait(3)
    assert [message.body for message in second.messages] == [b"3", b"4", b"end"]


async def test_released_messages_come_again_in_their_order(node: NodeInMemory, connect: Connect) -> None:
    """They come before later ones; a delivery counts only if it failed."""
    subscription = await (await connect()).subscribe("a", accept=False, credit=4)
    for number in range(5):
        node.set(b"a", b"%d" % number, qos=1)
    await subscription.wait(4)
    for number in (1, 0, 3, 2):
        delivery = subscription.deliveries[number]
        delivery.local.failed = number == 2
        delivery.update(Delivery.MODIFIED)
        delivery.settle()
    subscription.flow(5)
    await subscription.wait(9)
    again = subscription.messages[4:]
    assert [message.body for message in again] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.delivery_count for message in again] == [0, 0, 1, 0, 0]


async def test_a_released_message_expires(node: NodeInMemory, connect: Connect) -> None:
    """It comes again with the time that it has left, and not at all once it has expired."""
    subscription = await (await connect()).subscribe("a", accept=False)
    node.set(b"a", b"old", qos=1, expires_ns=node.clock.now_ns() + 60_000_000_000)
    await subscription.wait(1)
    await node.pass_time(20)
    say(subscription, 0, Delivery.MODIFIED, failed=True)
    await subscription.wait(2)
    await node.pass_time(15)
    say(subscription, 1, Delivery.MODIFIED, failed=True)
    await subscription.wait(3)
    await node.pass_time(30)
    say(subscription, 2, Delivery.RELEASED)
    node.set(b"a", b"new", qos=1)
    await subscription.wait(4)
    assert [(one.body, one.ttl, one.delivery_count) for one in subscription.messages] == [
        (b"old", 60.0, 0),
        (b"old", 40.0, 1),
        (b"old", 25.0, 2),
        (b"new", 0.0, 0),
    ]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(("limit", "value", "count"), [("UNSETTLED_MAX", 5, 5), ("UNSETTLED_BYTES_MAX", 1, 1)])
async def test_deliveries_that_are_not_settled_have_a_bound(
    node: NodeInMemory, connect: Connect, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, count: int, qos: int
) -> None:
    """At it a drain is answered, although more waits; that comes when the peer settles."""
    monkeypatch.setattr(f"fanout.amqp.subscriber.{limit}", value)
    subscription = await (await connect()).subscribe("a", accept=False)
    for number in range(10):
        node.set(b"a", b"%d" % number, qos=qos)
    await subscription.wait(count)
    subscription.link.drain(0)
    subscription.peer.flush()
    await wait_until(lambda: subscription.link.credit == 0)
    assert len(subscription.messages) == count
    subscription.link.drain_mode = False
    subscription.flow(100)
    for number in range(10):
        await subscription.wait(number + 1)
        say(subscription, number, Delivery.ACCEPTED)
    assert [message.body for message in subscription.messages] == [b"%d" % number for number in range(10)]
