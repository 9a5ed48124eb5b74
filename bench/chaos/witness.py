"""A local client that stays, and sees whether a value comes twice, or an older one after a newer one.

Owns one subscription at one secondary and the rules for what a live subscriber may see. A *life* of a topic begins with
a value and ends with the zero-length message that says it is gone, or when the witness had to subscribe anew. Within
one life no value may come more often than it was published, unless it is marked as a duplicate. No value may follow one
that was published later, unless the primary was restarted in between, perhaps with an older store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.chaos.client import Client, Message
from bench.chaos.truth import Truth, number_of

__all__ = ["Witness"]

_AGAIN_S = 0.2


@dataclass(slots=True)
class _Life:
    payload: bytes
    seen: int
    primary: int
    """Life of the primary, as `Truth.life` counts them, in which it came."""


class Witness:
    """One subscriber that connects again whenever it is cut off.

    Attributes:
        filters: Its Topic Filter.
        values: Its knowledge: the newest message of each topic that is not gone.
        received_total: Messages so far.
    """

    def __init__(
        self,
        name: str,
        *,
        port: int,
        filters: Sequence[str],
        durable: bool,
        truth: Truth,
        topic_at_primary: Callable[[str], str],
        violated: Callable[[str], None],
    ) -> None:
        """Describe a witness.

        Args:
            name: Its Client Identifier.
            port: The secondary's port.
            filters: Its Topic Filter.
            durable: At QoS 1 with a session that it resumes, or at QoS 0 without one.
            truth: The publisher's ledger.
            topic_at_primary: From the local topic.
            violated: Told what may not be.
        """
        self.name = name
        self.values: dict[str, Message] = {}
        self.received_total = 0
        self._port = port
        self.filters = filters
        self._durable = durable
        self._truth = truth
        self._topic_at_primary = topic_at_primary
        self._violated = violated
        self._lives: dict[str, _Life] = {}
        self._client: Client | None = None

    def cut(self) -> None:
        """Cut its connection, once."""
        if self._client is not None:
            self._client.abort()

    async def run(self) -> None:
        """Stay subscribed until cancelled."""
        subscribed = False
        try:
            while True:
                with contextlib.suppress(OSError, TimeoutError):
                    client = self._client = Client(self.receive)
                    try:
                        await client.connect(
                            self._port, self.name, clean=not subscribed, expiry_s=600 if self._durable else 0
                        )
                    except (OSError, TimeoutError):
                        # A server that was killed may have made a session without subscriptions, which nobody told.
                        subscribed = subscribed and not client.asked
                        raise
                    if not client.session_present:
                        subscribed = False
                        self.values.clear()
                        self._lives.clear()
                        await client.subscribe(*((each, int(self._durable)) for each in self.filters))
                        subscribed = self._durable
                    await client.lost.wait()
                if self._client is not None:
                    await self._client.close()
                await asyncio.sleep(_AGAIN_S)
        finally:
            if self._client is not None:
                await self._client.close()

    def receive(self, message: Message) -> None:
        """Take one message."""
        self.received_total += 1
        topic, payload = message.topic, message.payload
        if not payload:
            self.values.pop(topic, None)
            self._lives.pop(topic, None)
            return
        if "/event/" in topic:
            return
        self.values[topic] = message
        life = self._lives.get(topic)
        if life is None:
            self._lives[topic] = _Life(payload, 1, self._truth.life)
            return
        if message.dup:  # sent again because it was not acknowledged, and marked so; it may not have come before
            if payload != life.payload:
                self._lives[topic] = _Life(payload, 1, self._truth.life)
            return
        if payload == life.payload:
            life.seen += 1
            life.primary = self._truth.life
            most = self._truth.publishes[self._topic_at_primary(topic), payload]
            if message.retain or life.seen > most:
                self._violated(
                    f"{self.name} got the value {number_of(payload)} of {topic} {life.seen} times"
                    f"{', with RETAIN' if message.retain else ''}; it was published {most} times"
                )
            return
        # One that came before the primary was restarted may have been published again since, and not come again yet.
        since = min(life.primary, self._truth.life_of(life.payload))
        if number_of(payload) < number_of(life.payload) and since == self._truth.life:
            self._violated(f"{self.name} got the value {number_of(payload)} of {topic} after {number_of(life.payload)}")
        self._lives[topic] = _Life(payload, 1, self._truth.life)
