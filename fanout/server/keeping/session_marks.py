"""Marks: which sessions have changed in a way that their clients rely on, and who waits until that is kept.

Owns the numbers of marks, and the groups in which sessions are kept: one group is on its way at a time, and one value
of a session stands for all of its marks of the meantime. All keepers number from one counter, so that one number says
of each of them what has to be kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice
from typing import Final

__all__ = ["ALL", "Keep", "SessionMarks"]

ALL: Final = 1 << 62
"""Above every number."""
_GROUP_MAX: Final = 256
"""Sessions of a group, whose values are made in one turn of the event loop: some ten milliseconds."""

_numbers: Final = count(1)

Keep = Callable[[Sequence[str], Callable[[], None]], None]
"""Keeps the sessions with these Client Identifiers as they are now, and calls the function when they are kept."""


class SessionMarks:
    """The marks of one keeper."""

    def __init__(self, keep: Keep) -> None:
        """Begin without marks.

        Args:
            keep: Keeps a group of sessions; groups are kept in order.
        """
        self._keep = keep
        self._marked: dict[str, int] = {}
        """Numbers of the marks that are in no group yet, by Client Identifier, ascending."""
        self._newest: dict[str, int] = {}
        """Number of the newest mark of each session that is not kept yet."""
        self._newest_number = 0
        self._on_their_way: deque[int] = deque()
        """Number of the first mark of each group on its way: one, but for `keep_all`."""
        self._scheduled = False
        self._progress = asyncio.Event()
        """Set when a group is kept; then there is another."""
        self.on_kept: Callable[[], None] | None = None
        """Called whenever a group is kept."""

    @property
    def kept_until(self) -> int:
        """Number up to which all marks are kept; `ALL` when nothing is left."""
        if self._on_their_way:
            return self._on_their_way[0] - 1
        return next(iter(self._marked.values())) - 1 if self._marked else ALL

    def mark(self, client_id: str) -> int:
        """Have a session kept, as it is at the end of this turn of the event loop; return the mark's number."""
        number = self._marked.get(client_id)
        if number is None:
            number = self._newest_number = next(_numbers)
            self._marked[client_id] = self._newest[client_id] = number
            self._schedule()
        return number

    def unwritten(self, client_id: str) -> int:
        """Return the number of the newest mark of a session that is not kept yet; 0 when there is none."""
        return self._newest.get(client_id, 0)

    async def written(self) -> None:
        """Wait until everything is kept that is marked now."""
        number = self._newest_number
        while self.kept_until < number:
            await self._progress.wait()

    def keep_all(self) -> None:
        """Put all marked sessions on their way now."""
        while self._marked:
            self._keep_group()

    def _schedule(self) -> None:
        if not self._scheduled and not self._on_their_way:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._scheduled = False
        if self._marked and not self._on_their_way:
            self._keep_group()

    def _keep_group(self) -> None:
        group = dict(islice(self._marked.items(), _GROUP_MAX))
        for client_id in group:
            del self._marked[client_id]
        self._on_their_way.append(next(iter(group.values())))
        self._keep(list(group), partial(self._kept, group))

    def _kept(self, group: dict[str, int]) -> None:
        """Release what waited for a group of marks."""
        self._on_their_way.popleft()
        for client_id, number in group.items():
            if self._newest.get(client_id) == number:
                del self._newest[client_id]
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()
        if self.on_kept is not None:
            self.on_kept()
        if self._marked:
            self._schedule()
