"""The trend of a report, by literal figures: halves of its window, and earlier reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from fanout.reports.summary.past_reports import past_report
from fanout.reports.summary.summarize import summarize
from fanout.reports.values.document import (
    CompletenessPoint,
    CompletenessSection,
    CompletenessSeries,
    LagPoint,
    LagSection,
    LagSeries,
)
from fanout.reports.values.figures import percent
from fanout.reports.values.history import PastLag, PastNode, PastReport
from fanout.reports.values.summary import Trend
from tests.reports.documents import BEGIN, END, stamped, target, unstamped
from tests.reports.summary.test_summary import made, propagation

SETTLED = END - timedelta(seconds=5)
MIDDLE = BEGIN + (SETTLED - BEGIN) / 2
WINDOW_S = 30
HOUR = timedelta(hours=1)


def over_time(missing: list[int], *, node: str = "edge", expected: int = 1000, unknown: int = 0) -> CompletenessSection:
    """Return one link's points of time, ten of them in the window."""
    points = tuple(
        CompletenessPoint(
            at=BEGIN + timedelta(seconds=WINDOW_S * number), expected=expected, missing=lost, unknown=unknown
        )
        for number, lost in enumerate(missing)
    )
    return CompletenessSection(window_s=WINDOW_S, series=(CompletenessSeries(node=node, link="up", points=points),))


def lag_over_time(p99_us: list[int], *, ahead_us: int | None = 0, rows: int = 500) -> LagSection:
    """Return one link's lag at the points of time, whose clock is ahead, or by nobody knows how much."""
    points = tuple(
        LagPoint(
            at=BEGIN + timedelta(seconds=WINDOW_S * number),
            rows=rows,
            p50_us=p99,
            p95_us=p99,
            p99_us=p99,
            most_us=p99,
            corrected_p50_us=None if ahead_us is None else p99 - ahead_us,
            corrected_p99_us=None if ahead_us is None else p99 - ahead_us,
        )
        for number, p99 in enumerate(p99_us)
    )
    return LagSection(
        propagation=(propagation(p99_us=max(p99_us), ahead_us=ahead_us),),
        over_time=(LagSeries(node="edge", link="up", stamped_by="hub", points=points),),
    )


def halves(**sections: Any) -> Trend:
    """Return the trend within one report."""
    trend = summarize(made(target(), **sections)).trend
    assert trend is not None
    return trend


@pytest.mark.parametrize(
    ("missing", "direction"),
    [
        ([0] * 10, "same"),
        ([10] * 10, "same"),
        ([0] * 5 + [2] * 5, "worse"),
        ([2] * 5 + [0] * 5, "better"),
        ([0] * 9 + [3], "same"),  # as chance has it
        ([100] * 5 + [115] * 5, "same"),  # sure, but less than a fifth
        ([100] * 5 + [135] * 5, "worse"),
    ],
)
def test_missing_of_the_second_half_against_the_first(missing: list[int], direction: str) -> None:
    """Worse and better are more than chance and more than a fifth."""
    trend = halves(over_time=over_time(missing))
    assert (trend.against, trend.direction) == ("first_half", direction)
    assert (trend.before_begin, trend.before_end, trend.begin, trend.end) == (BEGIN, MIDDLE, MIDDLE, SETTLED)
    (node,) = trend.nodes
    assert (node.missing_before, node.missing) == (sum(missing[:5]), sum(missing[5:]))
    assert node.complete_percent == 100 * (5000 - sum(missing[5:])) / 5000


def test_what_is_unknown_is_in_neither_share() -> None:
    """A crash makes no trend."""
    (node,) = halves(over_time=over_time([10] * 10, unknown=900)).nodes
    assert (node.complete_percent_before, node.complete_percent, node.direction) == (90, 90, "same")


@pytest.mark.parametrize(
    ("p99_us", "direction"),
    [
        ([500_000] * 5 + [575_000] * 5, "same"),  # less than a fifth
        ([500_000] * 5 + [650_000] * 5, "worse"),
        ([650_000] * 5 + [500_000] * 5, "better"),
        ([5_000] * 5 + [54_000] * 5, "same"),  # nobody waits for that
        ([54_000] * 5 + [5_000] * 5, "same"),
        ([5_000] * 5 + [56_000] * 5, "worse"),
    ],
)
@pytest.mark.parametrize("ahead_us", [0, 3_000_000, -3_000_000])
def test_lag_of_the_second_half_against_the_first(p99_us: list[int], direction: str, ahead_us: int) -> None:
    """By the corrected values, whatever the clocks say."""
    raw = [one + ahead_us for one in p99_us]
    trend = halves(over_time=over_time([0] * 10), lag=lag_over_time(raw, ahead_us=ahead_us))
    (node,) = trend.nodes
    assert (node.p99_us_before, node.p99_us) == (p99_us[0], p99_us[9])
    assert (trend.direction, node.direction) == (direction, direction)


