"""What happens to the members of a pool while clients roam: drawn from a seed, one after another."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence

import httpx

from bench.processes import Node

__all__ = ["DEAD_AFTER_S", "FAULTS", "inject_faults"]

FAULTS = ("hold", "pause", "restart", "kill")
"""`hold` keeps a member out for a while, sometimes without its clients; `pause` stops its process (SIGSTOP) for less
than `DEAD_AFTER_S`; `restart` drains it, and starts it when it has ended; `kill` is SIGKILL and a new start."""
DEAD_AFTER_S = 5.0
"""Silence after which the other members take a member for dead, with its sessions."""
_PAUSE_S = (0.1, 0.3 * DEAD_AFTER_S)
_READY_S = 60.0


async def inject_faults(
    members: Sequence[Node], kinds: Sequence[str], *, draw: random.Random, ended: asyncio.Event, counts: Counter[str]
) -> None:
    """Inject one fault after another until `ended`; between two, every member is ready again.

    Raises:
        TimeoutError: A member does not become ready.
    """
    while not ended.is_set():
        kind, member = draw.choice(kinds), draw.choice(members)
        lasts_s, rest_s, disconnect = draw.uniform(*_PAUSE_S), draw.uniform(0.3, 1.5), draw.random() < 0.5
        counts[kind] += 1
        if kind == "hold":
            await _post(member, "/v1/hold", {"disconnect": disconnect})
            await asyncio.sleep(lasts_s)
            await _post(member, "/v1/undrain", None)
        elif kind == "pause":
            member.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(lasts_s)
            finally:
                member.send_signal(signal.SIGCONT)
        else:
            if kind == "restart":
                await _post(member, "/v1/drain", None)
                await asyncio.to_thread(_wait_end, member)
            await asyncio.to_thread(member.kill if kind == "kill" else member.stop)
            await asyncio.sleep(lasts_s)
            await asyncio.to_thread(member.start)
        for each in members:
            await asyncio.to_thread(each.wait_ready, deadline_s=_READY_S)
        await asyncio.sleep(rest_s)


def _wait_end(member: Node) -> None:
    assert member.process is not None
    member.process.wait(_READY_S)


async def _post(member: Node, path: str, body: object) -> None:
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=10.0) as client:
        (await client.post(member.url + path, json=body)).raise_for_status()
