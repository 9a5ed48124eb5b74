"""The clocks of nodes that got the same updates from one primary, by literal figures."""

from __future__ import annotations

import pytest

from fanout.reports.figures.clocks import CountedClock, find_clocks
from fanout.reports.figures.counted import Clock, Difference, measure_clock
from fanout.reports.values.document import Propagation, RoundTrip
from tests.reports.documents import lag_figures
from tests.reports.surveys import survey_of


@pytest.mark.parametrize(
    ("clock", "own_us", "other_us", "expected"),
    [
        # Half of the updates came within so many microseconds, and of the quickest and slowest tenth.
        ((3_001_000, 3_000_000, 3_002_000), (1_300, 4_000), (1_000, 4_000), (2_997_000, 3_005_000)),
        ((7_000_000, 20_000, 9_000_000), (3_500_000, 10_600_000), (1_000, 4_000), (-3_480_000, 24_000)),
        ((20_000, 8_000, 30_000), (1_300, 40_000), (1_000, 4_000), (-20_000, 24_000)),
        ((-7_000_000, -9_000_000, -20_000), (1_000, 4_000), (3_500_000, 10_600_000), (-24_000, 3_480_000)),
    ],
    ids=[
        "3 s ahead",
        "slow line, right clock",
        "quick line with bursts, right clock",
        "slow line of the reference, right clock",
    ],
)
def test_the_difference_of_counted_clocks_lies_between_what_nearly_all_heartbeats_say(
    clock: tuple[int, int, int], own_us: tuple[int, int], other_us: tuple[int, int], expected: tuple[int, int]
) -> None:
    """Half of the heartbeats of a slow line come back sooner than half of its updates, but not than the quickest."""
    later_us, quick_us, slow_us = clock
    late = lag_figures().model_copy(update={"p50_us": later_us})
    own, other = (lag_figures().model_copy(update={"p50_us": p50, "p95_us": p95}) for p50, p95 in (own_us, other_us))
    (found,) = find_clocks(
        [Propagation(node="edge", link="up", filter="#", stamped_by="tap", lag=late)],
        [RoundTrip(node="edge", link="up", lag=own), RoundTrip(node="tap", link="up", lag=other)],
        survey=survey_of(),
        counted={("edge", "up", "tap"): CountedClock(later_us, quick_us, ("tap", "up"), quick_us, slow_us)},
    )
    assert (found.at_least_us, found.at_most_us) == expected


def test_a_clock_is_compared_at_quick_and_at_slow_times() -> None:
    """Medians of windows: half of the updates, and a tenth of the windows."""
    quick = [Difference(window, 10, 4_000, 5_000, 9_000) for window in range(5)]
    slow = [Difference(window, 30, 1_000_000, 3_000_000, 4_000_000) for window in range(5, 10)]
    clock = measure_clock([*slow, *quick], windows=10)
    assert clock is not None
    assert (clock.quick_us, clock.later_us, clock.slow_us) == (5_000, 3_000_000, 3_000_000)


@pytest.mark.parametrize(
    ("calm", "windows", "expected"),
    [(60, 100, (-10_000, 24_000)), (4, 100, (-3_000_000, 3_004_000)), (0, 40, (2_970_000, 3_004_000))],
    ids=["calm most of the time", "measured in bursts", "clock 3 s apart"],
)
@pytest.mark.parametrize("is_reference", [False, True], ids=["own line", "line of the reference"])
def test_bursts_on_a_slow_line_are_not_its_quickest_times(
    calm: int, windows: int, expected: tuple[int, int], *, is_reference: bool
) -> None:
    """Heartbeats are as many in a calm window as in a burst; where most windows have no update, 95 % of them count."""
    sign = -1 if is_reference else 1
    late = [(1, 20_000)] * calm + [(100, 3_000_000)] * 40
    measured = [Difference(window, updates, *[sign * late_us] * 3) for window, (updates, late_us) in enumerate(late)]
    clock = measure_clock(measured, windows=windows)
    assert clock is not None
    slow = lag_figures().model_copy(update={"p50_us": 30_000, "p95_us": 6_000_000})
    quick = lag_figures().model_copy(update={"p50_us": 1_000, "p95_us": 4_000})
    (found,) = find_clocks(
        [Propagation(node="edge", link="up", filter="#", stamped_by="tap", lag=slow)],
        [
            RoundTrip(node="edge", link="up", lag=quick if is_reference else slow),
            RoundTrip(node="tap", link="up", lag=slow if is_reference else quick),
        ],
        survey=survey_of(),
        counted={
            ("edge", "up", "tap"): CountedClock(
                clock.later_us, clock.least_us, ("tap", "up"), clock.quick_us, clock.slow_us
            )
        },
    )
    assert found.at_least_us is not None
    assert tuple(sorted((sign * found.at_least_us, sign * found.at_most_us))) == expected


def test_a_gap_that_claims_all_time_is_as_quick_as_any() -> None:
    """By the windows that are measured, not by those of the span."""
    clock = Clock(0, 0, 0, 0, intervals={5: (1, 2), 900: (-3, 1)}, width_us=1_000)
    assert clock.later_between(0, 2**62) == (-3, 2)
    assert clock.later_between(5_999, 6_000) == (1, 2)
    assert clock.later_between(0, 4_999) is None
