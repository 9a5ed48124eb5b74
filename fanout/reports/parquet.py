"""The tables that a report leaves as Parquet beside its document: their columns, and writing them.

Owns the contract of those files; one table is one directory, and what was in it before is replaced.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fanout.reports.transforms.rows import struct_of

__all__ = ["TABLES", "ParquetTables"]

_PLACE: Final = "node string, link string, selector string"

TABLES: Final = {
    "missing": f"{_PLACE}, topic string, primary string, epoch bigint, sequence bigint, origin timestamp, "
    "known boolean, superseded boolean",
    "final_values": f"{_PLACE}, topic string, verdict string",
    "lag": "kind string, node string, link string, selector string, stamp_primary string, window timestamp, "
    "bucket bigint, rows bigint, least_us bigint, most_us bigint",
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


class ParquetTables:
    """Where the tables of one report go: below a directory, or nowhere.

    Args:
        spark: The session.
        directory: A path or URI that Spark can write; None writes nothing.
    """

    def __init__(self, spark: SparkSession, directory: str | None) -> None:
        self._spark = spark
        self._directory = directory

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
        frame.select(*columns).write.mode("overwrite").parquet(f"{self._directory.rstrip('/')}/{name}")
