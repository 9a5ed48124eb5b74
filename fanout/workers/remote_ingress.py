"""The ingress of a worker: what its clients publish goes to the hub, which decides.

Owns the requests without an answer, and their bound. It must not know sessions, nor what the hub does with a message;
that comes back like any other update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.collaborators import PublishVerdict
from fanout.workers.messages import Published, Verdicts

__all__ = ["ROWS_MAX", "RemoteIngress"]

ROWS_MAX: Final = 100_000
"""Messages that may wait for the hub; more are refused (Quota exceeded)."""
_UNAVAILABLE: Final = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


class RemoteIngress:
    """Hands over to the hub what clients publish (`fanout.server.collaborators.Ingress`).

    Attributes:
        waiting: Messages that wait for the hub.
    """

    def __init__(self, *, send: Callable[[Published], None], count_refused: Callable[[int], None]) -> None:
        """Make an ingress with nothing under way.

        Args:
            send: Sends to the hub.
            count_refused: Told how many messages the hub refused.
        """
        self.waiting = 0
        self._send = send
        self._count_refused = count_refused
        self._request = 0
        self._open: dict[int, list[asyncio.Future[ReasonCode] | None]] = {}

    def publish(self, client_id: str, rows: list[PublishRow], now_ns: int) -> Sequence[PublishVerdict]:
        """Take a run of PUBLISH packets; `fanout.server.collaborators.Ingress` says what is promised.

        The verdicts at QoS 0, which nobody is told, are given at once.
        """
        if self.waiting + len(rows) > ROWS_MAX:
            return [ReasonCode.QUOTA_EXCEEDED] * len(rows)
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() if row[2] & 6 else None for row in rows]
        self._request += 1
        self._open[self._request] = futures
        self.waiting += len(rows)
        # Views into the buffer of a read would not survive; rows hold bytes.
        self._send(Published(self._request, client_id, rows, now_ns))
        return [ReasonCode.SUCCESS if future is None else future for future in futures]

    def answer(self, verdicts: Verdicts) -> None:
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

    def give_up(self) -> None:
        """Tell those who wait that the hub does not answer any more."""
        for futures in self._open.values():
            for future in futures:
                if future is not None:
                    future.set_result(_UNAVAILABLE)
        self._open.clear()
        self.waiting = 0
