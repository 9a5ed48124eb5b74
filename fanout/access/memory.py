"""Timed memory: values that expire after a fixed time, in bounded number. The time comes in as an argument."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["TimedMemory"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TimedMemory(Generic[K, V]):
    """Values by key, each for the same time since it was put in; a new one displaces the oldest."""

    __slots__ = ("_entries", "_entries_max", "_seconds")

    def __init__(self, *, seconds: float, entries_max: int) -> None:
        """Make an empty memory.

        Args:
            seconds: Life of a value; 0 remembers nothing.
            entries_max: Values at a time.
        """
        self._seconds = seconds
        self._entries_max = entries_max
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()  # in the order in which they expire

    def __len__(self) -> int:
        """Return the number of values held, including expired ones that were not asked for."""
        return len(self._entries)

    def get(self, key: K, *, now_s: float) -> V | None:
        """Return the value of `key`, or None when there is none or it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] <= now_s:
            del self._entries[key]
            return None
        return entry[1]

    def put(self, key: K, value: V, *, now_s: float) -> None:
        """Remember `value` for `key` from now on."""
        if not self._seconds:
            return
        self._entries.pop(key, None)
        while len(self._entries) >= self._entries_max:
            self._entries.popitem(last=False)
        self._entries[key] = (now_s + self._seconds, value)
