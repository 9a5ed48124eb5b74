"""The tables that a report leaves as Parquet beside its document: their columns, and writing them.

Owns the contract of those files; one table is one directory, whose earlier content is replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.errors import ReportError
from fanout.reports.read.rows import small_frame
from fanout.reports.read.schemas import struct_of
from fanout.reports.session.places import is_there, uri_errors

__all__ = ["TABLES", "ParquetTables"]

_PLACE: Final = "node string, link string, selector string"

TABLES: Final = {
    "missing": f"{_PLACE}, topic string, primary string, epoch bigint, sequence bigint, origin timestamp, "
    "known boolean, superseded boolean, cause string",
    "final_values": f"{_PLACE}, topic string, verdict string",
    "lag": "kind string, node string, link string, selector string, stamp_primary string, window timestamp, "
    "bucket bigint, rows bigint, least_us bigint, most_us bigint, sum_us bigint",
    "snapshots": "node string, link string, node_epoch bigint, link_epoch bigint, begin timestamp, live timestamp, "
    "ready_us bigint, entered_live bigint, selectors bigint, topics bigint, evidence string, tear_downs bigint, "
    "last timestamp, verdict string",
    "convergence": "set int, selector string, topic string, verdict string",
    "digests": f"set int, {_PLACE}, window timestamp, at timestamp, topics bigint, digest bigint",
    "stalls": f"{_PLACE}, topic string, newest timestamp, first_lacking timestamp, reference_newest timestamp, "
    "lacking bigint, stalled_links bigint, current_links bigint",
    "traffic": "source string, prefix string, updates bigint, payload_bytes bigint, topics bigint, retained bigint, "
    "publishers array<struct<node: string, updates: bigint>>",
}
"""The columns of each table, as Spark writes types."""


_NO_FILE_SYSTEM: Final = (
    "Give --parquet a local directory, or Spark the file system of this URI: org.apache.hadoop:hadoop-aws for s3a://"
)


class ParquetTables:
    """Place of the tables of one report: below a directory, or nowhere.

    Args:
        spark: The session.
        directory: A path or URI that Spark can write; None writes nothing.

    Raises:
        ReportError: Nothing can be written there.
    """

    def __init__(self, spark: SparkSession, directory: str | None) -> None:
        self._spark = spark
        self._directory = directory
        if directory is None:
            return
        # Before anything is computed, which may take long.
        if ":/" not in directory:  # Spark takes file:/path too
            try:
                Path(directory).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ReportError(
                    f"{directory} cannot be written: {error.strerror}",
                    hint="Give --parquet a directory that this user may write to",
                ) from error
            return
        with uri_errors(f"write to {directory}", hint=_NO_FILE_SYSTEM):
            is_there(spark, directory)

    @property
    def wanted(self) -> bool:
        """True if tables are written at all."""
        return self._directory is not None

    def write(self, name: str, frame: DataFrame) -> None:
        """Write one table, replacing what an earlier report left.

        Args:
            name: One of `TABLES`.
            frame: A frame that has at least the table's columns; `x_us` gives the column `x` of type timestamp.
        """
        if self._directory is None:
            return
        schema = struct_of(TABLES[name])
        columns = [
            sf.timestamp_micros(f"{field.name}_us").alias(field.name)
            if field.dataType.typeName() == "timestamp"
            else sf.col(field.name).cast(field.dataType).alias(field.name)
            for field in schema.fields
        ]
        frame.select(*columns).write.mode("overwrite").parquet(self._place(name))

    def write_empty(self, name: str) -> None:
        """Replace a table that this report does not make by one without rows: an earlier table would mislead."""
        if self._directory is not None:
            empty = small_frame(self._spark, [], schema=TABLES[name])
            empty.write.mode("overwrite").parquet(self._place(name))

    def _place(self, name: str) -> str:
        assert self._directory is not None
        return f"{self._directory.rstrip('/')}/{name}"
