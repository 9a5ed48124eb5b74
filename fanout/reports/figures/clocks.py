"""The clocks of nodes: their differences, propagation times without these, and the time of each hop of a chain.

Pure functions of figures that are there already. An update is stamped by one clock and logged by another, so its
propagation time is the time it took and the difference of the two clocks. The least propagation time and the shortest
heartbeats bound the difference; see `ClockDifference` for what is proved of that and what is taken for granted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fanout.reports.read.survey import Survey
from fanout.reports.values.document import ClockDifference, CorrectedLag, HopLag, Propagation, RoundTrip
from fanout.reports.values.figures import Distribution

__all__ = ["CountedClock", "Place", "Span", "correct", "correct_percentile", "find_clocks", "find_hops", "least_delays"]

Place = tuple[str, str, str]
"""Node, link, and who stamped."""


@dataclass(frozen=True, slots=True)
class CountedClock:
    """Delay with which a link logged updates without stamps, against the log by which they are counted."""

    later_us: int
    """Delay of half of them."""
    least_us: int
    """Smallest delay of all of them."""
    source: tuple[str, str]
    """The node and link of the other log; link "" is what was published at the node."""
    quick_us: int | None
    """Delay of half of them at its quickest times; None where these are not known."""
    slow_us: int | None
    """The same at its slowest times."""


Span = tuple[int, int]
"""The least and the greatest that a value may be, in microseconds."""

_MUCH_SLOWER: Final = 4
"""A line is slow if its heartbeats take so many times as long as those of the other line."""
_SLOW_US: Final = 100_000
"""So long they take at least: on a quick line updates in bursts may take longer than half of the heartbeats."""

_PERCENTILE_PERMILLE: Final = 22
"""Error of a percentile by its bucket, in thousandths of it."""


def least_delays(survey: Survey) -> dict[Place, int]:
    """Return the least (applied - origin) of each link whose updates were stamped by a node above it."""
    found: dict[Place, int] = {}
    above: dict[tuple[str, str], frozenset[str]] = {}
    for row in survey.updates:
        stamped_by, delay_us = row.stamp_primary, row.delay_us_min
        if not (row.live and row.link and stamped_by is not None and delay_us is not None):
            continue
        if (row.node, row.link) not in above:
            above[row.node, row.link] = survey.nodes_above(row.node, link=row.link)
        if stamped_by in above[row.node, row.link]:
            place = (row.node, row.link, stamped_by)
            found[place] = min(found.get(place, delay_us), delay_us)
    return found


def find_clocks(
    propagation: Iterable[Propagation],
    heartbeat: Sequence[RoundTrip],
    *,
    survey: Survey,
    counted: Mapping[Place, CountedClock] = MappingProxyType({}),
) -> tuple[ClockDifference, ...]:
    """Return the bounds of each pair of clocks.

    Args:
        propagation: The propagation times, but those of many clocks together.
        heartbeat: The round trips.
        survey: Says which node each link was connected to.
        counted: Delays of the links whose updates carry no stamps, which tell of their clocks.
    """
    least: dict[Place, int] = {}
    for one in propagation:
        place = (one.node, one.link, one.stamped_by)
        least[place] = min(least.get(place, one.lag.least_us), one.lag.least_us)
    ways = _Ways(least, heartbeat, survey=survey)
    round_trips = {(one.node, one.link): one.lag for one in heartbeat}
    return tuple(
        _difference(place, least[place], round_trip_us=ways.round_trip_us(place))
        if (clock := counted.get(place)) is None
        else _counted_difference(place, clock, round_trips=round_trips)
        for place in sorted(least)
    )


def _counted_difference(
    place: Place, clock: CountedClock, *, round_trips: Mapping[tuple[str, str], Distribution]
) -> ClockDifference:
    """Return the difference of the clocks of two nodes that got the same updates from one primary.

    An ordinary update takes no less than nothing to either node, and no more than nearly all heartbeats take there and
    back. If one line is much slower than the other, its quickest times are taken: then an update was no slower than
    half of its heartbeats. If these times are not known, nearly all heartbeats stay the bound.
    """
    node, link, stamped_by = place
    own, other = round_trips.get((node, link)), round_trips.get(clock.source)
    own_us = None if own is None else own.p95_us
    other_us = 0 if not clock.source[1] else None if other is None else other.p95_us
    later_us = clock.later_us
    if clock.quick_us is not None and own is not None and own.p95_us > max(_SLOW_US, _MUCH_SLOWER * (other_us or 0)):
        later_us, own_us = clock.quick_us, own.p50_us
    elif clock.slow_us is not None and other is not None and other.p95_us > max(_SLOW_US, _MUCH_SLOWER * (own_us or 0)):
        later_us, other_us = clock.slow_us, other.p50_us
    is_known = own_us is not None and other_us is not None
    at_most_us = later_us + (other_us or 0)
    at_least_us = later_us - (own_us or 0)
    return ClockDifference(
        node=node,
        link=link,
        stamped_by=stamped_by,
        at_most_us=at_most_us,
        at_least_us=at_least_us if is_known else None,
        estimate_us=(at_most_us + at_least_us) // 2 if is_known else None,
    )


def _difference(place: Place, least_us: int, *, round_trip_us: int | None) -> ClockDifference:
    node, link, stamped_by = place
    if node == stamped_by:  # one clock
        least_us = round_trip_us = 0
    return ClockDifference(
        node=node,
        link=link,
        stamped_by=stamped_by,
        at_most_us=least_us,
        at_least_us=None if round_trip_us is None else least_us - round_trip_us,
        estimate_us=None if round_trip_us is None else least_us - round_trip_us // 2,
    )


class _Ways:
    """The way of updates from the node that stamped them down to a link, hop by hop."""

    def __init__(self, places: Iterable[Place], heartbeat: Iterable[RoundTrip], *, survey: Survey) -> None:
        self._survey = survey
        self._shortest = {(one.node, one.link): one.lag.least_us for one in heartbeat}
        self._links: dict[tuple[str, str], list[str]] = defaultdict(list)
        for node, link, stamped_by in places:
            self._links[node, stamped_by].append(link)
        self._found: dict[Place, int | None] = {}

    def round_trip_us(self, place: Place) -> int | None:
        """Return the shortest round trips of all hops together; None where one is not known.

        A heartbeat goes to the next node only. If updates may have come by several links of a node above, the way with
        the longest round trips counts.
        """
        if place not in self._found:
            self._found[place] = None  # what comes back to itself is no way
            self._found[place] = self._round_trip_us(place)
        return self._found[place]

    def _round_trip_us(self, place: Place) -> int | None:
        node, link, stamped_by = place
        own_us = self._shortest.get((node, link))
        above = next_above(self._survey, node, link=link)
        if own_us is None or above is None:
            return None
        if above == stamped_by:
            return own_us
        ways = [self.round_trip_us((above, other, stamped_by)) for other in self._links[above, stamped_by]]
        known = [way for way in ways if way is not None]
        return own_us + max(known) if known and len(known) == len(ways) else None


def next_above(survey: Survey, node: str, *, link: str) -> str | None:
    """Return the node that a link was connected to; None when that is not known, or it was more than one."""
    upstreams = survey.upstreams(node, link=link)
    return next(iter(upstreams)) if len(upstreams) == 1 else None


def correct(
    lag: Distribution, *, percentiles: Mapping[int, Span], difference: ClockDifference | None
) -> CorrectedLag | None:
    """Return propagation times without the difference of the clocks; None when that is not known from both sides.

    Args:
        lag: The times as the clocks say them.
        percentiles: Between which times each percentile is.
        difference: Difference of the two clocks.
    """
    if difference is None or difference.estimate_us is None or difference.at_least_us is None:
        return None
    ahead_us = difference.estimate_us
    values = {percent: correct_percentile(span, ahead_us=ahead_us) for percent, span in percentiles.items()}
    # Buckets are narrower than what is said of percentiles, but not where they were made of values far from zero.
    beside = (
        -(-(most_us - least_us) // 2) - values[percent] * _PERCENTILE_PERMILLE // 1000
        for percent, (least_us, most_us) in percentiles.items()
    )
    return CorrectedLag(
        p50_us=values[50],
        p95_us=values[95],
        p99_us=values[99],
        most_us=lag.most_us - ahead_us,
        mean_us=None if lag.mean_us is None else lag.mean_us - ahead_us,
        uncertain_us=max(difference.at_most_us - ahead_us, ahead_us - difference.at_least_us) + max(0, *beside),
    )


def correct_percentile(span: Span, *, ahead_us: int) -> int:
    """Return the middle of the possible values of a percentile, without the difference of the clocks."""
    return (span[0] + span[1]) // 2 - ahead_us


@dataclass(frozen=True, slots=True)
class _Hop:
    """The way from one node to the next, of what one node stamped."""

    stamped_by: str
    from_node: str
    to_node: str


@dataclass(frozen=True, slots=True)
class _Total:
    """Updates of some selectors at one node."""

    rows: int
    mean_us: int
    least_us: int


def find_hops(
    propagation: Iterable[Propagation], heartbeat: Iterable[RoundTrip], *, survey: Survey
) -> tuple[HopLag, ...]:
    """Return the hops of all chains, in the order of the way; none where every node is fed by the one that stamps.

    The mean time of a hop is the mean at its end less the mean at its begin, of the selectors that both nodes have.

    Args:
        propagation: The propagation times, but those of many clocks together.
        heartbeat: The round trips.
        survey: Says which node each link was connected to.
    """
    shortest = {(one.node, one.link): one.lag.least_us for one in heartbeat}
    at: dict[tuple[str, str], list[Propagation]] = defaultdict(list)
    ends: dict[_Hop, list[Propagation]] = defaultdict(list)
    for one in propagation:
        at[one.node, one.stamped_by].append(one)
        above = next_above(survey, one.node, link=one.link)
        if above is not None and one.node not in {above, one.stamped_by}:
            ends[_Hop(one.stamped_by, above, one.node)].append(one)
    below: dict[tuple[str, str], list[_Hop]] = defaultdict(list)
    for hop in sorted(ends, key=lambda hop: hop.to_node):
        below[hop.stamped_by, hop.from_node].append(hop)
    found: list[HopLag] = []
    for stamped_by in sorted({hop.stamped_by for hop in ends}):
        for hop in _in_order(below, stamped_by):
            if hop.from_node == stamped_by and (stamped_by, hop.to_node) not in below:
                continue  # no chain
            lag = _hop_lag(hop, ends[hop], at[hop.from_node, stamped_by], shortest=shortest)
            if lag is not None:
                found.append(lag)
    return tuple(found)


def _in_order(below: Mapping[tuple[str, str], Sequence[_Hop]], stamped_by: str) -> list[_Hop]:
    """Return the hops below the node that stamped, each before those after it."""
    order: list[_Hop] = []
    reached = {stamped_by}
    left = list(reversed(below.get((stamped_by, stamped_by), ())))
    while left:
        hop = left.pop()
        order.append(hop)
        if hop.to_node not in reached:
            reached.add(hop.to_node)
            left += reversed(below.get((stamped_by, hop.to_node), ()))
    return order


def _hop_lag(
    hop: _Hop,
    end: Sequence[Propagation],
    begin: Sequence[Propagation],
    *,
    shortest: Mapping[tuple[str, str], int],
) -> HopLag | None:
    """Return how late updates became on one hop; None where the two nodes have no selector in common."""
    from_top = hop.from_node == hop.stamped_by
    if not from_top:
        both = {one.filter for one in begin} & {one.filter for one in end}
        begin = [one for one in begin if one.filter in both]
        end = [one for one in end if one.filter in both]
    before = _Total(0, 0, 0) if from_top else _total(begin)
    after = _total(end)
    if before is None or after is None:
        return None
    # No update was quicker to the second node than the quickest to the first, by true time. That the quickest took no
    # longer for this hop than the shortest heartbeat there and back is taken for granted, as for one hop.
    ahead_at_most_us = after.least_us - before.least_us
    round_trips = [shortest.get((one.node, one.link)) for one in end]
    known = [one for one in round_trips if one is not None]
    mean_us = after.mean_us - before.mean_us
    round_trip_us = max(known) if len(known) == len(round_trips) else None
    ahead_us = None if round_trip_us is None else ahead_at_most_us - round_trip_us // 2
    return HopLag(
        from_node=hop.from_node,
        to_node=hop.to_node,
        stamped_by=hop.stamped_by,
        updates_before=None if from_top else before.rows,
        updates=after.rows,
        mean_us=mean_us,
        corrected_mean_us=None if ahead_us is None else mean_us - ahead_us,
        uncertain_us=None if round_trip_us is None else round_trip_us - round_trip_us // 2,
    )


def _total(figures: Sequence[Propagation]) -> _Total | None:
    """Return several distributions together; None of none, or where a mean is not known."""
    sums = [one.lag.mean_us * one.lag.rows for one in figures if one.lag.mean_us is not None]
    if not sums or len(sums) < len(figures):
        return None
    rows = sum(one.lag.rows for one in figures)
    return _Total(rows, sum(sums) // rows, min(one.lag.least_us for one in figures))
