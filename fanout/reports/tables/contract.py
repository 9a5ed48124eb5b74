"""The tables of results: columns, types and units, which are a contract, and their rows from a report.

Times are timestamps in UTC, `_us` are microseconds, `_percent` goes from 0 to 100. A number that is not known is null.
Columns are added at the end, and none changes its meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fanout.reports.read.rows import small_frame
from fanout.reports.read.schemas import struct_of
from fanout.reports.values.document import Report

__all__ = ["COMPLETENESS", "LAG", "MISSING_TOPICS", "RESULT_TABLES", "RUN", "result_frame"]

RUN: Final = struct_of("run string, run_at timestamp, report string, window_begin timestamp, window_end timestamp")
"""The columns in front of those of each table where it is appended: one run of `fanout report`."""

_PLACE: Final = "node string, link string, selector string"

COMPLETENESS: Final = struct_of(
    f"{_PLACE}, reference string, basis string, exact boolean, expected bigint, applied bigint, missing bigint, "
    "unknown bigint, pending bigint, duplicated bigint, complete_percent_at_least double, "
    "complete_percent_at_most double, values_equal bigint, values_differ bigint, covered_from timestamp, "
    "covered_until timestamp, judged_until timestamp, first_missing timestamp, last_missing timestamp, going_on boolean"
)
"""A row for each selector of each link and basis: what there was to get, and what came."""

LAG: Final = struct_of(
    f"kind string, {_PLACE}, stamped_by string, updates bigint, least_us bigint, p50_us bigint, p95_us bigint, "
    "p99_us bigint, most_us bigint, mean_us bigint, uncertain_us bigint"
)
"""A row for each distribution: `raw` and `corrected` propagation times of a selector, `round_trip` of a link."""

MISSING_TOPICS: Final = struct_of(
    f"{_PLACE}, topic string, missing bigint, unknown bigint, superseded bigint, first_missing timestamp, "
    "last_missing timestamp, going_on boolean, cause string"
)
"""A row for each topic that the report lists as lacking updates, worst first."""

RESULT_TABLES: Final = {"completeness": COMPLETENESS, "lag": LAG, "missing_topics": MISSING_TOPICS}

_Row = dict[str, object]


def result_frame(spark: SparkSession, report: Report, name: str, *, run_at: datetime | None = None) -> DataFrame:
    """Return one of the tables of a report.

    Args:
        spark: The session.
        report: The report.
        name: One of `RESULT_TABLES`.
        run_at: When the report was made; None leaves the columns of `RUN` out.
    """
    made = {"completeness": _completeness, "lag": _lag, "missing_topics": _missing_topics}[name]
    schema, run = RESULT_TABLES[name], _Row()
    if run_at is not None:
        begin, end = (None, None) if report.window is None else (report.window.begin, report.window.end)
        run = {"run": f"{run_at:%Y%m%dT%H%M%S.%fZ}", "run_at": run_at, "report": report.report}
        run |= {"window_begin": begin, "window_end": end}
        schema = StructType([*RUN.fields, *schema.fields])
    rows = [tuple((run | row).get(column) for column in schema.names) for row in made(report)]
    return small_frame(spark, rows, schema=schema)


def _completeness(report: Report) -> Iterator[_Row]:
    reference = "" if report.reference is None else report.reference.name
    for target in report.targets:
        if (figures := target.updates) is not None:
            final = target.final
            values = (None, None) if final is None else (final.equal, final.unequal)
            yield {
                **dict(target),
                **dict(figures),
                **{"selector": target.filter, "reference": reference},
                **dict(zip(("values_equal", "values_differ"), values, strict=True)),
            }


def _lag(report: Report) -> Iterator[_Row]:
    for one in report.lag.propagation:
        place = dict(one) | {"selector": one.filter, "updates": one.lag.rows}
        yield place | dict(one.lag) | {"kind": "raw"}
        if one.corrected is not None:
            yield place | dict(one.corrected) | {"kind": "corrected"}
    for trip in report.lag.heartbeat:
        yield dict(trip) | dict(trip.lag) | {"kind": "round_trip", "updates": trip.lag.rows}


def _missing_topics(report: Report) -> Iterator[_Row]:
    for one in () if report.missing_topics is None else report.missing_topics.listed:
        yield dict(one) | {"selector": one.filter}
