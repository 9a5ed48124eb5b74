"""Frames that several queries read and that are computed once."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame

from fanout.reports.session.sail import KEPT_AT

__all__ = ["keep"]


def keep(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows, which are computed once; call `unpersist` when no query reads it any more."""
    spark = frame.sparkSession
    directory = spark.conf.get(KEPT_AT, "")
    if not directory:
        return frame.persist()
    path = f"{directory}/{uuid4().hex}"
    frame.write.parquet(path)
    if not Path(path).is_dir():  # Sail writes nothing of no rows
        return spark.createDataFrame([], schema=frame.schema)
    return spark.read.parquet(path)
