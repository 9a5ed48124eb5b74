"""Kills: a node with sessions on disk is killed soon after each start; exit code 1 when a message is wrong.

The node is a secondary below a Mosquitto, or a `fanout primary`. Clients publish numbered messages at QoS 1 and 2 where
nothing is lost: at the Mosquitto, or at the node, which answers them. A kill (SIGKILL) comes some time after the
listener is open, or as soon as the link resumes its session or verifies it; a slow proxy in front of the Mosquitto
gives it time for both. Subscribers of the Mosquitto are the witnesses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bench.arguments import above_0, at_least, choices
from bench.load import connect, publish, publishes
from bench.processes import Mosquitto, Node, Server, link, selector
from bench.proxy import Proxy
from bench.roaming.client import Figures, RoamingClient
from bench.roaming.records import Verdict, judge
from bench.stage import ON_DISK, SESSIONS

__all__ = ["REPEATED", "KillsReport", "Outcome", "add_arguments", "run"]

REPEATED = False
"""Its command has no `--runs`: seeds have its place."""
SECONDARY, PRIMARY = "secondary", "primary"
_DELAY_S = (0.03, 0.6)
_STATES = ("resuming", "verifying")
_STATE_S = 2.0
_STATE = re.compile(r"link state .*? state=(\w+)")
_OPENED = "sessions restored"
"""First line of each process, before its link does anything."""
_PUBLISHERS, _SUBSCRIBERS = 3, 4
_NEVER_CUT = 1 << 30
_REST_S = 4.0
_BYTES_PER_S = 1_000_000.0
_PIECE_S = 0.01
_SETTLE_S = 60.0
_LINK = "retry_min_s = 0.05\nretry_max_s = 0.5\nheartbeat_s = 0.5\n"
_FIGURES = ("published", "acknowledged", "expected", "delivered", "lost", "doubled", "repeated", "sessions_told")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one seed."""

    role: str
    """Of the node."""
    seed: int
    verdict: Verdict
    kills: dict[str, int]
    """Key: the state of the node's link; `serving` or `starting` if it has no link or does not answer."""
    seconds: float


