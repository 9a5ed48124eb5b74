"""Listener for the other members: the ASGI application that answers them, and its refusals.

The peer is checked before anything else of a request is looked at: by TLS during the handshake if certificates are
configured, then by the token. Only then a body is read, up to the limit of its path; `fanout.api.http_connection`
bounds time and connections. It closes no connection while a handler works, and a handler works on when its connection
has ended, so their number has a bound of its own.
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from fanout.peer_text import is_node_name
from fanout.pool.member_facts import ASKER_HEADER, PROTOCOL, PROTOCOL_HEADER

__all__ = ["MEMBER_PATH", "REFUSALS", "Handler", "PeerListener"]

MEMBER_PATH: Final = "/pool/member"
"""Path that answers GET with the facts of the member."""
REFUSALS: Final = ("token", "protocol", "request", "body", "incomplete", "busy")
"""Reasons for a refusal: the token is missing or wrong; another version of the protocol; nothing that members ask; a
body that is too long, or that did not come whole; too many requests are being handled."""
HANDLED_MAX: Final = 256
"""Requests that are handled at a time; members of a pool make a handful each."""
BODIES_BYTES_MAX: Final = 96 << 20
"""Bytes of all bodies that are being read; a request that goes beyond them is refused."""
ADDRESS_BODIES_BYTES_MAX: Final = 40 << 20
"""Limit of such bytes from one address: one of the longest bodies, and others beside it."""

Handler: TypeAlias = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a request, given the `node.id` that the member states, and the body; raises `ValueError` for a wrong one."""
_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


class _Gone(Exception):
    """The member has closed the connection."""


class _Full(Exception):
    """The bodies that are being read take all the room."""


class PeerListener:
    """Answers other members, as an ASGI application."""

    def __init__(self, answer: Callable[[str], bytes], *, token: str | None) -> None:
        """Prepare.

        Args:
            answer: Returns the document for a member; called for each request with what the member calls itself.
            token: Credentials that the others must show; None where certificates, or loopback, are enough.
        """
        self.answered_total = 0
        """Questions of members that were answered."""
        self.refused_total = dict.fromkeys(REFUSALS, 0)
        """Requests that were refused, by reason."""
        self._answer = answer
        self._handlers: dict[str, tuple[Handler, int]] = {}
        self._handled = 0
        self._bodies_bytes: Counter[str] = Counter()
        """Bytes of bodies that are being read, by address."""
        self._expected = None if token is None else f"Bearer {token}".encode()

    def handle(self, path: str, handler: Handler, *, body_bytes_max: int) -> None:
        """Answer POST requests to a path.

        Args:
            path: The path.
            handler: Answers a request.
            body_bytes_max: Longest body that is read.
        """
        self._handlers[path] = (handler, body_bytes_max)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        if self._expected is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            await self._refuse(send, "token", 401)
        elif headers.get(PROTOCOL_HEADER.encode()) != str(PROTOCOL).encode():
            await self._refuse(send, "protocol", 426)
        elif scope["method"] == "GET" and scope["path"] == MEMBER_PATH:
            self.answered_total += 1
            await _respond(send, 200, self._answer(headers.get(ASKER_HEADER.encode(), b"").decode("latin-1")))
        elif scope["method"] == "POST" and scope["path"] in self._handlers:
            client = scope.get("client")
            await self._answer_post(headers, scope["path"], receive, send, address=client[0] if client else "")
        else:
            await self._refuse(send, "request", 404)

    async def _answer_post(
        self, headers: dict[bytes, bytes], path: str, receive: _Receive, send: _Send, *, address: str
    ) -> None:
        handler, bytes_max = self._handlers[path]
        asker = headers.get(ASKER_HEADER.encode(), b"").decode("latin-1")
        if not is_node_name(asker):
            await self._refuse(send, "request", 400)
            return
        try:
            body = await self._read_body(headers, receive, bytes_max=bytes_max, address=address)
        except _Gone:
            self.refused_total["incomplete"] += 1
            return
        except _Full:
            await self._refuse(send, "busy", 503)
            return
        if body is None:
            await self._refuse(send, "body", 413)
            return
        if self._handled >= HANDLED_MAX:
            await self._refuse(send, "busy", 503)
            return
        self._handled += 1
        try:
            answer = await handler(asker, body)
        except ValueError:
            await self._refuse(send, "request", 400)
            return
        finally:
            self._handled -= 1
        self.answered_total += 1
        await _respond(send, 200, answer)

    async def _refuse(self, send: _Send, reason: str, status: int) -> None:
        self.refused_total[reason] += 1
        await _respond(send, status, json.dumps({"refused": reason, "protocol": PROTOCOL}).encode())

    async def _read_body(
        self, headers: dict[bytes, bytes], receive: _Receive, *, bytes_max: int, address: str
    ) -> bytes | None:
        """Return the body of a request; None when it is too long, and then the rest is not read.

        Raises:
            _Gone: The connection ended before.
            _Full: There is no room for it.
        """
        stated = headers.get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > bytes_max:
            return None
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                piece = message.get("body", b"")
                body += piece
                self._bodies_bytes[address] += len(piece)
                if len(body) > bytes_max:
                    return None
                if not message.get("more_body", False):
                    return bytes(body)
                total = self._bodies_bytes.total()
                if self._bodies_bytes[address] > ADDRESS_BODIES_BYTES_MAX or total > BODIES_BYTES_MAX:
                    raise _Full
        finally:
            self._bodies_bytes[address] -= len(body)
            if not self._bodies_bytes[address]:
                del self._bodies_bytes[address]


async def _respond(send: _Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
