"""Places that Spark reads and writes, as URIs: whether something is there, and the text of one document.

Reading needs no JVM in this process. Writing has none over Spark Connect: there a document is written as Spark writes
every result, as a directory of its name with one part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from fanout.errors import ReportError
from fanout.reports.session.query_threads import is_remote
from fanout.reports.session.spark_errors import SPARK_ERRORS, said_of

__all__ = ["check_writable", "is_missing", "is_there", "is_uri", "read_text", "uri_errors", "write_text"]

_WRITE_HINT: Final = "Give a path, or a URI that the Spark session can write: s3a:// needs org.apache.hadoop:hadoop-aws"
_READ_HINT: Final = "Give a path, or a URI that the Spark session can read"


def is_uri(place: object) -> bool:
    """Return whether a place is for Spark, and no path of this process."""
    return "://" in str(place)


@contextmanager
def uri_errors(doing: str, *, hint: str) -> Iterator[None]:
    """Turn Spark's error about a URI without a file system, or without access, into an error of ours."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise ReportError(f"Spark cannot {doing}: {said_of(error)}", hint=hint) from error


def is_missing(error: AnalysisException) -> bool:
    """Return whether an error says that there is nothing at a place."""
    return "PATH_NOT_FOUND" in str(error)


def is_there(spark: SparkSession, uri: str) -> bool:
    """Return whether there is anything at a URI, without a job.

    Raises:
        SPARK_ERRORS: Spark has no file system for it, or may not look.
    """
    try:
        # Without a look at the names of directories; Spark Connect looks for the schema only.
        _ = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(uri).schema
    except AnalysisException as error:
        if is_missing(error):
            return False
        raise
    return True


def check_writable(spark: SparkSession, uri: str) -> None:
    """Check that Spark has a file system for a URI, before anything is computed that is to go there.

    Raises:
        ReportError: It has none, or may not look.
    """
    with uri_errors(f"write to {uri}", hint=_WRITE_HINT):
        is_there(spark, uri)


def read_text(spark: SparkSession, uri: str) -> DataFrame | None:
    """Return the text at a URI as a frame of one row and one column, `value`; None if there is nothing.

    Raises:
        ReportError: Spark cannot read it.
    """
    with uri_errors(f"read {uri}", hint=_READ_HINT):
        return spark.read.text(uri, wholetext=True) if is_there(spark, uri) else None


def write_text(spark: SparkSession, uri: str, text: str) -> None:
    """Write a document, in the place of an earlier one.

    Raises:
        ReportError: Spark cannot write there.
    """
    with uri_errors(f"write to {uri}", hint=_WRITE_HINT):
        if is_remote(spark):
            one = spark.createDataFrame(pa.table({"value": [text.removesuffix("\n")]}))
            one.coalesce(1).write.mode("overwrite").text(uri)
            return
        context = spark.sparkContext
        assert context._jvm is not None
        path = context._jvm.org.apache.hadoop.fs.Path(uri)
        stream = path.getFileSystem(context._jsc.hadoopConfiguration()).create(path, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
