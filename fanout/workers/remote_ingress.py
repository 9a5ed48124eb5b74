"""Ingress of a worker: sends published messages to the hub, which decides on them.

Owns the open requests, and the water marks at which publishers pause. Accepted messages come back as updates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.ports import PublishVerdict
from fanout.workers.messages import Published, PublishVerdicts

__all__ = ["ROWS_HIGH", "ROWS_LOW", "RemoteIngress"]

ROWS_HIGH: Final = 50_000
"""Messages without the hub's verdict above which publishers pause."""
ROWS_LOW: Final = 10_000
"""Messages without the hub's verdict below which they resume."""
_UNAVAILABLE: Final = ReasonCode.SERVER_UNAVAILABLE


class RemoteIngress:
    """Sends published messages to the hub (`fanout.server.base.ports.Ingress`).

    Attributes:
        waiting: Messages without the hub's verdict.
    """

    def __init__(
        self,
        *,
        send: Callable[[Published], None],
        pause: Callable[[bool], None],
        count_refused: Callable[[int], None],
    ) -> None:
        """Make an ingress without open requests.

        Args:
            send: Sends to the hub.
            pause: Called with True to pause publishers, and with False to resume them.
            count_refused: Called with the number of messages at QoS 0 that the hub refused.
        """
        self.waiting = 0
        self._send = send
        self._pause = pause
        self._count_refused = count_refused
        self._request = 0
        self._open: dict[int, list[asyncio.Future[ReasonCode] | None]] = {}
        self._is_many = False
        self._is_unsent = False
        self._is_paused = False

    def publish(self, client_id: str, rows: list[PublishRow], now_ns: int) -> Sequence[PublishVerdict]:
        """Receive a run of PUBLISH packets; see `fanout.server.base.ports.Ingress`.

        At QoS 0 the verdict is SUCCESS at once, because it is not sent to the client.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() if row[2] & 6 else None for row in rows]
        self._request += 1
        self._open[self._request] = futures
        self.waiting += len(rows)
        self._send(Published(self._request, client_id, rows, now_ns))
        self._is_many = self._is_many or self.waiting > ROWS_HIGH
        self._balance()
        return [ReasonCode.SUCCESS if future is None else future for future in futures]

    def note_backpressure(self, is_full: bool) -> None:
        """Record whether too many bytes to the hub are unsent."""
        self._is_unsent = is_full
        self._balance()

    def answer(self, verdicts: PublishVerdicts) -> None:
        """Process the hub's verdicts."""
        futures = self._open.pop(verdicts.request)
        self.waiting -= len(futures)
        refused = 0
        for future, code in zip(futures, verdicts.codes, strict=True):
            if future is not None:
                future.set_result(code)
            else:
                refused += code >= 0x80
        if refused:
            self._count_refused(refused)
        self._is_many = self._is_many and self.waiting > ROWS_LOW
        self._balance()

    def give_up(self) -> None:
        """Refuse all messages without a verdict, because the hub has ended."""
        for futures in self._open.values():
            for future in futures:
                if future is not None:
                    future.set_result(_UNAVAILABLE)
        self._open.clear()
        self.waiting = 0

    def _balance(self) -> None:
        paused = self._is_many or self._is_unsent
        if paused is not self._is_paused:
            self._is_paused = paused
            self._pause(paused)
