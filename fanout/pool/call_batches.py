"""Questions that go to a member together: the first at once, later ones in the next call.

Questions collect while a call is under way or its window is not over. Questions that did not fit in a call wait for no
window. So the number of calls depends on windows and sizes, not on how many clients cause questions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from fanout.pool.membership import AskFailed, AskFailure

__all__ = ["ITEMS_MAX", "WINDOW_S", "CallBatches"]

WINDOW_S: Final = 0.03
"""Shortest time from the beginning of one call to that of the next."""
ITEMS_MAX: Final = 1000
"""Most questions of one call."""
BYTES_MAX: Final = 256 * 1024
"""Most bytes of the questions of one call; a longer question goes alone."""

Q = TypeVar("Q")
A = TypeVar("A")


class CallBatches(Generic[Q, A]):
    """Questions of one kind to one member; one call is under way at a time.

    Attributes:
        calls_total: Calls that were made.
        questions_total: Questions that were asked.
        refused_total: Questions that were refused because too many waited.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        *,
        bytes_of: Callable[[Q], int],
        waiting_max: int,
        window_s: float = WINDOW_S,
    ) -> None:
        """Prepare.

        Args:
            send: Makes one call, and returns an answer for each question; raises `AskFailed`.
            bytes_of: Returns about how many bytes a question takes.
            waiting_max: Bound of questions that wait; further ones fail.
            window_s: Shortest time from the beginning of one call to that of the next.
        """
        self.calls_total = 0
        self.questions_total = 0
        self.refused_total = 0
        self._send = send
        self._bytes_of = bytes_of
        self._waiting_max = waiting_max
        self._window_s = window_s
        self._waiting: deque[tuple[Q, int, asyncio.Future[A]]] = deque()
        """Each question, its bytes, and the future for its answer."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def ask(self, question: Q) -> asyncio.Future[A]:
        """Ask a question, and return the future for its answer.

        It fails with `AskFailed`, or with another error of `send`, which is a bug; it is cancelled by `close`, and when
        that was called before.
        """
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.cancel()
            return answer
        self.questions_total += 1
        if len(self._waiting) >= self._waiting_max:
            self.refused_total += 1
            _fail(answer, AskFailure.TIMEOUT)
            return answer
        self._waiting.append((question, self._bytes_of(question), answer))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return answer

    def close(self) -> None:
        """Cancel the call under way, all that waits, and what is asked from now on."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        while self._waiting:
            self._waiting.popleft()[2].cancel()

    async def _work(self) -> None:
        """Make calls until no question waits; the window of the last call is over then."""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            asked = self._next()
            is_cut = bool(self._waiting)  # the others did not fit
            if asked:
                self.calls_total += 1
                await self._call(asked)
            if not is_cut:
                await asyncio.sleep(max(0.0, begun_s + self._window_s - loop.time()))
            if not self._waiting:
                self._task = None
                return

    def _next(self) -> list[tuple[Q, asyncio.Future[A]]]:
        """Take the questions of the next call, without those that nobody waits for any more."""
        taken: list[tuple[Q, asyncio.Future[A]]] = []
        bytes_left = BYTES_MAX
        while self._waiting and len(taken) < ITEMS_MAX:
            question, size, answer = self._waiting[0]
            if not answer.done():
                if taken and size > bytes_left:
                    break
                taken.append((question, answer))
                bytes_left -= size
            self._waiting.popleft()
        return taken

    async def _call(self, asked: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._send([question for question, _ in asked])
            if len(answers) != len(asked):
                raise AskFailed(AskFailure.ANSWER)
        except AskFailed as failure:
            for _, future in asked:
                if not future.done():
                    _fail(future, failure.failure)
        except Exception as error:  # a bug: whoever asked gets it, and later questions go on
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
        except asyncio.CancelledError:
            for _, future in asked:
                future.cancel()
            raise
        else:
            for (_, future), answer in zip(asked, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(answer: asyncio.Future[Any], failure: AskFailure) -> None:
    """Fail an answer for which perhaps nobody waits any more: that is not a bug, and nothing to log."""
    answer.set_exception(AskFailed(failure))
    answer.exception()
