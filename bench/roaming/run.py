"""One run: servers, clients and faults of a seed, until everything has come to rest."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from bench.processes import Node
from bench.report import percentile
from bench.roaming.client import Figures, RoamingClient
from bench.roaming.faults import KILLS, ON_PATHS, Faults
from bench.roaming.long_queues import LongQueue, fill
from bench.roaming.paho_client import PahoClient
from bench.roaming.records import Verdict, judge
from bench.roaming.servers import Servers, pool_behind_haproxy

__all__ = ["TOLD_MAX", "Outcome", "Plan", "run_seed"]

Client = RoamingClient | PahoClient

TOLD_MAX = 50
"""Lines of logs that are kept with a seed."""
_SUBSCRIBED_S = 60.0
_REST_S = 6.0
"""Time without a message after which all count as having come."""
_SETTLE_S = 60.0
_LONG_S = 120.0
"""Time beyond the run in which long queues are taken."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run, and what happens in it."""

    seed: int
    clients: int
    messages: int
    """Of all clients together."""
    seconds: float
    """For which they are published, and faults injected."""
    members: int
    faults: tuple[str, ...]
    steps_max: int
    """Steps of handshakes that one connection lives for at most."""
    paho: int
    """Number of the clients that are paho's."""
    long_queues: int = 0
    """Clients that roam with a long queue."""
    queued: int = 0
    """Messages that wait for each of them."""
    disc: bool = False
    """True if one of the members has its sessions on disk."""

    @property
    def kills(self) -> bool:
        """True if members are killed, or taken for dead, so that messages of unknown fate are sent again."""
        return bool(KILLS & set(self.faults))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one seed."""

    seed: int
    verdict: Verdict
    faults: dict[str, int]
    counts: dict[str, int]
    """Events of the clients, by name."""
    pool: dict[str, int]
    """Counters of the members."""
    move_p50_ms: float
    """From CONNECT to a CONNACK with Session Present 1."""
    move_p99_ms: float
    seconds: float
    """Seconds of the run, without its start."""
    told: tuple[str, ...]
    """First log lines of the members about clients that lost their sessions."""


async def run_seed(plan: Plan, *, keep: Path | None = None) -> Outcome:
    """Run one seed; its processes have ended when it returns.

    Args:
        plan: Options of the run.
        keep: Directory that keeps files of the servers; None removes them.

    Raises:
        TimeoutError: Servers or first subscriptions do not come up.
    """
    with contextlib.ExitStack() as stack:
        if keep is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fanout-roaming-")))
        else:
            directory = keep / f"seed-{plan.seed}"
            directory.mkdir(parents=True, exist_ok=True)
        has_paths = bool(ON_PATHS & set(plan.faults))
        pool = pool_behind_haproxy(directory, size=plan.members, has_paths=has_paths, has_disc=plan.disc)
        servers = await asyncio.to_thread(pool.__enter__)
        stack.push(pool.__exit__)
        draw = random.Random(f"{plan.seed} clients")
        figures = Figures()
        clients = _clients(plan, servers.balancer.port, draw, figures)
        faults = Faults(
            servers, plan.faults, sessions=plan.clients + plan.long_queues, draw=random.Random(f"{plan.seed} faults")
        )
        began = time.monotonic()
        try:
            for client in clients:
                client.start()
            async with asyncio.timeout(_SUBSCRIBED_S):
                await asyncio.gather(*(client.subscribed.wait() for client in clients))
            ended = asyncio.Event()
            long_queues = await _long_queues(plan, servers)
            async with asyncio.TaskGroup() as group:
                for each in long_queues:
                    group.create_task(asyncio.wait_for(each.run(), plan.seconds + _LONG_S))
                group.create_task(faults.inject(ended) if plan.faults else ended.wait())
                await _publish(plan, clients, draw)
                ended.set()
            await _rest(clients)
            await faults.look()
        finally:
            await asyncio.gather(*(client.finish() for client in clients))
        if failures := [client.failure for client in clients if client.failure is not None]:
            raise failures[0]
        moves = [each * 1000 for each in figures.moves_s] or [0.0]
        lapsed = [client.client_id for client in clients if client.subscriber.lapses]
        return Outcome(
            seed=plan.seed,
            verdict=_with_long_queues(
                judge(
                    (message for client in clients for message in client.sent),
                    {client.client_id: client.subscriber for client in clients},
                    kills=plan.kills,
                ),
                long_queues,
                plan,
            ),
            faults=dict(sorted(faults.counts.items())),
            counts=dict(sorted((figures.counts + Counter(_counts(long_queues))).items())),
            pool=faults.figures.totals,
            move_p50_ms=percentile(moves, 0.5),
            move_p99_ms=percentile(moves, 0.99),
            seconds=time.monotonic() - began,
            told=tuple(islice(_lines_of(servers.members, lapsed), TOLD_MAX)),
        )


async def _long_queues(plan: Plan, servers: Servers) -> list[LongQueue]:
    """Return the clients with messages that wait at a member."""
    ports = [member.port for member in servers.members]
    clients = [
        LongQueue(f"long-{number}", ports=ports, count=plan.queued, draw=random.Random(f"{plan.seed} long {number}"))
        for number in range(plan.long_queues)
    ]
    for client in clients:
        await client.subscribe()
    if clients:
        await fill(servers.primary.port, plan.queued)
    return clients


def _counts(clients: Sequence[LongQueue]) -> dict[str, int]:
    if not clients:
        return {}
    return {"long queues: visits": sum(client.moves for client in clients)}


def _with_long_queues(verdict: Verdict, clients: Sequence[LongQueue], plan: Plan) -> Verdict:
    """Add what became of long queues; a member that is killed may take one along, which has no copy."""
    found = [f"{client.client_id} lost its session" for client in clients if client.sessions_lost and not plan.kills]
    found += [
        f"{client.client_id} lacks {client.missing:,} messages"
        for client in clients
        if client.missing and not client.sessions_lost
    ]
    return replace(verdict, findings_total=verdict.findings_total + len(found), findings=(*verdict.findings, *found))


def _lines_of(members: Iterable[Node], client_ids: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the members' logs that name one of these clients."""
    names = re.compile("|".join(rf"client_id={re.escape(one)}\b" for one in client_ids) or "(?!)")
    for member in members:
        yield from (f"{member.name}: {line}" for line in member.log_text().splitlines() if names.search(line))


