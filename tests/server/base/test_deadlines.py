"""Tests of the heap of deadlines."""

from __future__ import annotations

from functools import partial

from fanout.server.base.deadlines import Deadlines


def take_all(deadlines: Deadlines, now_s: float) -> None:
    """Do everything that is due."""
    while (action := deadlines.take_due(now_s)) is not None:
        action()


def test_due_actions_come_in_order_of_time() -> None:
    """What is due comes earliest first, equal times in the order of adding; the rest stays."""
    done: list[str] = []
    deadlines = Deadlines()
    for at_s, name in ((3.0, "late"), (1.0, "first"), (2.0, "second"), (2.0, "third")):
        deadlines.add(at_s, partial(done.append, name))
    assert deadlines.next_s == 1.0
    take_all(deadlines, 2.0)
    assert done == ["first", "second", "third"]
    assert deadlines.next_s == 3.0
    assert len(deadlines) == 1


def test_cancelled_deadline_is_not_due() -> None:
    """A cancelled deadline is forgotten, cancelling twice or after it was done changes nothing."""
    done: list[str] = []
    deadlines = Deadlines()
    first = deadlines.add(1.0, partial(done.append, "first"))
    second = deadlines.add(2.0, partial(done.append, "second"))
    first.cancel()
    first.cancel()
    assert len(deadlines) == 1
    assert deadlines.next_s == 2.0
    take_all(deadlines, 5.0)
    second.cancel()
    assert done == ["second"]
    assert len(deadlines) == 0
    assert deadlines.next_s is None


def test_action_may_cancel_a_later_one() -> None:
    """What an action cancels is not done, even when it was due at the same time."""
    done: list[str] = []
    deadlines = Deadlines()
    victim = deadlines.add(2.0, partial(done.append, "victim"))
    deadlines.add(1.0, victim.cancel)
    take_all(deadlines, 2.0)
    assert done == []


def test_cancelled_deadlines_do_not_pile_up() -> None:
    """The heap is cleared of cancelled deadlines when they are the greater part of it."""
    deadlines = Deadlines()
    kept = deadlines.add(1e9, lambda: None)
    for number in range(10_000):
        deadlines.add(1000.0 + number, lambda: None).cancel()
    assert len(deadlines) == 1
    assert len(deadlines._heap) < 200
    assert deadlines.next_s == kept.at_s