@pytest.mark.parametrize(
    ("p99_us", "direction"),
    [
        ([5_000, 900_000, 5_100, 400_000, 5_200, *(300_000, 5_300, 500_000, 5_400, 600_000)], "same"),
        ([5_000, 5_100, 5_200, 5_300, 5_400, *(300_000, 400_000, 500_000, 600_000, 700_000)], "worse"),
        ([300_000, 5_000, 500_000, 400_000, 600_000, *(5_100, 5_200, 5_300, 700_000, 5_400)], "same"),
    ],
)
def test_lag_that_jumps_all_the_time_makes_no_trend(p99_us: list[int], direction: str) -> None:
    """Where one update in a hundred is late, the p99 of a second is that of the quick or of the late ones by chance."""
    assert halves(over_time=over_time([0] * 10), lag=lag_over_time(p99_us)).direction == direction


def test_the_lag_of_few_points_of_time_makes_no_trend() -> None:
    """Five before and four after may lie apart by chance."""
    assert halves(over_time=over_time([0] * 10), lag=lag_over_time([10_000] * 5 + [90_000] * 4)).direction == "same"


@pytest.mark.parametrize("sections", [{"ahead_us": None}, {"rows": 19}], ids=["unknown clock", "few updates"])
def test_lag_that_says_nothing_makes_no_trend(sections: dict[str, Any]) -> None:
    """Without a known difference of the clocks, and of few updates."""
    (node,) = halves(over_time=over_time([0] * 10), lag=lag_over_time([10] * 5 + [10**6] * 5, **sections)).nodes
    assert (node.p99_us_before, node.p99_us, node.direction) == (None, None, "same")


def test_what_got_worse_is_not_made_good() -> None:
    """Of one node by its lag, of all by its missing updates; the worst node comes first."""
    lag = lag_over_time([90_000] * 5 + [10_000] * 5)
    assert halves(over_time=over_time([0] * 5 + [9] * 5), lag=lag).direction == "worse"
    quiet, bad = over_time([0] * 10, node="a").series, over_time([0] * 5 + [9] * 5, node="z").series
    trend = halves(over_time=CompletenessSection(window_s=WINDOW_S, series=(*quiet, *bad)))
    assert [(node.node, node.direction) for node in trend.nodes] == [("z", "worse"), ("a", "same")]
    assert trend.direction == "worse"
    good = over_time([9] * 5 + [0] * 5, node="z").series
    better = halves(over_time=CompletenessSection(window_s=WINDOW_S, series=(*quiet, *good)))
    assert [(node.node, node.direction) for node in better.nodes] == [("a", "same"), ("z", "better")]
    assert better.direction == "better"


def test_a_short_window_has_no_halves() -> None:
    """Nor has a report without identities, or of one half only."""
    wide = over_time([1] * 3).model_copy(update={"window_s": 100})
    assert summarize(made(target(), over_time=wide)).trend is None
    assert summarize(made(target(figures=unstamped()))).trend is None
    assert summarize(made(target(), over_time=over_time([1] * 4))).trend is None


def test_against_an_earlier_report() -> None:
    """Totals of both, of the nodes that are in both; without stamps too."""
    earlier = made(
        target("edge", figures=stamped(expected=1000, missing=10)),
        target("plain", figures=unstamped(seen=1000, missing=500)),
        target("gone"),
        lag=LagSection(propagation=(propagation(p99_us=100_000),)),
    )
    later = made(
        target("edge", figures=stamped(expected=1000, missing=10)),
        target("plain", figures=unstamped(seen=1000, missing=10)),
        target("new"),
        lag=LagSection(propagation=(propagation(p99_us=200_000, ahead_us=5_000),)),
    )
    line = past_report(earlier)
    before = line.model_copy(update={"begin": line.begin - HOUR, "end": line.end - HOUR})
    trend = summarize(later, history=[before]).trend
    assert trend is not None
    assert (trend.against, trend.direction, trend.before_begin) == ("history", "worse", BEGIN - HOUR)
    assert (trend.begin, trend.end) == (BEGIN, SETTLED)
    edge, plain = trend.nodes
    assert (edge.node, edge.p99_us_before, edge.p99_us, edge.direction) == ("edge", 100_000, 195_000, "worse")
    assert (plain.missing_before, plain.missing, plain.direction) == (500, 10, "better")
    assert summarize(made(target("elsewhere")), history=[before]).trend is None


def past(*nodes: PastNode, ended_before: timedelta = HOUR) -> PastReport:
    """Return a report of an hour that ended so long before the end of this one."""
    end = SETTLED - ended_before
    return PastReport(begin=end - HOUR, end=end, nodes=nodes)


def past_node(missing: int, *lags: PastLag, node: str = "edge", expected: int = 1000) -> PastNode:
    """Return what a node lacked in one report."""
    return PastNode(node=node, expected=expected, missing=missing, unknown=0, lag=lags)


