"""Read the two tables of the logs, and take the first look at them.

Owns every place where rows leave Spark: only aggregated rows do, and never more than a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fanout.errors import ReportError
from fanout.reports.details import parse_gap_detail
from fanout.reports.log_files import LogFiles
from fanout.reports.schemas import EVENTS, UPDATES
from fanout.reports.survey import CompleteSummary, EventSummary, StartRecord, Survey, UpdateSummary
from fanout.reports.transforms import first_look
from fanout.reports.transforms.rows import small_frame

__all__ = ["ROWS_MAX", "Tables", "collect_rows", "read_tables", "spark_errors", "take_survey"]

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
        ReportError: There is no file at all.
    """
    updates, events = _existing(spark, files.updates), _existing(spark, files.events)
    if not updates and not events:
        raise ReportError(
            f"there is no log file in {', '.join(files.directories)}",
            hint="A node seals its first file after log.segment_age_max_s or when it stops",
        )
    return Tables(_read(spark, updates, UPDATES), _read(spark, events, EVENTS))


def take_survey(tables: Tables) -> Survey:
    """Return what the first look at the tables finds.

    Raises:
        ReportError: The logs hold more sessions, starts or gaps than a report can take in.
    """
    details = collect_rows(first_look.list_details(tables.events))
    return Survey(
        updates=tuple(UpdateSummary(**row) for row in collect_rows(first_look.summarize_updates(tables.updates))),
        events=tuple(
            EventSummary(**{**row, "upstreams": tuple(row["upstreams"])})
            for row in collect_rows(first_look.summarize_events(tables.events))
        ),
        completes=tuple(CompleteSummary(**row) for row in collect_rows(first_look.summarize_completes(tables.events))),
        starts=tuple(
            StartRecord(row["node"], row["node_epoch"], row["at_us"], row["detail"])
            for row in details
            if row["event"] == "start"
        ),
        gaps=tuple(
            parse_gap_detail(
                row["detail"],
                node=row["node"],
                link=row["link"],
                node_epoch=row["node_epoch"],
                at_us=row["at_us"],
            )
            for row in details
            if row["event"] == "gap"
        ),
    )


def collect_rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of an aggregated frame by column name.

    Raises:
        ReportError: There are more than `ROWS_MAX`.
    """
    rows = frame.take(ROWS_MAX + 1)
    if len(rows) > ROWS_MAX:
        raise ReportError(
            f"a summary of the logs has more than {ROWS_MAX} rows", hint="Give the logs of a shorter time"
        )
    return [row.asDict() for row in rows]


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn what Spark says of unreadable input into an error of ours."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        said = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        lines = said.strip().splitlines() or [type(error).__name__]
        hint = "Check the log files with `fanout log verify`"
        if "FileSystem" in lines[0]:
            hint = (
                "Spark lacks the file system of this URI: without a cluster, `fanout report` reads s3:// and gs:// "
                "itself; on a cluster give s3a://, and org.apache.hadoop:hadoop-aws to Spark"
            )
        raise ReportError(f"Spark could not run the report: {lines[0]}", hint=hint) from error


def _existing(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Return the paths without URIs of directories that are not there: a log need not have both tables."""
    context = spark.sparkContext
    assert context._jvm is not None
    existing: list[str] = []
    for path in paths:
        if "://" in path:
            place = context._jvm.org.apache.hadoop.fs.Path(path)
            if not place.getFileSystem(context._jsc.hadoopConfiguration()).exists(place):
                continue
        existing.append(path)
    return existing


def _read(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    if not paths:
        return small_frame(spark, [], schema=schema)
    # Every column is in the files, so the names of the directories they lie in are not looked at.
    return (
        spark.read.schema(schema)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .parquet(*paths)
        .select(*schema.fieldNames())
    )
