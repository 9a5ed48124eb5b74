"""The one publisher of a chaos run: bursts and pauses drawn from the seed, every acknowledgement noted in the truth.

Owns its connection to the primary, which it makes again only when it was told that the primary was read (`resume`). It
must not know of faults; whoever injects one may ask for a burst meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from bench.chaos.client import Client, pack_properties
from bench.chaos.truth import Truth, Value

__all__ = ["TOPICS", "Publisher"]

TOPICS = (
    *(f"plant/{number}/v" for number in range(203)),  # not 200, which looks like a limit of the primary
    *(f"office/{number}/state" for number in range(80)),
    *(f"hall/{number}" for number in range(40)),
)
_WINDOW = 16
"""Less than the Receive Maximum of a Mosquitto with defaults, which is 20."""
_PAUSE_S = (0.1, 1.5)
_KINDS = {"value": 70, "repeat": 4, "clear": 8, "expiring": 8, "event": 10}
_EXPIRY_S = (2, 6)


class Publisher:
    """Publishes until it is told to end.

    Attributes:
        sent_total: Messages sent.
        bursts: Begin, end and number of messages of what it published at one go.
    """

    def __init__(
        self,
        port: int,
        *,
        truth: Truth,
        draw: random.Random,
        tell: Callable[[str], None],
        qos: int = 1,
        with_properties: bool = True,
    ) -> None:
        """Describe a publisher.

        Args:
            port: The primary's.
            truth: The ledger, which it keeps.
            draw: Decides what it publishes.
            tell: Takes lines of the time line.
            qos: Of all messages, for a server may exchange the order of different ones.
            with_properties: True if some values have properties, and some expire.
        """
        self.sent_total = 0
        self.bursts: list[tuple[datetime, datetime, int]] = []
        self._qos = qos
        self._with_properties = with_properties
        self._port = port
        self._truth = truth
        self._draw = draw
        self._tell = tell
        self._number = 0
        self._wanted: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._may_run = asyncio.Event()
        self._window = asyncio.Semaphore(_WINDOW)
        self._client: Client | None = None

    def hold(self) -> None:
        """Publish nothing until `resume`: the primary is gone."""
        self._may_run.clear()

    def resume(self) -> None:
        """Publish (again): the truth is known."""
        self._may_run.set()

    def burst(self, kind: str, count: int) -> None:
        """Ask for `count` messages of one kind, or of all with "mixed", as soon as possible."""
        self._wanted.put_nowait((kind, count))

    async def load(self) -> None:
        """Give every topic its first value."""
        client = await self._connect()
        for topic in TOPICS:
            await self._publish(client, topic, "value")
        await self.drain()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._may_run.wait()
            try:
                client = self._client
                if client is None or client.lost.is_set():
                    client = await self._connect()
                await self._bursts(client)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.1)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        for _ in range(_WINDOW):
            await self._window.acquire()
        for _ in range(_WINDOW):
            self._window.release()

    async def close(self) -> None:
        """Cut its connection."""
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        if self._client is not None:
            await self._client.close()
        client = Client(lambda _: None)
        await client.connect(self._port, "chaos-publisher")
        self._client = client
        return client

    async def _bursts(self, client: Client) -> None:
        while self._may_run.is_set() and not client.lost.is_set():
            try:
                async with asyncio.timeout(self._draw.uniform(*_PAUSE_S)):
                    kind, count = await self._wanted.get()
                self._tell(f"a burst of {count} ({kind})")
            except TimeoutError:
                kind, count = "mixed", self._draw.choice((1, 3, 10, 30, 100))
            begin = datetime.now(UTC)
            try:
                for _ in range(count):
                    if not self._may_run.is_set():
                        return
                    await self._one(client, kind)
            finally:
                self.bursts.append((begin, datetime.now(UTC), count))

    async def _one(self, client: Client, kind: str) -> None:
        topic = self._draw.choice(TOPICS)
        if kind == "mixed":
            kind = self._draw.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
        if kind == "event":
            topic = f"plant/event/{self._draw.randrange(10)}"
            await self._publish(client, topic, "value", retain=False)
            return
        await self._publish(client, topic, kind)

    def _value(self, topic: str, kind: str) -> Value | None:
        if kind == "clear":
            return None
        if kind == "repeat":
            held = self._truth.held(topic)
            certain = self._truth.is_stable(topic, since=time.monotonic())
            if held is not None and held.expires is None and certain:
                return held
        self._number += 1
        payload = b"%d %s" % (self._number, b"x" * self._draw.choice((0, 8, 64, 700)))
        properties: dict[str, object] = {}
        if self._draw.random() < 0.2:
            properties["ContentType"] = "text/plain"
        if self._draw.random() < 0.2:
            properties["UserProperty"] = [("origin", f"line {self._draw.randrange(4)}")]
        if not self._with_properties:
            return Value(payload)
        expires = time.monotonic() + self._draw.randint(*_EXPIRY_S) if kind == "expiring" else None
        return Value(payload, properties, expires)

    async def _publish(self, client: Client, topic: str, kind: str, *, retain: bool = True) -> None:
        await self._window.acquire()
        if client.lost.is_set():
            self._window.release()
            raise ConnectionResetError("the primary is gone")
        value = self._value(topic, kind)  # now, for it may expire while it waits
        packed, payload = b"\x00", b""
        if value is not None:
            payload = value.payload
            packed = pack_properties(
                expiry_s=None if value.expires is None else round(value.expires - time.monotonic()),
                content_type=str(value.properties.get("ContentType", "")),
                pairs=value.properties.get("UserProperty", ()),
            )
        if retain:
            self._truth.sent(topic, value)
        future = client.publish(topic, payload, qos=self._qos, retain=retain, properties=packed)
        assert future is not None
        self.sent_total += 1
        life = self._truth.life

        def done(future: asyncio.Future[bytes]) -> None:
            self._window.release()
            # Messages that a killed primary left unanswered are read from it, and not known before.
            if retain and not future.exception() and life == self._truth.life:
                self._truth.acknowledged(topic, value)

        future.add_done_callback(done)
