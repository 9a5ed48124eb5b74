"""Does what a fault says, to processes by their pid and to the proxy, and undoes it.

Owns the order of the steps. While the primary is gone the publisher is held. Before it goes on, a new client reads the
primary, because nothing else tells what a killed server had kept.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from bench.chaos.client import read_retained
from bench.chaos.plan import NARROW, PRIMARY, ROLL_BACK, Fault
from bench.chaos.primary_files import PrimaryFiles
from bench.chaos.publisher import Publisher
from bench.chaos.truth import Truth
from bench.chaos.witness import Witness
from bench.processes import Node, Server
from bench.proxy import Proxy

__all__ = ["FILTERS", "START_S", "Injector", "learn_truth"]

FILTERS = ("plant/#", "office/#", "hall/#")
"""Everything that the publisher publishes."""
START_S = 120.0
"""Time for the start of a server: a busy machine compiles slowly."""


async def learn_truth(primary: Server, truth: Truth, *, since: float) -> None:
    """Read the primary, which nobody changes now."""
    truth.learn(await read_retained(primary.port, "chaos-reader", FILTERS), since=since)


class Injector:
    """Injects faults into the servers of one run."""

    def __init__(
        self,
        *,
        primary: Server,
        files: PrimaryFiles,
        draw: random.Random,
        nodes: Mapping[str, Node],
        proxy: Proxy,
        witnesses: Mapping[str, Sequence[Witness]],
        truth: Truth,
        publisher: Publisher,
        tell: Callable[[str], None],
    ) -> None:
        """Take what it acts on.

        Args:
            primary: The primary.
            files: Its files.
            draw: Decides which topics the links may not read.
            nodes: The secondaries, by their names.
            proxy: Between the primary and one of them.
            witnesses: The local clients of each secondary.
            truth: The publisher's ledger.
            publisher: Held while the primary is gone.
            tell: Takes lines of the time line.
        """
        self._primary = primary
        self._files = files
        self._draw = draw
        self._nodes = nodes
        self._proxy = proxy
        self._witnesses = witnesses
        self._truth = truth
        self._publisher = publisher
        self._tell = tell

    async def inject(self, fault: Fault) -> None:
        """Begin a fault, and end it after its time."""
        self._tell(f"{fault} begins")
        server = self._primary if fault.target == PRIMARY else self._nodes[fault.target]
        if fault.kind == "stop":
            await self._stop(server, fault)
        elif fault.kind == NARROW:
            await self._narrow_rights(fault)
        elif fault.target == PRIMARY:
            await self._restart_primary(fault)
        elif fault.kind == "kill":
            await asyncio.to_thread(server.kill)
            await self._last(fault)
            await asyncio.to_thread(server.start, deadline_s=START_S)
        elif fault.kind == "cut witness":
            for witness in self._witnesses[fault.target]:
                witness.cut()
            await self._last(fault)
        else:
            await self._break_connection(fault)
        self._tell(f"{fault} has ended")
        if fault.burst_after is not None:
            self._publisher.burst(*fault.burst_after)

    async def _last(self, fault: Fault) -> None:
        if fault.burst is not None:
            self._publisher.burst(*fault.burst)
        await asyncio.sleep(fault.outage_s)

    async def _stop(self, server: Server, fault: Fault) -> None:
        server.send_signal(signal.SIGSTOP)
        try:
            await self._last(fault)
        finally:
            server.send_signal(signal.SIGCONT)

    async def _narrow_rights(self, fault: Fault) -> None:
        hidden = self._draw.choice(FILTERS)
        self._tell(f"the links may not read {hidden}")
        self._files.hide(hidden)
        self._primary.send_signal(signal.SIGHUP)
        try:
            await self._last(fault)
        finally:
            self._files.hide()
            self._primary.send_signal(signal.SIGHUP)

    async def _restart_primary(self, fault: Fault) -> None:
        if fault.kind == ROLL_BACK:
            self._files.copy_database()
            await self._last(fault)
        self._truth.begin_life()
        self._publisher.hold()
        await asyncio.to_thread(self._primary.stop, signal.SIGTERM if fault.kind == "restart" else signal.SIGKILL)
        self._truth.begin_life()  # again: what was sent in the meantime was the former one's
        await asyncio.sleep(fault.outage_s)
        if fault.kind == "kill and wipe":
            self._files.wipe()
        elif fault.kind == ROLL_BACK:
            self._files.restore_database()
        since = time.monotonic()
        await asyncio.to_thread(self._primary.start, deadline_s=START_S)
        await learn_truth(self._primary, self._truth, since=since)
        self._publisher.resume()

    async def _break_connection(self, fault: Fault) -> None:
        if fault.kind == "cut":
            self._proxy.accepting = False
            self._proxy.cut()
            await self._last(fault)
            self._proxy.accepting = True
            return
        self._proxy.pause()
        await self._last(fault)
        if fault.kind == "half open":
            self._proxy.cut()  # what was under way is lost
        self._proxy.resume()
