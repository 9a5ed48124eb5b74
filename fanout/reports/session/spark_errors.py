"""Failures in Spark, as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from fanout.errors import ReportError

__all__ = ["SPARK_ERRORS", "said_of", "spark_errors"]

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Exceptions of Spark for a query, a place or a session that is no use."""

_FILE: Final = re.compile(r"(?:reading file|footer for file:?|Could not read file:?) (?:file:/*(?=/))?(\S+?\.parquet)")
_GONE: Final = re.compile(
    r"(?:FILE_NOT_EXIST\]|PATH_NOT_FOUND\]|FileNotFoundException:)[^\n]*?(?:file:/*(?=/))(\S+?\.parquet)"
)
_AROUND: Final = re.compile(r"^(?:[\w.$]+(?:Exception|Error): )+|\[[A-Z0-9_.]+\] | SQLSTATE: \w+$")


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn what Spark says of unreadable input into an error of ours."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        said = said_of(error)
        if (gone := _GONE.search(str(error))) is not None:
            raise ReportError(
                f"{unquote(gone[1])} was removed while the report was made, as retention does with old files",
                hint="Make it again; of files that are about to go, make it from a copy",
            ) from error
        if (damaged := _FILE.search(said)) is not None:
            raise ReportError(
                f"{unquote(damaged[1])} cannot be read: it is damaged, or of another version",
                hint="Copy it again, or take it away, which leaves a hole; `fanout log verify` tells of all such files",
            ) from error
        raise ReportError(
            f"Spark could not run the report: {said}", hint="Check the log files with `fanout log verify`"
        ) from error


def said_of(error: Exception) -> str:
    """Return the first line of what Spark said, without the names of classes and the codes around it."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    line = next(iter(text.strip().splitlines()), "") or type(error).__name__
    return _AROUND.sub("", line).strip() or line
