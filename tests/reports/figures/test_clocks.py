"""The clocks of nodes that got the same updates from one primary, by literal figures."""

from __future__ import annotations

import pytest

from fanout.reports.figures.clocks import CountedClock, find_clocks
from fanout.reports.figures.counted import Clock
from fanout.reports.values.document import Propagation, RoundTrip
from tests.reports.documents import lag_figures
from tests.reports.surveys import survey_of


@pytest.mark.parametrize(
    ("later_us", "p95_us", "expected"),
    [
        (3_001_000, 4_000, (2_997_000, 3_005_000)),
        (7_000_000, 10_600_000, (-3_600_000, 7_004_000)),
    ],
    ids=["3 s ahead", "slow line, right clock"],
)
def test_the_difference_of_counted_clocks_lies_between_what_nearly_all_heartbeats_say(
    later_us: int, p95_us: int, expected: tuple[int, int]
) -> None:
    """Half of the heartbeats of a link whose queue grows come back sooner than half of its updates."""
    late = lag_figures().model_copy(update={"p50_us": later_us})
    slow = lag_figures().model_copy(update={"p50_us": p95_us // 3, "p95_us": p95_us})
    quick = lag_figures().model_copy(update={"p50_us": 1_000, "p95_us": 4_000})
    (found,) = find_clocks(
        [Propagation(node="edge", link="up", filter="#", stamped_by="tap", lag=late)],
        [RoundTrip(node="edge", link="up", lag=slow), RoundTrip(node="tap", link="up", lag=quick)],
        survey=survey_of(),
        counted={("edge", "up", "tap"): CountedClock(later_us, later_us, ("tap", "up"))},
    )
    assert (found.at_least_us, found.at_most_us) == expected


def test_a_gap_that_claims_all_time_is_as_quick_as_any() -> None:
    """By the windows that are measured, not by those of the span."""
    clock = Clock(0, 0, intervals={5: (1, 2), 900: (-3, 1)}, width_us=1_000)
    assert clock.later_between(0, 2**62) == (-3, 2)
    assert clock.later_between(5_999, 6_000) == (1, 2)
    assert clock.later_between(0, 4_999) is None
