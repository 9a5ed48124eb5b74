"""Slices of long work on the event loop: many short pieces of work share one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

from fanout.runtime.slices import Slices, in_turns


def busy(seconds: float) -> Generator[None, None, int]:
    """Take so much time of the processor, in one step."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass
    yield
    return 1


async def test_much_short_work_that_comes_at_once_takes_many_turns() -> None:
    """A member sends a thousand sessions in one answer: each is short, and all together are not."""
    slices, turns = Slices(), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    results = await asyncio.gather(*(slices.run(busy(0.002)) for _ in range(100)))
    counting.cancel()
    assert sum(results) == 100
    assert turns > 20


async def test_items_of_one_piece_of_work_take_several_turns() -> None:
    """As the questions of one request."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    done = 0
    async for _ in in_turns(range(50)):
        done += sum(1 for _ in busy(0.002))
    counting.cancel()
    assert done == 50
    assert turns > 5
