"""The section of lag: propagation times in all, over time and by prefix, heartbeats, and the differences of clocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare import lag
from fanout.reports.figures.clocks import (
    CountedClock,
    Place,
    Span,
    correct,
    correct_percentile,
    find_clocks,
    find_hops,
    least_delays,
)
from fanout.reports.figures.counted import CountedUpdates
from fanout.reports.figures.material import Material, Part
from fanout.reports.read import rows
from fanout.reports.read.reading import collect_rows
from fanout.reports.read.survey import Survey
from fanout.reports.session.sail import keep
from fanout.reports.values import buckets
from fanout.reports.values.buckets import bucket_value_us, cumulative
from fanout.reports.values.document import (
    ClockDifference,
    LagPoint,
    LagSection,
    LagSeries,
    PrefixLag,
    Propagation,
    RoundTrip,
)
from fanout.reports.values.figures import Cumulative, Distribution, LagFigures, Listed, time_of

__all__ = ["describe_lag"]

_DISTRIBUTIONS_MAX: Final = 5_000
"""Propagation times by selector and who stamped: with more, those that stamped fewest are added up."""
_SERIES_MAX: Final = 300
"""The same for links and who stamped, over time."""
_OFFSET_MIN_US: Final = 2_000
"""If the least time of a link is at least this, its buckets are counted from that least time."""
_Clocks = Mapping[tuple[str, str, str], ClockDifference]
"""The differences of clocks by node, link and who stamped."""


def describe_lag(material: Material, *, depth: int | None = None) -> Part:
    """Return the propagation times, in all, over time and by prefix, and the heartbeats' round trips.

    Args:
        material: Result of the first look.
        depth: Number of topic levels in a prefix, 0 for no figures by prefix; None takes what was asked for.
    """
    survey, window, parquet = material.survey, material.window, material.parquet
    tables, counted = material.tables, material.counted_if_comparable()
    updates = tables.updates if counted is None else counted.updates
    clocks = {} if counted is None else counted_clocks(counted)
    depth = material.depth if depth is None else depth
    begin_us, end_us = survey.span_us(window)
    width_us = buckets.window_us(end_us - begin_us)
    # Times of a few milliseconds lie in buckets that are fine enough as they are.
    least = least_delays(survey) | {place: clock.least_us for place, clock in clocks.items()}
    offsets = {place: least_us for place, least_us in least.items() if abs(least_us) >= _OFFSET_MIN_US}
    cells = lag.propagation_cells(updates, window_us=width_us, asked=window, offsets=offsets).unionByName(
        lag.heartbeat_cells(tables.events, window_us=width_us, asked=window)
    )
    if parquet.wanted:
        cells = keep(cells)
    try:
        parquet.write("lag", lag.add_up_cells(cells, key=(*lag.KEY, "window_us", "bucket")))
        section = _describe_cells(cells, survey=survey, counted=clocks, window_us=width_us, from_us=begin_us - width_us)
    finally:
        if parquet.wanted:
            cells.unpersist()
    if depth:
        cells = lag.prefix_cells(updates, depth=depth, asked=window, offsets=offsets)
        prefixes = _by_prefix(cells, clocks=_by_place(section.clocks), list_limit=material.list_limit)
        section = section.model_copy(update={"prefixes": prefixes})
    return Part({"lag": section})


def counted_clocks(counted: CountedUpdates) -> dict[Place, CountedClock]:
    """Return the clocks of links without stamps, by node, link, and the node by whose log they are counted."""
    found: dict[Place, CountedClock] = {}
    for target in counted.scope.targets_of("unstamped"):
        clock = counted.clocks.get((target.node, target.link))
        sources = counted.scope.groups[target.group].sources
        if clock is not None and len({node for node, _ in sources}) == 1:
            found[target.node, target.link, sources[0][0]] = CountedClock(
                clock.later_us, clock.least_us, sources[0], clock.quick_us, clock.slow_us
            )
    return found


def _by_prefix(cells: DataFrame, *, clocks: _Clocks, list_limit: int) -> Listed[PrefixLag]:
    ranked = lag.rank_percentiles(cells, key=(*lag.PREFIX_KEY, "offset_us"))
    by_p99 = (sf.desc(sf.col(column) - sf.col("offset_us")) for column in ("p99_least_us", "most_us"))
    counted = ranked.withColumn("all", sf.lit(0)).withColumn("prefixes", sf.count(sf.lit(1)).over(rows.whole("all")))
    slowest = collect_rows(counted.orderBy(*by_p99, *lag.PREFIX_KEY).limit(list_limit))
    listed: list[PrefixLag] = []
    for row in slowest:
        figures = Distribution(**_values(row))
        clock = clocks.get(_series(row))
        listed.append(
            PrefixLag.of(
                row,
                stamped_by=row["stamp_primary"],
                lag=figures,
                corrected=correct(figures, percentiles=_spans(row), difference=clock),
            )
        )
    return Listed[PrefixLag](total=slowest[0]["prefixes"] if slowest else 0, listed=tuple(listed))


def _by_place(clocks: Iterable[ClockDifference]) -> _Clocks:
    return {(clock.node, clock.link, clock.stamped_by): clock for clock in clocks}


def _describe_cells(
    cells: DataFrame, *, survey: Survey, counted: Mapping[Place, CountedClock], window_us: int, from_us: int
) -> LagSection:
    """Return the section of lag that histogram cells say, and the clocks.

    Whoever publishes can stamp, so those with the fewest updates are added up where they are very many.

    Args:
        cells: The cells of `fanout.reports.compare.lag`; (key, window, bucket) is the key.
        survey: Figures of the links.
        counted: The clocks of the links whose updates carry no stamps.
        window_us: The width of the cells' windows.
        from_us: Windows before this are not shown over time, so that no publisher's clock can add windows.
    """
    main, others = _main_publishers(survey)
    if others:
        cells = lag.add_up_others(cells, publishers=[*main, *{stamped_by for _, _, stamped_by in counted}])
    ranked = collect_rows(_ranked(cells, from_us=from_us))
    distributions = [(row, _figures(row)) for row in ranked if not row["series"]]
    heartbeat = tuple(RoundTrip.of(row, lag=figures) for row, figures in distributions if row["kind"] == "heartbeat")
    stamped = [(row, figures) for row, figures in distributions if row["kind"] == "propagation"]
    raw = [_propagation(row, figures) for row, figures in stamped]
    of_one_clock = [one for one in raw if one.stamped_by != lag.OTHERS]
    clocks = find_clocks(of_one_clock, heartbeat, survey=survey, counted=counted)
    by_place = _by_place(clocks)
    return LagSection(
        propagation=tuple(_propagation(row, figures, clocks=by_place) for row, figures in stamped),
        heartbeat=heartbeat,
        clocks=clocks,
        window_s=window_us // 1_000_000,
        over_time=_over_time([row for row in ranked if row["series"]], clocks=by_place),
        hops=find_hops(of_one_clock, heartbeat, survey=survey),
        others=others,
    )


def _propagation(row: dict[str, Any], figures: LagFigures, *, clocks: _Clocks | None = None) -> Propagation:
    difference = None if clocks is None else clocks.get(_series(row))
    return Propagation.of(
        row,
        filter=row["selector"],
        stamped_by=row["stamp_primary"],
        lag=figures,
        corrected=correct(figures, percentiles=_spans(row), difference=difference),
    )


def _ranked(cells: DataFrame, *, from_us: int) -> DataFrame:
    """Return the distributions, then the windows of each series."""
    ranked = lag.rank_percentiles(lag.with_series(cells, from_us=from_us), key=lag.SERIES_KEY)
    # Nothing shows the shape of a window.
    shape = sf.when(~sf.col("series"), sf.col("octaves")).alias("octaves")
    return ranked.select(*(name for name in ranked.columns if name != "octaves"), shape).orderBy(*lag.SERIES_KEY)


def _series(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["node"], row["link"], row["stamp_primary"]


def _main_publishers(survey: Survey) -> tuple[list[str], int]:
    """Return the nodes that stamped most, which have figures of their own, and the number of others."""
    rows: Counter[str] = Counter()
    places: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for row in survey.updates:
        if row.live and row.link and row.stamp_primary is not None:
            rows[row.stamp_primary] += row.rows
            places[row.stamp_primary] |= {(row.node, row.link, selector) for selector in row.selectors}
    main: list[str] = []
    distributions = series = 0
    for stamped_by in sorted(rows, key=lambda name: (-rows[name], name)):
        distributions += len(places[stamped_by])
        series += len({place[:2] for place in places[stamped_by]})
        if main and (distributions > _DISTRIBUTIONS_MAX or series > _SERIES_MAX):
            break
        main.append(stamped_by)
    return main, len(rows) - len(main)


def _figures(row: dict[str, Any]) -> LagFigures:
    bounds = cumulative(row["octaves"])
    return LagFigures(cumulative=tuple(Cumulative(below_us=bound, rows=rows) for bound, rows in bounds), **_values(row))


def _over_time(ranked: list[dict[str, Any]], *, clocks: _Clocks) -> tuple[LagSeries, ...]:
    series: dict[tuple[str, str, str], list[LagPoint]] = defaultdict(list)
    for row in ranked:
        figures = _values(row)
        clock = clocks.get(_series(row))
        if clock is not None and clock.estimate_us is not None:
            spans, ahead_us = _spans(row), clock.estimate_us
            figures |= {
                "corrected_p50_us": correct_percentile(spans[50], ahead_us=ahead_us),
                "corrected_p99_us": correct_percentile(spans[99], ahead_us=ahead_us),
                "corrected_most_us": row["most_us"] - ahead_us,
            }
        series[_series(row)].append(LagPoint.of(figures, at=time_of(row["window_us"])))
    return tuple(
        LagSeries(node=node, link=link, stamped_by=stamped_by, points=tuple(points))
        for (node, link, stamped_by), points in series.items()
    )


def _values(row: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a distribution by name."""
    rows, sum_us = row["rows"], row["sum_us"]
    bounds = {"least_us": row["least_us"], "most_us": row["most_us"]}
    # With clocks far apart a bucket is wide, and the cell in it, from the least to the most of it, is not.
    percentiles = {
        f"p{percent}_us": bucket_value_us(row[f"p{percent}"], least_us=least_us, most_us=most_us)
        for percent, (least_us, most_us) in _spans(row).items()
    }
    return {"rows": rows, **bounds, **percentiles, "mean_us": None if sum_us is None else sum_us // rows}


def _spans(row: dict[str, Any]) -> dict[int, Span]:
    """Return between which times each percentile is."""
    return {percent: (row[f"p{percent}_least_us"], row[f"p{percent}_most_us"]) for percent in lag.PERCENTILES}
