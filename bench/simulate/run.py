"""One simulation: servers, clients and faults of a seed, until everything has come to rest."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.roaming.client import Figures, RoamingClient, payload_of, topic_of
from bench.roaming.packets import Packet
from bench.roaming.records import Sent, Verdict, judge
from bench.simulate.faults import KINDS, Faults
from bench.simulate.loop import Machine
from bench.simulate.network import NetworkLoop
from bench.simulate.patches import patched
from bench.simulate.pool import BALANCER, TOPICS, Pool
from bench.simulate.primary import Message, Primary

__all__ = ["Outcome", "simulate"]

_MEMORY: Final = Path("/dev/shm")
"""Directory of the files of a simulation, if it is there: the seed decides what they lose, so no disk need wait."""
_START_S = 60.0
_SETTLE_S = 60.0
_REST_S = 1.0
_BEFORE = -1
"""Number of the messages that the primary retains before anything begins."""


@dataclass(slots=True)
class Outcome:
    """Result of one seed."""

    seed: int
    findings: list[str] = field(default_factory=list)
    """Violations."""
    trace: list[str] = field(default_factory=list)
    """Events, in order."""
    simulated_s: float = 0.0
    steps: int = 0
    cpu_s: float = 0.0


def simulate(seed: int, kinds: Sequence[str] = KINDS) -> Outcome:
    """Run one seed in this process, with faults of some kinds."""
    outcome, loop = Outcome(seed), NetworkLoop()
    began = time.process_time()

    def tell(where: str, line: str) -> None:
        outcome.trace.append(f"{loop.now_s - 1000:9.4f} {where:9} {line}")

    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fanout-simulate-", dir=where) as directory:
        size = random.Random(f"{seed} size").choice((2, 3, 3, 4))
        pool = Pool(loop, seed=seed, size=size, directory=Path(directory), tell=tell)
        run = _Run(pool, seed, kinds, tell)
        with patched(loop, pool.calls, inexact=pool.inexact, seed=str(seed)), _without_collector():
            loop.run_until_complete(loop.create_task(run.run()))
    outcome.findings += run.findings + loop.failures + pool.failures
    outcome.simulated_s, outcome.steps = loop.now_s - 1000, loop.steps
    outcome.cpu_s = time.process_time() - began
    for finding in outcome.findings:
        tell("FOUND", finding)
    return outcome


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Collect no garbage: a collection ends tasks of killed members, at a time that the seed does not decide."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Client(RoamingClient):
    """A roaming client whose steps are told."""

    tell: Callable[[str, str], None]
    primary: Primary
    untrue: list[str]
    """Acknowledgements of messages that the primary has not."""

    def _on_acknowledgement(self, packet: Packet) -> None:
        each = self._outgoing.get(packet.packet_id)
        was_told = each is None or each.message.acknowledged
        super()._on_acknowledgement(packet)
        if each is not None and each.message.acknowledged and not was_told:
            message = each.message
            if not self.primary.taken[payload_of(message)]:
                self.untrue.append(
                    f"{self.client_id} was told that the primary has {message.number} at QoS {message.qos}"
                )

    def _on_message(self, payload: bytes) -> None:
        if payload or not self.primary.has_forgotten:  # without payload: a value that a new session did not find again
            super()._on_message(payload)

    def _step(self, where: str) -> None:
        self.tell(self.client_id, where)
        super()._step(where)


class _Run:
    def __init__(self, pool: Pool, seed: int, kinds: Sequence[str], tell: Callable[[str, str], None]) -> None:
        self._pool, self._seed, self._tell = pool, seed, tell
        self._draw = random.Random(f"{seed} run")
        self._faults = Faults(pool, seed=seed, kinds=kinds, tell=tell)
        self._figures = Figures()
        self._clients: list[tuple[Machine, _Client]] = []
        self.findings: list[str] = []
        names = self._make_clients(self._draw.randint(3, 6))
        for name in names:  # a topic that is new during a snapshot would cost it its evidence
            for qos in (1, 2):
                before = Sent(name, qos, _BEFORE, 0.0)
                pool.primary.publish(Message(topic_of(name, qos), payload_of(before), 1, True, ()))

    async def run(self) -> None:
        """Do everything."""
        clients = [client for _, client in self._clients]
        try:
            await self._act(clients)
        except TimeoutError as error:
            self.findings.append(str(error) or "first subscriptions take too long")
        else:
            self._check_rest()
            self._judge(clients)
        self.findings += [f"{one.client_id} failed: {one.failure!r}" for one in clients if one.failure is not None]

    async def _act(self, clients: Sequence[_Client]) -> None:
        pool, draw = self._pool, self._draw
        pool.start()
        await pool.wait_whole(_START_S, "at its start")
        for machine, client in self._clients:
            machine.context.run(client.start)
        async with asyncio.timeout(_START_S):
            await asyncio.gather(*(one.subscribed.wait() for one in clients))
        pool.clients = clients
        publishing = asyncio.ensure_future(self._publish(draw.uniform(0.05, 0.2)))
        try:
            await self._faults.inject()
        finally:
            if not publishing.cancel():
                publishing.result()  # it ends by an error only
        for client in clients:
            client.cutting = False
        await self._rest(clients)

    def _judge(self, clients: Sequence[_Client]) -> None:
        """Judge what the clients saw, and what the primary got."""
        for client in clients:
            client.subscriber.received = [one for one in client.subscriber.received if one.number != _BEFORE]
        sent = [message for client in clients for message in client.sent]
        subscribers = {client.client_id: client.subscriber for client in clients}
        verdict = judge(sent, subscribers, kills=self._faults.sudden or self._faults.may_lose)
        self.findings += (one for one in verdict.findings if not self._is_told(one, verdict))
        for message in sent:
            times = self._pool.primary.taken[payload_of(message)]
            if message.qos == 2 and times > 1 and not message.at_risk and not self._pool.primary.has_forgotten:
                self.findings.append(f"the primary got {message.number} of {message.publisher} at QoS 2 {times} times")

    def _is_told(self, finding: str, verdict: Verdict) -> bool:
        """Return whether something may happen, and is told or counted then.

        A session that moves while a link is down is divided by no marker: messages may be lost or doubled. A session
        may be lost if two members fail at a time. Messages that its publisher sends again may then come twice. If the
        primary and a session's member fail at a time, its keeper may lack the heartbeat that names its place. A primary
        that forgets sessions loses messages, and members begin anew with its retained values. And a member warns that
        messages may be lost when the primary fails while it compares.
        """
        is_lost = " never got " in finding
        if is_lost and self._pool.says_lost:
            return True
        client_id = finding.split(maxsplit=1)[0]
        if (client_id in self._pool.inexact or self._pool.primary.has_forgotten) and (
            is_lost or " times, at " in finding
        ):
            return True
        may_end = self._faults.has_primary and client_id in self._pool.not_inherited
        if may_end and (is_lost or "lost its session" in finding):
            return True
        return self._faults.may_lose and ("lost its session" in finding or (is_lost and not verdict.lost))

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
                kills=self._faults.sudden,
                steps_max=80,
                retains=not self._faults.may_lose,  # a session that begins anew gets retained messages again
            )
            client.tell, client.primary, client.untrue = self._tell, self._pool.primary, self.findings
            self._clients.append((Machine(name, self._pool.loop, is_client=True), client))
        return names

    async def _publish(self, pause_s: float) -> None:
        for _, client in self._clients:
            client.cutting = True
        for number in itertools.count():
            await asyncio.sleep(pause_s)
            machine, client = self._draw.choice(self._clients)
            machine.context.run(client.publish, self._draw.choice((1, 2)), number)

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
        self.findings.append("no rest: a client is not done")

    def _check_rest(self) -> None:
        """Check what holds once nothing happens."""
        pool = self._pool
        prefix = TOPICS.removesuffix("#")
        wanted = {
            topic.encode(): one.payload for topic, one in pool.primary.retained.items() if topic.startswith(prefix)
        }
        for member in pool.members:
            if member.node is None or not member.is_ready:
                self.findings.append(f"{member.name} is not ready at rest")
                continue
            ((_, replica),) = member.node.link_replicas
            held = {topic: update[1] for topic, update in replica.values.items()}
            differ = sorted(topic.decode() for topic in wanted.keys() | held if wanted.get(topic) != held.get(topic))
            if differ:
                self.findings.append(f"{member.name} is ready, and has other values of {', '.join(differ)}")
        for _, client in self._clients:
            owners = [member.name for member in pool.members if member.owns(client.client_id)]
            if len(owners) != 1:
                self.findings.append(f"{client.client_id} has {len(owners)} owners at rest: {', '.join(owners)}")
