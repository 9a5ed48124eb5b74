"""All attacks at once, each in a process of its own, beside one ordinary client and a control.

The ordinary client shares its processor with the attackers. So its pings are measured twice: beside attacks on the
target, and beside attacks on another node, the decoy, which cost the client the same and the target nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Final

import uvloop

from bench.attacks.control import control
from bench.attacks.ordinary import Noticed, answers_s, metrics, observe
from bench.attacks.target import Effort, Target, Verdict, can_attack

__all__ = ["attack_at_once"]

_QUIET_S: Final = 5.0
_BESIDE_S: Final = 15.0
_READYZ_S: Final = 1.0
_TIMES_QUIET: Final = 5.0
_NICE: Final = 10
"""Priority of attackers, so that the ordinary client has the processor when it wants it, as on a machine of its own."""
_PER_S: Final = 250.0
"""Connections and requests of each attacker in a second, so that none takes the processor from the others."""
_ENDING_S: Final = 30.0
_MOVED: Final = (
    "fanout_pool_sessions_moved_in_total",
    "fanout_pool_sessions_inherited_total",
    "fanout_pool_fences_total",
)
"""Metrics of members that stand still while all are well."""


@dataclass(slots=True)
class _Attacker:
    process: BaseProcess
    told: Connection
    rounds: int = 0
    """Rounds that came to their end."""
    done: Counter[str] = field(default_factory=Counter)
    """What `Effort.done` was in the end."""

    def listen(self) -> None:
        with contextlib.suppress(EOFError):
            while self.told.poll():
                if isinstance(news := self.told.recv(), Counter):
                    self.done = news
                else:
                    self.rounds += news


def attack_at_once(
    target: Target,
    decoy: Callable[[], contextlib.AbstractContextManager[Target]],
    names: Sequence[str],
    *,
    seconds: float,
    seconds_max: float,
) -> Iterator[tuple[str, Verdict]]:
    """Attack with all until each has come to its end at least once; yield verdicts by name.

    Args:
        target: The node.
        decoy: Starts a node that is attacked first, so that the ordinary client meets the attackers' load alone.
        names: Modules of this package.
        seconds: Time of the attacks at least; those that end sooner begin again.
        seconds_max: Time after which an attack that has not ended once is given up.
    """
    quiet = asyncio.run(_watch(target, lambda spent_s: spent_s >= min(seconds, _QUIET_S)))
    with decoy() as other:
        if other.pid is not None:
            os.setpriority(os.PRIO_PROCESS, other.pid, _NICE)
        theirs = [name for name in names if can_attack(name, other)]
        with _attackers(other, theirs):
            beside = asyncio.run(_watch(target, lambda spent_s: spent_s >= min(seconds, _BESIDE_S)))
    with control() as port, _attackers(target, names) as attackers:

        def is_over(spent_s: float) -> bool:
            for attacker in attackers.values():
                attacker.listen()
            ended = all(attacker.rounds for attacker in attackers.values())
            return spent_s >= seconds_max or (ended and spent_s >= seconds)

        seen = asyncio.run(_watch(target, is_over, control_port=port))
    modules = [importlib.import_module(f"bench.attacks.{name}") for name in names]
    resident_mib = round(quiet.client.resident_mib_max + sum(getattr(module, "GROWTH_MIB", 0.0) for module in modules))
    p99_s, quiet_s, beside_s = (one.client.percentile(0.99) for one in (seen, quiet, beside))
    yield (
        "ordinary client",
        Verdict(
            held=p99_s <= _TIMES_QUIET * max(quiet_s, beside_s),
            promise=f"99 % of its pings take at most {_TIMES_QUIET:g} times as long as beside attacks on another node",
            figures={
                "quiet_s_p99": round(quiet_s, 4),
                "beside_s_p99": round(beside_s, 4),
                "control_s_p99": round(seen.control.percentile(0.99), 4),
                **seen.client.figures,
                "times_quiet": round(p99_s / quiet_s, 1),
                "times_beside": round(p99_s / beside_s, 1),
                "seconds": round(seen.seconds),
            },
        ),
    )
    yield (
        "readiness",
        Verdict(
            held=seen.readyz_s <= _READYZ_S,
            promise=f"/readyz answers within {_READYZ_S:g} s",
            figures={"readyz_s_max": round(seen.readyz_s, 3)},
        ),
    )
    yield (
        "memory",
        Verdict(
            held=seen.client.resident_mib_max <= resident_mib,
            promise=f"resident memory stays below {resident_mib} MiB: that without attacks, and what each may take",
            figures={"resident_mib_max": round(seen.client.resident_mib_max, 1)},
        ),
    )
    if target.peer_http_ports:
        yield (
            "members",
            Verdict(
                held=seen.reachable_min == 1 + len(target.peer_http_ports) and not any(seen.moved.values()),
                promise="all members stay reachable for each other, and no session moves",
                figures={"reachable_min": seen.reachable_min, **seen.moved},
            ),
        )
    for name, attacker in attackers.items():
        done = {kind: float(count) for kind, count in sorted(attacker.done.items())}
        promise = "the attack comes to its end at least once"
        figures = {"rounds": attacker.rounds, **done}
        yield name, Verdict(held=attacker.rounds > 0, is_effort=True, promise=promise, figures=figures)


@contextlib.contextmanager
def _attackers(target: Target, names: Sequence[str]) -> Iterator[dict[str, _Attacker]]:
    """Attack with each, from addresses of its own, until the block ends; what it did is known then."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    attackers: dict[str, _Attacker] = {}
    for number, name in enumerate(names):
        mine = replace(
            target,
            addresses=tuple(f"127.0.{number + 1}.{last}" for last in range(2, 6)),
            effort=Effort(_PER_S),
            is_observed=False,
            pid=None,  # its memory is read once for all
        )
        told, tells = context.Pipe(duplex=False)
        process = context.Process(target=_attack, args=(name, mine, tells, stop), name=name, daemon=True)
        process.start()
        tells.close()
        attackers[name] = _Attacker(process, told)
    try:
        yield attackers
    finally:
        stop.set()
        for attacker in attackers.values():
            attacker.process.join(_ENDING_S)
            if attacker.process.is_alive():
                attacker.process.kill()
            attacker.listen()


