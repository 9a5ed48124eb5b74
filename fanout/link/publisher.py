"""Publisher of messages of local clients over MQTT 3.1.1, on a Network Connection of its own.

MQTT 3.1.1 has no limits in CONNACK and no Reason Codes: a server that does not accept a message closes the
connection. The link's own connection has no session there that could be resumed, so its replica would be removed each
time. This one has nothing to lose. It is opened when there is something to publish, and closed when there was nothing
for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from structlog.typing import FilteringBoundLogger

from fanout.config import Address, LinkConfig
from fanout.errors import FanoutError
from fanout.link.model.events import Event, Forwarded
from fanout.link.model.skipped import SkippedMessages
from fanout.link.model.status import Clock
from fanout.link.protocol.forwarding import NOT_TAKEN, UNAVAILABLE, Forwarding, puback_reason_code
from fanout.link.protocol.sender import OutgoingMessage, PacketSender
from fanout.link.short_connection import ShortConnection, short_config, short_connection
from fanout.mqtt.breaches import SkipReason
from fanout.mqtt.decoder import AckRun, Item
from fanout.mqtt.packets import Pingresp
from fanout.mqtt.reason_codes import ReasonCode
from fanout.runtime.backoff import Backoff

__all__ = ["IDLE_S", "Publisher"]

IDLE_S = 60.0
"""Seconds without a message after which the connection is closed; also the time that an answer may take."""
_NAME = "publish"
_LONG_S = float("inf")


class Publisher:
    """Publisher of one link."""

    def __init__(
        self,
        config: LinkConfig,
        *,
        node_id: str,
        address: Callable[[], Address],
        skipped: SkippedMessages,
        clock: Clock,
        logger: FilteringBoundLogger,
        on_event: Callable[[Event], None],
    ) -> None:
        """Begin without a connection.

        Args:
            config: The link's configuration.
            node_id: This node.
            address: Returns the address of the primary in use.
            skipped: Skipped messages of the link.
            clock: Clock of the node.
            logger: Logger of the link.
            on_event: Called with the fate of each message.
        """
        self._config = config
        self._node_id = node_id
        self._address = address
        self._skipped = skipped
        self._clock = clock
        self._logger = logger
        self._on_event = on_event
        self._sender = PacketSender(short_config(config, node_id, _NAME), node_id=node_id)
        self._forwarding = Forwarding(self._sender)
        self._connection: ShortConnection | None = None
        self._wanted = asyncio.Event()
        """Set when there is something to publish."""
        self._backoff = Backoff(min_s=config.retry_min_s, max_s=config.retry_max_s)

    def forward(self, message: OutgoingMessage) -> int | ReasonCode:
        """Publish a message; return as `LinkSession.forward` does."""
        added = self._forwarding.add(message, now=self._clock.monotonic(), live=self._connection is not None)
        if self._connection is not None:
            self._connection.write()
        self._wanted.set()
        return added

    async def run(self) -> None:
        """Publish, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._forwarding.is_waiting or self._sender.unanswered():
                try:
                    await self._serve()
                except FanoutError as error:
                    self._logger.warning("connection for messages of clients was lost", reason=error.message)
                    await asyncio.sleep(self._backoff.next_delay_s())

    async def _serve(self) -> None:
        """Publish on one connection until it has been idle for long.

        Raises:
            FanoutError: It was lost, or the primary cannot be reached.
        """
        connection: ShortConnection | None = None
        try:
            async with short_connection(
                self._address(), self._config, node_id=self._node_id, name=_NAME, sender=self._sender
            ) as connection:
                self._connection = connection
                connection.on_item = self._receive
                self._give_up(self._sender.resend_in_flight(self._clock.monotonic()))
                self._send()
                while await self._wait_used(connection):
                    pass
        except BaseException:
            self._note_lost(connection)
            raise
        finally:
            self._connection = None

    async def _wait_used(self, connection: ShortConnection) -> bool:
        """Wait for answers, and keep the connection alive; return whether it is still of use."""
        sender, asked = self._sender, False
        keep_alive_s = self._config.keep_alive_s or IDLE_S
        idle_s = 0.0
        while idle_s < IDLE_S:
            wait_s = min(IDLE_S, keep_alive_s / 2)
            before = self._clock.monotonic()
            await connection.wait_read(seconds=wait_s)
            if self._clock.monotonic() - before < wait_s:
                return True
            idle_s += wait_s
            if asked and sender.ping_sent_s is not None:
                return False
            sender.ping(self._clock.monotonic())
            asked = True
            connection.write()
        return False

    def _send(self) -> None:
        self._forwarding.send(self._clock.monotonic())
        if self._connection is not None:
            self._connection.write()

    def _receive(self, item: Item) -> None:
        if isinstance(item, AckRun):
            for message, reason_code in self._sender.acknowledged(item, now=self._clock.monotonic()):
                self._backoff.note_success(lasted_s=_LONG_S)
                self._on_event(Forwarded(message.token, puback_reason_code(reason_code)))
            self._send()
        elif isinstance(item, Pingresp):
            self._sender.receive_pingresp()

    def _note_lost(self, connection: ShortConnection | None) -> None:
        """Tell the publishers of messages that are lost with the connection."""
        if connection is None:  # it could not be opened
            self._give_up(self._forwarding.drop_all())
            return
        given_up, waiting = self._forwarding.note_lost(by_primary=connection.was_closed)
        if self._forwarding.is_to_blame:  # the primary is well
            self._backoff.note_success(lasted_s=_LONG_S)
        if given_up is not None:
            self._on_event(Forwarded(given_up.token, NOT_TAKEN))
            now_ns = self._clock.now_ns()
            self._on_event(self._skipped.note(SkipReason.CLOSES_CONNECTION, given_up.topic, now_ns=now_ns))
        self._give_up([*waiting, *self._sender.drop_released()])

    def _give_up(self, messages: Iterable[OutgoingMessage]) -> None:
        for message in messages:
            self._on_event(Forwarded(message.token, UNAVAILABLE))
