"""Clients of every kind read from a secondary: retained and live, at every QoS, by the rules of their version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import aiomqtt
import pytest

from tests.acceptance.conftest import Mirror
from tests.support.clients import Message, mosquitto_sub, subscriber
from tests.support.mosquitto import publish_all, publisher
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto

Read = Callable[[int, str, int, int], list[Message]]
"""Port, Topic Filter, QoS and count; returns the first so many messages."""


def with_paho(version: int) -> Read:
    """Return a reader on paho-mqtt."""

    def read(port: int, topic_filter: str, qos: int, count: int) -> list[Message]:
        with subscriber(port, topic_filter, qos=qos, version=version) as inbox:
            return list(inbox.wait(count)[:count])

    return read


def with_mosquitto_sub(version: str) -> Read:
    """Return a reader on `mosquitto_sub`."""

    def read(port: int, topic_filter: str, qos: int, count: int) -> list[Message]:
        return mosquitto_sub(port, topic_filter, count=count, options=["-q", str(qos), "-V", version])

    return read


def with_aiomqtt(version: aiomqtt.ProtocolVersion) -> Read:
    """Return a reader on aiomqtt."""

    async def collect(port: int, topic_filter: str, qos: int, count: int) -> list[Message]:
        messages: list[Message] = []
        async with asyncio.timeout(30), aiomqtt.Client("127.0.0.1", port, protocol=version) as client:
            await client.subscribe(topic_filter, qos=qos)
            async for one in client.messages:
                assert isinstance(one.payload, bytes)
                messages.append(Message(str(one.topic), one.payload, one.qos, one.retain, {}))
                if len(messages) == count:
                    break
        return messages

    def read(port: int, topic_filter: str, qos: int, count: int) -> list[Message]:
        return asyncio.run(collect(port, topic_filter, qos, count))

    return read


CLIENTS = {
    "paho 3.1.1": with_paho(4),
    "paho 5": with_paho(5),
    "aiomqtt 3.1.1": with_aiomqtt(aiomqtt.ProtocolVersion.V311),
    "aiomqtt 5": with_aiomqtt(aiomqtt.ProtocolVersion.V5),
    "mosquitto_sub 3.1.1": with_mosquitto_sub("311"),
    "mosquitto_sub 5": with_mosquitto_sub("5"),
}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("client", CLIENTS)
def test_client_reads_retained_and_live(mirror: Mirror, client: str, qos: int) -> None:
    """Done when: mosquitto_sub, paho-mqtt 3.1.1 and 5, and aiomqtt read retained and live, at QoS 0, 1 and 2."""
    port = mirror.secondary.port
    root = f"plant/clients/{client.replace(' ', '-')}/{qos}"
    with publisher(mirror.mosquitto.port) as source:
        publish_all(source, [(f"{root}/{number}", b"retained %d" % number) for number in range(5)], qos=2)
        wait_until_blocking(lambda: len(read_retained(port, f"{root}/#")) == 5, what="the retained values")
        before = subscriptions(mirror)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(CLIENTS[client], port, f"{root}/#", qos, 10)
            wait_until_blocking(lambda: subscriptions(mirror) > before or reading.done(), what="the subscription")
            publish_all(source, [(f"{root}/{number}", b"live %d" % number) for number in range(5)], qos=2)
            messages = reading.result(20)
    assert sorted((one.topic, one.payload, one.qos, one.retain) for one in messages[:5]) == [
        (f"{root}/{number}", b"retained %d" % number, qos, True) for number in range(5)
    ]
    assert [(one.topic, one.payload, one.qos, one.retain) for one in messages[5:]] == [
        (f"{root}/{number}", b"live %d" % number, qos, False) for number in range(5)
    ]


def subscriptions(mirror: Mirror) -> int:
    """Return how many subscriptions the secondary has."""
    return int(mirror.secondary.document("/v1/status")["server"]["subscriptions"])