def _attack(name: str, target: Target, tells: Connection, stop: Event) -> None:
    """Attack again and again; tell of each round that ends, and at last of all that was done."""
    os.nice(_NICE)
    logging.getLogger("asyncio").disabled = True  # tasks that the end interrupts
    module = importlib.import_module(f"bench.attacks.{name}")

    async def rounds() -> None:
        while not stop.is_set():
            attacking = asyncio.create_task(module.run(target))
            while not attacking.done():
                await asyncio.wait({attacking}, timeout=0.2)
                if stop.is_set():
                    attacking.cancel()
            try:
                await attacking
            except (OSError, EOFError, TimeoutError):  # a client that the attack cannot do without was refused
                target.effort.done["broken_off"] += 1
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                return
            else:
                tells.send(1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(rounds())
    tells.send(target.effort.done)


@dataclass(slots=True)
class _Seen:
    client: Noticed = field(default_factory=Noticed)
    control: Noticed = field(default_factory=Noticed)
    readyz_s: float = 0.0
    """The slowest answer of /readyz."""
    seconds: float = 0.0
    reachable_min: float = float("inf")
    """Fewest members that another member could reach."""
    moved: dict[str, float] = field(default_factory=dict)
    """How often sessions went to another member, by metric."""


async def _watch(target: Target, is_over: Callable[[float], bool], *, control_port: int | None = None) -> _Seen:
    """Ping the target as an ordinary client, and a control if there is one; `is_over` is given the seconds so far."""
    seen = _Seen()
    begun_s = time.monotonic()
    before = Counter[str]()
    for port in target.peer_http_ports:
        before.update(await metrics(port))
    async with contextlib.AsyncExitStack() as ends:
        if control_port is not None:
            seen.control = await ends.enter_async_context(observe(Target(port=control_port)))
        seen.client = await ends.enter_async_context(observe(target))
        while not is_over(seen.seconds):
            if target.http_port is not None:
                seen.readyz_s = max(seen.readyz_s, await answers_s(target, "/readyz", status=b""))
            now = Counter[str]()
            for port in target.peer_http_ports:
                figures = await metrics(port)
                now.update(figures)
                seen.reachable_min = min(seen.reachable_min, figures["fanout_pool_members_reachable"])
            seen.moved = {name.removeprefix("fanout_pool_"): now[name] - before[name] for name in _MOVED if now}
            await asyncio.sleep(0.2)
            seen.seconds = time.monotonic() - begun_s
    return seen
