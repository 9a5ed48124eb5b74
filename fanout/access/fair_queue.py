"""Queue of password checks with fair turns (core): addresses take turns, and the users of each address do.

An address whose passwords are wrong again and again gets its next turn only after a pause, which a right one ends. So a
right password from elsewhere waits for one check of each other address at most, however many wrong ones wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from fanout.access.memory import TimedMemory

__all__ = ["FREE_FAILURES", "PAUSE_S_MAX", "FairQueue"]

FREE_FAILURES: Final = 8
"""Wrong passwords in succession that cost an address nothing: people mistype, and a NAT has many of them."""
PAUSE_S_MIN: Final = 0.1
"""Pause after the next wrong password; it doubles with each further one."""
PAUSE_S_MAX: Final = 2.0
"""Longest pause."""
_REMEMBER_S: Final = 60.0
_REMEMBERED_MAX: Final = 10_000

T = TypeVar("T")


class _Failures:
    """Wrong passwords in succession of an address, and the time of its next turn."""

    __slots__ = ("count", "ready_s")

    def __init__(self) -> None:
        self.count = 0
        self.ready_s = 0.0


class FairQueue(Generic[T]):
    """Items that wait for their turn, by address and user."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, OrderedDict[str, deque[T]]] = OrderedDict()
        """By address and user, both in the order of their next turn."""
        self._lengths: dict[bytes, int] = {}
        self._failures: TimedMemory[bytes, _Failures] = TimedMemory(seconds=_REMEMBER_S, entries_max=_REMEMBERED_MAX)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    def add(self, address: bytes, user: str, item: T) -> None:
        """Let an item wait for a turn of its address and user."""
        self._waiting.setdefault(address, OrderedDict()).setdefault(user, deque()).append(item)
        self._lengths[address] = self._lengths.get(address, 0) + 1
        self._count += 1

    def take(self, *, now_s: float) -> T | None:
        """Take the next item whose address is not in a pause; None when there is none."""
        for address in self._waiting:
            if self._ready_s(address, now_s) <= now_s:
                self._waiting.move_to_end(address)
                user = next(iter(self._waiting[address]))
                self._waiting[address].move_to_end(user)
                return self._remove(address, user, newest=False)
        return None

    def displace(self, address: bytes) -> T | None:
        """Make room for an item of an address: remove the newest of the address that has the most.

        Returns:
            The removed item; None when no other address has more than this one would have.
        """
        longest = max(self._lengths, key=lambda one: self._lengths[one], default=address)
        if self._lengths.get(longest, 0) <= self._lengths.get(address, 0) + 1:
            return None
        return self._remove(longest, next(reversed(self._waiting[longest])), newest=True)

    def note(self, address: bytes, *, is_right: bool, now_s: float) -> None:
        """Note the outcome of a check for an address."""
        failures = _Failures() if is_right else self._failures.get(address, now_s=now_s) or _Failures()
        if not is_right:
            failures.count += 1
            if failures.count > FREE_FAILURES:
                doubled = min(failures.count - FREE_FAILURES - 1, 10)
                failures.ready_s = now_s + min(PAUSE_S_MAX, PAUSE_S_MIN * 2**doubled)
        self._failures.put(address, failures, now_s=now_s)

    def is_paused(self, address: bytes, *, now_s: float) -> bool:
        """Return whether an address is in a pause."""
        return self._ready_s(address, now_s) > now_s

    def next_s(self, *, now_s: float) -> float | None:
        """Return the time of the next turn; None when nothing waits."""
        return min((self._ready_s(address, now_s) for address in self._waiting), default=None)

    def drain(self) -> list[T]:
        """Remove and return all items."""
        items = [item for users in self._waiting.values() for queue in users.values() for item in queue]
        self._waiting.clear()
        self._lengths.clear()
        self._count = 0
        return items

    def _ready_s(self, address: bytes, now_s: float) -> float:
        failures = self._failures.get(address, now_s=now_s)
        return 0.0 if failures is None else failures.ready_s

    def _remove(self, address: bytes, user: str, *, newest: bool) -> T:
        users = self._waiting[address]
        item = users[user].pop() if newest else users[user].popleft()
        if not users[user]:
            del users[user]
        if not users:
            del self._waiting[address]
        self._lengths[address] -= 1
        if not self._lengths[address]:
            del self._lengths[address]
        self._count -= 1
        return item
