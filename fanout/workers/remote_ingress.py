"""The ingress of a worker: what its clients publish goes to the hub, which decides.

Owns the requests without an answer, and the marks above which publishers wait. It must not know sessions, nor what the
hub does with a message; that comes back like any other update.
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
"""Messages without the hub's answer above which publishers wait."""
ROWS_LOW: Final = 10_000
"""Messages below which they go on."""
_UNAVAILABLE: Final = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class RemoteIngress:
    """Hands over to the hub what clients publish (`fanout.server.base.ports.Ingress`).

    Attributes:
        waiting: Messages that wait for the hub.
    """

    def __init__(
        self,
        *,
        send: Callable[[Published], None],
        pause: Callable[[bool], None],
        count_refused: Callable[[int], None],
    ) -> None:
        """Make an ingress with nothing under way.

        Args:
            send: Sends to the hub.
            pause: Told True when publishers are to wait, and False when they can go on.
            count_refused: Told how many messages the hub refused.
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
        """Take a run of PUBLISH packets; `fanout.server.base.ports.Ingress` says what is promised.

        The verdicts at QoS 0, which nobody is told, are given at once.
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
        """Note whether too much is on its way to the hub."""
        self._is_unsent = is_full
        self._balance()

    def answer(self, verdicts: PublishVerdicts) -> None:
        """Take the hub's answer."""
        futures = self._open.pop(verdicts.request)
        self.waiting -= len(futures)
        refused = 0
        for future, code in zip(futures, verdicts.codes, strict=True):
            refused += code >= 0x80
            if future is not None:
                future.set_result(code)
        if refused:
            self._count_refused(refused)
        self._is_many = self._is_many and self.waiting > ROWS_LOW
        self._balance()

    def give_up(self) -> None:
        """Tell those who wait that the hub does not answer any more."""
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
