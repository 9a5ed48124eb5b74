"""The verdict of a report."""

from __future__ import annotations

import pytest

from fanout.reports.summary.judging import judge, shares
from tests.reports.documents import final, stamped, target, unstamped


def test_without_a_threshold_there_is_no_verdict() -> None:
    """A report that was not asked to judge does not."""
    assert judge([target()], fail_under_percent=None) is None


@pytest.mark.parametrize(
    ("fail_under", "passed"),
    [(98.0, True), (98.1, False)],
)
def test_the_lowest_share_decides(fail_under: float, passed: bool) -> None:
    """Updates and final values of every selector count, and the worst is named."""
    targets = [
        target(figures=stamped(expected=1000, missing=1)),
        target("worst", finals=final(equal=98, different=2)),
        target(figures=stamped(expected=0)),
    ]
    verdict = judge(targets, fail_under_percent=fail_under)
    assert verdict is not None
    assert verdict.passed is passed
    assert verdict.lowest_percent == 98
    assert verdict.because == "lowest: the final values of worst/up plant/#"


def test_a_window_that_the_reference_does_not_show_fails() -> None:
    """Whatever the shares of the rest are; final values that are not of the window are not judged."""
    verdict = judge([target()], fail_under_percent=50, cut_off="what was before noon is not in the log any more")
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 100)
    assert "before noon is not in the log any more, so nothing is proved of that part" in verdict.because
    without = target(finals=final(equal=1, different=1)).model_copy(update={"final": None})
    verdict = judge([without], fail_under_percent=99)
    assert verdict is not None
    assert verdict.passed


def test_a_union_fails_unless_it_is_accepted() -> None:
    """Whatever the shares are, and also when there is nothing to judge; the verdict says why."""
    for targets in ([target()], []):
        verdict = judge(targets, fail_under_percent=0, is_union=True)
        assert verdict is not None
        assert not verdict.passed
        assert verdict.because.endswith("; --accept-union judges without")
    verdict = judge([target()], fail_under_percent=0, is_union=True, accept_union=True)
    assert verdict is not None
    assert verdict.passed
    assert "one another" not in verdict.because


def test_what_is_unknown_counts_against() -> None:
    """A threshold is met by what is proved only."""
    verdict = judge([target(figures=stamped(unknown=5))], fail_under_percent=96)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 95)


def test_what_the_reference_lacks_counts_against() -> None:
    """What its log is known to lack, and what it has without a stamp, is not proved; what nobody can count is said."""
    verdict = judge([target(figures=stamped(unseen=100))], fail_under_percent=51)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 50)
    verdict = judge([target(figures=stamped(unidentified=100))], fail_under_percent=51)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 50)
    verdict = judge([target(figures=stamped(unseen=None, missing=1))], fail_under_percent=99)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (True, 99)
    assert "need not have seen every update" in verdict.because
    verdict = judge([target(figures=stamped(unseen=None, unidentified=100))], fail_under_percent=51)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 50)


def test_what_is_unknown_without_stamps_counts_against() -> None:
    """What nobody can tell is not proved."""
    verdict = judge([target(figures=unstamped(unknown=40))], fail_under_percent=61)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 60)


def test_a_selector_that_never_held_everything_fails() -> None:
    """Nothing was expected of it, and that is not completeness."""
    assert shares(target(held=False)) == [(0.0, "never complete: the updates")]
    verdict = judge([target(held=False)], fail_under_percent=1)
    assert verdict is not None
    assert not verdict.passed


def test_without_stamps_the_share_decides() -> None:
    """Counted updates are judged as stamped ones are; where the reference itself may lack some, that is said."""
    verdict = judge([target(figures=unstamped(missing=10))], fail_under_percent=95)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, 90)
    verdict = judge([target(figures=unstamped(unseen=None))], fail_under_percent=95)
    assert verdict is not None
    assert verdict.passed
    assert "need not have seen every update" in verdict.because


def test_links_that_are_compared_with_nothing_are_named() -> None:
    """The verdict tells what it is not about."""
    verdict = judge([target()], fail_under_percent=50, left_out=("edge/a", "edge/b"))
    assert verdict is not None
    assert verdict.because.endswith("; not compared, so not judged: edge/a, edge/b")


def test_nothing_to_judge_does_not_pass() -> None:
    """Without any settled update or topic there is no share that reaches a threshold."""
    empty = target(figures=stamped(expected=0), finals=final(equal=0))
    verdict = judge([empty], fail_under_percent=0)
    assert verdict is not None
    assert (verdict.passed, verdict.lowest_percent) == (False, None)
