"""The pool of a simulation: a model primary, members that are real nodes, and a load balancer."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

from bench.processes import link, pool_section, selector
from bench.simulate.loop import Machine
from bench.simulate.network import Network, NetworkLoop
from bench.simulate.patches import Calls
from bench.simulate.primary import Primary
from fanout.config.loading import parse_config
from fanout.node.node import Node

__all__ = ["BALANCER", "DEAD_AFTER_S", "PRIMARY", "TOPICS", "Member", "Pool"]

PRIMARY: Final = 1883
"""Port of the primary."""
BALANCER: Final = 1900
"""Port of the load balancer."""
DEAD_AFTER_S: Final = 1.5
"""`pool.dead_after_s` of the members: half of the default, so that less time is simulated in which nothing happens."""
TOPICS: Final = "roam/#"
"""What the members replicate."""


class Member:
    """One member: a node, and the processes that it has had."""

    def __init__(self, pool: Pool, number: int, *, size: int) -> None:
        """Describe it.

        Args:
            pool: Its pool.
            number: Its place in the pool, from 0.
            size: Members of the pool.
        """
        self.name = f"edge-{number + 1}"
        self.port = 2000 + number
        self.machine: Machine | None = None
        """The process; None while there is none."""
        self.node: Node | None = None
        self._pool = pool
        peers = [3000 + other for other in range(size)]
        text = f'[node]\nid = "{self.name}"\n[server]\nlisten = ["mqtt://127.0.0.1:{self.port}"]\n'
        text += pool_section(3000 + number, peers, settings=f"dead_after_s = {DEAD_AFTER_S}\n")
        text += link(PRIMARY, selector(TOPICS, qos=2, writes="forward"))
        self._config = parse_config(text, path=self.name, role="secondary")

    @property
    def is_ready(self) -> bool:
        """Whether it says that it is ready; False while it cannot answer."""
        machine, node = self.machine, self.node
        return machine is not None and node is not None and not machine.is_paused and node.documents.readiness().ready

    def owns(self, client_id: str) -> bool:
        """Return whether it has the session of a client."""
        return self.node is not None and self.node.sessions is not None and self.node.sessions.ledger.is_here(client_id)

    def start(self) -> None:
        """Start a process."""
        pool = self._pool
        self.machine = Machine(self.name, pool.loop)
        self.machine.run(self._run(), name=self.name)

    async def _run(self) -> None:
        logger = self._pool.logger(self.name)
        node = Node(self._config, role="secondary", logger=logger)
        await node.start()
        self.node = node
        failure = await node.wait_failed()
        raise RuntimeError(f"a part of {self.name} failed") from failure

    def kill(self) -> None:
        """Kill the process."""
        machine, self.machine, self.node = self.machine, None, None
        assert machine is not None
        machine.kill()
        self._pool.calls.listeners = {
            where: one for where, one in self._pool.calls.listeners.items() if one[0] is not machine
        }
        self._pool.network.close_all(machine)
        self._pool.buried.append(machine)


class Pool:
    """All servers of a simulation."""

    def __init__(self, loop: NetworkLoop, *, seed: int, size: int, tell: Callable[[str, str], None]) -> None:
        """Prepare.

        Args:
            loop: Runs everything.
            seed: Decides latencies.
            size: Number of members.
            tell: Takes a line of the trace, and the machine that it is about.
        """
        self.loop, self._tell = loop, tell
        self.network = loop.network = Network(loop, random.Random(f"{seed} network"))
        self.network.route = self._route
        self.calls = Calls(self.network, tell)
        self.primary = Primary(lambda line: tell("primary", line))
        self.primary_machine: Machine | None = None
        self.members = [Member(self, number, size=size) for number in range(size)]
        self.buried: list[Machine] = []
        """Dead processes; what they had is kept, so that nothing of it ends in order."""
        self._draw = random.Random(f"{seed} balancer")

    async def start(self) -> None:
        """Start the primary and all members."""
        self.start_primary()
        for member in self.members:
            member.start()

    def start_primary(self) -> None:
        """Start a process of the primary."""
        self.primary.restart()
        self.primary_machine = machine = Machine("primary", self.loop)
        machine.context.run(self.network.listen, ("127.0.0.1", PRIMARY), self.primary.connect)

    def kill_primary(self) -> None:
        """Kill the process of the primary."""
        assert self.primary_machine is not None
        self.primary_machine.kill()
        self.network.close_all(self.primary_machine)
        self.buried.append(self.primary_machine)

    def logger(self, name: str) -> Any:
        """Return a logger whose lines go to the trace."""

        def to_trace(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
            text = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "node"))
            self._tell(name, f"[{level}] {event['event']} {text}")
            raise structlog.DropEvent

        wrapper = structlog.make_filtering_bound_logger(logging.INFO)
        return structlog.wrap_logger(None, processors=[to_trace], wrapper_class=wrapper)

    def _route(self, address: tuple[str, int]) -> tuple[str, int]:
        if address[1] != BALANCER:
            return address
        ready = [one.port for one in self.members if one.is_ready]
        return (address[0], self._draw.choice(ready) if ready else BALANCER)

    @property
    def is_whole(self) -> bool:
        """Whether all members are ready, hear each other, and have a copy of each session elsewhere."""
        return all(_is_whole(member, len(self.members)) for member in self.members)


def _is_whole(member: Member, size: int) -> bool:
    if not member.is_ready or member.node is None or member.node.members is None:
        return False
    facts = member.node.members.own_facts()
    heard = sum(other.reachable for other in member.node.members.others())
    return bool(
        heard == size - 1
        and facts.sessions <= (facts.sessions_copied or 0)
        and (facts.copies_late_s or 0.0) < 1.0
        and member.node.sessions is not None
        and not member.node.sessions.is_fenced
    )
