"""A roaming client that is paho's: what a library that nobody wrote for this makes of a pool.

Its connection is cut at random times. It reconnects by itself, and keeps its Session State itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from bench.roaming.client import Figures, payload_of, read_payload, topic_of
from bench.roaming.packets import EXPIRY_S
from bench.roaming.records import Lapse, Sent, Subscriber

__all__ = ["PahoClient"]

_CUT_S = (0.5, 4.0)
_KEEP_ALIVE_S = 5
_PACKET_ID_NOT_FOUND = 0x92


class _Client(mqtt.Client):
    """paho without one of its faults, which is no pool's: it publishes again what it has released.

    When two connections in a row fail, paho 2.2.0 forgets that it has sent PUBREL, and sends PUBLISH [MQTT-4.3.3-6].
    """

    def _messages_reconnect_reset_out(self) -> None:
        released = [each for each in self._out_messages.values() if each.state == MessageState.MQTT_MS_RESEND_PUBREL]
        super()._messages_reconnect_reset_out()
        for message in released:
            message.state = MessageState.MQTT_MS_RESEND_PUBREL

    def has_released(self, packet_id: int) -> bool:
        """Return whether only the PUBREL of a message is sent again."""
        message = self._out_messages.get(packet_id)
        return message is not None and message.state == MessageState.MQTT_MS_RESEND_PUBREL


class PahoClient:
    """One client with a thread of paho; its callbacks run there, everything else on the event loop."""

    def __init__(
        self,
        client_id: str,
        *,
        port: int,
        version: int,
        publishers: Mapping[str, int],
        draw: random.Random,
        figures: Figures,
        kills: bool,
    ) -> None:
        """Describe a client, as `RoamingClient` does."""
        self.client_id = client_id
        self.subscriber = Subscriber(publishers)
        """Messages that it got."""
        self.sent: list[Sent] = []
        """Messages that it published."""
        self.subscribed = asyncio.Event()
        """Set once its subscriptions were acknowledged for the first time."""
        self.cutting = False
        """True if its connections are cut."""
        self.failure: BaseException | None = None
        """Why it ended by itself; paho's never does."""
        self._port, self._draw, self._figures, self._kills = port, draw, figures, kills
        self._pending: dict[int, Sent] = {}
        self._answers: deque[tuple[int, bool]] = deque()
        self._lost_at = 0.0
        self._lapsed = False
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None] | None = None
        protocol = mqtt.MQTTv5 if version == 5 else mqtt.MQTTv311
        clean = None if version == 5 else False
        self._client = _Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol, clean_session=clean)
        self._client.reconnect_delay_set(1, 1)
        self._options: dict[str, Any] = {}
        if version == 5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = EXPIRY_S
            self._options = {"clean_start": False, "properties": properties}
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_publish
        self._client.on_subscribe = self._on_subscribe

    def start(self) -> None:
        """Begin to connect."""
        self._loop = asyncio.get_running_loop()
        self._client.connect_async("127.0.0.1", self._port, _KEEP_ALIVE_S, **self._options)
        self._client.loop_start()
        self._task = self._loop.create_task(self._cut(), name=f"roaming {self.client_id}")

    async def finish(self) -> None:
        """Close the connection and end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait((self._task,))
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def is_done(self) -> bool:
        """True if everything that it published has come to its end, and it is connected."""
        self._take_answers()
        return self._client.is_connected() and not self._pending

    def publish(self, qos: int, number: int) -> None:
        """Publish a numbered message, at once or as soon as there is a connection."""
        self._take_answers()
        message = Sent(self.client_id, qos, number, time.monotonic())
        self.sent.append(message)
        self._publish(message)

    def _publish(self, message: Sent) -> None:
        info = self._client.publish(topic_of(self.client_id, message.qos), payload_of(message), qos=message.qos)
        self._pending[info.mid] = message

    def _take_answers(self) -> None:
        """Note what was acknowledged; a message that was refused is published anew."""
        while self._answers:
            packet_id, succeeded = self._answers.popleft()
            message = self._pending.pop(packet_id, None)
            if message is None:
                self._figures.counts["acknowledgements of nothing"] += 1
            elif succeeded:
                message.acknowledged = True
            else:
                message.at_risk = True
                self._publish(message)

    async def _cut(self) -> None:
        while True:
            await asyncio.sleep(self._draw.uniform(*_CUT_S))
            connection = self._client.socket()
            if self.cutting and self._client.is_connected() and isinstance(connection, socket.socket):
                self._figures.counts["cut: paho, at any time"] += 1
                with contextlib.suppress(OSError):  # it ended meanwhile
                    connection.shutdown(socket.SHUT_RDWR)

    # Called in paho's thread.

    def _on_connect(
        self, client: mqtt.Client, _data: object, flags: mqtt.ConnectFlags, code: ReasonCode, _properties: object
    ) -> None:
        if code.is_failure:
            self._figures.counts["paho refused to come later"] += 1
        elif flags.session_present:
            self._figures.counts["session present"] += 1
            for packet_id, message in list(self._pending.items()):
                # A member may have forwarded it, and have been killed before it told anybody.
                message.at_risk |= self._kills and message.qos == 2 and not self._client.has_released(packet_id)
        else:
            first = not self.subscribed.is_set()
            self._figures.counts["first session" if first else "session absent"] += 1
            self._lapsed = not first
            for message in list(self._pending.values()):
                message.at_risk = True
        if not code.is_failure and (self._lapsed or not self.subscribed.is_set()):
            client.subscribe([(f"roam/{name}/#", qos) for name, qos in self.subscriber.publishers.items()])

    def _on_disconnect(self, *_: object) -> None:
        if not self._lapsed:
            self._lost_at = time.monotonic()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        self.subscriber.received.append(read_payload(bytes(message.payload)))

    def _on_publish(
        self, _client: object, _data: object, packet_id: int, code: ReasonCode, _properties: object
    ) -> None:
        # A PUBREL that is sent again may find its handshake at its end [MQTT5 4.3.3]: the message was taken.
        self._answers.append((packet_id, not code.is_failure or code.value == _PACKET_ID_NOT_FOUND))

    def _on_subscribe(self, *_: object) -> None:
        if self._lapsed:
            self.subscriber.lapses.append(Lapse(self._lost_at, time.monotonic()))
        self._lapsed = False
        self._loop.call_soon_threadsafe(self.subscribed.set)