def _clients(plan: Plan, port: int, draw: random.Random, figures: Figures) -> list[Client]:
    """Return clients of both versions in turn, paho's first; each subscribes to one or two."""
    names = [f"client-{number}" for number in range(plan.clients)]
    clients: list[Client] = []
    for number, name in enumerate(names):
        version = 4 + number % 2
        publishers = {other: draw.choice((1, 2, 2)) for other in draw.sample(names, min(2, len(names)))}
        own = random.Random(f"{plan.seed} {name}")
        make: Callable[..., Client] = (
            PahoClient if number < plan.paho else partial(RoamingClient, steps_max=plan.steps_max)
        )
        clients.append(
            make(name, port=port, version=version, publishers=publishers, draw=own, figures=figures, kills=plan.kills)
        )
    return clients


async def _publish(plan: Plan, clients: Sequence[Client], draw: random.Random) -> None:
    """Let clients publish at an even pace, at QoS 1 and 2, while their connections are cut."""
    for client in clients:
        client.cutting = True
    began = time.monotonic()
    for number in range(plan.messages):
        await asyncio.sleep(max(0.0, began + plan.seconds * number / plan.messages - time.monotonic()))
        draw.choice(clients).publish(draw.choice((1, 2)), number)
    for client in clients:
        client.cutting = False


async def _rest(clients: Sequence[Client]) -> None:
    """Wait until every client has told everything, and nothing has come for a while; not for ever."""
    end = time.monotonic() + _SETTLE_S
    newest, since = -1, time.monotonic()
    while time.monotonic() < end:
        count = sum(len(client.subscriber.received) for client in clients)
        if count != newest or not all(client.is_done for client in clients):
            newest, since = count, time.monotonic()
        if time.monotonic() > since + _REST_S:
            return
        await asyncio.sleep(0.1)
