"""One simulation: servers, clients and faults of a seed, until everything has come to rest."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.roaming.client import Figures, RoamingClient, payload_of, topic_of
from bench.roaming.records import Sent, judge
from bench.simulate.loop import Machine
from bench.simulate.network import NetworkLoop
from bench.simulate.patches import patched
from bench.simulate.pool import BALANCER, DEAD_AFTER_S, TOPICS, Member, Pool
from bench.simulate.primary import Message

__all__ = ["FAULTS", "Outcome", "simulate"]

FAULTS = ("kill", "kill", "pause", "cut", "clock")
_START_S = 60.0
_WHOLE_S = 60.0
_SETTLE_S = 60.0
_REST_S = 3.0
_BEFORE = -1
"""Number of the messages that the primary retains before anything begins."""


@dataclass(slots=True)
class Outcome:
    """Result of one seed."""

    seed: int
    findings: list[str] = field(default_factory=list)
    """What should not have happened."""
    trace: list[str] = field(default_factory=list)
    """What happened, in order."""
    simulated_s: float = 0.0
    steps: int = 0
    cpu_s: float = 0.0


def simulate(seed: int) -> Outcome:
    """Run one seed in this process."""
    outcome, loop = Outcome(seed), NetworkLoop()
    began = time.process_time()

    def tell(where: str, line: str) -> None:
        outcome.trace.append(f"{loop.now_s - 1000:9.4f} {where:9} {line}")

    pool = Pool(loop, seed=seed, size=random.Random(f"{seed} size").choice((2, 3, 3, 4)), tell=tell)
    run = _Run(pool, seed, tell)
    with patched(loop, pool.calls, seed=str(seed)):
        try:
            outcome.findings += loop.run_until_complete(loop.create_task(run.run()))
        except TimeoutError as error:
            outcome.findings.append(str(error))
    outcome.findings += loop.failures
    outcome.simulated_s, outcome.steps = loop.now_s - 1000, loop.steps
    outcome.cpu_s = time.process_time() - began
    for finding in outcome.findings:
        tell("FOUND", finding)
    return outcome


class _Client(RoamingClient):
    """A roaming client whose steps are told."""

    tell: Callable[[str, str], None]

    def _step(self, where: str) -> None:
        self.tell(self.client_id, where)
        super()._step(where)


class _Run:
    def __init__(self, pool: Pool, seed: int, tell: Callable[[str, str], None]) -> None:
        self._pool, self._seed, self._tell = pool, seed, tell
        self._draw = random.Random(f"{seed} run")
        self._figures = Figures()
        self._clients: list[tuple[Machine, _Client]] = []
        self._findings: list[str] = []

    async def run(self) -> list[str]:
        """Do everything; return the findings."""
        pool, draw = self._pool, self._draw
        names = self._make_clients(draw.randint(2, 6))
        self._fill(names)
        await pool.start()
        await self._until(lambda: pool.is_whole, _START_S, "the pool is whole")
        clients = [client for _, client in self._clients]
        for machine, client in self._clients:
            machine.context.run(client.start)
        await self._until(lambda: all(one.subscribed.is_set() for one in clients), _START_S, "all have subscribed")
        publishing = asyncio.ensure_future(self._publish(draw.randint(20, 60), draw.uniform(3, 9)))
        await self._inject(publishing)
        await publishing
        await self._rest(clients)
        self._check_rest()
        for _, client in self._clients:
            if client.failure is not None:
                self._findings.append(f"{client.client_id} failed: {client.failure!r}")
            client.subscriber.received = [one for one in client.subscriber.received if one.number != _BEFORE]
        verdict = judge(
            (message for client in clients for message in client.sent),
            {client.client_id: client.subscriber for client in clients},
            kills=True,
        )
        return [*self._findings, *verdict.findings]

    def _fill(self, names: Sequence[str]) -> None:
        """Give the primary retained values: a topic that is new during a snapshot costs it its evidence."""
        for name in names:
            for qos in (1, 2):
                before = Sent(name, qos, _BEFORE, 0.0)
                self._pool.primary.publish(Message(topic_of(name, qos), payload_of(before), 1, True, ()))

    def _make_clients(self, count: int) -> list[str]:
        names = [f"client-{number}" for number in range(count)]
        for number, name in enumerate(names):
            publishers = {other: self._draw.choice((1, 2, 2)) for other in self._draw.sample(names, min(2, count))}
            client = _Client(
                name,
                port=BALANCER,
                version=4 + number % 2,
                publishers=publishers,
                draw=random.Random(f"{self._seed} {name}"),
                figures=self._figures,
                kills=True,
                steps_max=80,
                retains=True,
            )
            client.tell = self._tell
            self._clients.append((Machine(name, self._pool.loop), client))
        return names

    async def _publish(self, messages: int, seconds: float) -> None:
        for _, client in self._clients:
            client.cutting = True
        for number in range(messages):
            await asyncio.sleep(seconds / messages)
            machine, client = self._draw.choice(self._clients)
            machine.context.run(client.publish, self._draw.choice((1, 2)), number)
        for _, client in self._clients:
            client.cutting = False

    async def _inject(self, until: asyncio.Future[None]) -> None:
        """Inject one fault after another; between two, the pool is whole."""
        draw = random.Random(f"{self._seed} faults")
        while not until.done():
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            member, kind = draw.choice(self._pool.members), draw.choice(FAULTS)
            if draw.random() < 0.7:
                await self._steps(member, draw.randint(1, 400))
            await self._fault(kind, member, draw)
            await self._until(lambda: self._pool.is_whole, _WHOLE_S, f"the pool is whole after {kind}")

    async def _steps(self, member: Member, steps: int) -> None:
        """Wait for callbacks of a member: a moment by the clock would nearly always fall between its bursts of work."""
        assert member.machine is not None
        begun = asyncio.Event()
        member.machine.on_steps, member.machine.steps_left = begun.set, steps
        await begun.wait()

    async def _fault(self, kind: str, member: Member, draw: random.Random) -> None:
        pool, machine = self._pool, member.machine
        assert machine is not None
        lasts_s = draw.choice((draw.uniform(0.05, 0.5), draw.uniform(0.3, 2.0) * DEAD_AFTER_S))
        if kind == "kill":
            self._tell(member.name, f"FAULT killed for {lasts_s:.3f} s")
            member.kill()
            await asyncio.sleep(lasts_s)
            self._tell(member.name, "FAULT starts")
            member.start()
        elif kind == "pause":
            self._tell(member.name, f"FAULT paused for {lasts_s:.3f} s")
            machine.pause()
            await asyncio.sleep(lasts_s)
            self._tell(member.name, "FAULT goes on")
            machine.resume()
        elif kind == "clock":
            step_s = draw.choice((-1, 1)) * draw.choice((draw.uniform(0.01, 1.0), draw.uniform(1.0, 3600.0)))
            self._tell(member.name, f"FAULT its clock steps by {step_s:.3f} s")
            machine.clock_step_ns += int(step_s * 1e9)
        else:
            others = [one.name for one in pool.members if one is not member]
            chosen = draw.choice((others, [draw.choice(others)], ["primary"]))
            asks, is_asked = draw.choice(((True, True), (True, False), (False, True)))
            ways = " and ".join(["to"] * asks + ["from"] * is_asked)
            self._tell(member.name, f"FAULT cut off for {lasts_s:.3f} s: nothing goes {ways} {', '.join(chosen)}")
            for other in chosen:
                if asks:
                    pool.network.cut(member.name, other)
                if is_asked:
                    pool.network.cut(other, member.name)
            await asyncio.sleep(lasts_s)
            self._tell(member.name, "FAULT whole again")
            pool.network.heal()

    async def _rest(self, clients: Sequence[_Client]) -> None:
        loop = self._pool.loop
        end_s = loop.now_s + _SETTLE_S
        newest, since_s = -1, loop.now_s
        while loop.now_s < end_s:
            count = sum(len(client.subscriber.received) for client in clients)
            if count != newest or not all(client.is_done for client in clients):
                newest, since_s = count, loop.now_s
            if loop.now_s > since_s + _REST_S:
                return
            await asyncio.sleep(0.1)
        self._findings.append("no rest: a client is not done")

    def _check_rest(self) -> None:
        """Check what holds once nothing happens."""
        pool = self._pool
        prefix = TOPICS.removesuffix("#")
        wanted = {
            topic.encode(): one.payload for topic, one in pool.primary.retained.items() if topic.startswith(prefix)
        }
        for member in pool.members:
            if member.node is None or not member.is_ready:
                self._findings.append(f"{member.name} is not ready at rest")
                continue
            ((_, replica),) = member.node.link_replicas
            held = {topic: update[1] for topic, update in replica.values.items()}
            differ = sorted(topic.decode() for topic in wanted.keys() | held if wanted.get(topic) != held.get(topic))
            if differ:
                self._findings.append(f"{member.name} is ready, and has other values of {', '.join(differ)}")
        for _, client in self._clients:
            owners = [member.name for member in pool.members if member.owns(client.client_id)]
            if len(owners) != 1:
                self._findings.append(f"{client.client_id} has {len(owners)} owners at rest: {', '.join(owners)}")

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        loop = self._pool.loop
        end_s = loop.now_s + seconds
        while not condition():
            if loop.now_s > end_s:
                raise TimeoutError(f"never: {what}")
            await asyncio.sleep(0.05)
