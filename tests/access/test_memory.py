"""Tests of `fanout.access.memory`."""

from __future__ import annotations

from fanout.access.memory import TimedMemory


def test_a_value_is_remembered_for_its_time() -> None:
    """It is there until its time is over, and then gone."""
    memory: TimedMemory[str, int] = TimedMemory(seconds=10, entries_max=5)
    memory.put("a", 1, now_s=100)
    assert memory.get("a", now_s=109.9) == 1
    assert memory.get("a", now_s=110) is None
    assert len(memory) == 0
    assert memory.get("b", now_s=100) is None


def test_the_oldest_makes_room() -> None:
    """The number of values is bounded; putting a key again makes it the newest."""
    memory: TimedMemory[str, int] = TimedMemory(seconds=10, entries_max=2)
    for key in ("a", "b", "a", "c"):
        memory.put(key, 1, now_s=100)
    assert [memory.get(key, now_s=101) for key in "abc"] == [1, None, 1]
    assert len(memory) == 2


def test_zero_seconds_remember_nothing() -> None:
    """An operator can switch it off."""
    memory: TimedMemory[str, int] = TimedMemory(seconds=0, entries_max=2)
    memory.put("a", 1, now_s=100)
    assert len(memory) == 0