class KillsReport:
    """Results of all seeds."""

    bench: ClassVar[str] = "kills"

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes

    @property
    def exit_code(self) -> int:
        """1 when anything was found, else 0."""
        return 0 if all(outcome.verdict.passed for outcome in self._outcomes) else 1

    def table(self) -> Group:
        """Return for a terminal: the figures of each role over all of its seeds, and a line per seed."""
        roles = list(dict.fromkeys(outcome.role for outcome in self._outcomes))
        table = Table(title="kills of a node with sessions on disk")
        table.add_column("figure")
        for role in roles:
            table.add_column(role, justify="right")
        some = {role: [each for each in self._outcomes if each.role == role] for role in roles}
        table.add_row("seeds", *(f"{len(some[role])}" for role in roles))
        for name in _FIGURES:
            table.add_row(name, *(f"{sum(getattr(each.verdict, name) for each in some[role]):,}" for role in roles))
        for state in sorted({state for outcome in self._outcomes for state in outcome.kills}):
            table.add_row(
                f"killed while {state}", *(f"{sum(each.kills.get(state, 0) for each in some[role])}" for role in roles)
            )
        return Group(table, *(Text(_line(outcome)) for outcome in self._outcomes))

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "bench": self.bench,
            "passed": self.exit_code == 0,
            "seeds": [{**asdict(outcome), "passed": outcome.verdict.passed} for outcome in self._outcomes],
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument(
        "--roles", type=choices(SECONDARY, PRIMARY), default="secondary,primary", help="of the node (secondary,primary)"
    )
    parser.add_argument("--kills", type=at_least(1), default=20, help="kills of each seed (20)")
    parser.add_argument("--rate", type=above_0, default=150.0, help="messages/s of all publishers (150)")
    parser.add_argument(
        "--topics", type=at_least(0), default=5_000, help="further retained topics, which a comparison reads (5000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="how many seeds, one after another (1)")
    parser.add_argument("--keep", type=Path, help="keep the files of all servers below this directory")


def run(arguments: argparse.Namespace) -> KillsReport:
    """Run the seeds; a seed that finds something says at once what."""
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    outcomes = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for role in arguments.roles:
            with contextlib.ExitStack() as stack:
                if arguments.keep is None:
                    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fanout-kills-")))
                else:
                    directory = arguments.keep / f"{role}-{seed}"
                    directory.mkdir(parents=True)
                kills = _Kills(directory, role, seed)
                outcomes.append(asyncio.run(kills.run(arguments.kills, rate=arguments.rate, topics=arguments.topics)))
            console.print(_line(outcomes[-1]))
            console.print("\n".join(outcomes[-1].verdict.findings))
    return KillsReport(outcomes)


def _line(outcome: Outcome) -> str:
    verdict, kills = outcome.verdict, sum(outcome.kills.values())
    what = f"{verdict.delivered:,} deliveries, nothing found"
    if not verdict.passed:
        what = f"{verdict.findings_total:,} violations"
    name = "PASSED" if verdict.passed else "FAILED"
    return f"{outcome.role}, seed {outcome.seed}: {name}, {kills} kills in {outcome.seconds:.0f} s, {what}"


class _Kills:
    """One seed."""

    def __init__(self, directory: Path, role: str, seed: int) -> None:
        """Describe it; `run` starts the servers."""
        self._directory, self._role, self._seed = directory, role, seed
        self._draw = random.Random(f"{seed} {role}")
        self._states: Counter[str] = Counter()
        self._node: Node

    async def run(self, kills: int, *, rate: float, topics: int) -> Outcome:
        """Start the servers, publish and kill, let everything come to rest, judge, and end the servers."""
        async with contextlib.AsyncExitStack() as stack:
            links, above = ON_DISK[SESSIONS], None
            if self._role == SECONDARY:
                above = stack.enter_context(Mosquitto(self._directory, settings=["max_queued_messages 0"]))
                await asyncio.to_thread(_fill, above, topics)
                proxy = await stack.enter_async_context(Proxy(above.port))
                proxy.throttle_bytes_per_s, proxy.delay_s = _BYTES_PER_S, _PIECE_S
                links += link(proxy.port, selector("roam/#", qos=2), settings=_LINK)
            self._node = Node(self._directory, role=self._role, name="edge", links=links, log=False)
            stack.callback(self._node.stop)
            await asyncio.to_thread(self._node.start)
            await asyncio.to_thread(self._node.wait_ready)
            if above is None:
                await asyncio.to_thread(_fill, self._node, topics)
            return await self._run(kills, rate=rate, port=self._node.port if above is None else above.port)

    async def _run(self, kills: int, *, rate: float, port: int) -> Outcome:
        began = time.monotonic()
        names = [f"publisher-{number}" for number in range(_PUBLISHERS)]
        publishers = [self._client(name, port, {name: 2}, retains=True) for name in names]
        subscribers = [
            self._client(f"subscriber-{number}", self._node.port, dict.fromkeys(names, 1 + number % 2))
            for number in range(_SUBSCRIBERS)
        ]
        clients = [*publishers, *subscribers]
        try:
            for client in clients:
                client.start()
            async with asyncio.timeout(_SETTLE_S):
                await asyncio.gather(*(client.subscribed.wait() for client in clients))
            publishing = asyncio.create_task(self._publish(publishers, rate))
            for _ in range(kills):
                await self._wait_for_kill()
                await asyncio.to_thread(self._node.kill)
                await asyncio.to_thread(self._node.start)
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            await _rest(clients)
        finally:
            await asyncio.gather(*(client.finish() for client in clients))
        if failures := [client.failure for client in clients if client.failure is not None]:
            raise failures[0]
        verdict = judge(
            (message for client in clients for message in client.sent),
            {client.client_id: client.subscriber for client in clients},
            kills=False,
        )
        return Outcome(self._role, self._seed, verdict, dict(sorted(self._states.items())), time.monotonic() - began)

    def _client(self, name: str, port: int, publishers: dict[str, int], *, retains: bool = False) -> RoamingClient:
        return RoamingClient(
            name,
            port=port,
            version=4 + self._draw.randrange(2),
            publishers=publishers,
            draw=random.Random(f"{self._seed} {name}"),
            figures=Figures(),
            kills=False,
            steps_max=_NEVER_CUT,
            retains=retains,
        )

    async def _publish(self, publishers: Sequence[RoamingClient], rate: float) -> None:
        draw, began, number = random.Random(f"{self._seed} messages"), time.monotonic(), 0
        while True:
            number += 1
            draw.choice(publishers).publish(draw.choice((1, 2)), number)
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))

    async def _wait_for_kill(self) -> None:
        """Wait for some time, or for a state of the link; note the state."""
        if self._role == SECONDARY and self._draw.random() < 0.5:
            await asyncio.to_thread(self._wait_for_state, self._draw.choice(_STATES))
        else:
            await asyncio.sleep(self._draw.uniform(*_DELAY_S))
        self._states[self._state()] += 1

    def _wait_for_state(self, wanted: str) -> None:
        end = time.monotonic() + _STATE_S
        while self._state() != wanted and time.monotonic() < end:
            time.sleep(0.002)

    def _state(self) -> str:
        """Return the newest state of the link in the log of the process; its HTTP interface comes up later."""
        if self._role == PRIMARY:
            return "serving"
        states = _STATE.findall(self._node.log_text().rpartition(_OPENED)[2])
        return str(states[-1]) if states else "starting"


def _fill(server: Server, topics: int) -> None:
    """Publish retained values below the topics of the messages, where nobody subscribes."""
    if topics:
        with connect(server.port, "fill") as client:
            data = publishes(topics, root="roam/fill", topics=topics, payload_bytes=40, qos=1, retain=True)
            publish(client, data, messages=topics, qos=1)


async def _rest(clients: Sequence[RoamingClient]) -> None:
    """Wait until every client has told everything, and nothing has come for a while; not for ever."""
    end, newest, since = time.monotonic() + _SETTLE_S, -1, time.monotonic()
    while time.monotonic() < min(end, since + _REST_S):
        count = sum(len(client.subscriber.received) for client in clients)
        if count != newest or not all(client.is_done for client in clients):
            newest, since = count, time.monotonic()
        await asyncio.sleep(0.1)
