"""Listener for the other members: the ASGI application that answers them, and its refusals.

Who asks is checked before anything else of a request is looked at: by TLS during the handshake where certificates are
configured, then by the token. No body is ever read; `fanout.api.http_connection` bounds bytes, time and connections.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from fanout.pool.member_facts import ASKER_HEADER, PROTOCOL, PROTOCOL_HEADER

__all__ = ["MEMBER_PATH", "REFUSALS", "PeerListener"]

MEMBER_PATH: Final = "/pool/member"
"""Path that answers with the facts of the member."""
REFUSALS: Final = ("token", "protocol", "request")
"""Reasons for a refusal: the token is missing or wrong; another version of the protocol; nothing that members ask."""

_Message: TypeAlias = MutableMapping[str, Any]


class PeerListener:
    """Answers other members, as an ASGI application."""

    def __init__(self, answer: Callable[[str], bytes], *, token: str | None) -> None:
        """Prepare.

        Args:
            answer: Returns the document for a member; called for each request with what the member calls itself.
            token: What the others must show; None where certificates, or loopback, are enough.
        """
        self.answered_total = 0
        """Questions of members that were answered."""
        self.refused_total = dict.fromkeys(REFUSALS, 0)
        """Requests that were refused, by reason."""
        self._answer = answer
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        if self._expected is not None and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            await self._refuse(send, "token", 401)
        elif headers.get(PROTOCOL_HEADER.encode()) != str(PROTOCOL).encode():
            await self._refuse(send, "protocol", 426)
        elif scope["method"] != "GET" or scope["path"] != MEMBER_PATH:
            await self._refuse(send, "request", 404)
        else:
            self.answered_total += 1
            await _respond(send, 200, self._answer(headers.get(ASKER_HEADER.encode(), b"").decode("latin-1")))

    async def _refuse(self, send: Callable[[_Message], Awaitable[None]], reason: str, status: int) -> None:
        self.refused_total[reason] += 1
        await _respond(send, status, json.dumps({"refused": reason, "protocol": PROTOCOL}).encode())


async def _respond(send: Callable[[_Message], Awaitable[None]], status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
