"""Slices of long work on the event loop: many short pieces of work share one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator

from fanout.runtime.slices import OneForMany, Slices, in_turns


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


async def test_slices_leave_the_rest_of_the_time_to_others() -> None:
    """With a share of a quarter, work takes at least four times as long, however many do it."""
    slices = Slices(slice_s=0.001, share=0.25)
    begun_s = time.perf_counter()
    await asyncio.gather(*(slices.run(busy(0.002)) for _ in range(11)))
    assert time.perf_counter() - begun_s >= 10 * 0.002 * 4


async def test_many_that_ask_get_what_is_made_once() -> None:
    """Within the time; another key is another result, and the oldest are forgotten."""
    now_s, made = 0.0, []
    shared: OneForMany[str, int] = OneForMany(keep_s=1.0, entries_max=2, monotonic=lambda: now_s)

    async def make(key: str) -> int:
        await asyncio.sleep(0)
        made.append(key)
        return len(made)

    async def ask(key: str) -> int:
        return await shared.get(key, lambda: make(key))

    assert await asyncio.gather(*(ask("a") for _ in range(50)), ask("b")) == [1] * 50 + [2]
    now_s = 0.9
    assert await ask("a") == 1
    now_s = 1.0
    assert await ask("a") == 3
    assert [await ask("c"), await ask("a")] == [4, 5]


async def test_who_gives_up_leaves_the_work_to_the_next() -> None:
    """A client that goes away, and a failure, are no result for those that wait."""
    shared: OneForMany[str, int] = OneForMany(keep_s=1.0, entries_max=2)
    begun = asyncio.Event()

    async def forever() -> int:
        begun.set()
        return await asyncio.Future()

    async def fail() -> int:
        raise OSError("it cannot be made")

    async def make() -> int:
        return 1

    first = asyncio.create_task(shared.get("a", forever))
    await begun.wait()
    others = [asyncio.create_task(shared.get("a", way)) for way in (fail, make, fail)]
    await asyncio.sleep(0)
    first.cancel()
    results = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(results[0], OSError)
    assert results[1:] == [1, 1]
