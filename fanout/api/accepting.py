"""Acceptor of HTTP connections: their number is bounded from the accept on, and so is their work in a turn.

The event loop could accept them by itself, but counts no handshake under way: thousands of silent connections would
take all descriptors of the node; and it makes all that come at once in one turn. Connections of known addresses have
places of their own, which nobody else takes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from fanout.runtime.first_record import wait_for_handshake
from fanout.runtime.listening import Acceptor
from fanout.runtime.origin import origin_of
from fanout.runtime.turnstile import Turnstile

__all__ = ["ALL_ALIKE", "HttpAccepting", "Places"]

_BEING_MADE_MAX: Final = 256
"""Connections without TLS that are made at a time. Accepting one costs a tenth of making it. So connections wait in the
turnstile, where addresses take turns, and not in the order of the backlog."""
_HANDSHAKE_S: Final = 10.0
"""Time for a handshake."""
_CONNECTION_S: Final = 0.0005
"""Time of the processor that a connection without TLS takes, with the choice of one that it displaces."""
_OTHERS_PER_S: Final = 100
"""Handshakes of addresses without places that begin in a second: each takes a millisecond of the processor."""
_OF_EACH_PER_S: Final = 10
"""Handshakes of each such address that begin in a second in any case, so that a crowd keeps nobody else out."""
_PLACES: Final = 256


def _nobody(host: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Greatest number of connections at a time, beside as many handshakes."""

    is_kept: Callable[[str], bool] = _nobody
    """Returns whether places are kept for an IP address."""
    kept_max: int = _PLACES
    """Connections of all such addresses."""
    others_max: int = _PLACES
    """Connections of all others."""

    def limit(self, *, is_kept: bool) -> int:
        """Return the number of connections of one kind."""
        return self.kept_max if is_kept else self.others_max


ALL_ALIKE: Final = Places()
"""Places that are kept for nobody."""


class HttpAccepting:
    """Accepts the connections of one listening socket; `close` once."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        tls: ssl.SSLContext | None,
        turnstile: Turnstile,
        new_protocol: Callable[[], asyncio.Protocol],
        places: Places,
        closed_total: MutableMapping[str, int],
    ) -> None:
        """Start to accept.

        Args:
            listening: A listening socket that does not block, closed by `close`.
            tls: Context for handshakes; None without TLS.
            turnstile: Bounds the work in each turn of the event loop.
            new_protocol: Makes the protocol of a connection after its handshake.
            places: Bounds of connections that are accepted and not made, handshakes among them.
            closed_total: Counts connections that are closed here: `room`, `request_timeout`.
        """
        self._tls = tls
        self._turnstile = turnstile
        self._new_protocol = new_protocol
        self._places = places
        self._closed_total = closed_total
        self._loop = asyncio.get_running_loop()
        self._pending: dict[bool, dict[asyncio.Task[None], bytes]] = {True: {}, False: {}}
        """Connections that are being made, the oldest first, with their origins; of those with places, and others."""
        self._tokens, self._tokens_s = float(_OTHERS_PER_S), self._loop.time()
        self._begun: Counter[bytes] = Counter()
        """Handshakes of each origin in this second."""
        self._begun_s = self._tokens_s
        self._acceptor = Acceptor(listening, self._take)

    def close(self) -> None:
        """Stop to accept, and end the handshakes under way."""
        self._acceptor.close()
        for pending in self._pending.values():
            for task in list(pending):
                task.cancel()

    def _take(self, connection: socket.socket, host: str, _: int) -> None:
        is_kept, origin = self._places.is_kept(host), origin_of(host)
        if self._tls is not None and not is_kept and not self._take_token(origin):
            self._closed_total["room"] += 1
            connection.close()
            return
        pending = self._pending[is_kept]
        if len(pending) >= (_BEING_MADE_MAX if self._tls is None else self._places.limit(is_kept=is_kept)):
            displaced = self._displaced(pending)
            del pending[displaced]
            displaced.cancel()
            self._closed_total["room"] += 1
        task = self._loop.create_task(self._make(connection, origin), name="http-accept")
        pending[task] = origin
        task.add_done_callback(partial(self._end, pending, connection))

    def _displaced(self, pending: dict[asyncio.Task[None], bytes]) -> asyncio.Task[None]:
        """Return one of the origin with most: its oldest handshake, which may be silent; without TLS its newest."""
        ((most, _),) = Counter(pending.values()).most_common(1)
        return next(task for task in (pending if self._tls is not None else reversed(pending)) if pending[task] == most)

    @staticmethod
    def _end(pending: dict[asyncio.Task[None], bytes], connection: socket.socket, task: asyncio.Task[None]) -> None:
        pending.pop(task, None)
        if task.cancelled():  # maybe before it began
            connection.close()

    async def _make(self, connection: socket.socket, origin: bytes) -> None:
        try:
            if self._tls is None:
                await self._turnstile.turn(who=origin, at_least_s=_CONNECTION_S)
                await self._loop.connect_accepted_socket(self._new_protocol, connection)
                return
            async with asyncio.timeout(_HANDSHAKE_S):
                await wait_for_handshake(connection, self._turnstile, who=origin)
                await self._loop.connect_accepted_socket(
                    self._new_protocol, connection, ssl=self._tls, ssl_handshake_timeout=2 * _HANDSHAKE_S
                )
        except TimeoutError:
            self._closed_total["request_timeout"] += 1
            connection.close()
        except (OSError, ValueError):  # the other side's fault: it is told by TLS
            connection.close()

    def _take_token(self, origin: bytes) -> bool:
        now_s = self._loop.time()
        if now_s >= self._begun_s + 1:
            self._begun_s = now_s
            self._begun.clear()
        self._begun[origin] += 1
        if self._begun[origin] <= _OF_EACH_PER_S:
            return True
        self._tokens = min(float(_OTHERS_PER_S), self._tokens + (now_s - self._tokens_s) * _OTHERS_PER_S)
        self._tokens_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
