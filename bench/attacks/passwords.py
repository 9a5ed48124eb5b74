"""Wrong passwords, 200 at a time, for the user of an ordinary client, which has another address."""

from __future__ import annotations

import asyncio
import contextlib
import time

from bench.attacks.ordinary import connect
from bench.attacks.target import Target, Verdict

__all__ = ["NEEDS", "run"]

NEEDS = ("port", "users")
_GUESSES = 200
_ADMITTED_S = 2.0


async def run(target: Target) -> Verdict:
    """Guess, and connect with the right password meanwhile; it must not have been remembered."""
    attacker = target.addresses[0]
    before = target.effort.done["attempts"]
    guesses = [
        asyncio.create_task(
            connect(target, client_id=f"guess-{number}", user="ordinary", password=f"wrong-{number}", address=attacker)
        )
        for number in range(target.scaled(_GUESSES))
    ]
    await asyncio.sleep(0.2)  # they are in line
    begun_s = time.perf_counter()
    code = -1
    with contextlib.suppress(OSError, TimeoutError):
        code, _, writer = await connect(target, client_id="ordinary", user="ordinary", deadline_s=15 * _ADMITTED_S)
        writer.close()
    admitted_s = time.perf_counter() - begun_s
    all_sent = before + len(guesses)
    while target.effort.done["attempts"] < all_sent and not all(map(asyncio.Task.done, guesses)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    for guess in guesses:
        guess.cancel()
    for outcome in await asyncio.gather(*guesses, return_exceptions=True):
        if isinstance(outcome, tuple):
            outcome[2].close()
    return Verdict(
        held=code == 0 and admitted_s <= target.within(_ADMITTED_S),
        promise=f"a right password is admitted within {_ADMITTED_S:g} s",
        figures={"admitted_s": round(admitted_s, 3), "reason_code": code},
    )
