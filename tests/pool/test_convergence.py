"""Equality of members at cuts: since when they differ, and which of them audits when. Time is told."""

from __future__ import annotations

import pytest

from fanout.chain.cut import Cut, RetainedSet
from fanout.pool.convergence import PAUSE_MAX_S, Convergence, Repair, Verdict

AFTER_S = 5.0
LINK = "plant"


class Pool:
    """What one member, with one link of two selectors, learns of the others second by second."""

    def __init__(self) -> None:
        self.convergence = Convergence(converge_after_s=AFTER_S)
        self.now_s = 1000.0
        self._number = 0

    @property
    def now_ns(self) -> int:
        """Unix time in nanoseconds, in step with `now_s`."""
        return round(self.now_s * 1e9)

    def cut(self, **others: int | None) -> None:
        """Let a second pass, and compare at one cut with others: the position of what differs, None for nothing."""
        self.now_s += 1
        self._number += 1
        ours = self._cut(None)
        for member, position in others.items():
            theirs = self._cut(position)
            self.convergence.compare(LINK, member, ours=ours, theirs=theirs, now_s=self.now_s, now_ns=self.now_ns)

    def cuts(self, count: int, **others: int | None) -> None:
        """Compare at several cuts, a second apart."""
        for _ in range(count):
            self.cut(**others)

    def _cut(self, position: int | None) -> Cut:
        return Cut(f"1 {self._number}", tuple(RetainedSet(1, int(index == position)) for index in range(2)))

    def due(self) -> Repair | None:
        """Return the audit that is due."""
        return self.convergence.due(LINK, now_s=self.now_s)

    def verdict(self, member: str) -> Verdict:
        """Return the verdict on a member."""
        return self.convergence.verdict(member, now_s=self.now_s)


def test_members_that_hold_the_same_are_equal_since_their_first_cut() -> None:
    """Before it nothing is known; nothing is due."""
    pool = Pool()
    assert pool.verdict("b") == Verdict(None, None)
    pool.cuts(10, b=None)
    assert pool.verdict("b") == Verdict(True, 1001 * 10**9)
    assert pool.due() is None


def test_a_difference_counts_from_the_newest_cut_without_one() -> None:
    """It may have begun right behind it; `converge_after_s` later an audit is due, not before."""
    pool = Pool()
    pool.cuts(3, b=None)
    pool.cuts(4, b=1)
    assert pool.verdict("b") == Verdict(False, 1003 * 10**9)
    assert pool.due() is None
    pool.cut(b=1)
    assert pool.due() == Repair(("b",), (1,), AFTER_S)
    pool.cut(b=1)
    assert pool.verdict("b") == Verdict(False, 1003 * 10**9, overdue=True)


def test_a_difference_that_ends_by_itself_is_not_repaired() -> None:
    """Members are not in step to the message everywhere."""
    pool = Pool()
    for _ in range(20):
        pool.cuts(4, b=0)
        assert pool.due() is None
        pool.cut(b=None)
    assert pool.convergence.repairs_total == 0
    assert (pool.convergence.cuts_compared_total, pool.convergence.cuts_differed_total) == (100, 80)


def test_one_cut_alone_is_no_reason() -> None:
    """Though time has passed since: the next one may be equal."""
    pool = Pool()
    pool.cut(b=None)
    pool.now_s += AFTER_S
    pool.cut(b=0)
    assert pool.due() is None
    pool.cut(b=0)
    assert pool.due() is not None


def test_a_member_that_differs_from_most_audits_first() -> None:
    """The others wait, since its audit may be enough; they audit too when it was not."""
    odd, other = Pool(), Pool()
    odd.cuts(6, b=0, c=0)
    other.cuts(6, odd=0, c=None)
    assert odd.due() == Repair(("b", "c"), (0,), AFTER_S)
    assert other.due() is None
    other.cuts(9, odd=0, c=None)
    assert other.due() is None
    other.cut(odd=0, c=None)
    assert other.due() == Repair(("odd",), (0,), 3 * AFTER_S)


