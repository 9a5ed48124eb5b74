"""The reports for a program that has a Spark session: DataFrames in, DataFrames out.

The commands make their figures with the same functions. Nothing here imports pyspark before it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fanout.reports.entry import BEHIND_MAX_S, LIST_LIMIT, SETTLE_S
from fanout.reports.read.log_files import LogFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    return _table(logs, "completeness", reference=reference, settle_s=settle_s, since=since, until=until)


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
    return _table(logs, "missing_topics", reference=reference, settle_s=settle_s, since=since, until=until)


def lag(logs: Logs, *, since: datetime | None = None, until: datetime | None = None) -> DataFrame:
    """Return how long updates took, a row for each distribution: `fanout.reports.tables.contract.LAG`.

    Args:
        logs: The logs.
        since: Only what was published since then.
        until: Only what was published before then.

    Raises:
        ReportError: The logs cannot be read.
    """
    return _table(logs, "lag", reference=None, settle_s=0, since=since, until=until)


def _table(logs: Logs, name: str, *, settle_s: float, **asked: Any) -> DataFrame:
    """Return the result table of a name; that of lag needs no report on more."""
    from fanout.reports.figures.job import make_report
    from fanout.reports.session.utc import in_utc
    from fanout.reports.tables.contract import result_frame
    from fanout.reports.values.document import Parameters

    behind_max_s = max(settle_s, BEHIND_MAX_S)
    parameters = Parameters(
        settle_s=settle_s,
        depth=0,
        fail_under_percent=None,
        list_limit=LIST_LIMIT,
        behind_max_s=behind_max_s,
        **asked,
    )
    with in_utc(logs.spark):
        report = make_report(
            logs.spark, logs.files, name="lag" if name == "lag" else "completeness", parameters=parameters
        )
    return result_frame(logs.spark, report, name)
