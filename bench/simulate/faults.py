"""Faults of the servers of a simulation, drawn from a seed: few kinds, again and again, while clients publish."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from bench.simulate.pool import DEAD_AFTER_S, Member, Pool

__all__ = ["KINDS", "Faults"]

KINDS: Final = (*["kill"] * 5, *["pause", "cut", "restart"] * 2, "clock", "primary", "disk", "outage")
_SUDDEN: Final = frozenset(("kill", "pause", "cut", "outage"))
"""Kinds by which a member may end, or count as dead, before it has reported its last acts."""
_AWAY: Final = _SUDDEN | {"restart"}
"""Kinds by which the sessions of a member, or the copies that it keeps, may be lost."""
_KINDS_MAX: Final = 3
"""Kinds of one seed at most: with all of them in each seed, few faults of a kind meet the repair of another one."""
_STEPS: Final = 400
"""Callbacks of a member after which a fault comes at most."""
_WORDS: Final = 10
"""Pieces that a member has sent to clients after which a fault comes at most."""
_MOVES: Final = 3
"""Sessions that go from a member, or come to it, after which a fault comes at most."""
_MOMENT_S: Final = 1.0
"""Time after which a fault comes though the member neither works nor speaks."""
_OVERLAP: Final = 0.25
"""Share of the seeds in which two members may be away at a time."""
_LENGTHS: Final = ((0.02, 0.3), (0.3, 1.0), (1.0, 1.5), (1.0, 3.0))
"""Ranges of the lengths of faults, in `DEAD_AFTER_S`: most are near the time of a verdict or of its repair."""
_ROUNDS_MAX: Final = 2
_WHOLE_S: Final = 60.0


class Faults:
    """Injects the faults of a seed."""

    def __init__(self, pool: Pool, *, seed: int, kinds: Sequence[str], tell: Callable[[str, str], None]) -> None:
        """Prepare.

        Args:
            pool: The servers.
            seed: Decides all.
            kinds: Of `KINDS`.
            tell: Takes a line of the trace, and the machine that it is about.
        """
        self._pool, self._tell = pool, tell
        self._draw = draw = random.Random(f"{seed} faults")
        self._kinds = draw.sample(kinds, min(len(kinds), draw.randint(1, _KINDS_MAX)))
        self._overlap = draw.random() < _OVERLAP
        has_disks = all(member.has_disk for member in pool.members)
        self.may_lose = self._overlap or ("outage" in self._kinds and not has_disks)
        """True if two members may be away at a time: then a session may be lost, and its client is told."""
        self._forgets = random.Random(f"{seed} forgets").choice(("nothing", "nothing", "sessions", "everything"))
        """State that the primary forgets each time it ends; drawn apart, so that the other faults of a seed stay."""
        self.has_primary = "primary" in self._kinds
        """True if the primary may fail, at the time of a member too."""
        self.sudden = not _SUDDEN.isdisjoint(self._kinds)
        """True if a member may end, or be taken for dead, before it has told what it did."""

    async def inject(self) -> None:
        """Inject faults, two at a time where that may be; then the pool is whole again, and others come.

        The members with the most sessions fail.

        Raises:
            TimeoutError: It never is.
        """
        draw = self._draw
        for _ in range(draw.randint(1, _ROUNDS_MAX)):
            await asyncio.sleep(draw.uniform(0.0, 0.5))
            others = self._kinds if self._overlap else [kind for kind in self._kinds if kind not in _AWAY]
            kinds = [draw.choice(each) for each in (self._kinds, others) if each]
            if "outage" in kinds:  # no member is left for another one
                kinds = ["outage"]
            shuffled = draw.sample(self._pool.members, len(self._pool.members))
            members = sorted(shuffled, key=attrgetter("sessions"), reverse=True)
            # The second fault comes during the first, or during its repair.
            delays_s = (0.0, draw.uniform(0.0, 2 * DEAD_AFTER_S))
            await asyncio.gather(*map(self._fault, kinds, members, delays_s))
            await self._pool.wait_whole(_WHOLE_S, f"after {' and '.join(kinds)}")

    async def _fault(self, kind: str, member: Member, delay_s: float) -> None:
        draw = self._draw
        await asyncio.sleep(delay_s)
        await self._moment(member)
        lasts_s = draw.uniform(*draw.choice(_LENGTHS)) * DEAD_AFTER_S
        await getattr(self, f"_{kind}")(member, lasts_s)

    async def _moment(self, member: Member) -> None:
        """Wait for callbacks of a member, or for what it tells clients; sometimes for nothing.

        A moment by the clock would nearly always fall between its bursts of work.
        """
        machine, begun = member.machine, asyncio.Event()
        by = self._draw.choice(("time", "steps", "words", "words", "moves", "moves"))
        if machine is None or by == "time":
            return
        machine.on_steps = begun.set
        if by == "steps":
            machine.steps_left = self._draw.randint(1, _STEPS)
        elif by == "moves":
            machine.moves_left = self._draw.randint(1, _MOVES)
        else:
            machine.words_left = self._draw.randint(1, _WORDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_S):
                await begun.wait()
        machine.steps_left = machine.words_left = machine.moves_left = 0

    async def _kill(self, member: Member, lasts_s: float) -> None:
        loses = member.forces_all and self._draw.random() < 0.5
        self._tell(member.name, f"FAULT {'loses its power' if loses else 'killed'} for {lasts_s:.3f} s")
        member.kill(self._draw, loses=loses)
        await asyncio.sleep(lasts_s)
        self._tell(member.name, "FAULT starts")
        member.start()

    async def _outage(self, _: Member, lasts_s: float) -> None:
        """Kill all members at a time: what is left of sessions is on their disks."""
        killed = [member for member in self._pool.members if member.machine is not None]
        loses = all(member.forces_all for member in killed) and self._draw.random() < 0.5
        self._tell("pool", f"FAULT {'all lose their power' if loses else 'all killed'} for {lasts_s:.3f} s")
        for member in killed:
            member.kill(self._draw, loses=loses)
        await asyncio.sleep(lasts_s)
        self._tell("pool", "FAULT all start")
        for member in killed:
            member.start()

    async def _restart(self, member: Member, lasts_s: float) -> None:
        self._tell(member.name, "FAULT is stopped in order")
        await member.stop()
        await asyncio.sleep(lasts_s)
        self._tell(member.name, "FAULT starts")
        member.start()

    async def _pause(self, member: Member, lasts_s: float) -> None:
        machine = member.machine
        assert machine is not None
        self._tell(member.name, f"FAULT paused for {lasts_s:.3f} s")
        machine.pause()
        await asyncio.sleep(lasts_s)
        self._tell(member.name, "FAULT goes on")
        machine.resume()

    async def _cut(self, member: Member, lasts_s: float) -> None:
        draw, network = self._draw, self._pool.network
        others = [one.name for one in self._pool.members if one is not member]
        chosen = draw.choice((others, [draw.choice(others)], ["primary"], *[[*others, "primary"]] * 3))
        to, back = draw.choice(((True, True), (True, False), (False, True)))
        ways = " and ".join(["to"] * to + ["from"] * back)
        self._tell(member.name, f"FAULT cut off for {lasts_s:.3f} s: nothing goes {ways} {', '.join(chosen)}")
        for other in chosen:
            if to:
                network.cut(member.name, other)
            if back:
                network.cut(other, member.name)
        await asyncio.sleep(lasts_s)
        self._tell(member.name, "FAULT whole again")
        network.heal()

    async def _clock(self, member: Member, _: float) -> None:
        draw = self._draw
        step_s = draw.choice((-1, 1)) * draw.choice((draw.uniform(0.01, 1.0), draw.uniform(1.0, 3600.0)))
        self._tell(member.name, f"FAULT its clock steps by {step_s:.3f} s")
        member.clock_step_ns += int(step_s * 1e9)
        if member.machine is not None:
            member.machine.clock_step_ns = member.clock_step_ns

    async def _primary(self, _: Member, lasts_s: float) -> None:
        if self._pool.primary_machine is None:
            return  # another fault has it
        self._tell("primary", f"FAULT killed for {lasts_s:.3f} s; it forgets {self._forgets}")
        self._pool.kill_primary()
        if self._forgets != "nothing":
            self._pool.primary.forget(values=self._forgets == "everything")
        await asyncio.sleep(lasts_s)
        self._tell("primary", "FAULT starts")
        self._pool.start_primary()

    async def _disk(self, member: Member, lasts_s: float) -> None:
        machine = member.machine
        if machine is None or not member.has_disk:
            return
        machine.disk_s = self._draw.uniform(0.05, 1.0)
        self._tell(member.name, f"FAULT its disk takes {machine.disk_s:.3f} s for {lasts_s:.3f} s")
        await asyncio.sleep(lasts_s)
        machine.disk_s = 0.0
        self._tell(member.name, "FAULT its disk is fast again")
