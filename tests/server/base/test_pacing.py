"""Tests of the turns that connections get."""

from __future__ import annotations

import asyncio

from fanout.server.base.pacing import PIECE_S, Pacer
from fanout.server.base.pauses import Pauses
from tests.server.node_in_memory import ManualClock


class Sender:
    """Something with a number of pieces to send."""

    def __init__(self, name: str, pieces: int, log: list[str], clock: ManualClock, takes_s: float = 0.0) -> None:
        self._name = name
        self._pieces = pieces
        self._log = log
        self._clock = clock
        self._takes_s = takes_s

    def pump(self) -> bool:
        """Send one piece."""
        self._log.append(self._name)
        self._clock.advance(self._takes_s)
        self._pieces -= 1
        return self._pieces > 0


def make_pacer(clock: ManualClock) -> Pacer:
    """Make a pacer."""
    return Pacer(clock, Pauses(clock))


async def test_turns_go_round() -> None:
    """Each gets one piece in its turn until it has no more; one that waits twice has one turn."""
    log: list[str] = []
    clock = ManualClock()
    pacer = make_pacer(clock)
    first, second = Sender("a", 3, log, clock), Sender("b", 1, log, clock)
    pacer.schedule(first)
    pacer.schedule(second)
    pacer.schedule(first)
    await asyncio.sleep(0)
    assert log == ["a", "b", "a", "a"]


async def test_long_work_lets_the_event_loop_turn() -> None:
    """When the time of one step is used up, other things of the event loop come first."""
    log: list[str] = []
    clock = ManualClock()
    pacer = make_pacer(clock)
    pacer.schedule(Sender("a", 3, log, clock, takes_s=PIECE_S))
    for _ in range(4):
        await asyncio.sleep(0)
        log.append("-")
    assert log == ["a", "-", "a", "-", "a", "-", "-"]


async def test_quick_work_lets_the_event_loop_turn_too() -> None:
    """However quick the pieces are, one step has a limited number."""
    log: list[str] = []
    clock = ManualClock()
    pacer = make_pacer(clock)
    pacer.schedule(Sender("a", 1000, log, clock))
    await asyncio.sleep(0)
    assert 0 < len(log) < 1000
    pacer.close()
    taken = len(log)
    await asyncio.sleep(0)
    assert len(log) == taken


async def test_a_bug_at_one_connection_leaves_the_others_their_turns() -> None:
    """The event loop reports it, and the next turn goes on with those that wait."""
    log: list[str] = []
    clock = ManualClock()
    pacer = make_pacer(clock)
    broken = Sender("a", 1, log, clock, takes_s=float("nan"))
    reported: list[type[BaseException]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(type(context["exception"])))
    pacer.schedule(broken)
    pacer.schedule(Sender("b", 2, log, clock))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (log, reported) == (["a", "b", "b"], [ValueError])


async def test_turn_can_be_taken_back() -> None:
    """A connection that ended gets no turn, and a closed pacer gives none."""
    log: list[str] = []
    clock = ManualClock()
    pacer = make_pacer(clock)
    ended = Sender("a", 1, log, clock)
    pacer.schedule(ended)
    pacer.discard(ended)
    pacer.discard(ended)
    await asyncio.sleep(0)
    pacer.close()
    assert log == []
