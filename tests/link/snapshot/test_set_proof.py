"""The evidence for one retained set."""

from __future__ import annotations

import itertools

import pytest

from fanout.link.model.evidence import Evidence
from fanout.link.snapshot.set_proof import PROBES_MAX, SetProof

SENTINEL = b"$SYS/broker/version"


def proof(*, sentinel: bytes | None = SENTINEL, marker: bytes | None = b"m") -> SetProof:
    """Return a proof that began at time 0, with a quiet time of 5 s."""
    return SetProof(1, sentinel=sentinel, marker=marker, now=0.0, quiet_s=5.0)


def give(one: SetProof, what: str, now: float = 0.0) -> None:
    """Give one piece of evidence."""
    if what == "suback":
        one.receive_suback(now)
    elif what == "sentinel":
        one.receive_sentinel(SENTINEL, now)
    elif what == "ping":
        one.receive_pingresp(now)
    else:
        one.receive_marker(b"m")


@pytest.mark.parametrize("order", list(itertools.permutations(["suback", "sentinel", "ping", "marker"])))
def test_everything_that_was_asked_for_must_come(order: tuple[str, ...]) -> None:
    """In whatever order the pieces come, only the last one completes the evidence."""
    one = proof()
    for what in order[:-1]:
        give(one, what)
        assert one.evidence is None
        assert one.missing
    give(one, order[-1])
    assert one.evidence is Evidence.MARKER
    assert one.missing == ""
    assert not one.is_truncated(1e9)


def test_without_a_marker_the_barrier_is_the_evidence() -> None:
    """What was not sent cannot come back, and is not awaited."""
    one = proof(marker=None)
    give(one, "suback")
    give(one, "sentinel")
    assert one.missing == "PINGRESP"
    give(one, "ping")
    assert one.barrier
    assert one.evidence is Evidence.BARRIER


def test_without_a_sentinel_it_is_not_awaited() -> None:
    """A primary without a sentinel is judged by SUBACK, PINGRESP and marker."""
    one = proof(sentinel=None)
    assert one.missing == "SUBACK and PINGRESP and the marker"
    for what in ("suback", "ping", "marker"):
        give(one, what)
    assert one.evidence is Evidence.MARKER


def test_another_marker_or_sentinel_proves_nothing() -> None:
    """Only what was asked for counts."""
    one = proof()
    give(one, "suback")
    give(one, "ping")
    one.receive_sentinel(b"other", 0)
    one.receive_marker(b"other")
    assert one.missing == "the sentinel and the marker"


def test_silence_means_that_the_set_was_cut_short() -> None:
    """After the quiet time without a byte nothing more is expected."""
    one = proof()
    give(one, "suback")
    assert one.deadline == 5.0
    one.receive_bytes(3.0)
    assert not one.is_truncated(7.9)
    assert one.is_truncated(8.0)


def test_a_missing_marker_is_awaited_for_the_quiet_time() -> None:
    """Behind the barrier only the marker is missing; live updates prolong the wait, but not for ever."""
    one = proof()
    for what in ("suback", "sentinel", "ping"):
        give(one, what, 2.0)
    assert one.deadline == 7.0
    assert not one.probe_due(100.0)
    one.receive_bytes(6.0)
    assert not one.is_truncated(10.9)
    assert one.is_truncated(11.0)
    for second in range(7, 60):
        one.receive_bytes(float(second))
    assert one.deadline == 2.0 + PROBES_MAX * 5.0
    assert one.is_truncated(one.deadline)


def test_probes_are_due_each_quiet_time_before_the_barrier() -> None:
    """While bytes come, a probe leaves every quiet time."""
    one = proof()
    one.receive_bytes(4.9)
    assert not one.probe_due(4.9)
    assert one.probe_due(5.0)
    one.add_probe(7, now=5.0, topics=3)
    assert not one.probe_due(9.9)
    one.receive_bytes(9.9)
    assert one.deadline == 10.0
    assert one.probe_due(10.0)


def test_an_answer_that_overtakes_suback_shows_the_cut() -> None:
    """A later request is answered although the SUBACK is not there: it was dropped."""
    one = proof()
    one.add_probe(7, now=5.0, topics=3)
    assert one.receive_probe_answer(7, topics=4)
    assert one.is_truncated(5.0)


def test_an_answer_without_progress_shows_the_cut() -> None:
    """With SUBACK there, the answer shows a cut only when no further topic came since the probe."""
    one = proof()
    give(one, "suback")
    one.add_probe(7, now=5.0, topics=3)
    one.receive_bytes(5.0)
    one.receive_probe_answer(7, topics=4)
    assert not one.is_truncated(5.0)
    one.add_probe(8, now=9.0, topics=4)
    one.receive_bytes(9.0)
    one.receive_probe_answer(8, topics=4)
    assert one.is_truncated(9.0)


def test_an_answer_behind_the_barrier_shows_nothing() -> None:
    """Once the barrier is there, an answer is what one expects."""
    one = proof()
    one.add_probe(7, now=5.0, topics=3)
    for what in ("suback", "sentinel", "ping"):
        give(one, what, 6.0)
    one.receive_probe_answer(7, topics=3)
    assert not one.is_truncated(6.0)


def test_an_unknown_answer_is_not_ours() -> None:
    """The answer to another request changes nothing."""
    one = proof()
    assert not one.receive_probe_answer(7, topics=0)
    assert not one.is_truncated(0.0)


def test_too_many_unanswered_probes_show_the_cut() -> None:
    """A primary that drops even the answers to probes drops everything."""
    one = proof()
    for number in range(PROBES_MAX + 1):
        assert not one.is_truncated(float(number))
        one.receive_bytes(float(number))
        one.add_probe(number + 1, now=float(number), topics=0)
    assert one.is_truncated(float(PROBES_MAX))


def test_time_in_which_nobody_listened_does_not_count() -> None:
    """Neither in front of the barrier nor behind it."""
    one = proof()
    one.postpone(60.0)
    assert not one.probe_due(64.9)
    assert not one.is_truncated(64.9)
    assert one.is_truncated(65.0)
    one = proof()
    for what in ("suback", "sentinel", "ping"):
        give(one, what, 1.0)
    one.postpone(60.0)
    assert not one.is_truncated(65.9)
    assert one.is_truncated(66.0)


def test_who_waits_longer_for_a_silent_primary_asks_it_meanwhile() -> None:
    """Until the silence is too long, or an answer in front of what is awaited shows that that was dropped."""
    one = SetProof(1, sentinel=None, marker=None, now=0.0, quiet_s=5.0, silence_s=15.0)
    assert one.deadline == 5.0
    assert one.probe_due(5.0)
    one.add_probe(2, now=5.0, topics=0)
    assert not one.is_truncated(14.9)
    assert one.is_truncated(15.0)
    one.receive_bytes(7.0)
    assert one.receive_probe_answer(2, topics=0)
    assert one.deadline == 7.0
    assert one.is_truncated(7.0)
