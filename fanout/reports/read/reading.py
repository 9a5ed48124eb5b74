"""Read the two tables of the logs, and take the first look at them.

Owns every place where rows leave Spark: only aggregated rows do, and never more than a bound.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from fanout.errors import ReportError
from fanout.reports.read import first_look
from fanout.reports.read.absences import link_absences
from fanout.reports.read.details import parse_gap_detail
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.lost_positions import PositionBlock, block_bits, find_holes
from fanout.reports.read.rows import small_frame
from fanout.reports.read.schemas import EVENTS, UPDATES
from fanout.reports.read.scope import WHOLE, AskedWindow
from fanout.reports.read.survey import (
    AlarmSummary,
    CompleteSummary,
    EventSummary,
    StartRecord,
    Survey,
    UpdateSummary,
    stated_config,
)
from fanout.reports.session.places import is_missing, is_there, is_uri
from fanout.reports.session.query_threads import is_remote
from fanout.reports.session.spark_errors import SPARK_ERRORS, said_of

__all__ = [
    "ROWS_MAX",
    "Tables",
    "collect_rows",
    "read_tables",
    "take_survey",
    "with_holes",
]

_NO_FILE_SYSTEM: Final = (
    "Without a cluster, `fanout report` reads s3:// and gs:// itself; on a cluster give s3a://, and "
    "org.apache.hadoop:hadoop-aws to Spark"
)

ROWS_MAX: Final = 200_000
"""The most aggregated rows that are taken out of Spark at once."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The two tables, read with the contract's schema."""

    updates: DataFrame
    events: DataFrame


def read_tables(spark: SparkSession, files: LogFiles) -> Tables:
    """Return the tables of these files.

    Raises:
        ReportError: There is no file at all, or one is empty.
    """
    _refuse_empty((*files.updates, *files.events))
    updates, events = _read(spark, files.updates, UPDATES), _read(spark, files.events, EVENTS)
    if updates is None and events is None:
        raise ReportError(
            f"there is no log file in {', '.join(files.directories)}",
            hint="A node seals its first file after log.segment_age_max_s or when it stops"
            + ("; for several logs below a URI, give a pattern: URI/*" if any(map(is_uri, files.directories)) else ""),
        )
    return Tables(
        small_frame(spark, [], schema=UPDATES) if updates is None else updates,
        small_frame(spark, [], schema=EVENTS) if events is None else events,
    )


def take_survey(tables: Tables, *, window: AskedWindow = WHOLE) -> Survey:
    """Return the results of the first look at the tables.

    Args:
        tables: The two tables, whole: rows before a window tell what to expect in it.
        window: Window of the report. Nodes are taken to be configured as they were at its end.

    Raises:
        ReportError: The logs hold more sessions, starts or gaps than a report can take in.
    """
    events = collect_rows(first_look.summarize_events(tables.events))
    starts = _configured(events, window=window)
    completes = _completes(events, starts=starts)
    proved = {(one.node, one.link, one.link_epoch) for one in completes}
    sessions = small_frame(
        tables.updates.sparkSession, sorted(proved), schema="node string, link string, link_epoch bigint"
    )
    updates = collect_rows(first_look.summarize_updates(tables.updates, sessions=sessions))
    return Survey(
        updates=tuple(UpdateSummary(**row | {"selectors": frozenset(row["selectors"])}) for row in updates),
        events=_by_process(events),
        completes=completes,
        starts=starts,
        gaps=tuple(
            parse_gap_detail(
                row["detail"],
                node=row["node"],
                link=row["link"],
                node_epoch=row["node_epoch"],
                at_us=row["first_us"],
            )
            for row in events
            if row["event"] == "gap"
        ),
        alarms=tuple(
            AlarmSummary(**{name: row[name] for name in AlarmSummary.__slots__})
            for row in events
            if row["event"] in ("alarm", "skipped")
        ),
        absences=link_absences(events),
    )


def with_holes(survey: Survey, *, tables: Tables) -> Survey:
    """Return a survey with the rows that are absent without a word, which takes another look only when there are any.

    Raises:
        ReportError: There are more than can be taken in.
    """
    if not (torn := [node for node in survey.roles if survey.unexplained_rows(node)]):
        return survey
    bits = block_bits(survey)
    since = {node: first for node, first in survey.first_updates.items() if node in torn}
    counted = collect_rows(first_look.count_blocks(tables.updates, events=tables.events, since=since, bits=bits))
    holes, begins = find_holes(survey, blocks=[PositionBlock(**row) for row in counted], bits=bits)
    others = (hole for hole in survey.begins if hole.node not in torn)
    return replace(survey, holes=holes, begins=(*others, *begins))


