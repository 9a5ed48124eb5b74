"""Client of the other members: one question over a kept connection, bounded in time and bytes.

A question is never retried, because somebody may wait for its answer; the next ping asks again.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import httpx

from fanout.pool.addresses import MemberAddress
from fanout.pool.member_facts import (
    ASKER_HEADER,
    DOCUMENT_BYTES_MAX,
    PROTOCOL,
    PROTOCOL_HEADER,
    MemberAnswer,
    decode_answer,
)
from fanout.pool.membership import AskFailed, AskFailure
from fanout.pool.peer_listener import MEMBER_PATH
from fanout.runtime.http_client import NO_ANSWER

__all__ = ["PeerClient"]

ANSWER_S: Final = 2.0
"""Time for a whole answer. It is longer than the silence after which a member is suspect: nobody waits for it."""
KEPT_S: Final = 3.0
"""Time for which an idle connection is used again. A member closes it after 5 s; a call in that moment would fail."""
_FAILURES: Final = {
    401: AskFailure.REFUSED,
    404: AskFailure.PROTOCOL,
    426: AskFailure.PROTOCOL,
    503: AskFailure.TIMEOUT,
}
_CALLS_MAX: Final = 8
"""Calls to one member at a time: a question about itself, and one of each kind about sessions. A call of one kind never
waits for one of another."""


class PeerClient:
    """Asks members; `close` once."""

    def __init__(self, *, node: str, token: str | None, tls: ssl.SSLContext | None, members_max: int) -> None:
        """Prepare; the first question to a member opens a connection to it.

        Args:
            node: This node's `node.id`.
            token: Credentials that are shown to the others; None for none.
            tls: Context with this member's certificate and the CAs of the others; None without TLS.
            members_max: Members that are asked at a time.
        """
        self._scheme = "http" if tls is None else "https"
        headers = {
            PROTOCOL_HEADER: str(PROTOCOL),
            ASKER_HEADER: node,
            "Accept-Encoding": "identity",  # decompressed bytes have no bound
        }
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connections_max = members_max * _CALLS_MAX
        self._http = httpx.AsyncClient(
            timeout=None,  # the whole question has one time limit
            limits=httpx.Limits(
                max_connections=connections_max, max_keepalive_connections=connections_max, keepalive_expiry=KEPT_S
            ),
            trust_env=False,  # a proxy of the environment has no business with the token
            follow_redirects=False,
            verify=False if tls is None else tls,
            headers=headers,
        )

    async def ask(self, address: MemberAddress) -> MemberAnswer:
        """Return what a member says.

        Raises:
            AskFailed: It said nothing that can be used, within two seconds.
        """
        document = await self._request(
            "GET", address, MEMBER_PATH, b"", timeout_s=ANSWER_S, answer_bytes_max=DOCUMENT_BYTES_MAX
        )
        try:
            return decode_answer(document)
        except ValueError as error:
            raise AskFailed(AskFailure.ANSWER) from error

    async def call(
        self, address: MemberAddress, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int
    ) -> bytes:
        """Send a request to a member, and return its answer.

        Args:
            address: Address at which the member listens.
            path: Path of the request.
            body: Its body.
            timeout_s: Time for the whole answer.
            answer_bytes_max: Longest answer that is read.

        Raises:
            AskFailed: It brought nothing.
        """
        return await self._request("POST", address, path, body, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _request(
        self, method: str, address: MemberAddress, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._document(method, address, path, body, bytes_max=answer_bytes_max)
        except TimeoutError as error:
            raise AskFailed(AskFailure.TIMEOUT) from error
        except httpx.RemoteProtocolError as error:  # bytes that are not HTTP, or too few
            raise AskFailed(AskFailure.ANSWER) from error
        except NO_ANSWER as error:
            raise AskFailed(AskFailure.UNREACHABLE) from error

    async def _document(self, method: str, address: MemberAddress, path: str, body: bytes, *, bytes_max: int) -> bytes:
        extensions = {} if address.server_name is None else {"sni_hostname": address.server_name}
        url = f"{self._scheme}://{address.authority}{path}"
        async with self._http.stream(method, url, content=body or None, extensions=extensions) as answer:
            if answer.status_code != 200:
                raise AskFailed(_FAILURES.get(answer.status_code, AskFailure.ANSWER))
            document = bytearray()
            async for piece in answer.aiter_raw():
                document += piece
                if len(document) > bytes_max:
                    raise AskFailed(AskFailure.ANSWER)
            return bytes(document)
