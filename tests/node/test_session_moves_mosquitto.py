"""Sessions that follow their clients to other members of a pool beside a real Mosquitto."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fanout.api.models import PoolStatus
from fanout.durable.moving import session_pool
from fanout.mqtt.packets import Ack, Disconnect, PacketType, Subscription, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.node import Node
from fanout.server.client import connection
from tests.node.test_node import port_of
from tests.node.test_pool_mosquitto import pool_at
from tests.support.durable import DURABLE, come_back
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto


@pytest_asyncio.fixture(name="pool")
async def start_pool(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[Node]]:
    """Give three members beside a Mosquitto, each of which has heard the others; a client waits for its session."""
    monkeypatch.setattr(session_pool, "ANSWER_S", 30.0)
    monkeypatch.setattr(connection, "LINGER_S", 30.0)  # what is written to a client waits for copies
    async with pool_at(tmp_path, *[mosquitto.port] * 3) as nodes:
        await wait_until(lambda: all(figures(node).members_reachable == len(nodes) for node in nodes))
        yield nodes


def figures(node: Node) -> PoolStatus:
    """Return the figures of a member of the pool."""
    status = node.documents.status().pool
    assert status is not None
    return status


def session_count(node: Node) -> int:
    """Return how many sessions a member has."""
    assert node.server is not None
    return node.server.session_count


async def test_a_session_that_began_anew_ends_the_older_one(pool: list[Node]) -> None:
    """Clean Start at one member ends the session, and its connection, at another; a third one finds the newer."""
    former = await come_back(port_of(pool[0]), "c")
    await former.subscribe(b"plant/1", qos=1)
    newer = await come_back(port_of(pool[1]), "c", clean_start=True)
    assert not newer.connack.session_present
    while not isinstance(packet := await former.receive(), Disconnect):
        pass
    assert packet.reason_code == ReasonCode.SESSION_TAKEN_OVER
    await former.close()
    await newer.close()
    third = await come_back(port_of(pool[2]), "c")
    assert third.connack.session_present
    subscribed = await third.unsubscribe(b"plant/1")
    assert subscribed.reason_codes == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
    await third.close()
    await wait_until(lambda: [session_count(node) for node in pool] == [0, 0, 1])


async def test_epochs_of_members_agree_whatever_their_clocks_show(pool: list[Node]) -> None:
    """The clock that is an hour ahead sets the others, as they answer each other."""
    clocks = [
        node.pool.sessions.ledger.epochs for node in pool if node.pool is not None and node.pool.sessions is not None
    ]
    hour_ahead = clocks[0].reading + 3_600_000
    clocks[0].hear(hour_ahead)
    await wait_until(lambda: min(clock.reading for clock in clocks) >= hour_ahead)
    readings = [clock.reading for clock in clocks]
    assert max(readings) - min(readings) < 1_000


async def test_a_will_message_goes_along(mosquitto: Mosquitto, pool: list[Node]) -> None:
    """It is published once, by the member that the session is at when its delay is over; not if the client is back."""
    with publisher(mosquitto.port) as reader:
        arrived: list[bytes] = []
        reader.on_message = lambda client, data, message: arrived.append(bytes(message.payload))
        reader.subscribe("plant/will", 2)
        will = Will(b"plant/will", b"gone", 1, False, Properties(will_delay_interval=4))
        client = await come_back(port_of(pool[0]), "c", will=will)
        await client.close()
        await (await come_back(port_of(pool[1]), "c")).disconnect()
        client = await come_back(port_of(pool[1]), "d", will=will)
        await client.close()
        await wait_until(lambda: arrived == [b"gone"])
    events = pool[1].browser.node_events
    told = "1 session came from another member of the pool"
    await wait_until(lambda: told in [one.text for one in events.page(before=None, limit=100).events])
    assert [one.name for one in pool[1].browser.lag_history().links] == [link.config.name for link in pool[1].links]


async def test_a_durable_session_gets_retained_values_once(pool: list[Node], mosquitto: Mosquitto) -> None:
    """At its first subscription: what it has not got comes at the next member, as retained, and then no more anywhere.

    One that begins anew gets them again.
    """
    values = {b"plant/%d" % number for number in range(300)}
    with publisher(mosquitto.port) as client_of_primary:
        publish_all(client_of_primary, [(topic.decode(), b"1") for topic in values])
    await wait_until(lambda: [node.documents.pool().members[0].topics for node in pool] == [300] * 3)
    few = dataclasses.replace(DURABLE, receive_maximum=10)
    client = await come_back(port_of(pool[0]), "c", properties=few)
    subscription = Subscription(b"plant/+", 1, retain_as_published=False, retain_handling=1)
    await client.subscribe(subscription)
    got = await client.messages(10)
    for message in got[:7]:
        client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
    got += await client.messages(7)
    await client.close()

    client = await come_back(port_of(pool[1]), "c")
    assert client.connack.session_present
    again = await client.messages(10)
    assert [each.topic for each in again if each.dup] == [each.topic for each in got[7:]]
    rest = [each for each in again if not each.dup]
    while len(got) + len(rest) < len(values):
        (message,) = await client.messages(1)
        rest.append(message)
    for message in again + rest:
        client.send(Ack(PacketType.PUBACK, message.packet_id or 0))
    assert all(each.retain for each in got + again + rest)
    assert {each.topic for each in got + rest} == values
    await client.subscribe(subscription)
    assert await client.messages_until_ping() == []
    await client.close()

    client = await come_back(port_of(pool[2]), "c")
    assert client.connack.session_present
    await client.subscribe(subscription)
    assert await client.messages_until_ping() == []
    await client.close()
    client = await come_back(port_of(pool[0]), "c", clean_start=True)
    await client.subscribe(subscription)
    assert {each.topic for each in await client.messages(len(values))} == values
    await client.close()
