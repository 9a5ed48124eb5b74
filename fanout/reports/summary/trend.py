"""The trend of a report: its figures against those of the first half of its window, or of earlier reports.

Pure functions of finished values. A difference counts when it is more than chance and more than a fifth.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import accumulate
from typing import Final

from fanout.reports.summary.past_reports import ROWS_MIN, past_report
from fanout.reports.values.document import Report
from fanout.reports.values.figures import percent
from fanout.reports.values.history import PastLag, PastReport
from fanout.reports.values.summary import Direction, NodeTrend, Trend

__all__ = ["KEPT", "find_trend"]

KEPT: Final = timedelta(days=30)
"""For how long a report counts in the trend of later ones."""

_SIGMAS = 3
"""Two shares differ when they are so many standard errors apart."""
_FIFTH = 5
"""One part in so many is the least difference that counts."""
_LAG_LEAST_US = 50_000
"""A p99 that differs by no more is as before."""
_CHANCE_SIGMAS = 2.576
"""Level of significance: points of time differ if chance alone would part them so far once in a hundred times."""
_WINDOWS_MIN = 4
"""A window with fewer points of time is not halved."""
_WORST_FIRST: tuple[Direction, ...] = ("worse", "same", "better")


@dataclass(frozen=True, slots=True)
class _Figures:
    """Updates that one node had to get in a span of time, and their lag."""

    expected: int
    """Unknown ones are not among them."""
    missing: int
    lag: Mapping[tuple[str, str], _Latency]
    """By link and who stamped."""


@dataclass(frozen=True, slots=True)
class _Latency:
    """Lag of the updates of one link, the difference of the clocks taken out."""

    rows: int
    p99_us: int
    uncertain_us: int
    points_us: tuple[int, ...] = ()
    """The p99 at each point of time, in order of size; empty if only the p99 of the whole time is known."""


def find_trend(report: Report, *, history: Sequence[PastReport] = ()) -> Trend | None:
    """Return how the nodes of a report fare against before; None where there is nothing to compare.

    Args:
        report: The report.
        history: Earlier reports in few figures; those of the 30 days before this one are taken together. Without these
            the first half of the report's window is taken.
    """
    if report.window is None:
        return None
    begin, end = report.window.begin, report.window.settled_until
    if earlier := _before(begin, end, history=history):
        nodes = _compare(_of_reports(earlier), _of_reports((past_report(report),)))
        known = min(one.begin for one in earlier), max(one.end for one in earlier)
        if nodes:
            return _trend("history", known, (begin, end), nodes)
    width_s = 0 if report.over_time is None else report.over_time.window_s
    if report.over_time is None or (end - begin) < timedelta(seconds=_WINDOWS_MIN * width_s):
        return None
    middle = begin + (end - begin) / 2
    nodes = _compare(_of_span(report, None, middle), _of_span(report, middle, None))
    return _trend("first_half", (begin, middle), (middle, end), nodes) if nodes else None


def _trend(
    against: str, before: tuple[datetime, datetime], now: tuple[datetime, datetime], nodes: tuple[NodeTrend, ...]
) -> Trend:
    return Trend.model_validate(
        {
            "against": against,
            "before_begin": before[0],
            "before_end": before[1],
            "begin": now[0],
            "end": now[1],
            "direction": reduce(_both, (node.direction for node in nodes)),
            "nodes": nodes,
        }
    )


def _of_span(report: Report, begin: datetime | None, end: datetime | None) -> dict[str, _Figures]:
    """Return the figures of the windows that begin in a span, by node."""

    def within(at: datetime) -> bool:
        return (begin is None or at >= begin) and (end is None or at < end)

    expected: dict[str, int] = defaultdict(int)
    missing: dict[str, int] = defaultdict(int)
    for series in () if report.over_time is None else report.over_time.series:
        for point in series.points:
            if within(point.at):
                expected[series.node] += point.expected - point.unknown
                missing[series.node] += point.missing
    uncertain_us = {
        (one.node, one.link, one.stamped_by): one.corrected.uncertain_us
        for one in report.lag.propagation
        if one.corrected is not None
    }
    lag: dict[str, dict[tuple[str, str], _Latency]] = defaultdict(dict)
    for line in report.lag.over_time:
        place = (line.node, line.link, line.stamped_by)
        known = [(p.rows, p.corrected_p99_us) for p in line.points if within(p.at) and p.corrected_p99_us is not None]
        rows = sum(updates for updates, _ in known)
        if place not in uncertain_us or rows < ROWS_MIN:
            continue
        lag[line.node][line.link, line.stamped_by] = _Latency(
            rows, _median(known), uncertain_us[place], points_us=tuple(sorted(p99_us for _, p99_us in known))
        )
    return {node: _Figures(expected[node], missing[node], lag.get(node, {})) for node in expected.keys() | lag.keys()}


def _median(weighted: Iterable[tuple[int, int]]) -> int:
    """Return the value that half of the weight does not exceed: one bad point of time among many makes no trend."""
    ordered = sorted((value, weight) for weight, value in weighted)
    up_to = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(up_to, up_to[-1] / 2)][0]


def _before(begin: datetime, end: datetime, *, history: Iterable[PastReport]) -> list[PastReport]:
    """Return the reports that a report with this window is compared with: most of it came after each of them."""
    middle = begin + (end - begin) / 2
    return [one for one in history if begin - KEPT <= one.end <= middle]


def _of_reports(reports: Iterable[PastReport]) -> dict[str, _Figures]:
    """Return the figures of some reports together, by node."""
    expected: dict[str, int] = defaultdict(int)
    missing: dict[str, int] = defaultdict(int)
    lags: dict[str, dict[tuple[str, str], list[PastLag]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        for node in report.nodes:
            expected[node.node] += node.expected
            missing[node.node] += node.missing
            for lag in node.lag:
                lags[node.node][lag.link, lag.stamped_by].append(lag)
    figures: dict[str, _Figures] = {}
    for name, count in expected.items():
        latencies = {key: latency for key, found in lags[name].items() if (latency := _mean(found)) is not None}
        figures[name] = _Figures(count, missing[name], latencies)
    return figures


def _mean(lags: Sequence[PastLag]) -> _Latency | None:
    """Return the mean over reports, each with the weight of its updates; None where it says nothing."""
    rows = sum(lag.updates for lag in lags)
    if rows < ROWS_MIN:
        return None
    p99_us = sum(lag.p99_us * lag.updates for lag in lags) // rows
    return _Latency(rows, p99_us, max(lag.uncertain_us for lag in lags))


def _compare(before: Mapping[str, _Figures], now: Mapping[str, _Figures]) -> tuple[NodeTrend, ...]:
    """Return the trend of each node that something is known of at both times, the worst first."""
    found: list[NodeTrend] = []
    for node in sorted(before.keys() & now.keys()):
        then, since = before[node], now[node]
        earlier, later = _latest_pair(then.lag, since.lag)
        if (earlier is None or later is None) and not (then.expected and since.expected):
            continue
        found.append(
            NodeTrend(
                node=node,
                missing_before=then.missing,
                missing=since.missing,
                complete_percent_before=percent(then.expected - then.missing, then.expected),
                complete_percent=percent(since.expected - since.missing, since.expected),
                p99_us_before=None if earlier is None else earlier.p99_us,
                p99_us=None if later is None else later.p99_us,
                direction=_both(_of_missing(then, since), _of_lag(earlier, later)),
            )
        )
    return tuple(sorted(found, key=lambda one: _WORST_FIRST.index(one.direction)))


def _latest_pair(
    before: Mapping[tuple[str, str], _Latency], now: Mapping[tuple[str, str], _Latency]
) -> tuple[_Latency | None, _Latency | None]:
    """Return the lag of the link, and of who stamped, that is latest now, at both times."""
    both = sorted(before.keys() & now.keys())
    if not both:
        return None, None
    worst = max(both, key=lambda key: now[key].p99_us)
    return before[worst], now[worst]


def _of_missing(before: _Figures, now: _Figures) -> Direction:
    if not (before.expected and now.expected):
        return "same"
    then, since = before.missing / before.expected, now.missing / now.expected
    pooled = (before.missing + now.missing) / (before.expected + now.expected)
    error = math.sqrt(pooled * (1 - pooled) * (1 / before.expected + 1 / now.expected))
    difference = abs(since - then)
    if difference <= _SIGMAS * error or difference * _FIFTH <= max(then, since):
        return "same"
    return "worse" if since > then else "better"


def _of_lag(before: _Latency | None, now: _Latency | None) -> Direction:
    if before is None or now is None:
        return "same"
    difference = now.p99_us - before.p99_us
    uncertain_us = max(before.uncertain_us, now.uncertain_us, _LAG_LEAST_US)
    if abs(difference) <= uncertain_us or abs(difference) * _FIFTH <= abs(before.p99_us):
        return "same"
    if before.points_us and now.points_us and not _lie_apart(before.points_us, now.points_us):
        return "same"
    return "worse" if difference > 0 else "better"


def _lie_apart(before: Sequence[int], now: Sequence[int]) -> bool:
    """Return whether the values of two times lie further apart than chance parts them (Mann and Whitney).

    If one update in a hundred is late, a p99 jumps between the quick and the late ones, and so does the median of many.
    Only their order shows a real change.

    Args:
        before: Values in order of size; fewer than five on either side are never apart.
        now: The same.
    """
    pairs = len(before) * len(now)
    # Pairs in which the later value is the higher one; where both are equal, half a pair.
    higher = sum(bisect_left(before, value) + bisect_right(before, value) for value in now) / 2
    sigma = math.sqrt(pairs * (len(before) + len(now) + 1) / 12)
    return abs(higher - pairs / 2) > _CHANCE_SIGMAS * sigma


def _both(first: Direction, second: Direction) -> Direction:
    """Return the direction of two together: a better one does not outweigh a worse one."""
    if "worse" in (first, second):
        return "worse"
    return "better" if "better" in (first, second) else "same"
