"""Search of every state of a model, breadth first, so that the way to a fault is a shortest one."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

__all__ = ["Broken", "Found", "search_all"]

W = TypeVar("W", bound=Hashable)


class Broken(AssertionError):
    """An invariant does not hold."""


class Found(AssertionError):
    """A shortest way to a fault."""

    def __init__(self, fault: str, way: Sequence[object]) -> None:
        """Prepare."""
        super().__init__(fault)
        self.fault = fault
        self.way = way
        """The states, from the first on."""

    def __str__(self) -> str:
        """Return the states, one a line."""
        return "\n".join([self.fault, *map(str, self.way)])


def search_all(
    start: W, steps: Callable[[W], Iterable[W]], check: Callable[[W], None], *, states_max: int = 3_000_000
) -> int:
    """Visit every state, and return their number.

    Args:
        start: The first state.
        steps: Yields every state that may follow one; raises `Broken`.
        check: Raises `Broken` for a state that must not be.
        states_max: Bound of the number of states.
    """
    collects = gc.isenabled()
    gc.disable()  # states have no cycles, and looking for some among hundreds of thousands is half of the time
    try:
        return _search_all(start, steps, check, states_max)
    finally:
        if collects:
            gc.enable()


def _search_all(start: W, steps: Callable[[W], Iterable[W]], check: Callable[[W], None], states_max: int) -> int:
    before: dict[W, W | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        try:
            check(state)
            following = list(steps(state))
        except Broken as broken:
            way: list[W] = []
            at: W | None = state
            while at is not None:
                way.append(at)
                at = before[at]
            raise Found(str(broken), way[::-1]) from broken
        for one in following:
            if one not in before:
                before[one] = state
                queue.append(one)
        assert len(before) <= states_max, "the model is larger than this test may search"
    return len(before)
