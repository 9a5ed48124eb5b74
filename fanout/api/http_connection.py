"""HTTP connection: that of uvicorn, with limits on the bytes of a request, on time, and on the number of connections.

Owns the limits and the choice of the connection that a new one displaces. uvicorn itself limits only the time between
two requests, and beyond its limit of connections it answers each further request with 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from fanout.api.accepting import Places
from fanout.api.browse.endpoints import STREAM_PATHS
from fanout.api.browse.view import WRITE_KEY
from fanout.api.models import BODY_BYTES_MAX
from fanout.runtime.gc_freeze import let_go
from fanout.runtime.origin import origin_of
from fanout.runtime.turnstile import Turnstile

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

__all__ = ["HttpConnection"]

_REQUEST_SECONDS: Final = 10.0
"""Time for a whole request, from the begin of the connection or the last answer."""
_ANSWER_SECONDS: Final = 30.0
"""Time for a client to read an answer."""
_REQUEST_COSTS_S: Final = 0.002
"""Time of the processor that a busy node takes for a small answer; costly documents are made in slices."""
_LINGER_SECONDS: Final = 2.0
"""Time for a client that sends too much to read the reason: closing at once could destroy the answer."""


class HttpConnection(H11Protocol):
    """One connection of the HTTP interface."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        closed_total: MutableMapping[str, int],
        places: Places,
        turnstile: Turnstile,
    ) -> None:
        """Create a connection as uvicorn does.

        Args:
            config: Passed to uvicorn.
            server_state: Passed to uvicorn; all connections share it.
            app_state: Passed to uvicorn.
            _loop: Passed to uvicorn.
            closed_total: Counts the connections that are closed here, by one of `HTTP_CLOSE_REASONS`.
            places: Bounds of connections; a further one displaces the oldest of its kind.
            turnstile: Bounds the requests of a turn of the event loop, but for those of addresses with places.
        """
        super().__init__(config, server_state, app_state, _loop)
        self._closed_total = closed_total
        self._places = places
        self._turnstile = turnstile
        self._withdraw: Callable[[], None] | None = None  # takes back what was read and waits for its turn
        self._is_kept = False
        self._origin = b""
        self._since_s = self.loop.time()  # begin of the connection, then of the last answer
        self._body_bytes = 0  # of the present request, without those that came with its head
        self._unread = 0  # bytes in the write buffer at the last look
        self._lingers = False  # whether the reason was sent, and nothing more is read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take the transport; beyond the limit, close the connection that has kept the node waiting longest."""
        super().connection_made(transport)
        if self.client is not None:
            self._is_kept, self._origin = self._places.is_kept(self.client[0]), origin_of(self.client[0])
        if len(self.connections) <= min(self._places.kept_max, self._places.others_max):
            return
        alike: list[HttpConnection] = [
            one  # type: ignore[misc]
            for one in self.connections
            if one._is_kept is self._is_kept and not one._is_stream  # type: ignore[union-attr]
        ]
        if len(alike) > self._places.limit(is_kept=self._is_kept):
            others = sorted((one for one in alike if one is not self), key=attrgetter("_since_s"))
            next((one for one in others if not one._is_working), others[0])._end("room")

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request when it is its turn; nothing more is read before."""
        if self._is_kept or not self._origin:
            self._take(data)
            return

        def take() -> bool:
            if self.transport.is_closing():
                return False
            self._take(data)
            if self._withdraw is not None:
                self._withdraw = None
                if not self.flow.read_paused:
                    self.transport.resume_reading()
            return True

        self._withdraw = self._turnstile.run(take, who=self._origin, at_least_s=_REQUEST_COSTS_S)
        if self._withdraw is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take back what waits."""
        if self._withdraw is not None:
            self._withdraw()
        super().connection_lost(exc)
        let_go(self.transport)

    def _take(self, data: bytes) -> None:
        if self._lingers:
            return
        self._body_bytes = self._body_bytes + len(data) if self.conn.their_state is h11.SEND_BODY else 0
        super().data_received(data)
        self._limit_body()

    def handle_events(self) -> None:
        """Let an answer that has no end write without a task."""
        super().handle_events()
        cycle = self.cycle
        if bool(cycle) and cycle.scope["path"] in STREAM_PATHS:
            extensions: dict[str, Any] = {WRITE_KEY: partial(self._write_piece, cycle)}
            cycle.scope["extensions"] = extensions

    def _write_piece(self, cycle: RequestResponseCycle, data: bytes) -> bool:
        """Write a piece of the answer under way as h11 would; return False if it must wait."""
        if cycle is not self.cycle or not cycle.response_started or cycle.response_complete or self.flow.write_paused:
            return False
        if self.transport.is_closing():
            return False
        # RFC 9112 7.1; an answer to HTTP/1.0 ends with its connection.
        is_chunked = cycle.scope["http_version"] == "1.1"
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)
        return True

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since_s = self.loop.time()
        super().on_response_complete()
        self._limit_body()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, unless an answer was begun, and close."""
        self._closed_total["malformed"] += 1
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def end_if_overdue(self) -> None:
        """Close the connection of a client that takes too long."""
        if self._is_working:
            return
        waited_s = self.loop.time() - self._since_s
        unread = self.transport.get_write_buffer_size()
        if self._lingers:
            if waited_s >= _LINGER_SECONDS:
                self._abort()
        elif self._is_stream and (not unread or unread != self._unread):  # it reads, and has no end
            self._unread, self._since_s = unread, self.loop.time()
        elif unread:
            if waited_s >= _ANSWER_SECONDS:
                self._end("answer_timeout")
        elif waited_s >= _REQUEST_SECONDS:
            self._end("request_timeout")

    @property
    def _is_working(self) -> bool:
        """True if the client waits for the node, not the node for the client."""
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return is_whole and self.conn.our_state is h11.SEND_RESPONSE and not self.flow.write_paused

    @property
    def _is_stream(self) -> bool:
        """True if the answer goes on for as long as the client reads; `http.streams_max` bounds these connections."""
        cycle = self.cycle
        # Before its answer begins it has no place of a stream: a check of its password may wait.
        return (
            bool(cycle)
            and cycle.scope["path"] in STREAM_PATHS
            and cycle.response_started
            and not cycle.response_complete
        )

    def _limit_body(self) -> None:
        """Stop reading the body of a request that was answered, when it is too large to be skipped."""
        is_unwanted = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if is_unwanted and self._body_bytes > BODY_BYTES_MAX and not self.transport.is_closing():
            self._closed_total["body_too_large"] += 1
            self._lingers, self._since_s = True, self.loop.time()
            self.flow.pause_reading()
            if self.transport.can_write_eof():  # TLS has no half of a connection
                self.transport.write_eof()

    def _end(self, reason: str) -> None:
        self._closed_total[reason] += 1
        self._abort()

    def _abort(self) -> None:
        self.connections.discard(self)  # at once: another one may be displaced before `connection_lost` of this one
        self.transport.abort()
