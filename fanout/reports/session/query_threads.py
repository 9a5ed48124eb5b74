"""Threads that run queries of a session beside each other, and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from pyspark.sql import SparkSession

__all__ = ["is_remote", "query_threads"]

_AGAIN_S: Final = 0.1


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, which has no JVM here."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def query_threads(spark: SparkSession, count: int, *, name: str) -> Iterator[ThreadPoolExecutor]:
    """Give threads whose queries are cancelled when the `with` block ends with an error.

    Without that, queries would go on beside a session that is being stopped, and one that begins then never ends.

    Args:
        spark: The session.
        count: Number of threads.
        name: The beginning of their names.
    """
    tag = f"fanout-{uuid4().hex}"
    mark: Callable[[str], None] = spark.addTag
    cancel: Callable[[str], object] = spark.interruptTag
    if not is_remote(spark):  # there, these are for threads that the session made itself
        mark, cancel = spark.sparkContext.addJobTag, spark.sparkContext.cancelJobsWithTag
    pool = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=mark, initargs=(tag,))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        ended = threading.Event()
        threading.Thread(target=_end, args=(pool, ended), name=f"{name}-end", daemon=True).start()
        cancel(tag)
        while not ended.wait(_AGAIN_S):
            cancel(tag)  # a thread may have been between two queries
        raise
    pool.shutdown()


def _end(pool: ThreadPoolExecutor, ended: threading.Event) -> None:
    pool.shutdown()
    ended.set()
