"""Clients as users have them: paho-mqtt that collects, and `mosquitto_sub`.

Nothing here uses fanout's own codec: these are independent readers.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.waiting import wait_until_blocking

__all__ = ["Inbox", "Message", "mosquitto_sub", "publish_properties", "slow_reader", "subscriber"]

_DEADLINE_S = 60.0


class Message(NamedTuple):
    """What a subscriber received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]
    """MQTT 5 properties by paho's names; empty for MQTT 3.1.1, and without any."""


class Inbox:
    """What one subscriber received, in order, and its client."""

    def __init__(self, client: paho.Client, *, version: int) -> None:
        self.client = client
        self.messages: list[Message] = []
        """Grows while the client is connected."""
        self._version = version
        self._subacks: dict[int, list[Any]] = {}
        client.on_message = self._receive
        client.on_subscribe = self._subscribed

    @property
    def topics(self) -> list[str]:
        """The topics of the messages so far."""
        return [message.topic for message in self.messages]

    def of(self, topic: str) -> list[Message]:
        """Return the messages of one topic so far."""
        return [message for message in self.messages if message.topic == topic]

    def payloads(self, topic: str) -> list[bytes]:
        """Return the payloads of one topic so far."""
        return [message.payload for message in self.of(topic)]

    def newest(self) -> dict[str, bytes]:
        """Return the newest payload of each topic so far."""
        return {message.topic: message.payload for message in list(self.messages)}

    def subscribe(
        self,
        topic_filter: str,
        *,
        qos: int = 0,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        """Subscribe and wait for SUBACK, which must grant the QoS; the options count for MQTT 5 only."""
        if self._version == 5:
            options = SubscribeOptions(qos, False, retain_as_published, retain_handling)
            _, packet_id = self.client.subscribe(topic_filter, options=options)
        else:
            _, packet_id = self.client.subscribe(topic_filter, qos)
        assert packet_id is not None
        wait_until_blocking(lambda: packet_id in self._subacks, what=f"SUBACK for {topic_filter}")
        assert [code.value for code in self._subacks[packet_id]] == [qos]

    def wait(self, count: int, *, deadline_s: float = _DEADLINE_S) -> list[Message]:
        """Wait until so many messages have come, and return all."""
        wait_until_blocking(
            lambda: len(self.messages) >= count,
            deadline_s,
            what=lambda: f"message {count}, after {self.messages[-5:]}",
        )
        return self.messages

    def wait_for(self, topic: str, payload: bytes | None = None, *, deadline_s: float = _DEADLINE_S) -> Message:
        """Wait for a message of a topic, with a payload if given, and return the first such one."""

        def found() -> list[Message]:
            return [one for one in self.of(topic) if payload is None or one.payload == payload]

        wait_until_blocking(found, deadline_s, what=lambda: f"{topic} {payload!r}, after {self.messages[-5:]}")
        return found()[0]

    def _receive(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        properties = message.properties.json() if message.properties else {}  # type: ignore[no-untyped-call]  # paho
        self.messages.append(Message(message.topic, bytes(message.payload), message.qos, message.retain, properties))

    def _subscribed(
        self, _client: paho.Client, _data: object, packet_id: int, codes: list[Any], _properties: object
    ) -> None:
        self._subacks[packet_id] = codes


@contextmanager
def subscriber(port: int, *topic_filters: str, qos: int = 0, version: int = 5, client_id: str = "") -> Iterator[Inbox]:
    """Give a connected paho-mqtt client that has subscribed.

    Args:
        port: The server's port.
        topic_filters: What it subscribes to; `Inbox.subscribe` does more.
        qos: Their Maximum QoS.
        version: 5, or 4 for MQTT 3.1.1.
        client_id: Its Client Identifier; empty lets the server choose.
    """
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5 if version == 5 else paho.MQTTv311
    )
    inbox = Inbox(client, version=version)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        wait_until_blocking(client.is_connected, what="the subscriber's CONNACK")
        for topic_filter in topic_filters:
            inbox.subscribe(topic_filter, qos=qos)
        yield inbox
    finally:
        client.disconnect()
        client.loop_stop()


def publish_properties(**values: Any) -> Properties:
    """Return paho's properties of a PUBLISH, by their names in the specification without blanks."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def mosquitto_sub(port: int, topic_filter: str, *, count: int, options: Sequence[str] = ()) -> list[Message]:
    """Run `mosquitto_sub` until it has `count` messages, and return them.

    Args:
        port: The server's port.
        topic_filter: What it subscribes to.
        count: Messages to wait for.
        options: Further options of the command, such as `-q 1`.
    """
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-t", topic_filter, "-C", str(count), "-W", "60"]
    answer = subprocess.run([*command, "-F", "%t %q %r %p", *options], capture_output=True, check=True, timeout=90)
    messages = []
    for line in answer.stdout.splitlines():
        topic, qos, retain, payload = line.split(b" ", 3)
        messages.append(Message(topic.decode(), payload, int(qos), retain == b"1", {}))
    return messages


@contextmanager
def slow_reader(port: int, topic_filter: bytes, *, qos: int) -> Iterator[None]:
    """Give a client (MQTT 3.1.1) that subscribes, and reads nothing more."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(_DEADLINE_S)
        connection.connect(("127.0.0.1", port))
        connect = b"\x00\x04MQTT\x04\x02\x00\x00" + _prefixed(b"slow-%d" % qos)
        connection.sendall(b"\x10" + bytes([len(connect)]) + connect)
        subscribe = b"\x00\x01" + _prefixed(topic_filter) + bytes([qos])
        connection.sendall(b"\x82" + bytes([len(subscribe)]) + subscribe)
        assert connection.recv(4) == b"\x20\x02\x00\x00"
        yield


def _prefixed(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text
