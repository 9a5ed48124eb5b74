"""The reports for a program that has a Spark session: DataFrames in, DataFrames out.

The commands make their figures with the same functions. Nothing here imports pyspark before it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from fanout.reports.entry import BEHIND_MAX_S, LIST_LIMIT, SETTLE_S
from fanout.reports.read.log_files import LogFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fanout.reports.values.document import Parameters, ReportName

__all__ = ["Logs", "completeness", "lag", "missing_topics", "read_logs"]


@dataclass(frozen=True, slots=True)
class Logs:
    """The sealed logs of several nodes, as Spark reads them."""

    updates: DataFrame
    """A row for each update that a node published or applied; the columns are those of the log's schema."""
    events: DataFrame
    """A row for each event of a node."""
    files: LogFiles
    spark: SparkSession


def read_logs(spark: SparkSession, *places: str) -> Logs:
    """Read replication logs with an existing session, of Spark Connect too.

    Args:
        spark: The session; it is left as it is, apart from its time zone, which is UTC while a function runs.
        places: Log directories of nodes, or URIs that the session reads.

    Raises:
        ReportError: There is no log in them.
    """
    from fanout.reports.read.reading import read_tables
    from fanout.reports.session.spark_errors import spark_errors

    files = LogFiles.in_directories(places)
    with spark_errors():
        tables = read_tables(spark, files)
    return Logs(tables.updates, tables.events, files, spark)


def completeness(
    logs: Logs,
    *,
    reference: str | None = None,
    settle_s: float = SETTLE_S,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Return what each selector of each node got, a row each: `fanout.reports.tables.contract.COMPLETENESS`.

    The figures are computed in this call, and are those of `fanout report completeness`.

    Args:
        logs: The logs.
        reference: The node whose log says what there was; None chooses, as the command does.
        settle_s: Updates younger than this at the end of the log are pending.
        since: Only what was published since then.
        until: Only what was published before then.

    Raises:
        ReportError: The logs cannot be read or compared.
    """
    asked = _asked(reference=reference, settle_s=settle_s, since=since, until=until)
    return _table(logs, "completeness", report="completeness", asked=asked)


def missing_topics(
    logs: Logs,
    *,
    reference: str | None = None,
    settle_s: float = SETTLE_S,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Return the topics that lack most updates, a row each: `fanout.reports.tables.contract.MISSING_TOPICS`.

    Arguments and errors are those of `completeness`; at most as many topics as a report lists.
    """
    asked = _asked(reference=reference, settle_s=settle_s, since=since, until=until)
    return _table(logs, "missing_topics", report="completeness", asked=asked)


def lag(logs: Logs, *, since: datetime | None = None, until: datetime | None = None) -> DataFrame:
    """Return how long updates took, a row for each distribution: `fanout.reports.tables.contract.LAG`.

    Args:
        logs: The logs.
        since: Only what was published since then.
        until: Only what was published before then.

    Raises:
        ReportError: The logs cannot be read.
    """
    asked = _asked(reference=None, settle_s=0, since=since, until=until)
    return _table(logs, "lag", report="lag", asked=asked)


def _asked(*, reference: str | None, settle_s: float, since: datetime | None, until: datetime | None) -> Parameters:
    from fanout.reports.values.document import Parameters

    return Parameters(
        reference=reference,
        settle_s=settle_s,
        depth=0,
        fail_under_percent=None,
        list_limit=LIST_LIMIT,
        behind_max_s=max(settle_s, BEHIND_MAX_S),
        since=since,
        until=until,
    )


def _table(logs: Logs, name: str, *, report: ReportName, asked: Parameters) -> DataFrame:
    from fanout.reports.figures.job import make_report
    from fanout.reports.session.utc import in_utc
    from fanout.reports.tables.contract import result_frame

    with in_utc(logs.spark):
        made = make_report(logs.spark, logs.files, name=report, parameters=asked, progress=_tell_nobody)
    return result_frame(logs.spark, made, name)


def _tell_nobody(stage: str) -> None:
    del stage