def _by_process(rows: Sequence[Mapping[str, Any]]) -> tuple[EventSummary, ...]:
    """Return the events of each process and link together."""
    found: dict[tuple[str, str, int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["node"], row["role"], row["node_epoch"], row["link"]].append(row)

    def latest(name: str, parts: list[Mapping[str, Any]]) -> int | None:
        return max((row[name] for row in parts if row[name] is not None), default=None)

    return tuple(
        EventSummary(
            *key,
            rows=sum(row["rows"] for row in parts),
            first_pos=min(row["first_pos"] for row in parts),
            last_pos=max(row["last_pos"] for row in parts),
            first_us=min(row["first_us"] for row in parts),
            last_us=max(row["last_us"] for row in parts),
            tear_downs=sum(row["tear_downs"] for row in parts),
            tear_down_pos=latest("tear_down_pos", parts),
            stop_us=latest("stop_us", parts),
            upstreams=tuple(sorted({name for row in parts for name in row["upstreams"]})),
        )
        for key, parts in found.items()
    )


def _configured(events: Sequence[Mapping[str, Any]], *, window: AskedWindow) -> tuple[StartRecord, ...]:
    """Return the starts up to the end of a window, and all of a node that started later only."""
    starts = tuple(
        StartRecord(row["node"], row["node_epoch"], row["first_us"], row["detail"])
        for row in events
        if row["event"] == "start"
    )
    before = {start.node for start in starts if start.at_us < window.until_us}
    return tuple(start for start in starts if start.at_us < window.until_us or start.node not in before)


def _completes(events: Sequence[Mapping[str, Any]], *, starts: Sequence[StartRecord]) -> tuple[CompleteSummary, ...]:
    """Return when each selector was first proved complete since its node has been configured as it is."""
    by_node: dict[str, list[StartRecord]] = defaultdict(list)
    for start in starts:
        by_node[start.node].append(start)
    known = {node: config for node, found in by_node.items() if (config := stated_config(found)) is not None}
    firsts: dict[tuple[str, str, str], CompleteSummary] = {}
    for row in sorted(events, key=lambda row: (row["first_us"], row["selector"] or "")):
        since = known.get(row["node"])
        if row["selector"] is None or (since is not None and row["node_epoch"] < since.since_epoch):
            continue
        one = CompleteSummary(
            row["node"], row["node_epoch"], row["link"], row["link_epoch"], row["selector"], row["first_us"]
        )
        firsts.setdefault((one.node, one.link, one.selector), one)
    return tuple(firsts.values())


def collect_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of an aggregated frame by column name.

    Raises:
        ReportError: There are more than `ROWS_MAX`.
    """
    rows = frame.take(ROWS_MAX + 1)
    if len(rows) > ROWS_MAX:
        raise ReportError(
            f"a summary of the logs has more than {ROWS_MAX} rows",
            hint="Give the logs of fewer nodes at once, or directories with the files of fewer days (date=...) only",
        )
    return [row.asDict() for row in rows]


def _refuse_empty(paths: Sequence[str]) -> None:
    """Raise for a local file without a byte: Spark passes over it in silence, and its rows would be called lost."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # removed by retention since it was listed; Spark tells that
            if "://" not in path and Path(path).stat().st_size == 0:
                raise ReportError(
                    f"{path} is empty", hint="Nodes never seal such a file: copy it again, or take it away"
                )


def _read(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame | None:
    """Return what is in these files; None if there is none: a log need not have both tables."""
    if not paths:
        return None
    try:
        return _frame(spark, paths, schema)
    except AnalysisException as error:
        if not is_missing(error) or not any(is_uri(path) for path in paths):
            raise
    except SPARK_ERRORS as error:
        if uris := [path for path in paths if is_uri(path)]:
            raise ReportError(f"Spark cannot read {uris[0]}: {said_of(error)}", hint=_NO_FILE_SYSTEM) from error
        raise
    # One of the URIs is of a table that is not there.
    there = [path for path in paths if not is_uri(path) or is_there(spark, path)]
    return _frame(spark, there, schema) if there else None


def _frame(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    # Every column is in the files, so the names of the directories they lie in are not looked at.
    options = {
        "recursiveFileLookup": "true",
        "pathGlobFilter": "*.parquet",
        # Nodes write a checksum of each page; without this a flipped bit is another value.
        "parquet.page.verify-checksum.enabled": "true",
    }
    reader = spark.read.options(**options)
    if is_remote(spark):
        # Sail reads a column of few values as a dictionary, and refuses a schema that calls it text.
        columns = (sf.col(field.name).cast(field.dataType) for field in schema.fields)
        frame = reader.parquet(*paths).select(*columns)
    else:
        frame = reader.schema(schema).parquet(*paths).select(*schema.fieldNames())
    _ = frame.schema  # Spark Connect looks for the files only for this
    return frame
