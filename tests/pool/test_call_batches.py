"""Questions to a member in as few calls as windows and sizes allow."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from fanout.pool.call_batches import BYTES_MAX, ITEMS_MAX, CallBatches
from fanout.pool.membership import AskFailed, AskFailure
from tests.support.waiting import wait_until


class Member:
    """A member that answers a number by its square, when it may."""

    def __init__(self, *, waiting_max: int = 1000, window_s: float = 0.001) -> None:
        self.calls: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure: BaseException | None = None
        self.short = False
        self.batches: CallBatches[int, int] = CallBatches(
            self.send, bytes_of=lambda number: number, waiting_max=waiting_max, window_s=window_s
        )

    async def send(self, numbers: Sequence[int]) -> list[int]:
        """Answer a call."""
        self.calls.append(list(numbers))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [number * number for number in numbers][int(self.short) :]


async def test_the_first_question_goes_at_once() -> None:
    """Those that come while it is under way go together, in their order."""
    member = Member()
    member.may_answer.clear()
    first = member.batches.ask(1)
    await asyncio.sleep(0)
    assert member.calls == [[1]]
    others = [member.batches.ask(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    assert len(member.calls) == 1
    member.may_answer.set()
    assert await asyncio.gather(first, *others) == [1, 4, 9, 16]
    assert member.calls == [[1], [2, 3, 4]]
    assert (member.batches.calls_total, member.batches.questions_total) == (2, 4)


async def test_calls_are_bounded() -> None:
    """By the number of questions, and by their bytes."""
    member = Member(waiting_max=10_000)
    assert sum(await asyncio.gather(*[member.batches.ask(1) for _ in range(2 * ITEMS_MAX + 1)])) == 2 * ITEMS_MAX + 1
    assert [len(one) for one in member.calls] == [ITEMS_MAX, ITEMS_MAX, 1]
    member.calls.clear()
    await asyncio.gather(*[member.batches.ask(100_000) for _ in range(4)])
    assert [len(one) for one in member.calls] == [2, 2]
    member.calls.clear()
    await asyncio.gather(*[member.batches.ask(number) for number in (1, 2 * BYTES_MAX, 2)])
    assert member.calls == [[1], [2 * BYTES_MAX], [2]]


async def test_what_did_not_fit_waits_for_no_window() -> None:
    """A window collects questions; it is no pause between two calls for questions that wait already."""
    member = Member(waiting_max=3 * ITEMS_MAX, window_s=3600.0)
    async with asyncio.timeout(10.0):
        await asyncio.gather(*[member.batches.ask(1) for _ in range(2 * ITEMS_MAX + 1)])
    later = member.batches.ask(7)
    await asyncio.sleep(0)
    assert len(member.calls) == 3
    member.batches.close()
    assert later.cancelled()


async def test_questions_to_three_members_take_as_many_calls_as_they_fill() -> None:
    """Each answer belongs to its question, and the order is kept."""
    members = [Member(waiting_max=12_500) for _ in range(3)]
    asked = [members[number % 3].batches.ask(number % 200) for number in range(12_500)]
    assert await asyncio.gather(*asked) == [(number % 200) ** 2 for number in range(12_500)]
    for index, member in enumerate(members):
        sent = [question for call in member.calls for question in call]
        assert sent == [number % 200 for number in range(index, 12_500, 3)]
        assert member.batches.calls_total == len(member.calls) == -(-len(sent) // ITEMS_MAX)
        assert (member.batches.questions_total, member.batches.refused_total) == (len(sent), 0)


async def test_a_call_that_fails_fails_for_each_question() -> None:
    """So does an answer of another length; the next call is another matter."""
    member = Member()
    member.failure = AskFailed(AskFailure.UNREACHABLE)
    asked = [member.batches.ask(number) for number in (1, 2)]
    for future in asked:
        with pytest.raises(AskFailed, match="unreachable"):
            await future
    member.failure, member.short = None, True
    with pytest.raises(AskFailed, match="answer"):
        await member.batches.ask(1)
    member.short = False
    assert await member.batches.ask(3) == 9


async def test_a_bug_reaches_whoever_asked() -> None:
    """Those of the next call get their answers."""
    member = Member()
    member.may_answer.clear()
    member.failure = KeyError("a bug")
    first = member.batches.ask(1)
    await asyncio.sleep(0)
    later = member.batches.ask(2)
    member.may_answer.set()
    with pytest.raises(KeyError, match="a bug"):
        await first
    member.failure = None
    async with asyncio.timeout(10.0):
        assert await later == 4
        assert await member.batches.ask(3) == 9


async def test_too_many_questions_are_refused() -> None:
    """And those that nobody waits for any more are not sent."""
    member = Member(waiting_max=2)
    member.may_answer.clear()
    first = member.batches.ask(1)
    await asyncio.sleep(0)
    waiting, given_up = member.batches.ask(2), member.batches.ask(3)
    with pytest.raises(AskFailed):
        await member.batches.ask(4)
    assert member.batches.refused_total == 1
    given_up.cancel()
    member.may_answer.set()
    assert list(await asyncio.gather(first, waiting)) == [1, 4]
    assert member.calls == [[1], [2]]


async def test_closing_ends_everything() -> None:
    """Questions under way and waiting are cancelled."""
    member = Member()
    member.may_answer.clear()
    under_way = member.batches.ask(1)
    await asyncio.sleep(0)
    asked = (under_way, member.batches.ask(2))
    member.batches.close()
    for future in asked:
        with pytest.raises(asyncio.CancelledError):
            await future


async def test_a_question_after_the_end_is_cancelled() -> None:
    """Nobody would answer it; no task stays."""
    member = Member()
    tasks = asyncio.all_tasks()
    await member.batches.ask(1)
    member.batches.close()
    assert member.batches.ask(2).cancelled()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    assert member.calls == [[1]]


@pytest.mark.parametrize("waiting_max", [0, 1])
async def test_a_failure_that_nobody_waits_for_is_no_bug(waiting_max: int) -> None:
    """A client has left, and with it whoever asked: asyncio would log each such answer as an exception."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    member = Member(waiting_max=waiting_max)
    member.failure = AskFailed(AskFailure.TIMEOUT)
    answer = member.batches.ask(1)
    await asyncio.wait((answer,))
    member.batches.close()
    forgotten = weakref.ref(answer)
    del answer, member

    def is_forgotten() -> bool:
        gc.collect()
        return forgotten() is None

    await wait_until(is_forgotten)
    assert told == []
