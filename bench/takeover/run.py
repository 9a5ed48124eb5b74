"""One run: sessions, a stream of updates, the death of a member in the middle of it, and the return of all clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Node
from bench.roaming.faults import PoolFigures, wait_copied
from bench.roaming.servers import Balancer, Servers, pool_behind_haproxy
from bench.takeover.crowd import RECEIVERS, Crowd, Publisher, judge

__all__ = ["Plan", "Run", "run_once"]

_COPIED_S = 120.0
_INHERITED_S = 120.0
_RETURNED_S = 300.0
_REST_S = 3.0
_SETTLE_S = 120.0
_QUIET_S = 1.0
_AT_MOST = 500
"""Clients that go away together once all of them have subscribed."""
_SETTINGS = (
    "connections_max = 100000\nconnections_per_address_max = 100000\n"
    "connection_rate_max = 100000\nconnection_burst_max = 100000\n"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run."""

    sessions: int
    """Durable sessions, half of them without a connection."""
    rate: float
    """Updates a second; each is for `RECEIVERS` sessions."""
    seconds: float
    """For which they are published; the member dies in the middle."""
    members: int
    at_once: int
    """Clients that connect at a time."""
    has_copies: bool
    """True if sessions have copies; without, nobody dies."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one run."""

    expected: float
    """Messages, once for each session that has to get them."""
    lost: float
    """Number of these that never came."""
    doubled: float
    """Further deliveries at QoS 2."""
    repeated: float
    """Further deliveries at QoS 1, which may be."""
    returned_present: float
    """Clients that found their session when they came back."""
    returned_absent: float
    """Clients that did not."""
    refused: float
    """CONNECTs that were to be made again later."""
    of_dead: float
    """Sessions of the member that died."""
    inherited: float
    """Of these, how many went on at others."""
    alone: float
    """Times that a session went on without a copy."""
    inherited_s: float
    """From the kill until the last of them went on, or ended."""
    returned_s: float
    """From the kill until the last client had its session."""
    acknowledged: float
    """Messages that clients acknowledged before the kill."""
    cpu_s: float
    """CPU seconds of all members while these came."""
    cpu_us_per_message: float
    """CPU microseconds of all members for each of them."""
    copy_bytes_per_message: float
    """Bytes of copies that went between members for each of them."""
    resident_mib: float
    """Resident memory of all members before the kill, in MiB."""
    bytes_per_away: float
    """Resident memory of all members for each session without a connection, before anything waits for it."""
    bytes_per_away_later: float
    """The same with what waits for it before the kill: all growth of all members since there were none."""


def run_once(plan: Plan) -> Run:
    """Run once; all processes have ended when it returns."""
    with tempfile.TemporaryDirectory(prefix="fanout-takeover-") as directory:
        copies = f"session_copies = {str(plan.has_copies).lower()}\n"
        with (
            pool_behind_haproxy(
                Path(directory),
                size=plan.members,
                pool_settings=copies,
                settings=_SETTINGS,
                is_patient=True,
            ) as servers,
            Balancer(Path(directory), servers.members, name="haproxy-2", is_patient=True) as other,
        ):
            # An HAProxy needs two files for a connection, and a process may have some 20,000.
            return asyncio.run(_run(plan, servers, ports=[servers.balancer.port, other.port]))


