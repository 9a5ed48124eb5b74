"""What a pass says about losses."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from fanout.link.snapshot.diff import Losses, find_losses
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Stamp, Update

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
BEFORE = Stamp("root", 5, 100, 0)


def value(topic: bytes, payload: bytes = b"1", *, expires_ns: int = 0, stamp: Stamp | None = None) -> Update:
    """Return a value."""
    return topic, payload, 1, True, b"", NOW, expires_ns, 0, stamp


def losses(*held: Update, came: Sequence[Update] = (), before: Stamp | None = None) -> Losses:
    """Return what a pass shows that brings `came` to a replica of `held`."""
    replica = Replica()
    replica.apply([*held], phase=Phase.SNAPSHOT)
    replica.begin_pass()
    replica.apply([*came], phase=Phase.AUDIT)
    replica.close_pass()
    return steps(find_losses(replica, before=before, now_ns=NOW))[1]


def steps(search: Generator[None, None, Losses]) -> tuple[int, Losses]:
    """Take every step of a search, and return how many there were, and what it found."""
    count = 1
    while True:
        try:
            next(search)
        except StopIteration as end:
            found = end.value
            assert isinstance(found, Losses)
            return count, found
        count += 1


def test_nothing_unseen_and_nothing_changed_is_no_loss() -> None:
    """A pass that brings what is held shows nothing."""
    assert losses(value(b"a"), came=[value(b"a")]) == Losses(0, 0)


@pytest.mark.parametrize("before", [None, BEFORE])
def test_unseen_and_changed_topics_are_losses(before: Stamp | None) -> None:
    """Both are counted."""
    assert losses(value(b"a"), value(b"b"), came=[value(b"b", b"2")], before=before) == Losses(1, 1)


def test_very_many_are_counted_in_small_steps() -> None:
    """Each step looks at some hundred topics, however many there are."""
    replica = Replica()
    replica.apply([value(b"gone/%d" % number) for number in range(5000)], phase=Phase.SNAPSHOT)
    replica.begin_pass()
    replica.apply([value(b"new/%d" % number) for number in range(5000)], phase=Phase.AUDIT)
    replica.close_pass()
    count, found = steps(find_losses(replica, before=BEFORE, now_ns=NOW))
    assert found == Losses(5000, 5000)
    assert count >= 20


@pytest.mark.parametrize(("in_s", "removed"), [(-1, 0), (0, 0), (2, 0), (3, 1)])
def test_a_value_about_to_expire_may_be_gone(in_s: int, removed: int) -> None:
    """Expiry travels in whole seconds, so the primary may be a little earlier."""
    assert losses(value(b"a", expires_ns=NOW + in_s * SECOND)).removed == removed


@pytest.mark.parametrize(
    ("stamp", "before", "changed"),
    [
        (Stamp("root", 5, 101, 0), BEFORE, 0),
        (Stamp("root", 5, 100, 0), BEFORE, 1),
        (Stamp("root", 6, 101, 0), BEFORE, 1),
        (Stamp("other", 5, 101, 0), BEFORE, 1),
        (None, BEFORE, 1),
        (Stamp("root", 5, 101, 0), None, 1),
    ],
)
def test_the_sequence_tells_an_update_during_the_pass(stamp: Stamp | None, before: Stamp | None, changed: int) -> None:
    """Only a sequence of the same count, behind the one seen before the pass, excuses a change."""
    assert losses(came=[value(b"a", stamp=stamp)], before=before).changed == changed
