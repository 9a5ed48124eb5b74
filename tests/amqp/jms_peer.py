"""A JMS application on python-qpid-proton, in the encoding of Apache Qpid JMS: what leaves the door is read by it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

import pytest

from tests.support.waiting import wait_until

pytest.importorskip("proton", reason="python-qpid-proton is not installed (extra amqp)")

from proton import (
    SASL,
    Collector,
    Condition,
    Connection,
    Delivery,
    Described,
    Event,
    Link,
    Message,
    Terminus,
    Transport,
    byte,
    int32,
    symbol,
    ulong,
)

__all__ = [
    "Delivery",
    "JmsPeer",
    "Message",
    "Producer",
    "Subscription",
    "byte",
    "bytes_message",
    "retain_of",
    "text_message",
]

TYPE = symbol("x-opt-jms-msg-type")
DESTINATION = symbol("x-opt-jms-dest")


def text_message(text: str | None, *, retain: int | None = None, **more: Any) -> Message:
    """Return a TextMessage."""
    return _message(text, kind=5, retain=retain, **more)


def bytes_message(data: bytes, *, retain: int | None = None, **more: Any) -> Message:
    """Return a BytesMessage."""
    message = _message(data, kind=3, retain=retain, **more)
    message.inferred = True
    message.content_type = symbol("application/octet-stream")
    return message


def _message(body: Any, *, kind: int, retain: int | None, **more: Any) -> Message:
    message = Message(body=body, durable=True, **more)
    message.annotations = {TYPE: byte(kind), DESTINATION: byte(1)}
    if retain is not None:
        message.properties = {"JMS_IBM_Retain": int32(retain)}
    return message


def retain_of(message: Message) -> int:
    """Return the integer property of the application that says whether a message is retained."""
    value = message.properties["JMS_IBM_Retain"]
    assert type(value) is int32, "an Integer for Java"
    return int(value)


class Subscription:
    """A consumer of a topic."""

    def __init__(self, peer: JmsPeer, link: Any, *, accept: bool) -> None:
        self.peer = peer
        self.link = link
        self.accept = accept
        self.messages: list[Message] = []
        self.deliveries: list[Any] = []
        self.error: Condition | None = None
        self.detached = False

    async def wait(self, count: int) -> list[Message]:
        """Wait for `count` messages in all, and return them."""
        await wait_until(lambda: len(self.messages) >= count, what=lambda: f"{count} messages, got {self.messages}")
        return self.messages

    @property
    def bodies(self) -> list[tuple[Any, int]]:
        """Body and JMS_IBM_Retain of each message."""
        return [(message.body, retain_of(message)) for message in self.messages]

    def flow(self, credit: int) -> None:
        """Give credit."""
        self.link.flow(credit)
        self.peer.flush()

    async def end(self, *, closed: bool = True) -> None:
        """Close the consumer; with closed false, as one that will come again."""
        if closed:
            self.link.close()
        else:
            self.link.detach()
        self.peer.flush()
        await wait_until(lambda: self.detached)


class Producer:
    """A producer to a topic or a queue."""

    def __init__(self, peer: JmsPeer, link: Any) -> None:
        self.peer = peer
        self.link = link
        self.error: Condition | None = None
        self.detached = False
        self.sent = 0

    async def send(self, message: Message | bytes, *, settled: bool = False) -> Condition | None:
        """Send a message and return why it was refused; None if it was accepted."""
        await wait_until(lambda: self.link.credit > 0)
        self.sent += 1
        delivery = self.link.delivery(f"t{self.sent}")
        self.link.stream(message if isinstance(message, bytes) else message.encode())
        self.link.advance()
        if settled:
            delivery.settle()
        self.peer.flush()
        if settled:
            return None
        await wait_until(lambda: delivery.settled)
        if delivery.remote_state == Delivery.REJECTED:
            condition: Condition = delivery.remote.condition
            return condition
        assert delivery.remote_state == Delivery.ACCEPTED
        return None


class JmsPeer:
    """One connection of an application."""

    def __init__(self, container: str) -> None:
        self.connection = Connection()
        self.connection.container = container
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.transport = Transport()
        self.links: dict[str, Subscription | Producer] = {}
        self.ended = False
        self.recording: list[bytes] | None = None
        self.session: Any = None
        self.writer: asyncio.StreamWriter
        self.task: asyncio.Task[None]

    @classmethod
    async def connect(
        cls,
        port: int,
        container: str = "app",
        *,
        user: str | None = None,
        password: str | None = None,
        mechanisms: str = "PLAIN ANONYMOUS",
        sole: bool = False,
        tls: Any = None,
    ) -> Self:
        """Connect, and begin a session; the caller looks whether `is_open`."""
        peer = cls(container)
        reader, peer.writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        if user is not None:
            peer.connection.user, peer.connection.password = user, password
        peer.connection.hostname = "localhost"
        if sole:
            peer.connection.desired_capabilities = [symbol("sole-connection-for-container")]
        sasl = peer.transport.sasl()
        sasl.allowed_mechs(mechanisms)
        sasl.allow_insecure_mechs = True
        peer.transport.bind(peer.connection)
        peer.connection.open()
        peer.session = peer.connection.session()
        peer.session.open()
        peer.task = asyncio.create_task(peer.read(reader))
        peer.flush()
        await wait_until(lambda: peer.is_open or peer.ended)
        return peer

    @property
    def is_open(self) -> bool:
        """True once the server has opened the connection."""
        return bool(self.connection.state & Connection.REMOTE_ACTIVE)

    @property
    def sasl_failed(self) -> bool:
        """True if the server refused the credentials."""
        outcome: int | None = self.transport.sasl().outcome
        return outcome is not None and int(outcome) == int(SASL.AUTH)

    def flush(self) -> None:
        """Write what the engine has."""
        self.transport.tick(time.monotonic())
        while (count := self.transport.pending()) > 0:
            data = self.transport.peek(count)
            if self.recording is not None:
                self.recording.append(bytes(data))
            if not self.ended:
                self.writer.write(bytes(data))
            self.transport.pop(count)

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read until the server ends the connection."""
        while True:
            try:
                data = await reader.read(65536)
            except ConnectionError:
                data = b""
            if not data:
                break
            while data and (room := self.transport.capacity()) > 0:
                self.transport.push(data[:room])
                data = data[room:]
            self.process()
            self.flush()
        self.ended = True
        self.writer.close()

    def process(self) -> None:
        """Process the events of the engine."""
        while (event := self.collector.peek()) is not None:
            if event.type is Event.DELIVERY:
                self.take(event.delivery)
            elif event.type in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
                link = self.links[event.link.name]
                link.error, link.detached = event.link.remote_condition, True
            self.collector.pop()

    def take(self, delivery: Any) -> None:
        """Take a message, if it is complete."""
        subscription = self.links.get(delivery.link.name)
        if not isinstance(subscription, Subscription) or not delivery.readable or delivery.partial:
            return
        message = Message()
        message.decode(bytes(delivery.link.recv(delivery.pending)))
        if isinstance(message.body, memoryview):
            message.body = bytes(message.body)
        delivery.link.advance()
        subscription.messages.append(message)
        if subscription.accept:
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        else:
            subscription.deliveries.append(delivery)

    async def subscribe(
        self,
        topic: str | None,
        name: str = "consumer",
        *,
        durable: bool = False,
        no_local: bool = False,
        selector: str = "",
        capability: str = "topic",
        credit: int = 100,
        accept: bool = True,
    ) -> Subscription:
        """Make a consumer, as `createConsumer` and `createDurableSubscriber` of Apache Qpid JMS do."""
        link = self.session.receiver(name)
        if topic is None:
            link.source.type = Terminus.UNSPECIFIED
        else:
            link.source.address = topic
            link.source.capabilities.put_object(symbol(capability))
        if durable:
            link.source.durability, link.source.expiry_policy = Terminus.DELIVERIES, Terminus.EXPIRE_NEVER
        filters: dict[Any, Any] = {}
        if no_local:
            filters[symbol("no-local")] = Described(ulong(0x468C00000003), [])
        if selector:
            filters[symbol("jms-selector")] = Described(ulong(0x468C00000004), selector)
        if filters:
            link.source.filter.put_object(filters)
        link.snd_settle_mode, link.rcv_settle_mode = Link.SND_UNSETTLED, Link.RCV_FIRST
        link.open()
        if credit:
            link.flow(credit)
        subscription = Subscription(self, link, accept=accept)
        self.links[name] = subscription
        self.flush()
        await wait_until(lambda: link.state & (Link.REMOTE_ACTIVE | Link.REMOTE_CLOSED) or self.ended)
        if link.remote_source.type == Terminus.UNSPECIFIED:
            await wait_until(lambda: link.state & Link.REMOTE_CLOSED or self.ended)
            link.close()
            self.flush()
        return subscription

    async def producer(self, topic: str | None, name: str = "producer", *, capability: str = "topic") -> Producer:
        """Make a producer; None for one without a destination."""
        link = self.session.sender(name)
        link.target.type = Terminus.TARGET
        if topic is not None:
            link.target.address = topic
            link.target.capabilities.put_object(symbol(capability))
        link.open()
        producer = Producer(self, link)
        self.links[name] = producer
        self.flush()
        await wait_until(lambda: link.state & (Link.REMOTE_ACTIVE | Link.REMOTE_CLOSED) or self.ended)
        if link.remote_target.type == Terminus.UNSPECIFIED:
            await wait_until(lambda: link.state & Link.REMOTE_CLOSED or self.ended)
            link.close()
            self.flush()
        return producer

    async def close(self) -> None:
        """Close the connection in order."""
        self.connection.close()
        self.flush()
        await wait_until(lambda: self.ended)
        await self.task

    async def vanish(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()
        await wait_until(lambda: self.ended)
        await self.task
