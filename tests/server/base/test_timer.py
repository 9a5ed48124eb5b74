"""The server's timer: what is due is done in its order, with the clock's time and the event loop's timer."""

from __future__ import annotations

import asyncio
from functools import partial

from fanout.server.base.timer import Timer
from tests.server.node_in_memory import ManualClock
from tests.support.waiting import wait_until


async def test_due_things_are_done_by_themselves_in_their_order() -> None:
    """Also one that was asked for last and is due first."""
    timer, done = Timer(ManualClock()), list[str]()
    # The clock stands still, so that a thing is due at once or never.
    timer.after(3600, lambda: done.append("never"))
    timer.after(0, lambda: done.append("first"))
    timer.after(0, lambda: done.append("second"))
    await wait_until(lambda: done)
    assert done == ["first", "second"]
    timer.close()


async def test_nothing_is_done_after_the_end() -> None:
    """Neither what was asked for before, nor what is afterwards; who looks by hand still does what is due."""
    timer, done = Timer(ManualClock()), list[str]()
    timer.after(0, lambda: done.append("before"))
    timer.close()
    timer.after(0, lambda: done.append("after"))
    other = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, other.set)  # due later than both
    await other.wait()
    assert done == []
    timer.run_due()
    assert done == ["before", "after"]


async def test_a_thing_may_ask_for_another_one() -> None:
    """Which comes in its turn; one that fails does not stop those behind it."""
    clock = ManualClock()
    timer, done = Timer(clock), list[str]()
    asked = timer.after(5, lambda: done.append("cancelled"))

    def ask() -> None:
        asked.cancel()
        timer.after(5, lambda: done.append("asked for"))
        raise ZeroDivisionError

    timer.after(1, ask)
    timer.after(1, lambda: done.append("behind it"))
    clock.advance(1)
    try:
        timer.run_due()
    except ZeroDivisionError:
        await wait_until(lambda: done)
    assert done == ["behind it"]
    clock.advance(5)
    timer.run_due()
    assert done == ["behind it", "asked for"]
    timer.close()


async def test_action_may_cancel_a_later_one() -> None:
    """What an action cancels is not done, even when it was due at the same time."""
    clock, done = ManualClock(), list[str]()
    timer = Timer(clock)
    victim = timer.after(2, partial(done.append, "victim"))
    timer.after(1, victim.cancel)
    clock.advance(2)
    timer.run_due()
    assert done == []
    timer.close()


async def test_cancelled_deadlines_do_not_pile_up() -> None:
    """The heap is cleared of cancelled deadlines when they are the greater part of it."""
    timer = Timer(ManualClock())
    timer.after(1e6, lambda: None)
    for number in range(10_000):
        timer.after(1000.0 + number, lambda: None).cancel()
    assert len(timer) == 1
    assert len(timer._heap) < 200
    timer.close()
