"""Errors of a request over HTTP without an answer, for clients used beside an event loop."""

from __future__ import annotations

import ssl
from typing import Final

import httpx

__all__ = ["NO_ANSWER"]

NO_ANSWER: Final = (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, AttributeError)
"""Errors of httpx, and those that it lets through from below.

AttributeError is anyio's (4.16, with uvloop) for a connection that is reset as soon as it is made: anyio asks a socket
that the event loop has given back already.
"""
