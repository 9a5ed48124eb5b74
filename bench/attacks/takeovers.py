"""Take-overs, a thousand a second: clients that connect again and again with the same Client Identifiers."""

from __future__ import annotations

import asyncio
import contextlib
import time

from bench.attacks.ordinary import connect, observe
from bench.attacks.target import Target, Verdict

__all__ = ["NEEDS", "run"]

NEEDS = ("port",)
_TAKEOVERS = 10_000
_PER_S = 1_000
_TOGETHER = 20
_PING_S = 0.25


async def run(target: Target) -> Verdict:
    """Connect at this rate, each client in place of the one before."""
    user = "attacker" if "attacker" in target.users else None
    begun_s = time.perf_counter()
    numbers = iter(range(target.scaled(_TAKEOVERS)))
    done = 0

    async def take_over(name: int) -> None:
        nonlocal done
        former: asyncio.StreamWriter | None = None
        for number in numbers:
            await asyncio.sleep(begun_s + number / _PER_S - time.perf_counter())
            with contextlib.suppress(OSError, TimeoutError):
                address = target.addresses[number % len(target.addresses)]
                code, _, writer = await connect(target, client_id=f"taken-{name}", user=user, address=address)
                done += code == 0
                target.effort.done["takeovers"] += code == 0
                if former is not None:
                    former.transport.abort()
                former = writer
        if former is not None:
            former.transport.abort()

    async with observe(target) as noticed:
        await asyncio.gather(*(take_over(name) for name in range(_TOGETHER)))
    per_s = done / (time.perf_counter() - begun_s)
    return Verdict(
        held=noticed.percentile(0.99) <= target.within(_PING_S),
        promise=f"99 % of pings of an ordinary client take {_PING_S:g} s at most",
        figures={**noticed.figures, "takeovers": done, "takeovers_per_s": round(per_s)},
    )
