"""The end of a set by silence, and the comparison of passes."""

from __future__ import annotations

import pytest

from fanout.link.snapshot.two_pass import SilentProof


def answered() -> SilentProof:
    """Return a pass that began at time 0 with a quiet time of 5 s, whose SUBSCRIBE and PINGREQ are answered."""
    one = SilentProof(1, now=0.0, quiet_s=5.0)
    one.receive_suback(0.0)
    one.receive_pingresp(0.0)
    return one


def has_ended(one: SilentProof) -> bool:
    """Say whether a pass has ended."""
    return one.ended


@pytest.mark.parametrize(("first", "each_s", "told_s"), [(3, 1, 60), (100_000, 10, 120)])
def test_topics_that_only_trickle_hide_the_end(first: int, each_s: int, told_s: int) -> None:
    """Some now and then are not the bulk of a set, nor is less than a hundredth of it in twelve quiet times."""
    one = answered()
    for second in range(1, told_s + 1):
        assert not one.trickles
        one.note_topics(first + second * each_s, float(second))
        one.end_if_due(float(second))
    assert one.trickles
    assert not has_ended(one)


@pytest.mark.parametrize(("first", "each_s"), [(0, 20), (100_000, 100)])
def test_a_large_set_that_comes_slowly_does_not_trickle(first: int, each_s: int) -> None:
    """A primary may have a limit on its rate."""
    one = answered()
    one.note_topics(first, 0.0)
    for second in range(1, 180):
        one.note_topics(first + second * each_s, float(second))
        one.end_if_due(float(second))
        assert not one.trickles
