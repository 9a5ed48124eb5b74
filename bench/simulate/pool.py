"""The pool of a simulation: a model primary, members that are real nodes, and a load balancer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from bench.processes import link, pool_section, selector
from bench.roaming.client import RoamingClient
from bench.simulate.disks import Disk
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
_NAMED_S: Final = DEAD_AFTER_S / 2
"""Time until a new process has sent heartbeats. Nobody can use copies that it made earlier."""
_DISKS: Final = ((False, False), (False, False), (True, False), (True, True))
"""Contents of a member's disk: nothing, values and sessions, or these with each transaction forced."""
_ALIKE: Final = 0.25
"""Share of the pools in which all members have a disk of one kind: they have their sessions after an outage."""
TOPICS: Final = "roam/#"
"""Selectors of the members."""


class Member:
    """One member: a node, and the processes that it has had."""

    def __init__(
        self,
        pool: Pool,
        number: int,
        *,
        size: int,
        disk: tuple[bool, bool] | None,
        draw: random.Random,
        directory: Path,
    ) -> None:
        """Describe it.

        Args:
            pool: Its pool.
            number: Its place in the pool, from 0.
            size: Members of the pool.
            disk: Contents of its disk, one of `_DISKS`; None to draw one.
            draw: Decides the contents of its disk.
            directory: For its files.
        """
        self.name = f"edge-{number + 1}"
        self.has_disk, self.forces_all = draw.choice(_DISKS) if disk is None else disk
        """True if its values and sessions are on disk; whether each transaction is forced before it counts."""
        self.clock_step_ns = 0
        """Difference of its clock to the true time, through all of its processes."""
        self.port = 2000 + number
        self.machine: Machine | None = None
        """The process; None while there is none."""
        self.node: Node | None = None
        self._pool = pool
        self._stops = False
        self._disk = Disk(directory)
        peers = [3000 + other for other in range(size)]
        text = f'[node]\nid = "{self.name}"\n[server]\nlisten = ["mqtt://127.0.0.1:{self.port}"]\n'
        if self.has_disk:
            sync = "always" if self.forces_all else "interval"
            text += f'[retained]\nstorage = "disc"\nsync = "{sync}"\n[sessions]\nstorage = "disc"\n'
        text += pool_section(3000 + number, peers, settings=f"dead_after_s = {DEAD_AFTER_S}\n")
        text += link(PRIMARY, selector(TOPICS, qos=2, writes="forward"))
        self._config = parse_config(text, path=self.name, role="secondary")

    @property
    def is_ready(self) -> bool:
        """True if it says that it is ready; False while it cannot answer."""
        machine, node = self.machine, self.node
        return machine is not None and node is not None and not machine.is_paused and node.documents.readiness().ready

    @property
    def sessions(self) -> int:
        """Number of its sessions."""
        return 0 if self.node is None or self.node.server is None else self.node.server.session_count

    def owns(self, client_id: str) -> bool:
        """Return whether it has the session of a client."""
        pool = None if self.node is None else self.node.pool
        return pool is not None and pool.sessions is not None and pool.sessions.ledger.is_here(client_id)

    def start(self) -> None:
        """Start a process."""
        self._stops = False
        self.machine = Machine(self.name, self._pool.loop)
        self.machine.clock_step_ns = self.clock_step_ns
        self.machine.run(self._run(), name=self.name)

    async def _run(self) -> None:
        place = replace(self._config.node, data_directory=self._disk.directory)
        config = replace(self._config, node=place)
        try:
            node = Node(config, role="secondary", logger=self._pool.logger(self.name))
            await node.start()
            self.node = node
            failure: BaseException = await node.wait_failed()
        except Exception as error:
            failure = error
        if not self._stops:
            self._pool.failures.append(f"{self.name} failed: {failure!r}")

    async def stop(self) -> None:
        """Stop the process in order."""
        node, machine = self.node, self.machine
        if node is None or machine is None:
            return
        self._stops = True
        await machine.run(node.stop(), name=f"stop {self.name}")
        self._end()
        self._disk.turn_over(self._pool.draw, loses=False)

    def kill(self, draw: random.Random, *, loses: bool = False) -> None:
        """Kill the process.

        Args:
            draw: Decides what is lost.
            loses: True if the machine loses its power, and its disk what was not forced.
        """
        self._stops = True
        self._end()
        self._disk.turn_over(draw, loses=loses)

    def _end(self) -> None:
        machine, self.machine, self.node = self.machine, None, None
        assert machine is not None
        machine.kill()
        self._pool.calls.end(machine)
        self._pool.network.close_all(machine)
        self._pool.buried.append(machine)


