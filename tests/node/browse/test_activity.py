"""Counts of messages by topic and branch."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import pytest

from fanout.node.browse.activity import BRANCHES_MAX, SAMPLES_MAX, TopicActivity
from fanout.replica.update import Update
from tests.node.browse.pieces import value
from tests.server.node_in_memory import ManualClock

T = TypeVar("T")


class Counted:
    """Activity of messages that a test delivers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.takes: list[Callable[[list[Update]], None]] = []
        self.activity = TopicActivity(self._observe, monotonic=self.clock.monotonic)
        self.activity.look()

    def interval(self, *topics: str) -> None:
        """Deliver a message for each topic, and let the interval end."""
        for take in self.takes:
            take([value(topic) for topic in topics])
        self.clock.advance(5.0)

    def _observe(self, topic_filter: bytes | None, take: Callable[[list[Update]], None]) -> Callable[[], None]:
        assert topic_filter is None
        self.takes.append(take)
        return self.takes.clear


def run(steps: Generator[None, None, T]) -> T:
    """Return what the steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


async def test_busiest_branches() -> None:
    """The deepest branch that has most of the messages of those above it; topics of `$SYS` are no branches."""
    counted = Counted()
    assert run(counted.activity.busiest_branches(10)) == []
    counted.interval(*["office/1"] * 50, *[f"plant/{number}/x" for number in range(200)])
    assert run(counted.activity.busiest_branches(2)) == [(b"plant", 40.0), (b"office", 10.0)]
    line, site = "plant/site1/line1", "plant/site1"
    counted.interval(*[f"{line}/a"] * 45, *[f"{line}/b"] * 40, *[f"{site}/x"] * 20, "/y", "top", "$SYS/a/b")
    assert run(counted.activity.busiest_branches(10)) == [(line.encode(), 17.0), (b"", 0.2)]
    assert counted.activity.busiest(1) == [(b"plant/site1/line1/a", 9.0)]


async def test_a_busy_node_counts_a_sample() -> None:
    """A branch of a million topics has its rate, from a bounded number of messages; fewer are counted exactly."""
    counted = Counted()
    busy = [f"a/{number % 3}/{number}" for number in range(3 * SAMPLES_MAX)]
    rest = [f"b/{number}/x" for number in range(SAMPLES_MAX)]
    for _ in range(2):
        counted.interval(*busy, *rest)
    activity = counted.activity
    assert activity.per_second == 0.8 * SAMPLES_MAX
    levels = activity.by_level(b"")
    assert levels is not None
    assert levels[b"a"] == pytest.approx(0.6 * SAMPLES_MAX, rel=0.1)
    assert sum(levels.values()) == pytest.approx(0.8 * SAMPLES_MAX, rel=0.01)
    assert len(activity.busiest(SAMPLES_MAX * 2)) <= SAMPLES_MAX
    branches = dict(run(activity.busiest_branches(1_000)))
    assert branches[b"a/1"] == pytest.approx(0.2 * SAMPLES_MAX, rel=0.2)
    assert len(branches) == BRANCHES_MAX
    for _ in range(2):
        counted.interval("a/0/0", "a/0/0")
    assert activity.rate(b"a/0/0") == 0.4


async def test_a_topic_that_somebody_looks_at_is_counted_exactly() -> None:
    """Beside any number of others, from the first whole interval on."""
    counted = Counted()
    activity = counted.activity
    assert activity.messages(b"mine") is None
    activity.watch(b"mine")
    for _ in range(3):
        counted.interval(*["other"] * (2 * SAMPLES_MAX), "mine")
    assert activity.messages(b"mine") == 3
    assert activity.rate(b"mine") == 0.2
