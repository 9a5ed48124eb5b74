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
from fanout.pool.membership import AskFailure
from fanout.pool.peer_listener import MEMBER_PATH

__all__ = ["AskFailed", "PeerClient"]

ANSWER_S: Final = 2.0
"""Time for a whole answer. It is longer than the silence after which a member is suspect: nobody waits for it."""
_FAILURES: Final = {401: AskFailure.REFUSED, 426: AskFailure.PROTOCOL}


class AskFailed(Exception):
    """A question brought nothing."""

    def __init__(self, failure: AskFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure
        """The reason."""


class PeerClient:
    """Asks members; `close` once."""

    def __init__(self, *, node: str, token: str | None, tls: ssl.SSLContext | None, members_max: int) -> None:
        """Prepare; the first question to a member opens a connection to it.

        Args:
            node: This node's `node.id`.
            token: What is shown to the others; None for none.
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
        self._http = httpx.AsyncClient(
            timeout=None,  # the whole question has one time limit
            limits=httpx.Limits(max_connections=members_max, max_keepalive_connections=members_max),
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
        try:
            async with asyncio.timeout(ANSWER_S):
                document = await self._document(address)
        except TimeoutError as error:
            raise AskFailed(AskFailure.TIMEOUT) from error
        except httpx.RemoteProtocolError as error:  # bytes that are not HTTP, or too few
            raise AskFailed(AskFailure.ANSWER) from error
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            raise AskFailed(AskFailure.UNREACHABLE) from error
        try:
            return decode_answer(document)
        except ValueError as error:
            raise AskFailed(AskFailure.ANSWER) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _document(self, address: MemberAddress) -> bytes:
        extensions = {} if address.server_name is None else {"sni_hostname": address.server_name}
        url = f"{self._scheme}://{address.authority}{MEMBER_PATH}"
        async with self._http.stream("GET", url, extensions=extensions) as answer:
            if answer.status_code != 200:
                raise AskFailed(_FAILURES.get(answer.status_code, AskFailure.ANSWER))
            document = bytearray()
            async for piece in answer.aiter_raw():
                document += piece
                if len(document) > DOCUMENT_BYTES_MAX:
                    raise AskFailed(AskFailure.ANSWER)
            return bytes(document)
