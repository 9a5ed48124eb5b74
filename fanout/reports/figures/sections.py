"""The parts of a report that need no reference: the logs themselves, and lag."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from fanout.replog.files.schema import SCHEMA_VERSION
from fanout.reports.compare import lag
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.scope import WHOLE, AskedWindow
from fanout.reports.read.survey import Survey
from fanout.reports.values import buckets
from fanout.reports.values.buckets import bucket_value_us, cumulative
from fanout.reports.values.document import (
    ClockDifference,
    Inputs,
    LagPoint,
    LagSection,
    LagSeries,
    LogSummary,
    PrefixLag,
    Propagation,
    RoundTrip,
)
from fanout.reports.values.figures import Cumulative, Distribution, LagFigures, Listed, time_of

__all__ = ["describe_cells", "describe_inputs", "describe_lag", "describe_logs"]

_DISTRIBUTIONS_MAX: Final = 5_000
"""Propagation times by selector and who stamped: with more, those that stamped fewest are added up."""
_SERIES_MAX: Final = 300
"""The same for links and who stamped, over time."""


def describe_inputs(files: LogFiles, *, survey: Survey) -> Inputs:
    """Return what was read."""
    return Inputs(
        directories=files.directories,
        update_files=len(files.updates),
        event_files=len(files.events),
        updates=sum(row.rows for row in survey.updates),
        events=sum(row.rows for row in survey.events),
        log_schema=SCHEMA_VERSION,
    )


def describe_logs(survey: Survey) -> tuple[LogSummary, ...]:
    """Return what each node's log holds."""
    logs: list[LogSummary] = []
    for node, role in survey.roles.items():
        updates, events = survey.log_rows(node)
        begin_us, end_us = survey.log_span_us(node)
        logs.append(
            LogSummary(
                node=node,
                role=role,
                updates=updates,
                events=events,
                begin=time_of(begin_us),
                end=time_of(end_us),
                processes=len(survey.epochs(node)),
                stopped=survey.stopped_us(node) is not None,
                gaps=sum(gap.node == node for gap in survey.gaps),
                absent_rows=survey.unexplained_rows(node),
            )
        )
    return tuple(logs)


def describe_lag(
    tables: Tables,
    *,
    survey: Survey,
    window: AskedWindow = WHOLE,
    depth: int = 0,
    list_limit: int = 0,
    parquet: ParquetTables,
) -> LagSection:
    """Return the propagation times, in all, over time and by prefix, and the heartbeats' round trips.

    Args:
        tables: The logs.
        survey: What is known of the links.
        window: What was asked for.
        depth: How many topic levels make a prefix; 0 for no figures by prefix.
        list_limit: The most prefixes that are listed.
        parquet: Where the cells go.
    """
    begin_us, end_us = survey.span_us(window)
    width_us = buckets.window_us(end_us - begin_us)
    cells = (
        lag.propagation_cells(tables.updates, window_us=width_us, asked=window)
        .unionByName(lag.heartbeat_cells(tables.events, window_us=width_us, asked=window))
        .persist()
    )
    try:
        parquet.write("lag", cells)
        section = describe_cells(cells, survey=survey, window_us=width_us, from_us=begin_us - width_us)
    finally:
        cells.unpersist()
    if not depth:
        return section
    prefixes = _by_prefix(tables, window=window, depth=depth, list_limit=list_limit)
    return section.model_copy(update={"prefixes": prefixes})


def _by_prefix(tables: Tables, *, window: AskedWindow, depth: int, list_limit: int) -> Listed[PrefixLag]:
    cells = lag.prefix_cells(tables.updates, depth=depth, asked=window)
    ranked = lag.rank_percentiles(cells, key=lag.PREFIX_KEY).persist()
    try:
        slowest = ranked.orderBy(sf.desc("p99"), sf.desc("most_us"), *lag.PREFIX_KEY).limit(list_limit)
        listed = tuple(
            PrefixLag(
                node=row["node"],
                link=row["link"],
                stamped_by=row["stamp_primary"],
                prefix=row["prefix"],
                lag=Distribution(rows=row["rows"], least_us=row["least_us"], most_us=row["most_us"], **_values(row)),
            )
            for row in collect_rows(slowest)
        )
        return Listed[PrefixLag](total=ranked.count(), listed=listed)
    finally:
        ranked.unpersist()