def past_lag(p99_us: int, *, updates: int = 500, link: str = "up", uncertain_us: int = 0) -> PastLag:
    """Return how late a link was in one report."""
    return PastLag(link=link, stamped_by="hub", updates=updates, p50_us=1, p99_us=p99_us, uncertain_us=uncertain_us)


def against(history: Sequence[PastReport], **sections: Any) -> Trend:
    """Return the trend of a report that lacks 10 of 1,000 updates, and is not halved."""
    trend = summarize(made(target(figures=stamped(expected=1000, missing=10)), **sections), history=history).trend
    assert trend is not None
    return trend


@pytest.mark.parametrize(
    ("missing", "direction"),
    [([10, 10, 10], "same"), ([0, 0, 0], "worse"), ([0, 100, 200], "better"), ([0, 30, 0], "same")],
)
def test_against_the_reports_of_30_days(missing: list[int], direction: str) -> None:
    """All of them together, each with the weight of what was expected."""
    history = [past(past_node(lost), ended_before=number * HOUR) for number, lost in enumerate(missing, 1)]
    trend = against(history)
    (node,) = trend.nodes
    assert (trend.against, trend.direction, node.direction) == ("history", direction, direction)
    assert (trend.before_begin, trend.before_end) == (SETTLED - (len(missing) + 1) * HOUR, SETTLED - HOUR)
    assert (trend.begin, trend.end) == (BEGIN, SETTLED)
    assert (node.missing_before, node.missing) == (sum(missing), 10)
    assert node.complete_percent_before == percent(1000 * len(missing) - sum(missing), 1000 * len(missing))


@pytest.mark.parametrize(
    ("lags", "before_us"),
    [
        ((past_lag(10_000, updates=300), past_lag(20_000, updates=100)), 12_500),
        ((past_lag(10_000, updates=50), past_lag(20_000, updates=49)), None),  # a p99 of 99 says nothing
        ((past_lag(10_000), past_lag(90_000, link="other")), 10_000),
    ],
)
def test_the_lag_of_earlier_reports_is_their_mean(lags: tuple[PastLag, ...], before_us: int | None) -> None:
    """With the weight of their updates, link by link."""
    history = [past(past_node(10, lag)) for lag in lags]
    trend = against(history, lag=LagSection(propagation=(propagation(p99_us=90_000),)))
    (node,) = trend.nodes
    assert (node.p99_us_before, node.p99_us) == (before_us, None if before_us is None else 90_000)
    assert trend.direction == ("same" if before_us is None else "worse")


@pytest.mark.parametrize(("uncertain_us", "direction"), [(80_000, "worse"), (90_000, "same")])
def test_lag_that_differs_by_less_than_it_is_uncertain(uncertain_us: int, direction: str) -> None:
    """The clocks may account for it."""
    history = [past(past_node(10, past_lag(10_000, uncertain_us=uncertain_us)))]
    assert against(history, lag=LagSection(propagation=(propagation(p99_us=100_000),))).direction == direction


def test_only_what_was_before_counts() -> None:
    """Neither a report on the same time, nor a later one, nor one of more than 30 days ago, nor other nodes."""
    others = [
        past(past_node(0), ended_before=timedelta()),
        past(past_node(0), ended_before=-HOUR),
        past(past_node(0), ended_before=timedelta(days=30) + HOUR),
    ]
    assert [node.missing_before for node in against([past(past_node(7)), *others]).nodes] == [7]
    halved = summarize(made(target(), over_time=over_time([0] * 10)), history=[*others, past(past_node(0, node="x"))])
    assert halved.trend is not None
    assert halved.trend.against == "first_half"
    assert summarize(made(target()), history=others).trend is None


def test_the_line_of_a_report_in_the_file_of_the_trend() -> None:
    """Shares with their bounds, and the lag of each link of its latest selector."""
    figures = (stamped(expected=1000, missing=100, unknown=50), unstamped(seen=1000, missing=5))
    lag = LagSection(propagation=(propagation(p99_us=10_000, ahead_us=1_000), propagation(p99_us=9_000)))
    earlier = made(target("edge", figures=figures[0]), target("plain", figures=figures[1]), lag=lag)
    earlier = earlier.model_copy(update={"summary": summarize(earlier)})
    line = past_report(earlier)
    edge, plain = line.nodes
    assert (edge.expected, edge.missing, edge.unknown) == (950, 100, 50)
    assert (edge.complete_percent_at_least, edge.complete_percent_at_most) == (85, 90)
    assert (plain.missing, plain.complete_percent_at_least) == (5, 99.5)
    assert [(one.updates, one.p99_us, one.uncertain_us) for one in edge.lag] == [
        (one.lag.rows, one.corrected.p99_us, one.corrected.uncertain_us)
        for one in lag.propagation[1:]
        if one.corrected is not None
    ]
