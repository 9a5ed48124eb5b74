"""Publisher of a probe: retained messages at QoS 1 below a topic of its own, and their removal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from fanout.config import LinkConfig
from fanout.errors import FanoutError, LinkLost
from fanout.link.protocol.handshake import reason_text
from fanout.link.protocol.sender import OutgoingMessage
from fanout.link.short_connection import ShortConnection, short_connection
from fanout.mqtt.decoder import AckRun, Item

__all__ = ["PublishRefused", "Publisher"]

_IN_FLIGHT_MAX = 100
"""Number of messages without an answer at a time, unless the primary's Receive Maximum is lower."""
_ANSWER_S = 10.0
"""Seconds that the primary may take between two answers."""


class PublishRefused(FanoutError):
    """The primary does not take a message of this user."""


class Publisher:
    """Publisher for one primary.

    Attributes:
        retained: Topics that may have a retained message of this publisher, in order.
    """

    def __init__(self, link: LinkConfig, *, node_id: str, version: int) -> None:
        """Prepare; each publication makes a connection of its own.

        Args:
            link: The link whose address and user are used.
            node_id: Node identifier, from which the Client Identifier is made.
            version: Protocol version.
        """
        self.retained: dict[str, None] = {}
        self._link = replace(link, version=5 if version == 5 else 4, retain_policy="keep", connect_timeout_s=5.0)
        self._node_id = node_id

    async def connect(self) -> None:
        """Connect once.

        Raises:
            FanoutError: The primary does not answer, or refuses the connection.
        """
        async with self._connected():
            pass

    async def publish(self, messages: Sequence[tuple[str, bytes]], *, retain: bool = True) -> None:
        """Publish messages, and wait until the primary has acknowledged them all.

        Raises:
            PublishRefused: The primary refuses one.
            FanoutError: The primary cannot be reached, does not answer, or ends the connection.
        """
        loop = asyncio.get_running_loop()
        answered = 0
        refused: int | None = None

        async with self._connected() as connection:
            sender = connection.sender

            def receive(item: Item) -> None:
                nonlocal answered, refused
                if isinstance(item, AckRun):
                    for _, code in sender.acknowledged(item, now=loop.time()):
                        answered += 1
                        refused = code if code >= 0x80 else refused

            connection.on_item = receive
            sent, answered_s = 0, loop.time()
            while answered < len(messages):
                if refused is not None:
                    raise PublishRefused(f"the primary refuses a message below this prefix: {reason_text(refused)}")
                while sent < len(messages) and sent - answered < _IN_FLIGHT_MAX and sender.free:
                    topic, payload = messages[sent]
                    message = OutgoingMessage(topic.encode(), payload, retain=retain)
                    if not sender.takes(message):
                        raise PublishRefused("the primary takes no retained messages, or none at QoS 1")
                    if retain:
                        self.retained[topic] = None
                    sender.publish(message, now=loop.time())
                    sent += 1
                connection.write()
                before = answered
                await connection.wait_read(seconds=_ANSWER_S)
                if answered != before:
                    answered_s = loop.time()
                elif loop.time() >= answered_s + _ANSWER_S:
                    raise LinkLost(f"the primary did not acknowledge a message within {_ANSWER_S:g} s")
        if refused is not None:
            raise PublishRefused(f"the primary refuses a message below this prefix: {reason_text(refused)}")

    async def clear(self, topics: Sequence[str]) -> None:
        """Remove retained messages; see `publish` for errors."""
        await self.publish([(topic, b"") for topic in topics])
        for topic in topics:
            self.retained.pop(topic, None)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[ShortConnection]:
        address = self._link.primaries[0]
        async with short_connection(address, self._link, node_id=self._node_id, name="set") as connection:
            yield connection
