"""Connections to the port of HAProxy's agent check, 3,000 that stay open; a check is answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time

from bench.attacks.ordinary import observe, open_stream
from bench.attacks.target import Target, Verdict

__all__ = ["NEEDS", "run"]

NEEDS = ("port", "agent_port")
_CONNECTIONS = 3_000
_ANSWER_S = 1.0


async def run(target: Target) -> Verdict:
    """Open them one after the other, and check after each hundred."""
    slowest_s = 0.0
    held: list[asyncio.StreamWriter] = []
    async with observe(target) as noticed:
        for number in range(target.scaled(_CONNECTIONS)):
            with contextlib.suppress(OSError):
                address = target.addresses[number % len(target.addresses)]
                held.append((await open_stream(target, target.agent_port, address=address))[1])
            if number % 100 == 0:
                slowest_s = max(slowest_s, await _line_s(target))
        slowest_s = max(slowest_s, await _line_s(target))
    for writer in held:
        writer.transport.abort()
    return Verdict(
        held=slowest_s <= target.within(_ANSWER_S) and noticed.percentile(0.99) <= target.within(0.25),
        promise=f"the check is answered within {_ANSWER_S:g} s, 99 % of pings take 0.25 s",
        figures={"check_s_max": round(slowest_s, 3), **noticed.figures},
    )


async def _line_s(target: Target) -> float:
    """Return how long the line takes; infinity without one."""
    begun_s = time.perf_counter()
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.agent_port)
            line = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return float("inf")
    return time.perf_counter() - begun_s if line.startswith((b"ready", b"drain")) else float("inf")
