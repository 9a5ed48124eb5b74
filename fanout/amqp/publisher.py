"""Messages that a JMS application publishes: from its links, by the connection's client of MQTT, to the verdict."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import cproton
from proton import Delivery

from fanout.amqp import engine
from fanout.amqp.client import MqttClient
from fanout.amqp.conditions import condition_of
from fanout.amqp.engine import LinkRequest
from fanout.amqp.messages import ORIGIN_PROPERTY, JmsMessage, read_message
from fanout.amqp.values import AmqpInvalid
from fanout.errors import ProtocolError
from fanout.mqtt.packets import Connack, Publish, encode
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.runs import AckRun
from fanout.mqtt.topics import check_topic_name
from fanout.server.base.ports import Clock

__all__ = ["Publisher", "PublisherLink"]

CREDIT: Final = 100
"""Messages that a peer may send on one link before it hears of the first."""
_WAITING_BYTES: Final = 1024 * 1024
"""Bytes that wait for the server before nothing more is read of the peer."""
_MESSAGE_BYTES: Final = 1024
"""Bytes that a message takes besides those of its packet."""
_RECEIVE_MAXIMUM_DEFAULT: Final = 0xFFFF


class PublisherLink:
    """One link from the peer."""

    def __init__(self, link: Any, request: LinkRequest, *, message_bytes_max: int) -> None:
        """Attach or refuse the link.

        Args:
            link: The link of the library.
            request: Terms of the peer.
            message_bytes_max: Limit of one message.
        """
        self.link = link
        """The link of the library."""
        self.is_open = False
        """True until it is refused or detached."""
        self.topic = request.address
        """Topic Name; empty if each message has its own."""
        self.is_queue = request.is_queue
        """True if the peer takes the topic for a queue."""
        self.unanswered = 0
        """Messages whose verdict is to come."""
        self.partial = bytearray()
        """Part of a message whose rest is to come."""
        self.message_bytes_max = message_bytes_max
        """Limit of one message."""
        problem = request.unsupported and f"This server has no {request.unsupported}"
        if problem:
            engine.refuse(link, "amqp:not-implemented", problem)
        elif request.address and (problem := _problem_of(request.address)):
            engine.refuse(link, "amqp:invalid-field", problem)
        else:
            self.is_open = True
            link.max_message_size = message_bytes_max
            engine.attach(link)
            link.flow(CREDIT)

    def receive(self, delivery: Any) -> bytes | None:
        """Read what has come of a delivery of the engine; return the message once it is complete.

        Raises:
            AmqpInvalid: It is longer than its limit.
        """
        if cproton.pn_delivery_aborted(delivery):
            self.partial.clear()
            cproton.pn_delivery_settle(delivery)
            self.renew_credit()
            return None
        if not cproton.pn_delivery_readable(delivery):
            return None
        count = cproton.pn_delivery_pending(delivery)
        if count:
            _, data = cproton.pn_link_recv(self.link._impl, count)
            self.partial += data
        if len(self.partial) > self.message_bytes_max:
            raise AmqpInvalid(f"a message has more than {self.message_bytes_max:,} bytes")
        if cproton.pn_delivery_partial(delivery):
            return None
        cproton.pn_link_advance(self.link._impl)
        self.unanswered += 1
        message = bytes(self.partial)
        self.partial.clear()
        return message

    def renew_credit(self) -> None:
        """Grant credit up to the limit, less what waits for a verdict; not for a few messages."""
        room = CREDIT - self.unanswered - cproton.pn_link_credit(self.link._impl)
        if room >= CREDIT // 2:
            self.link.flow(room)


@dataclass(slots=True)
class _Unanswered:
    """A message whose verdict is to come."""

    link: PublisherLink
    delivery: Any

    def settle(self, condition: str = "", description: str = "") -> None:
        """Tell the peer the verdict; see `engine.settle`."""
        if self.link.is_open:
            engine.settle(self.delivery, condition, description)
            self.link.unanswered -= 1
            self.link.renew_credit()


class Publisher:
    """The publishing side of one connection."""

    def __init__(self, client: MqttClient, *, origin: str, clock: Clock, user_properties_max: int) -> None:
        """Begin.

        Args:
            client: The client of MQTT that publishes.
            origin: Name of the connection in its messages.
            clock: For times of expiry.
            user_properties_max: Limit of the properties of a message.
        """
        self._client = client
        self._origin = origin
        self._clock = clock
        self._user_properties_max = user_properties_max
        self._waiting: deque[tuple[Publish, int, _Unanswered]] = deque()
        self._waiting_bytes = 0
        self._unanswered: dict[int, _Unanswered] = {}
        self._last_id = 0
        self._inflight_max = _RECEIVE_MAXIMUM_DEFAULT
        self._packet_bytes_max = 0
        self._qos = 1
        self._retains = True

    def connected(self, packet: Connack) -> None:
        """Take the server's limits."""
        told = packet.properties
        self._inflight_max = told.receive_maximum or _RECEIVE_MAXIMUM_DEFAULT
        self._packet_bytes_max = told.maximum_packet_size or 0
        self._qos = 1 if told.maximum_qos is None else min(told.maximum_qos, 1)
        self._retains = told.retain_available != 0

    @property
    def is_full(self) -> bool:
        """True if nothing more should be read of the peer."""
        return self._waiting_bytes > _WAITING_BYTES

    def publish(self, link: PublisherLink, data: bytes, delivery: Any) -> None:
        """Publish a complete message; its delivery is settled when the server has answered.

        Args:
            link: Its link.
            data: Its bytes.
            delivery: Its delivery, of the engine.
        """
        settled = bool(cproton.pn_delivery_settled(delivery))
        unanswered = _Unanswered(link, Delivery.wrap(delivery))
        try:
            message = read_message(data, now_ms=self._clock.now_ns() // 1_000_000)
            packet, size = self._packet(link, message, qos=0 if settled else self._qos)
        except AmqpInvalid as error:
            unanswered.settle("amqp:not-allowed", error.message)
            return
        size += _MESSAGE_BYTES
        self._waiting.append((packet, size, unanswered))
        self._waiting_bytes += size
        self.send_waiting()

    def _packet(self, link: PublisherLink, message: JmsMessage, *, qos: int) -> tuple[Publish, int]:
        """Return the packet of a message, and its size."""
        topic = link.topic or message.to
        if problem := _problem_of(topic):
            raise AmqpInvalid(problem)
        retain = message.retain and bool(message.payload) and not (link.is_queue if link.topic else message.to_queue)
        if retain and not self._retains:
            raise AmqpInvalid("This server takes no retained messages from applications")
        if len(message.properties) >= self._user_properties_max:
            raise AmqpInvalid(f"A message has more than {self._user_properties_max - 1:,} properties")
        properties = Properties(
            payload_format_indicator=1 if message.is_text else None,
            message_expiry_interval=message.expiry_s,
            user_property=(*message.properties, (ORIGIN_PROPERTY, self._origin)),
        )
        packet = Publish(topic.encode(), message.payload, qos, retain, packet_id=qos or None, properties=properties)
        try:
            size = len(encode(packet, version=5))
        except (ProtocolError, ValueError) as error:
            raise AmqpInvalid(f"A property is not text of MQTT: {error}") from error
        if 0 < self._packet_bytes_max < size:
            raise AmqpInvalid(f"A message of MQTT has at most {self._packet_bytes_max:,} bytes here")
        return packet, size

    def send_waiting(self) -> None:
        """Send what waits, as far as the server takes it."""
        client = self._client
        while self._waiting and client.reading and not client.has_ended:
            if len(self._unanswered) >= self._inflight_max:
                return
            packet, size, unanswered = self._waiting.popleft()
            self._waiting_bytes -= size
            if packet.qos:
                packet_id = self._next_id()
                self._unanswered[packet_id] = unanswered
                client.send(
                    Publish(packet.topic, packet.payload, 1, packet.retain, False, packet_id, packet.properties)
                )
            else:
                client.send(packet)
                unanswered.settle()

    def _next_id(self) -> int:
        while True:
            self._last_id = self._last_id % 0xFFFF + 1
            if self._last_id not in self._unanswered:
                return self._last_id

    def answered(self, run: AckRun) -> None:
        """Tell the peer the server's verdicts."""
        codes = run.reason_codes or [0] * len(run)
        for packet_id, code in zip(run.packet_ids, codes, strict=True):
            unanswered = self._unanswered.pop(packet_id, None)
            if unanswered is None:
                continue
            if code < 0x80:
                unanswered.settle()
            else:
                text = f"The server refuses the message: {ReasonCode(code).text}"
                unanswered.settle(condition_of(code), text)
        self.send_waiting()


def _problem_of(topic: str) -> str:
    """Return what is wrong with a Topic Name to publish to; empty for nothing."""
    if not topic:
        return "The message names no topic"
    try:
        check_topic_name(topic.encode())
    except ProtocolError as error:
        return f"Not a topic that can be published to: {error.detail}"
    return ""
