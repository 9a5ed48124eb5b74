"""The end of a set by silence, and the comparison of passes."""

from __future__ import annotations

import pytest

from fanout.link.model.evidence import Evidence
from fanout.link.snapshot.two_pass import PassComparison, PassVerdict, SilentProof


def answered() -> SilentProof:
    """Return a pass that began at time 0 with a quiet time of 5 s, whose SUBSCRIBE and PINGREQ are answered."""
    one = SilentProof(1, now=0.0, quiet_s=5.0)
    one.receive_suback(0.0)
    one.receive_pingresp(0.0)
    return one


def has_ended(one: SilentProof) -> bool:
    """Say whether a pass has ended."""
    return one.ended


def test_a_pass_ends_when_nothing_new_came_for_the_quiet_time() -> None:
    """Bytes alone, of topics that were there already, do not prolong it; new topics do."""
    one = answered()
    assert one.deadline == 5.0
    one.note_topics(3, 4.0)
    one.end_if_due(5.0)
    assert not has_ended(one)
    assert one.deadline == 9.0
    one.receive_bytes(8.0)
    one.note_topics(3, 8.0)
    one.end_if_due(9.0)
    assert has_ended(one)
    assert one.barrier
    assert one.evidence is Evidence.QUIET
    assert not one.is_truncated(1e9)


def test_answers_alone_prove_nothing() -> None:
    """SUBACK and PINGRESP come in front of the set at such a primary."""
    one = answered()
    assert not one.barrier
    assert one.evidence is None
    assert not one.probe_due(1e9)


def test_a_pass_without_an_answer_never_ends() -> None:
    """Without SUBACK the subscription may not be there at all; silence then means that it was dropped."""
    one = SilentProof(1, now=0.0, quiet_s=5.0)
    one.receive_pingresp(0.0)
    one.receive_bytes(4.0)
    one.end_if_due(5.0)
    assert not one.is_truncated(8.9)
    one.end_if_due(9.0)
    assert not has_ended(one)
    assert one.is_truncated(9.0)
    assert one.missing == "SUBACK"


def test_a_process_that_was_stopped_listens_again() -> None:
    """The time in which nobody listened does not count as silence; topics that were there unread prolong it further."""
    one = answered()
    one.postpone(60.0)
    one.end_if_due(64.9)
    assert not has_ended(one)
    one.note_topics(1, 64.9)
    one.end_if_due(69.8)
    assert not has_ended(one)
    one.end_if_due(69.9)
    assert has_ended(one)


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


def test_two_passes_must_bring_the_same_topics() -> None:
    """Whatever their number; a topic that was removed meanwhile is not missed."""
    held = {b"a", b"b", b"c"}
    comparison = PassComparison()
    assert comparison.take({b"a", b"gone"}, held=held) is PassVerdict.AGAIN
    assert comparison.take({b"a", b"b"}, held=held) is PassVerdict.AGAIN
    assert (comparison.missing, comparison.fresh) == (0, 1)
    assert comparison.take({b"a", b"b"}, held=held) is PassVerdict.SAME
    assert comparison.passes == 3


def test_two_that_are_cut_short_alike_do_not_agree() -> None:
    """What an earlier pass brought, and nothing removed, is missed by both."""
    held = {b"a", b"b", b"c"}
    comparison = PassComparison()
    comparison.take(held, held=held)
    for _ in range(2):
        assert comparison.take({b"a"}, held=held) is PassVerdict.AGAIN
        assert (comparison.missing, comparison.fresh) == (2, 0)
    assert comparison.take(set(held), held=held) is PassVerdict.SAME


def test_two_empty_passes_are_the_same() -> None:
    """Nothing retained is a set, too."""
    comparison = PassComparison()
    comparison.take(set(), held={b"stale"})
    assert comparison.take(set(), held={b"stale"}) is PassVerdict.SAME


def test_a_pass_that_brings_nothing_is_told() -> None:
    """The first one brought something, and nothing of it was removed."""
    comparison = PassComparison()
    comparison.take({b"a"}, held={b"a"})
    assert comparison.take(set(), held={b"a"}) is PassVerdict.NOTHING
    assert comparison.seen == {b"a"}
