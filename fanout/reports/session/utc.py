"""The time zone of a session that somebody else made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["in_utc"]

_ZONE: Final = "spark.sql.session.timeZone"


@contextmanager
def in_utc(spark: SparkSession) -> Iterator[None]:
    """Let a session compute in UTC inside the `with` block."""
    zone = spark.conf.get(_ZONE)
    spark.conf.set(_ZONE, "UTC")
    try:
        yield
    finally:
        spark.conf.set(_ZONE, str(zone))
