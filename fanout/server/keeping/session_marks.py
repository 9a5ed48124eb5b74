"""Marks: which sessions have changed in a way that their clients rely on, and who waits until that is kept.

Owns the numbers of marks, and the groups in which sessions are kept: one group is on its way at a time, and one value
of a session stands for all of its marks of the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

__all__ = ["Keep", "SessionMarks", "Waiter"]

_GROUP_MAX: Final = 256
"""Sessions of a group, whose values are made in one turn of the event loop: some ten milliseconds."""

Keep = Callable[[Sequence[str], Callable[[], None]], None]
"""Keeps the sessions with these Client Identifiers as they are now, and calls the function when they are kept."""


class Waiter(Protocol):
    """Waits for marks."""

    def written(self, number: int) -> bool:
        """Take it that everything marked up to `number` is kept; return whether more waits."""


class _Barrier:
    """Waits for one mark."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.passed = asyncio.Event()
        """Set once it is kept."""

    def written(self, number: int) -> bool:
        """Take it that everything marked up to `number` is kept; return whether more waits."""
        if number < self._number:
            return True
        self.passed.set()
        return False


class SessionMarks:
    """The marks of one keeper."""

    def __init__(self, keep: Keep) -> None:
        """Begin without marks.

        Args:
            keep: Keeps a group of sessions; groups are kept in order.
        """
        self._keep = keep
        self._number = 0
        """Number of the newest mark."""
        self._written_number = 0
        """Number up to which all marks are kept."""
        self._marked: dict[str, int] = {}
        """Numbers of the marks that are in no group yet, by Client Identifier, ascending."""
        self._newest: dict[str, int] = {}
        """Number of the newest mark of each session that is not kept yet."""
        self._waiting: dict[Waiter, None] = {}
        """What waits for marks to be kept."""
        self._is_keeping = self._scheduled = False

    def mark(self, client_id: str) -> int:
        """Have a session kept, as it is at the end of this turn of the event loop; return the mark's number."""
        number = self._marked.get(client_id)
        if number is None:
            self._number = number = self._number + 1
            self._marked[client_id] = self._newest[client_id] = number
            self._schedule()
        return number

    def unwritten(self, client_id: str) -> int:
        """Return the number of the newest mark of a session that is not kept yet; 0 when there is none."""
        return self._newest.get(client_id, 0)

    def wait(self, waiter: Waiter) -> None:
        """Call `written` of a waiter whenever marks are kept, until it says that nothing waits."""
        self._waiting[waiter] = None

    async def written(self) -> None:
        """Wait until everything is kept that is marked now."""
        if self._newest:
            barrier = _Barrier(self._number)
            self.wait(barrier)
            await barrier.passed.wait()

    def keep_all(self) -> None:
        """Put all marked sessions on their way now."""
        while self._marked:
            self._keep_group()

    def _schedule(self) -> None:
        if not self._scheduled and not self._is_keeping:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._scheduled = False
        if self._marked and not self._is_keeping:
            self._keep_group()

    def _keep_group(self) -> None:
        group = dict(islice(self._marked.items(), _GROUP_MAX))
        for client_id in group:
            del self._marked[client_id]
        self._is_keeping = True
        self._keep(list(group), partial(self._kept, group))

    def _kept(self, group: dict[str, int]) -> None:
        """Release what waited for a group of marks."""
        self._is_keeping = False
        for client_id, number in group.items():
            if self._newest.get(client_id) == number:
                del self._newest[client_id]
            self._written_number = number
        for waiter in list(self._waiting):
            if not waiter.written(self._written_number):
                self._waiting.pop(waiter, None)
        if self._marked:
            self._schedule()