class Pool:
    """All servers of a simulation."""

    def __init__(
        self, loop: NetworkLoop, *, seed: int, size: int, directory: Path, tell: Callable[[str, str], None]
    ) -> None:
        """Prepare.

        Args:
            loop: Runs everything.
            seed: Decides latencies.
            size: Number of members.
            directory: For the files of members.
            tell: Takes a line of the trace, and the machine that it is about.
        """
        self.loop, self._tell = loop, tell
        self.network = loop.network = Network(loop, random.Random(f"{seed} network"))
        self.network.route = self._route
        self.calls = Calls(self.network, tell)
        self.primary = Primary(lambda line: tell("primary", line))
        self.primary_machine: Machine | None = None
        self.draw = draw = random.Random(f"{seed} pool")
        disk = draw.choice(_DISKS[2:]) if draw.random() < _ALIKE else None
        self.members = [
            Member(self, number, size=size, disk=disk, draw=draw, directory=directory / str(number))
            for number in range(size)
        ]
        self.clients: Sequence[RoamingClient] = ()
        """Clients that have a session: one of the members has it once the pool is whole."""
        self.inexact: set[str] = set()
        """Clients of sessions that moved without a marker: messages may be lost or come twice."""
        self.not_inherited: set[str] = set()
        """Clients whose sessions did not go on after a death, as a member has warned."""
        self.says_lost = False
        """True once a member has warned that messages may be lost: the primary failed while it compared, at QoS 0."""
        self.failures: list[str] = []
        """Parts of members that have ended by themselves."""
        self.buried: list[Machine] = []
        """Dead processes; what they had is kept, so that nothing of it ends in order."""

    def start(self) -> None:
        """Start the primary and all members."""
        self.start_primary()
        for member in self.members:
            member.start()

    def start_primary(self) -> None:
        """Start a process of the primary."""
        self.primary.restart()
        self.primary_machine = machine = Machine("primary", self.loop)

        def take(connection: Any, *_: object) -> None:
            self.network.attach(connection, self.primary.connect())

        machine.context.run(self.network.listen, ("127.0.0.1", PRIMARY), take)

    def kill_primary(self) -> None:
        """Kill the process of the primary."""
        machine, self.primary_machine = self.primary_machine, None
        assert machine is not None
        machine.kill()
        self.network.close_all(machine)
        self.buried.append(machine)

    def logger(self, name: str) -> Any:
        """Return a logger whose lines go to the trace."""

        def to_trace(_: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
            text = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "node"))
            self.says_lost |= event["event"].startswith("session was left in an audit")
            if event["event"] == "session not inherited":
                self.not_inherited.add(event["client_id"])
            self._tell(name, f"[{level}] {event['event']} {text}")
            raise structlog.DropEvent

        wrapper = structlog.make_filtering_bound_logger(logging.INFO)
        return structlog.wrap_logger(None, processors=[to_trace], wrapper_class=wrapper)

    def _route(self, address: tuple[str, int]) -> tuple[str, int]:
        if address[1] != BALANCER:
            return address
        shuffled = self.draw.sample(self.members, len(self.members))
        return (address[0], next((one.port for one in shuffled if one.is_ready), BALANCER))

    async def wait_whole(self, seconds: float, when: str) -> None:
        """Wait until all members are ready, hear each other, and have all sessions, each with a copy elsewhere.

        Raises:
            TimeoutError: That takes longer.
        """
        end_s = self.loop.now_s + seconds
        while not self._is_whole():
            if self.loop.now_s > end_s:
                raise TimeoutError(f"the pool is never whole {when}")
            await asyncio.sleep(0.1)

    def _is_whole(self) -> bool:
        return all(_is_whole(member, len(self.members)) for member in self.members) and all(
            any(member.owns(client.client_id) for member in self.members) for client in self.clients
        )


def _is_whole(member: Member, size: int) -> bool:
    node, machine = member.node, member.machine
    if machine is None or machine.loop.now_s < machine.begun_s + _NAMED_S:
        return False
    pool = None if node is None else node.pool
    if node is None or pool is None or pool.sessions is None or pool.sessions.is_fenced:
        return False
    copies = pool.sessions.copy_figures()
    if (
        node.server is None
        or node.server.session_count > copies.sessions_copied
        or copies.copies_oldest_unconfirmed_seconds >= 1.0
    ):
        return False
    return sum(other.reachable for other in pool.members.others()) == size - 1 and member.is_ready
