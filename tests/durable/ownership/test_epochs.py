"""Epochs: their order, and their bytes in the record of a session."""

from __future__ import annotations

import pytest

from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, EpochClock, RecordedEpochs, decode_epochs, encode_epochs
from tests.server.node_in_memory import ManualClock


@pytest.mark.parametrize("since", [NO_EPOCH, Epoch(1, "edge-1"), Epoch(2**63, "é")])
@pytest.mark.parametrize("given", [NO_EPOCH, Epoch(2, "edge-2"), Epoch(2**63, "!é")])
def test_epochs_are_read_as_they_were_written(since: Epoch, given: Epoch) -> None:
    """The record of a session of a node that was in no pool has none."""
    assert decode_epochs(encode_epochs(RecordedEpochs(since, given))) == (since, given)
    assert decode_epochs(b"") == (NO_EPOCH, NO_EPOCH)


def test_epochs_are_later_than_all_that_were_seen() -> None:
    """Also when the clock is behind that of another member."""
    clock = clock_of("b")
    first = clock.next()
    clock.see(Epoch(first.counter + 90, "a"))
    assert clock.next() == Epoch(first.counter + 91, "b")


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0, 0.0])
@pytest.mark.parametrize("step_s", [0.0, 3600.0, -3600.0])
def test_members_that_have_heard_each_other_count_alike_when_they_are_parted(wrong_s: float, step_s: float) -> None:
    """Whatever the time of day is at one of them: the session is the newer one that began later."""
    time_s = ManualClock()
    wrong = ManualClock()
    wrong.advance(wrong_s)
    a, b = EpochClock("a", clock=wrong), EpochClock("b", clock=time_s)
    a.hear(b.reading)
    b.hear(a.reading)
    wrong.step(step_s)  # they are parted, and somebody sets the clock
    for _ in range(3):
        for earlier, later in ((a, b), (b, a)):
            before = earlier.next()
            for each in (time_s, wrong):
                each.advance(0.5)
            assert later.next() > before


@pytest.mark.parametrize("said", [2**62 - 1, 2**200])
def test_a_member_that_says_the_last_epoch_there_is_stops_nobody(said: int) -> None:
    """It is not believed; those that have heard it go on with each other, however often it says so."""
    time_s = ManualClock()
    a, b = EpochClock("a", clock=time_s), EpochClock("b", clock=time_s)
    for _ in range(3):
        for _ in range(1_000):
            with pytest.raises(ValueError, match="too far ahead"):
                a.admit(Epoch(said, "liar"))
            a.hear(said)
        own = a.next()
        b.admit(own)
        b.see(own)
        assert own < b.next()
        time_s.advance(60.0)
    assert a.next().counter < time_s.now_ns() // 1_000_000 + 4 * 2**41


def test_a_member_whose_clock_began_with_1970_follows_the_others() -> None:
    """And takes their word for epochs at once."""
    early, late = ManualClock(), ManualClock()
    early.step(-late.now_ns() / 1e9)
    clock, other = EpochClock("a", clock=early), EpochClock("b", clock=late)
    said = other.next()
    clock.admit(said)
    clock.see(said)
    assert clock.next() > said


def clock_of(node: str) -> EpochClock:
    """Return a clock of epochs."""
    return EpochClock(node, clock=ManualClock())
