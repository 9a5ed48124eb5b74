"""Places to which the tables of results are appended: Parquet below a place, or tables of a catalog."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from fanout.reports.session.places import is_there, uri_errors
from fanout.reports.tables.contract import RESULT_TABLES, result_frame
from fanout.reports.values.document import Report

__all__ = ["append_tables", "check_appendable"]

_HINT: Final = (
    "Give --tables a path with a / in it, a URI that the Spark session can write, or the name of a namespace of a "
    "catalog, such as lake.mqtt, that exists and in which this user may make tables"
)


def check_appendable(spark: SparkSession, where: str) -> None:
    """Check a place before anything is computed that is to go there.

    Raises:
        ReportError: Spark has no such file system or catalog, or may not look.
    """
    with uri_errors(f"write tables to {where}", hint=_HINT):
        if not _is_place(where):
            spark.catalog.tableExists(f"{where}.{next(iter(RESULT_TABLES))}")
        elif "://" in where:
            is_there(spark, where)


def append_tables(spark: SparkSession, where: str, report: Report, *, run_at: datetime) -> None:
    """Append the tables of a report.

    Args:
        spark: The session.
        where: A path or URI, below which each table is a directory of Parquet, partitioned by run; or the name of a
            namespace of a catalog.
        report: The report.
        run_at: When it was made.

    Raises:
        ReportError: Spark cannot write there; tables before the one that failed are written.
    """
    with uri_errors(f"write tables to {where}", hint=_HINT):
        for name in RESULT_TABLES:
            frame = result_frame(spark, report, name, run_at=run_at).coalesce(1)
            if _is_place(where):
                place = where if "://" in where else Path(where).absolute().as_uri()
                frame.write.mode("append").partitionBy("run").parquet(f"{place.rstrip('/')}/{name}")
            else:
                _append_to_catalog(spark, frame, f"{where}.{name}")


def _append_to_catalog(spark: SparkSession, frame: DataFrame, table: str) -> None:
    if not spark.catalog.tableExists(table):
        frame.writeTo(table).create()
        return
    try:
        frame.writeTo(table).append()
    except AnalysisException as error:
        if "v1 table" not in str(error):
            raise
        frame.write.mode("append").saveAsTable(table)  # a table of files in Spark's own catalog


def _is_place(where: str) -> bool:
    return "/" in where
