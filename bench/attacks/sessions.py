"""Sessions of one user, 50,000 of them, which their clients leave behind: memory and places that others need too."""

from __future__ import annotations

import asyncio
import contextlib

from bench.attacks.ordinary import connect, observe, resident_mib
from bench.attacks.target import Target, Verdict

__all__ = ["GROWTH_MIB", "NEEDS", "run"]

NEEDS = ("port",)
_SESSIONS = 50_000
_TOGETHER = 50
_EXPIRY_S = 120
_REFUSED_S = 0.05
GROWTH_MIB = 512.0


async def run(target: Target) -> Verdict:
    """Begin them as fast as the node lets them in, and connect as another user at the end."""
    user = "attacker" if "attacker" in target.users else None
    numbers = iter(range(target.scaled(_SESSIONS)))
    begun = 0

    async def begin() -> None:
        nonlocal begun
        for number in numbers:
            address = target.addresses[number % len(target.addresses)]
            with contextlib.suppress(OSError, TimeoutError):
                code, _, writer = await connect(
                    target, client_id=f"left-{number}", user=user, address=address, session_expiry_s=_EXPIRY_S
                )
                writer.transport.abort()
                begun += code == 0
                target.effort.done["sessions"] += code == 0
                if code:
                    await asyncio.sleep(_REFUSED_S)

    before_mib = resident_mib(target)
    async with observe(target) as noticed:
        await asyncio.gather(*(begin() for _ in range(_TOGETHER)))
        code = -1
        with contextlib.suppress(OSError, TimeoutError):
            name = "ordinary" if "ordinary" in target.users else None
            code, _, writer = await connect(target, client_id="one-more", user=name)
            writer.close()
    growth_mib = max(0.0, noticed.resident_mib_max - before_mib)
    return Verdict(
        held=code == 0 and growth_mib <= GROWTH_MIB and noticed.percentile(0.99) <= target.within(0.25),
        promise=f"memory grows by at most {GROWTH_MIB:g} MiB, an ordinary client gets in, 99 % of pings take 0.25 s",
        figures={**noticed.figures, "growth_mib": round(growth_mib, 1), "sessions": begun, "reason_code": code},
    )
