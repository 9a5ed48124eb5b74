"""Connections to the HTTP interface that say nothing, from another address; probes are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time

from bench.attacks.ordinary import observe
from bench.attacks.target import Target, Verdict

__all__ = ["run"]

_CONNECTIONS = 3_000
_ANSWER_S = 1.0
_LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def run(target: Target) -> Verdict:
    """Open them one after the other, and ask whether the node lives after each hundred."""
    assert target.http_port is not None
    slowest_s = 0.0
    silent: list[asyncio.StreamWriter] = []
    async with observe(target) as noticed:
        for number in range(target.scaled(_CONNECTIONS)):
            with contextlib.suppress(OSError):
                address = (target.addresses[number % len(target.addresses)], 0)
                silent.append((await asyncio.open_connection("127.0.0.1", target.http_port, local_addr=address))[1])
            if number % 100 == 0:
                slowest_s = max(slowest_s, await _live_s(target.http_port))
        slowest_s = max(slowest_s, await _live_s(target.http_port))
    for writer in silent:
        writer.close()
    return Verdict(
        held=slowest_s <= target.within(_ANSWER_S),
        promise=f"/livez answers within {_ANSWER_S:g} s",
        figures={"livez_s_max": round(slowest_s, 3), **noticed.figures},
    )


async def _live_s(port: int) -> float:
    """Return how long /livez takes to answer; infinity without an answer."""
    begun_s = time.perf_counter()
    try:
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_LIVEZ)
            answer = await reader.readuntil(b"\r\n")
            writer.close()
    except (OSError, EOFError, TimeoutError):
        return float("inf")
    return time.perf_counter() - begun_s if b" 200 " in answer else float("inf")
