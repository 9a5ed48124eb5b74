"""HTTP clients of nodes: what they send and trust, how much they read, and errors of a request without an answer."""

from __future__ import annotations

import ssl
import time
from typing import Final

import httpx

__all__ = ["NO_ANSWER", "AnswerWithoutEnd", "node_client", "read_answer"]

NO_ANSWER: Final = (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, AttributeError)
"""Errors of httpx, and those that it lets through from below.

AttributeError is anyio's (4.16, with uvloop) for a connection that is reset as soon as it is made: anyio asks a socket
that the event loop has given back already.
"""


class AnswerWithoutEnd(Exception):
    """An answer is longer than it may be, or does not end in time."""


def node_client(*, timeout_s: float, authorization: str, verify: ssl.SSLContext | bool) -> httpx.Client:
    """Return a client that asks nodes directly, not through a proxy of the environment.

    Args:
        timeout_s: Time limit of connecting, and between two pieces of an answer.
        authorization: Value of the header field; empty for none.
        verify: Trusted authorities; True for those of httpx.
    """
    headers = {"Accept-Encoding": "identity"}  # decompressed bytes have no bound
    if authorization:
        headers["Authorization"] = authorization
    return httpx.Client(timeout=timeout_s, trust_env=False, follow_redirects=False, verify=verify, headers=headers)


def read_answer(answer: httpx.Response, *, bytes_max: int, within_s: float) -> bytes:
    """Return the body of a streamed answer.

    Raises:
        AnswerWithoutEnd: It is longer than `bytes_max`, or takes longer than `within_s`.
    """
    body, end_s = bytearray(), time.monotonic() + within_s
    for piece in answer.iter_raw():
        body += piece
        if len(body) > bytes_max or time.monotonic() > end_s:
            raise AnswerWithoutEnd
    return bytes(body)
