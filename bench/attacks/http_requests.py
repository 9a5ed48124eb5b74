"""Requests for costly documents, from 60 connections at a time, each again as soon as it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import re

from bench.attacks.ordinary import answers_s, observe, open_http
from bench.attacks.target import Target, Verdict

__all__ = ["NEEDS", "run"]

NEEDS = ("port", "http_port")
_CONNECTIONS = 60
_SECONDS = 5.0
_ANSWER_S = 1.0
_PING_S = 0.25
_PATHS = ("/metrics", "/v1/status", "/v1/clients?order=slowest&limit=1000", "/v1/topics?search=a", "/v1/lag")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


async def run(target: Target) -> Verdict:
    """Ask, and look whether the node is ready each tenth of a second meanwhile."""
    assert target.http_port is not None
    slowest_s = 0.0
    async with observe(target) as noticed:
        asking = [asyncio.create_task(_ask(target, number)) for number in range(_CONNECTIONS)]
        for _ in range(target.scaled(int(_SECONDS * 10))):
            slowest_s = max(slowest_s, await answers_s(target, "/readyz", status=b""))
            await asyncio.sleep(0.1)
        for task in asking:
            task.cancel()
        counts = await asyncio.gather(*asking, return_exceptions=True)
    answered = sum(count for count in counts if isinstance(count, int))
    return Verdict(
        held=slowest_s <= target.within(_ANSWER_S) and noticed.percentile(0.99) <= target.within(_PING_S),
        promise=f"/readyz answers within {_ANSWER_S:g} s, 99 % of pings take {_PING_S:g} s",
        figures={"readyz_s_max": round(slowest_s, 3), **noticed.figures, "answers": answered},
    )


async def _ask(target: Target, number: int) -> int:
    """Ask until cancelled, and return the number of answers."""
    answered = 0
    path = _PATHS[number % len(_PATHS)]
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    try:
        while True:
            with contextlib.suppress(OSError, EOFError):
                address = target.addresses[number % len(target.addresses)]
                reader, writer = await open_http(target, address=address)
                try:
                    while True:
                        await target.effort.turn()
                        writer.write(request)
                        head = await reader.readuntil(b"\r\n\r\n")
                        length = _LENGTH.search(head)
                        await reader.readexactly(int(length[1]) if length else 0)
                        answered += 1
                        target.effort.done["answers"] += 1
                finally:
                    writer.transport.abort()
    except asyncio.CancelledError:
        return answered
