"""Faults of the members of a pool while clients roam: drawn from a seed, one after another."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from bench.processes import Node, wait_for
from bench.roaming.servers import DEAD_AFTER_S, Servers

__all__ = ["FAULTS", "KILLS", "ON_PATHS", "Faults", "PoolFigures", "wait_copied"]

FAULTS = ("hold", "pause", "restart", "kill", "die", "stop", "peers", "primary")
"""`hold` keeps a member out for a while, sometimes without its clients; `pause` stops its process (SIGSTOP) for less
than `DEAD_AFTER_S`; `restart` drains it, and starts it when it has ended; `kill` is SIGKILL and a new start; `die` is
that after more than `DEAD_AFTER_S`; `stop` is a pause of any length around `DEAD_AFTER_S`; `peers` cuts a member off
from the other members for such a time, in one direction or both, and `primary` from the primary alone."""
KILLS = frozenset({"kill", "die", "stop"})
"""Faults after which others may go on with the sessions of a member, or its process is gone."""
ON_PATHS = frozenset({"peers", "primary"})
"""Faults for which proxies stand on the ways between the members."""
_PAUSE_S = (0.1, 0.3 * DEAD_AFTER_S)
_AROUND_S = (0.3 * DEAD_AFTER_S, 2 * DEAD_AFTER_S)
_AWAY_S = (DEAD_AFTER_S + 0.5, 2 * DEAD_AFTER_S)
_READY_S = 60.0


class PoolFigures:
    """Counters of all members together, over all of their processes."""

    _NAMES = ("sessions_inherited_total", "sessions_not_inherited_total", "copies_alone_total", "fences_total")

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._newest: dict[str, dict[str, int]] = {}

    def look(self, member: Node, *, ends: bool = False) -> None:
        """Note the counters of a member's process.

        Args:
            member: The member.
            ends: True if its process ends now.
        """
        status = member.get("/v1/status").json()["pool"]
        self._newest[member.name] = {name: status[name] for name in self._NAMES}
        if ends:
            self._ended.update(self._newest.pop(member.name))

    @property
    def totals(self) -> dict[str, int]:
        """The counters, without `_total`."""
        found = Counter(self._ended)
        for each in self._newest.values():
            found.update(each)
        return {name.removesuffix("_total"): found[name] for name in self._NAMES}


class Faults:
    """Injects faults into the members of a pool, one at a time."""

    def __init__(self, servers: Servers, kinds: Sequence[str], *, sessions: int, draw: random.Random) -> None:
        """Prepare.

        Args:
            servers: The pool.
            kinds: Of `FAULTS`.
            sessions: Number of durable sessions in the pool.
            draw: Decides all.
        """
        self.counts: Counter[str] = Counter()
        """Faults by kind."""
        self.figures = PoolFigures()
        """Counters of the members."""
        self._servers, self._kinds, self._sessions, self._draw = servers, kinds, sessions, draw

    async def inject(self, ended: asyncio.Event) -> None:
        """Inject one fault after another until `ended`; between two, every member is ready, and every session copied.

        Raises:
            TimeoutError: This takes too long.
        """
        await self._wait_whole()
        while not ended.is_set():
            kind, number = self._draw.choice(self._kinds), self._draw.randrange(len(self._servers.members))
            rest_s = self._draw.uniform(0.3, 1.5)
            self.counts[kind] += 1
            if kind in ON_PATHS:
                await self._cut(kind, number)
            elif kind in ("restart", "kill", "die"):
                await self._end(kind, self._servers.members[number])
            else:
                await self._pause(kind, self._servers.members[number])
            await self._wait_whole()
            await asyncio.sleep(rest_s)

    async def look(self) -> None:
        """Note what the members have counted."""
        for member in self._servers.members:
            await asyncio.to_thread(self.figures.look, member)

    async def _pause(self, kind: str, member: Node) -> None:
        """Keep a member from its clients, or from everything."""
        lasts_s = self._draw.uniform(*(_AROUND_S if kind == "stop" else _PAUSE_S))
        disconnect = self._draw.random() < 0.5
        if kind == "hold":
            await _post(member, "/v1/hold", {"disconnect": disconnect})
            await asyncio.sleep(lasts_s)
            await _post(member, "/v1/undrain", None)
            return
        member.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            member.send_signal(signal.SIGCONT)

    async def _end(self, kind: str, member: Node) -> None:
        """End a member's process, and start another one."""
        lasts_s = self._draw.uniform(*(_AWAY_S if kind == "die" else _PAUSE_S))
        if kind == "kill" and member is self._servers.on_disc:
            lasts_s = self._draw.uniform(_PAUSE_S[0], _AWAY_S[1])  # before, at and after the verdict of the others
        await asyncio.to_thread(self.figures.look, member, ends=True)
        if kind == "restart":
            await _post(member, "/v1/drain", None)
            await asyncio.to_thread(_wait_end, member)
        await asyncio.to_thread(member.stop if kind == "restart" else member.kill)
        await asyncio.sleep(lasts_s)
        await asyncio.to_thread(member.start)

    async def _cut(self, kind: str, number: int) -> None:
        """Cut a member off from others."""
        paths = self._servers.paths
        assert paths is not None
        lasts_s, silently = self._draw.uniform(*_AROUND_S), self._draw.random() < 0.5
        asks, is_asked = self._draw.choice(((True, True), (True, False), (False, True)))
        try:
            if kind == "peers":
                await asyncio.to_thread(paths.cut_peers, number, asks=asks, is_asked=is_asked, silently=silently)
            else:
                await asyncio.to_thread(paths.cut_primary, number, silently=silently)
            await asyncio.sleep(lasts_s)
        finally:
            await asyncio.to_thread(paths.heal)

    async def _wait_whole(self) -> None:
        """Wait until each session is at a member, and another one has a usable copy: one fault at a time takes none."""
        members = self._servers.members
        for each in members:
            await asyncio.to_thread(each.wait_ready, deadline_s=_READY_S)
        await wait_copied(members, sessions=self._sessions, deadline_s=_READY_S)
        await self.look()


async def wait_copied(members: Sequence[Node], *, sessions: int, deadline_s: float) -> None:
    """Wait until the members of a pool hear each other, have all sessions, and keep copies of them for each other.

    Args:
        members: All members.
        sessions: Number of sessions; those of a dead member that have not gone on yet are at none.
        deadline_s: Longest time to wait, in seconds.

    Raises:
        TimeoutError: This takes longer.
    """

    def is_whole() -> bool:
        figures = [member.get("/v1/status").json() for member in members]
        are_copied = all(_has_copies(each, len(members)) for each in figures)
        return are_copied and sum(each["server"]["sessions"] for each in figures) >= sessions

    await asyncio.to_thread(wait_for, is_whole, what="a copy of each session", deadline_s=deadline_s)


def _has_copies(status: Any, members: int) -> bool:
    """Return whether a member hears so many, itself included, and others keep copies of all of its sessions."""
    pool = status["pool"]
    return bool(
        status["server"]["sessions"] <= pool["sessions_copied"]
        and pool["copies_oldest_unconfirmed_seconds"] < 1.0
        and pool["members_reachable"] == members
        and not pool["fenced"]
    )


def _wait_end(member: Node) -> None:
    assert member.process is not None
    member.process.wait(_READY_S)


async def _post(member: Node, path: str, body: object) -> None:
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=10.0) as client:
        (await client.post(member.url + path, json=body)).raise_for_status()