def test_two_members_audit_both() -> None:
    """Which of them is behind is decided by the audits."""
    pool = Pool()
    pool.cuts(6, b=0)
    assert pool.due() is not None


def test_an_audit_that_did_not_help_is_repeated_ever_later() -> None:
    """Up to five minutes; with equality it begins anew."""
    pool = Pool()
    pauses = []
    for _ in range(9):
        waited = 0
        while pool.due() is None:
            pool.cut(b=0)
            waited += 1
        pauses.append(waited)
        pool.convergence.note_repair(LINK, now_s=pool.now_s)
    assert pauses == [6, 5, 10, 20, 40, 80, 160, PAUSE_MAX_S, PAUSE_MAX_S]
    pool.cut(b=None)
    pool.cuts(4, b=0)
    assert pool.due() is None
    pool.cut(b=0)
    assert pool.due() is not None
    assert pool.convergence.repairs_total == 9


def test_equality_with_one_member_does_not_end_the_pause_for_another() -> None:
    """As long as any differs."""
    pool = Pool()
    pool.cuts(6, b=0, c=0)
    pool.convergence.note_repair(LINK, now_s=pool.now_s)
    pool.convergence.note_repair(LINK, now_s=pool.now_s)
    pool.cuts(9, b=0, c=None)
    assert pool.due() is None


def test_old_cuts_say_nothing() -> None:
    """A member that is away, or whose link is not live, has no verdict; what was before does not count then."""
    pool = Pool()
    pool.cuts(3, b=None)
    pool.now_s += 3 * AFTER_S + 1
    assert pool.verdict("b") == Verdict(None, None)
    pool.cut(b=0)
    assert pool.verdict("b") == Verdict(False, pool.now_ns)
    pool.cuts(4, b=0)
    assert pool.due() is None


def test_a_cut_is_compared_once() -> None:
    """Members tell their newest one again with each answer."""
    pool = Pool()
    pool.cut(b=0)
    for _ in range(10):
        pool.now_s += 1
        cut = Cut("1 1", (RetainedSet(1, 0),) * 2)
        pool.convergence.compare(LINK, "b", ours=cut, theirs=cut, now_s=pool.now_s, now_ns=pool.now_ns)
    assert pool.convergence.cuts_compared_total == 1
    assert pool.verdict("b").equal is False


def test_members_that_have_left_are_forgotten() -> None:
    """Nothing is repaired because of them."""
    pool = Pool()
    pool.cuts(6, b=0, c=None)
    pool.convergence.keep({"c"})
    assert pool.due() is None
    assert pool.verdict("b") == Verdict(None, None)
    assert pool.verdict("c").equal is True


@pytest.mark.parametrize("sets", [(RetainedSet(1, 0),), (RetainedSet(1, 0), RetainedSet(1, 0), RetainedSet(1, 0))])
def test_members_with_other_selectors_are_not_compared(sets: tuple[RetainedSet, ...]) -> None:
    """Their sums have no common meaning."""
    pool = Pool()
    ours, theirs = Cut("1 1", (RetainedSet(1, 0),) * 2), Cut("1 1", sets)
    pool.convergence.compare(LINK, "b", ours=ours, theirs=theirs, now_s=1.0, now_ns=1)
    assert pool.convergence.verdict("b", now_s=1.0).equal is None


def test_links_are_judged_each_for_itself() -> None:
    """A member is equal when it is at every link; an audit is of the link that differs."""
    pool = Pool()
    pool.cuts(6, b=None)
    for number in range(7):
        ours, theirs = (Cut(f"2 {number}", (RetainedSet(1, digest),)) for digest in (0, 1))
        pool.convergence.compare("east", "b", ours=ours, theirs=theirs, now_s=pool.now_s, now_ns=pool.now_ns)
        pool.cut(b=None)
    assert pool.verdict("b").equal is False
    assert pool.due() is None
    assert pool.convergence.due("east", now_s=pool.now_s) is not None
