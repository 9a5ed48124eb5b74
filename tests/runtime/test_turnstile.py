"""Turnstile: work of strangers in each turn of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from functools import partial

from fanout.runtime.turnstile import Turnstile


class Work:
    """Actions that take time of a manual clock, each noted with the turn in which it was done."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turn = 0
        self.done: list[tuple[int, str]] = []
        self.turnstile = Turnstile(slice_s=0.002, processor_s=lambda: self.now_s)
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.turn += 1
        if self.turn < 100:
            asyncio.get_running_loop().call_soon(self._count)

    def do(self, name: str, *, takes_s: float = 0.001) -> None:
        """Do an action."""
        self.now_s += takes_s
        self.done.append((self.turn, name))


class Kept:
    """What waits for its turn."""

    def do(self) -> None:
        """Do nothing."""


async def wait_done(work: Work, count: int) -> None:
    """Wait until so many actions are done."""
    async with asyncio.timeout(10):
        while len(work.done) < count:
            await asyncio.sleep(0)


async def test_a_turn_has_a_bound() -> None:
    """What does not fit waits for later turns; nothing is lost, and the order stays."""
    work = Work()
    at_once = [work.turnstile.run(partial(work.do, str(number))) is None for number in range(7)]
    assert at_once == [True, True, False, False, False, False, False]
    await wait_done(work, 7)
    assert [name for _, name in work.done] == list("0123456")
    turns = [turn for turn, _ in work.done]
    assert max(turns.count(turn) for turn in turns) == 2


async def test_all_who_ask_have_their_turn() -> None:
    """One who asks for much delays another one by one action of each only."""
    work = Work()
    for number in range(20):
        work.turnstile.run(partial(work.do, f"a{number}"), who="a")
    work.turnstile.run(partial(work.do, "b"), who="b")
    await wait_done(work, 21)
    assert [name for _, name in work.done].index("b") == 3


async def test_who_asks_now_and_then_goes_before_a_crowd() -> None:
    """A check of a load balancer is two actions, each after the other: neither waits for all others to have one."""
    work = Work()
    for _ in range(40):
        for crowd in range(8):
            work.turnstile.run(partial(work.do, f"{crowd}", takes_s=0.002), who=crowd)
    for check in range(3):
        while work.turn < 40 + 20 * check:  # the crowd has used up its credit
            await asyncio.sleep(0)
        before = len(work.done)
        for part in ("connection", "request"):
            await work.turnstile.turn(who="check", at_least_s=0.0005 if part == "connection" else 0.002)
        assert len(work.done) - before <= 4


async def test_new_ones_without_end_keep_nobody_waiting() -> None:
    """A new address comes with each that leaves: one that stays has an action for each that the others have."""
    work = Work()
    numbers = itertools.count()

    def come() -> None:
        work.do("new")
        work.turnstile.run(come, who=next(numbers))

    for _ in range(2):
        work.turnstile.run(partial(work.do, "first"))
    for _ in range(10):
        work.turnstile.run(come, who=next(numbers))
    for _ in range(3):
        work.turnstile.run(partial(work.do, "old"), who="old")
    await wait_done(work, 150)
    work.turnstile.close()
    assert [name for _, name in work.done].count("old") == 3


async def test_an_action_counts_for_the_work_that_it_causes() -> None:
    """A handshake is begun in no time, and takes its time afterwards."""
    work = Work()
    for number in range(6):
        work.turnstile.run(partial(work.do, str(number), takes_s=0.0), at_least_s=0.001)
    await wait_done(work, 6)
    assert len({turn for turn, _ in work.done}) == 3


async def test_a_long_action_uses_the_time_of_later_turns_too() -> None:
    """So that all take their share in the mean, however long one takes."""
    work = Work()
    work.turnstile.run(partial(work.do, "long", takes_s=0.009))
    work.turnstile.run(partial(work.do, "next"))
    await wait_done(work, 2)
    assert work.done[1][0] - work.done[0][0] == 4


async def test_a_fault_stops_nobody_else() -> None:
    """It goes to the event loop, and the next ones have their turn."""
    work = Work()
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    for number in range(2):
        work.turnstile.run(partial(work.do, str(number)))
    work.turnstile.run(fail)
    work.turnstile.run(partial(work.do, "after"))
    await wait_done(work, 3)
    assert len(told) == 1


async def test_what_is_of_no_use_counts_for_no_time() -> None:
    """As the handshake of a client that has left while it waited."""
    work = Work()
    for number in range(3):
        work.turnstile.run(partial(work.do, str(number)))
    useless = [work.turnstile.turn(who=who, at_least_s=3600.0, is_wanted=lambda: False) for who in range(20)]
    assert await asyncio.gather(*useless) == [False] * 20
    work.turnstile.run(lambda: False, at_least_s=3600.0)
    assert await work.turnstile.turn()
    assert work.turn < 20


async def test_a_crowd_that_is_not_patient_gets_in() -> None:
    """Clients that give up and come again, because they are too many, are all served after a while."""
    work = Work()
    patience, served, begun_at = 10, set[int](), dict[asyncio.Task[bool], int]()

    async def come(number: int) -> None:
        while number not in served:
            attempt = asyncio.create_task(work.turnstile.turn(who=number, at_least_s=0.001))
            begun_at[attempt] = work.turn
            with contextlib.suppress(asyncio.CancelledError):
                await attempt
                served.add(number)
            del begun_at[attempt]

    clients = [asyncio.create_task(come(number)) for number in range(100)]
    while not all(client.done() for client in clients) and work.turn < 99:
        for attempt, begun in tuple(begun_at.items()):
            if work.turn - begun > patience:
                attempt.cancel()
        await asyncio.sleep(0)
    for client in clients:
        client.cancel()
    assert len(served) == 100


async def test_who_gives_up_leaves_nothing() -> None:
    """What was withdrawn or cancelled costs no time and is not kept, and after the end nobody has a turn."""
    work = Work()
    for number in range(10):
        work.turnstile.run(partial(work.do, str(number)))
    given_up = [asyncio.create_task(work.turnstile.turn(who=who, at_least_s=3600.0)) for who in "aab"]
    await asyncio.sleep(0)
    kept = [Kept() for _ in range(3)]
    references = [weakref.ref(one) for one in kept]
    withdrawals = [work.turnstile.run(one.do, who="a", at_least_s=3600.0) for one in kept]
    del kept
    for task in given_up:
        task.cancel()
    for withdraw in withdrawals * 2:
        assert withdraw is not None
        withdraw()
    assert not any(reference() for reference in references)
    assert all(
        isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*given_up, return_exceptions=True)
    )
    assert await work.turnstile.turn()
    assert work.turn < 20
    for number in range(4):
        work.turnstile.run(partial(work.do, str(number)))
    done = len(work.done)
    work.turnstile.close()
    while work.turn < 100:
        await asyncio.sleep(0)
    assert len(work.done) == done
