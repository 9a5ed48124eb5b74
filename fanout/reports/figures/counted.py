"""The updates without stamps, counted against the reference: their clocks, and the rows that say what came of each."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame

from fanout.reports.compare import counting
from fanout.reports.read.absences import Absence
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.rows import places_frame, small_frame, targets_frame
from fanout.reports.read.scope import APART_US, NEVER_US, Scope
from fanout.reports.read.survey import Survey
from fanout.reports.session.sail import keep
from fanout.reports.values import buckets

__all__ = ["Clock", "CountedUpdates", "Difference", "count_updates", "delay_intervals", "measure_clock"]

_PAIRS_MIN: Final = 5
"""So many values that both saw once say how late the others of that time may be, and how a clock compares.

Fewer may mislead: of a value that was published twice each may have lost another one.
"""
_NEAR: Final = (1, 2, 4)
"""So many windows to either side are looked at for these, one number after the other."""
_TIMES_MIN: Final = 10
"""A tenth of so many windows is one."""
_MARGIN_LEAST_US: Final = 50_000
"""By how much more than these an update may be late, at least."""
_MARGIN_SPREADS: Final = 4
"""The same, as a multiple of the difference between the quickest and the slowest of these."""

_INDIRECT: Final = "audit"
"""The cause of absences in which the link was there."""

Link = tuple[str, str]
"""Node and link."""
Wait = tuple[int, int, int, int]
"""Begin and end of times at which a link got updates that had waited, and the longest wait: for the reference, for the
link.
"""
Waited = tuple[int, int]
"""Longest wait of updates of a window for the reference, and for the link, in microseconds."""
Interval = tuple[int, int]
"""Least and greatest delay in microseconds of a link after the reference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Delay after the reference with which a link logged the values that both saw once, in one window of its time."""

    window: int
    updates: int
    least_us: int
    median_us: int
    most_us: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Difference of a link's clock from the reference's."""

    later_us: int
    """Median delay: the difference of the clocks, and of two ordinary ways."""
    least_us: int
    """The least of all, and a margin: nothing came earlier than that after the reference had it."""
    quick_us: int | None
    """Median delay at its quickest times, a tenth of its windows; None where these need not be times at which half of
    the heartbeats came.
    """
    slow_us: int | None
    """The same at its slowest times."""
    intervals: Mapping[int, Interval] = field(default_factory=dict)
    """By window of the link's time."""
    width_us: int = 1
    """The width of these windows."""

    @property
    def apart_us(self) -> int:
        """By how much one update may be logged earlier or later than that, in half of the windows."""
        later_us = self.later_us
        return round(median(max(most - later_us, later_us - least) for least, most in self.intervals.values()))

    def later_between(self, first_us: int, last_us: int) -> Interval | None:
        """Return its possible delays in a span of its time, also for updates that it could not log.

        None where nothing is measured near it.
        """
        # Not by the windows of the span: a gap may claim a span without bound.
        windows = range(first_us // self.width_us, last_us // self.width_us + 1)
        found = [interval for window, interval in self.intervals.items() if window in windows]
        return (min(least for least, _ in found), max(most for _, most in found)) if found else None


@dataclass(frozen=True, slots=True)
class CountedUpdates:
    """The table of updates in which every row of a link without stamps has an identity, and what is known of clocks."""

    updates: DataFrame
    """The rows of the table, and those that got an identity here, which have a `side`."""
    scope: Scope
    """The scope, by these clocks."""
    clocks: Mapping[Link, Clock]
    """By node and link; those without a value that both saw once are left out."""
    kept: DataFrame | None = None
    """What Spark keeps; None for nothing."""


def measure_clock(differences: Sequence[Difference], *, windows: int) -> Clock | None:
    """Return how a clock compares; None where too few values were seen once by both.

    It uses medians of windows, because the least difference belongs to an update for which the reference was slow. Each
    has the weight of its updates for half of these. Each window counts once for the quickest and the slowest times,
    because heartbeats, with which they are compared, are sent in bursts and between them alike. For the same reason a
    tenth of what was measured must lie in any half of all windows.

    Args:
        differences: Of the link.
        windows: Number of windows, also of those without an update that both saw once.
    """
    if not _are_enough(differences):
        return None
    least_us = min(one.least_us for one in differences)
    margin_us = max(_MARGIN_LEAST_US, min(one.most_us - one.least_us for one in differences))
    ordered = sorted((one.median_us, one.updates) for one in differences)
    up_to = list(accumulate(updates for _, updates in ordered))
    later_us = ordered[bisect_left(up_to, up_to[-1] / 2)][0]
    tenth = len(ordered) // 10
    if len(ordered) < _TIMES_MIN or len(ordered) - tenth < windows / 2:
        return Clock(later_us, least_us - margin_us, None, None)
    return Clock(later_us, least_us - margin_us, ordered[tenth - 1][0], ordered[-tenth][0])


def delay_intervals(
    differences: Sequence[Difference], *, waited: Mapping[int, Waited], horizon_us: int
) -> dict[int, Interval]:
    """Return the possible delays of a link after the reference, for each window.

    The delay of the values that both saw once, in the window and those near it, and a wide margin. If these are too
    few, the horizon in which updates travel, and the time for which the link or the reference was away. If all of them
    are too few, they widen that horizon and do not move it.

    Args:
        differences: Of the link.
        waited: By the windows in which it may have logged.
        horizon_us: Greatest difference of clocks, and longest time on the way.
    """
    known = {one.window: one for one in differences}
    least_us = min((one.least_us for one in differences), default=0)
    most_us = max((one.most_us for one in differences), default=0)
    if not _are_enough(differences):
        least_us, most_us = min(0, least_us), max(0, most_us)
    found: dict[int, Interval] = {}
    for window, waited_us in waited.items():
        near: list[Difference] = []
        for distance in _NEAR:
            near = [known[one] for one in range(window - distance, window + distance + 1) if one in known]
            if _are_enough(near):
                break
        else:
            near = []
        if near:
            low, high = min(one.least_us for one in near), max(one.most_us for one in near)
            spread_us = high - low
            # A backlog that comes at once has a wide spread, and an end.
            margin_us = max(_MARGIN_LEAST_US, min(_MARGIN_SPREADS * spread_us, APART_US + spread_us // 4))
            found[window] = low - margin_us, high + margin_us
            continue
        wide_us = horizon_us + sum(waited_us)
        found[window] = least_us - wide_us, most_us + wide_us
    return found


def _are_enough(differences: Iterable[Difference]) -> bool:
    return sum(one.updates for one in differences) >= _PAIRS_MIN


def count_updates(
    tables: Tables,
    *,
    survey: Survey,
    scope: Scope,
    by_clocks: Callable[[Mapping[Link, Clock]], Scope],
) -> CountedUpdates:
    """Return the updates with an identity for each; nothing is read where every link has stamps.

    Args:
        tables: The logs.
        survey: What they hold.
        scope: The compared logs.
        by_clocks: Returns the scope by clocks.
    """
    targets = scope.targets_of("unstamped")
    if not targets:
        return CountedUpdates(tables.updates, scope, {})
    spark = tables.updates.sparkSession
    times = [survey.log_span_us(node) for node in survey.roles]
    begin_us, end_us = min(begin for begin, _ in times), max(end for _, end in times)
    width_us = buckets.window_us(end_us - begin_us)
    is_union = scope.reference.kind == "union"
    sides = counting.both_sides(tables.updates, scope=scope)
    windows = range(begin_us // width_us, end_us // width_us + 1)
    differences = _by_link(collect_rows(counting.unique_differences(sides, width_us=width_us)), scope=scope)
    spans_away = _away(survey.absences)
    horizon_us = max(scope.settle_us, APART_US)
    by_link: dict[Link, dict[int, Interval]] = {}
    waited: dict[Link, dict[int, Waited]] = {}
    clocks: dict[Link, Clock] = {}
    for target in targets:
        link = (target.node, target.link)
        if link in by_link:
            continue
        waits = _waits(spans_away, link=link, above=scope.groups[target.group].sources)
        waited[link] = {window: _waited(waits, window, width_us=width_us, horizon_us=horizon_us) for window in windows}
        by_link[link] = delay_intervals(differences[link], waited=waited[link], horizon_us=horizon_us)
        # Of a union each value may be of another log, hence of another clock.
        if not is_union and (clock := measure_clock(differences[link], windows=len(windows))) is not None:
            clocks[link] = replace(clock, intervals=by_link[link], width_us=width_us)
    scope = by_clocks(clocks)
    targets = scope.targets_of("unstamped")
    intervals: list[tuple[object, ...]] = [
        (target.id, window, *interval, *waited[target.node, target.link][window])
        for target in targets
        for window, interval in by_link[target.node, target.link].items()
    ]
    spans = targets_frame(spark, scope)
    identified = counting.identify(
        sides,
        intervals=small_frame(spark, intervals, schema=counting.INTERVALS),
        width_us=width_us,
        places=places_frame(spark, targets),
        spans=spans,
        gaps=any(target.gaps_us for target in targets),
        margin_us=horizon_us,
        proves=not is_union,
    )
    rows = keep(identified)
    seen = counting.reference_rows(tables.updates, scope=scope).drop("group")
    updates = seen.unionByName(rows, allowMissingColumns=True)
    if any(one.stamp_primary is not None for one in survey.updates):  # else each of its rows is in the others
        updates = tables.updates.unionByName(updates, allowMissingColumns=True)
    return CountedUpdates(updates, scope, clocks, rows)


def _by_link(rows: Iterable[Mapping[str, Any]], *, scope: Scope) -> dict[Link, list[Difference]]:
    """Return the differences of each link, over its selectors."""
    found: dict[Link, dict[int, Difference]] = defaultdict(dict)
    for row in rows:
        target = scope.targets[row["target"]]
        one = Difference(*(row[name] for name in ("window", "updates", "least_us", "median_us", "most_us")))
        of_link = found[target.node, target.link]
        if (before := of_link.get(one.window)) is not None:
            one = Difference(
                one.window,
                one.updates + before.updates,
                min(one.least_us, before.least_us),
                max(one, before, key=lambda each: each.updates).median_us,
                max(one.most_us, before.most_us),
            )
        of_link[one.window] = one
    return defaultdict(list, {link: [of_link[window] for window in sorted(of_link)] for link, of_link in found.items()})


def _waits(away: Mapping[Link, Sequence[tuple[int, int]]], *, link: Link, above: Sequence[Link]) -> list[Wait]:
    """Return when updates came that had waited: to the link when it is back, to the reference after it was away."""
    own = [(until, until, 0, until - after) for after, until in away.get(link, ())]
    others = [span for one in above if one != link for span in away.get(one, ())]
    return [*own, *((after, until, until - after, 0) for after, until in others)]


def _waited(waits: Iterable[Wait], window: int, *, width_us: int, horizon_us: int) -> Waited:
    """Return the longest wait of updates that a link logged in a window, or near it."""
    begin_us, end_us = (window - 2) * width_us - horizon_us, (window + 3) * width_us + horizon_us
    near = [(sooner, later) for after, until, sooner, later in waits if after < end_us and until > begin_us]
    return sum(sooner for sooner, _ in near), sum(later for _, later in near)


def _away(absences: Iterable[Absence]) -> dict[Link, list[tuple[int, int]]]:
    """Return when each link was away and came back, by its node's clock."""
    found: dict[Link, list[tuple[int, int]]] = defaultdict(list)
    for one in absences:
        if one.cause != _INDIRECT and one.until_us < NEVER_US:
            found[one.node, one.link].append((one.after_us, one.until_us))
    return found
