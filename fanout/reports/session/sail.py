"""Sail: an engine for PySpark in this process, without Java.

Owns its server, which speaks Spark Connect on loopback for as long as a report takes; the limit of what it may read;
and the way in which frames are kept. Imports neither Sail nor pyspark before a server is asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from fanout.errors import ExtraMissing
from fanout.installation import install_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["bytes_max", "is_installed", "keep", "sail_server"]

_KEPT_AT: Final = "spark.fanout.kept_at"
"""Setting of a session whose engine cannot keep rows itself: the directory for their files."""

_SETTINGS: Final = {"spark.python.sql.dataFrameDebugging.enabled": "false"}
"""Else each step of a query notes the line that it is written in, for errors that we word ourselves."""

_MEMORY_PER_BYTE: Final = 64
"""Memory of the machine for each byte of logs; a report of logs without stamps, which takes most, uses half of it."""

_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


def is_installed() -> bool:
    """Return whether Sail is installed."""
    return importlib.util.find_spec("pysail") is not None


def bytes_max() -> int:
    """Return the size of logs for which the memory of this machine, or of this container, is enough."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        memory = min(memory, int(_CGROUP.read_text()))
    return memory // _MEMORY_PER_BYTE


@contextmanager
def sail_server() -> Iterator[tuple[str, dict[str, str]]]:
    """Run a server; give its address, and the settings of a session that uses it.

    Raises:
        ExtraMissing: Sail is not installed.
    """
    if not is_installed():
        raise ExtraMissing("Sail", install=install_command("report"))
    with _quiet():
        from pysail.spark import SparkConnectServer

        server = SparkConnectServer()
        server.start(background=True)
    with tempfile.TemporaryDirectory(prefix="fanout-kept-") as kept_at:
        try:
            address = server.listening_address
            assert address is not None
            yield f"sc://127.0.0.1:{address[1]}", _SETTINGS | {_KEPT_AT: kept_at}
        finally:
            server.stop()


def keep(frame: DataFrame) -> DataFrame:
    """Return a frame of the same rows, which are computed once; call `unpersist` when no query reads it any more."""
    spark = frame.sparkSession
    directory = spark.conf.get(_KEPT_AT, "")
    if not directory:
        return frame.persist()
    path = f"{directory}/{uuid4().hex}"
    frame.write.parquet(path)
    if not Path(path).is_dir():  # Sail writes nothing of no rows
        return spark.createDataFrame([], schema=frame.schema)
    return spark.read.parquet(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let a server that is started here print no messages of its own between those of the command."""
    before = os.environ.get("RUST_LOG")
    os.environ.setdefault("RUST_LOG", "off")
    try:
        yield
    finally:
        if before is None:
            del os.environ["RUST_LOG"]
