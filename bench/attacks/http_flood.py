"""Connections to the HTTP interface that say nothing, from another address; probes are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib

from bench.attacks.ordinary import answers_s, observe, open_stream
from bench.attacks.target import Target, Verdict

__all__ = ["NEEDS", "run"]

NEEDS = ("port", "http_port")
_CONNECTIONS = 3_000
_ANSWER_S = 1.0


async def run(target: Target) -> Verdict:
    """Open them one after the other, and ask whether the node lives after each hundred."""
    assert target.http_port is not None
    slowest_s = 0.0
    silent: list[asyncio.StreamWriter] = []
    async with observe(target) as noticed:
        for number in range(target.scaled(_CONNECTIONS)):
            with contextlib.suppress(OSError):
                address = target.addresses[number % len(target.addresses)]
                silent.append((await open_stream(target, target.http_port, address=address))[1])
            if number % 100 == 0:
                slowest_s = max(slowest_s, await answers_s(target))
        slowest_s = max(slowest_s, await answers_s(target))
    for writer in silent:
        writer.close()
    return Verdict(
        held=slowest_s <= target.within(_ANSWER_S),
        promise=f"/livez answers within {_ANSWER_S:g} s",
        figures={"livez_s_max": round(slowest_s, 3), **noticed.figures},
    )