def describe_cells(cells: DataFrame, *, survey: Survey, window_us: int, from_us: int) -> LagSection:
    """Return the section of lag that histogram cells say, and the clocks.

    Whoever publishes can stamp, so those with the fewest updates are added up where they are very many.

    Args:
        cells: The cells of `fanout.reports.compare.lag`; (key, window, bucket) is the key.
        survey: What is known of the links.
        window_us: The width of the cells' windows.
        from_us: Windows before this are not shown over time, so that what a publisher states makes no more of them.
    """
    others = 0
    ranked = collect_rows(_ranked(cells).limit(_DISTRIBUTIONS_MAX + 1))
    if len(ranked) > _DISTRIBUTIONS_MAX or len({_series(row) for row in ranked}) > _SERIES_MAX:
        publishers, others = _main_publishers(cells)
        cells = lag.add_up_others(cells, publishers=publishers)
        ranked = collect_rows(_ranked(cells))
    distributions = _distributions(cells, ranked=ranked)
    over_time = _over_time(cells.where((sf.col("kind") == "propagation") & (sf.col("window_us") > from_us)))
    propagation = tuple(
        Propagation(
            node=row["node"],
            link=row["link"],
            filter=row["selector"],
            stamped_by=row["stamp_primary"],
            lag=figures,
        )
        for row, figures in distributions
        if row["kind"] == "propagation"
    )
    heartbeat = tuple(
        RoundTrip(node=row["node"], link=row["link"], lag=figures)
        for row, figures in distributions
        if row["kind"] == "heartbeat"
    )
    return LagSection(
        propagation=propagation,
        heartbeat=heartbeat,
        clocks=_clocks(propagation, heartbeat, survey=survey),
        window_s=window_us // 1_000_000,
        over_time=over_time,
        others=others,
    )


def _ranked(cells: DataFrame) -> DataFrame:
    return lag.rank_percentiles(cells, key=lag.KEY).orderBy(*lag.KEY)


def _series(row: dict[str, Any]) -> tuple[str, ...]:
    return row["node"], row["link"], row["stamp_primary"]


def _main_publishers(cells: DataFrame) -> tuple[list[str], int]:
    """Return who stamped most, as many as have figures of their own, and how many others there are."""
    ranked = lag.rank_publishers(cells)
    main: list[str] = []
    distributions = links = 0
    for row in collect_rows(ranked.limit(_SERIES_MAX)):  # each has a series at least
        distributions += row["distributions"]
        links += row["links"]
        if main and (distributions > _DISTRIBUTIONS_MAX or links > _SERIES_MAX):
            break
        main.append(row["stamp_primary"])
    return main, ranked.count() - len(main)


def _distributions(cells: DataFrame, *, ranked: list[dict[str, Any]]) -> list[tuple[dict[str, Any], LagFigures]]:
    octaves: dict[tuple[str, ...], list[tuple[int, int]]] = {
        tuple(row[name] for name in lag.KEY): row["octaves"]
        for row in collect_rows(lag.count_octaves(cells, key=lag.KEY))
    }
    found: list[tuple[dict[str, Any], LagFigures]] = []
    for row in ranked:
        bounds = cumulative(octaves[tuple(row[name] for name in lag.KEY)])
        figures = LagFigures(
            rows=row["rows"],
            least_us=row["least_us"],
            most_us=row["most_us"],
            cumulative=tuple(Cumulative(below_us=bound, rows=rows) for bound, rows in bounds),
            **_values(row),
        )
        found.append((row, figures))
    return found


def _over_time(cells: DataFrame) -> tuple[LagSeries, ...]:
    key = ("node", "link", "stamp_primary")
    series: dict[tuple[str, ...], list[LagPoint]] = defaultdict(list)
    for row in collect_rows(lag.rank_percentiles(cells, key=(*key, "window_us")).orderBy(*key, "window_us")):
        series[tuple(row[name] for name in key)].append(
            LagPoint(at=time_of(row["window_us"]), rows=row["rows"], most_us=row["most_us"], **_values(row))
        )
    return tuple(
        LagSeries(node=node, link=link, stamped_by=stamped_by, points=tuple(points))
        for (node, link, stamped_by), points in series.items()
    )


def _values(row: dict[str, Any]) -> dict[str, int]:
    return {
        f"p{percent}_us": bucket_value_us(row[f"p{percent}"], least_us=row["least_us"], most_us=row["most_us"])
        for percent in lag.PERCENTILES
    }


def _clocks(
    propagation: tuple[Propagation, ...], heartbeat: tuple[RoundTrip, ...], *, survey: Survey
) -> tuple[ClockDifference, ...]:
    """Return the bounds of each pair of clocks, from figures that are there already."""
    least: dict[tuple[str, str, str], int] = {}
    for one in propagation:
        pair = (one.node, one.link, one.stamped_by)
        if one.stamped_by == lag.OTHERS:  # of many clocks
            continue
        least[pair] = min(least.get(pair, one.lag.least_us), one.lag.least_us)
    round_trips = {(one.node, one.link): one.lag.least_us for one in heartbeat}
    found: list[ClockDifference] = []
    for (node, link, stamped_by), at_most_us in sorted(least.items()):
        # A heartbeat goes to the next node only: in a chain it says nothing of the node that stamped.
        direct = survey.upstreams(node, link=link) == {stamped_by}
        round_trip_us = round_trips.get((node, link)) if direct else None
        found.append(
            ClockDifference(
                node=node,
                link=link,
                stamped_by=stamped_by,
                at_most_us=at_most_us,
                at_least_us=None if round_trip_us is None else at_most_us - round_trip_us,
                estimate_us=None if round_trip_us is None else at_most_us - round_trip_us // 2,
            )
        )
    return tuple(found)
