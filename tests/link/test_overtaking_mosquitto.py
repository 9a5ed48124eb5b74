"""What the link relies on when a Mosquitto has a queue: the order in which that sends, and its Packet Identifiers."""

from __future__ import annotations

import pytest

from fanout.mqtt.packets import Ack, PacketType, Publish, Suback, Subscribe, Subscription
from fanout.mqtt.properties import Properties
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.mosquitto

IN_FLIGHT = 20
"""What a Mosquitto with defaults has in flight at most."""


async def test_qos_0_comes_in_front_of_what_is_queued(mosquitto: Mosquitto) -> None:
    """Copies and updates after a SUBSCRIBE at QoS 0 overtake what was published before it, in all versions tried."""
    slow = await RawClient.connect(mosquitto.port, "slow")
    await slow.subscribe(b"plant/#", qos=1)
    with publisher(mosquitto.port) as client:
        publish_all(client, [(f"plant/{number}", b"fill") for number in range(IN_FLIGHT)], qos=1)
        publish_all(client, [("plant/x", b"v1"), ("plant/x", b"v2")], qos=1)
        in_flight = await slow.messages(IN_FLIGHT)
        slow.send(Subscribe(slow.next_packet_id(), (Subscription(b"plant/#", 0, retain_as_published=True),)))
        await slow.expect(Suback)
        publish_all(client, [("plant/x", b"v3")], qos=1)
    came = await slow.messages_until_ping()
    assert [each.payload for each in came if each.topic == b"plant/x"] == [b"v2", b"v3"]
    slow.send(*(Ack(PacketType.PUBACK, each.packet_id or 0) for each in in_flight))
    queued = await slow.messages(2)
    assert [(each.payload, each.qos) for each in queued] == [(b"v1", 1), (b"v2", 1)]
    await slow.close()


async def test_packet_identifiers_are_counted_up_in_a_resumed_session(mosquitto: Mosquitto) -> None:
    """What was queued meanwhile has the next ones."""
    lasting = Properties(session_expiry_interval=100)
    first = await RawClient.connect(mosquitto.port, "lasting", properties=lasting)
    await first.subscribe(b"plant/#", qos=1)

    async def next_one(client: RawClient) -> Publish:
        message = await client.expect(Publish)
        client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
        return message

    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/1", b"a"), ("plant/1", b"b")], qos=1)
        before = [await next_one(first), await next_one(first)]
        await first.messages_until_ping()  # so the acknowledgements are there
        await first.close()
        publish_all(client, [("plant/1", b"c"), ("plant/1", b"d")], qos=1)
    again = await RawClient.connect(mosquitto.port, "lasting", clean_start=False, properties=lasting)
    assert again.connack.session_present
    after = [await next_one(again), await next_one(again)]
    ids = [each.packet_id or 0 for each in (*before, *after)]
    assert ids == list(range(ids[0], ids[0] + 4))
    await again.close()


async def test_only_copies_have_qos_0_behind_a_subscribe_with_two_entries(mosquitto: Mosquitto) -> None:
    """The second one asks for QoS 1 and no copies: the session that is left then collects what comes."""
    lasting = Properties(session_expiry_interval=100)
    with publisher(mosquitto.port) as client:
        publish_all(client, [("plant/x", b"v1"), ("plant/y", b"w1")], qos=1)
        first = await RawClient.connect(mosquitto.port, "lasting", properties=lasting)
        copies = Subscription(b"plant/#", 0, retain_as_published=True)
        then = Subscription(b"plant/#", 1, retain_as_published=True, retain_handling=2)
        first.send(Subscribe(first.next_packet_id(), (copies, then, Subscription(b"$SYS/broker/version"))))
        answers = [await first.receive() for _ in range(4)]
        came = [each for each in answers if isinstance(each, Publish)]
        assert [(each.topic, each.payload, each.qos) for each in came[:2]] == [
            (b"plant/x", b"v1", 0),
            (b"plant/y", b"w1", 0),
        ]
        assert [each.topic for each in came[2:]] == [b"$SYS/broker/version"], "the sentinel, behind the copies"
        assert await first.messages_until_ping() == [], "no copy comes twice"
        await first.close()
        publish_all(client, [("plant/x", b"v2")], qos=1, retain=False)
    again = await RawClient.connect(mosquitto.port, "lasting", clean_start=False, properties=lasting)
    assert [(each.payload, each.qos) for each in await again.messages(1)] == [(b"v2", 1)]
    await again.close()