async def _run(plan: Plan, servers: Servers, *, ports: Sequence[int]) -> Run:
    members = list(servers.members)
    crowd = Crowd(plan.sessions, ports=ports, at_once=plan.at_once, draw=random.Random(plan.sessions))
    away = [client for client in crowd.clients if client.is_away]
    there = [client for client in crowd.clients if not client.is_away]
    publisher, topics = Publisher(), plan.sessions // RECEIVERS
    crowd.start()
    try:
        # Connections of those that are there come first, so that what the others add is their sessions alone.
        await crowd.bring(there, deadline_s=_RETURNED_S)
        await _wait_copied(plan, members, sessions=len(there))
        empty = _resident(members)
        for first in range(0, len(away), _AT_MOST):
            some = away[first : first + _AT_MOST]
            await crowd.bring(some, deadline_s=_RETURNED_S)
            for client in some:
                client.go()
        await _wait_copied(plan, members, sessions=plan.sessions)
        settled = _resident(members)
        for client in crowd.clients:
            client.present = client.absent = 0
        before_cpu_s, before_bytes = _cpu_s(members), _copy_bytes(members)
        acknowledged = crowd.acknowledged
        publishing = asyncio.create_task(
            publisher.run(servers.primary.port, topics=topics, per_s=plan.rate, seconds=plan.seconds), name="publisher"
        )
        await asyncio.sleep(plan.seconds / 2)
        acknowledged = crowd.acknowledged - acknowledged
        cpu_s = _cpu_s(members) - before_cpu_s
        copy_bytes = await asyncio.to_thread(_copy_bytes, members) - before_bytes
        resident = _resident(members)
        figures = PoolFigures()
        dead = members[0]
        of_dead = await asyncio.to_thread(_sessions, dead) if plan.has_copies else 0
        if plan.has_copies:
            await asyncio.to_thread(figures.look, dead, ends=True)
            await asyncio.to_thread(dead.kill)
            members.remove(dead)
        killed_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            inherited = group.create_task(_wait_inherited(figures, members, of_dead))
            group.create_task(crowd.bring(crowd.clients, deadline_s=_RETURNED_S))
            group.create_task(_wait(publishing))
        returned_s = max(client.came_at for client in crowd.clients) - killed_at
        await _rest(crowd)
        for member in members:
            await asyncio.to_thread(figures.look, member)
    finally:
        await crowd.finish()
    verdict = judge(crowd.clients, publisher.published, topics)
    return Run(
        expected=verdict["expected"],
        lost=verdict["lost"],
        doubled=verdict["doubled"],
        repeated=verdict["repeated"],
        returned_present=sum(client.present > 0 and not client.absent for client in crowd.clients),
        returned_absent=sum(client.absent > 0 for client in crowd.clients),
        refused=crowd.counts["refused to come later"],
        of_dead=of_dead,
        inherited=figures.totals["sessions_inherited"],
        alone=figures.totals["copies_alone"],
        inherited_s=inherited.result() - killed_at,
        returned_s=returned_s,
        acknowledged=acknowledged,
        cpu_s=cpu_s,
        cpu_us_per_message=cpu_s / max(1, acknowledged) * 1e6,
        copy_bytes_per_message=copy_bytes / max(1, acknowledged),
        resident_mib=resident / 2**20,
        bytes_per_away=(settled - empty) / len(away),
        bytes_per_away_later=(resident - empty) / len(away),
    )


async def _wait(task: asyncio.Task[None]) -> None:
    await task


async def _wait_copied(plan: Plan, members: list[Node], *, sessions: int) -> None:
    """Wait until all sessions have copies, where they get some, and the members are quiet."""
    if plan.has_copies:
        await wait_copied(members, sessions=sessions, deadline_s=_COPIED_S)
    await asyncio.sleep(_QUIET_S)


async def _wait_inherited(figures: PoolFigures, members: list[Node], count: int) -> float:
    """Return when so many sessions of a dead member had gone on at the others, or ended."""
    with contextlib.suppress(TimeoutError):  # fewer have: the figures say so
        async with asyncio.timeout(_INHERITED_S):
            while figures.totals["sessions_inherited"] + figures.totals["sessions_not_inherited"] < count:
                for member in members:
                    await asyncio.to_thread(figures.look, member)
                await asyncio.sleep(0.05)
    return time.monotonic()


async def _rest(crowd: Crowd) -> None:
    """Wait until nothing has come for a while; not for ever."""
    end = time.monotonic() + _SETTLE_S
    newest, since = -1, time.monotonic()
    while time.monotonic() < min(end, since + _REST_S):
        count = sum(len(client.received) for client in crowd.clients)
        if count != newest:
            newest, since = count, time.monotonic()
        await asyncio.sleep(0.1)


def _resident(members: Iterable[Node]) -> int:
    return sum(member.usage().resident_bytes for member in members)


def _cpu_s(members: Iterable[Node]) -> float:
    return sum(member.usage().cpu_s for member in members)


def _copy_bytes(members: Iterable[Node]) -> int:
    return sum(int(member.get("/v1/status").json()["pool"]["copies_sent_bytes_total"]) for member in members)


def _sessions(member: Node) -> int:
    return int(member.get("/v1/status").json()["server"]["sessions"])
