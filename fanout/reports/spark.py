"""Build the Spark session of a report: Java found, loopback only, UTC, quiet.

Owns the settings that every report needs to be right (the time zone) or bearable (no console noise, no web
interface). Knows nothing of logs and transforms. pyspark is imported only when a session is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import re
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from fanout.errors import ExtraMissing, ReportError
from fanout.installation import install_command
from fanout.reports.java import find_java
from fanout.reports.session.sail import sail_server
from fanout.reports.session.utc import in_utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "LOCAL_MASTER",
    "SAIL",
    "SHORT_RUN_SETTINGS",
    "active_session",
    "is_local",
    "is_submitted",
    "require_pyspark",
    "session_settings",
    "spark_session",
]

LOCAL_MASTER: Final = "local[*]"
"""The master that is this process with a JVM, and every core."""

SAIL: Final = "sail"
"""The master that is Sail in this process."""

CONNECT: Final = "sc://"
"""The beginning of the address of a Spark Connect server."""

CONNECT_S: Final = 10
"""Time for the first answer of such a server."""

_CONNECT_HINT: Final = "Is that the address of a Spark Connect server, and does it run?"
_SAIL_HINT: Final = (
    f"Each Sail knows some versions of pyspark: install the extra report anew, or give --master '{LOCAL_MASTER}'"
)

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

SHORT_RUN_SETTINGS: Final = {
    _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.limit.initialNumPartitions": "64",
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.codegen.useIdInClassName": "false",
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.debug.maxToStringFields": "0",
    "spark.sql.ui.explainMode": "simple",
}
"""Settings that halve the CPU time of a short local run, which is spent on compiling; wrong for a long one.

Planning a query again while it runs, and looking for the first rows in one partition after another, cost more than they
save. So does a second hash table in the code of each aggregation, the same code compiled again under another name, and
the text of each plan, which nobody reads.
The 48 MB that this compiler has for its code are full after some reports; then it drops code and compiles it again.
"""

_EXCEPTION: Final = re.compile(
    r"^(?:Exception in thread .+? |Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE
)

_LAUNCH_LOG_TAIL: Final = 2000


def require_pyspark() -> None:
    """Check that pyspark is installed, without importing it.

    Raises:
        ExtraMissing: It is not; the hint is the command that installs it.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ExtraMissing("a Spark report", install=install_command("report"))


def session_settings(master: str, *, cores: int) -> dict[str, str]:
    """Return the configuration of a report's session.

    Args:
        master: The Spark master's URL.
        cores: Processor cores of this machine; decides the number of shuffle partitions of a local run.
    """
    settings = {
        "spark.app.name": "fanout report",
        "spark.master": master,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        # Else each step of a query notes the line that it is written in, for errors that we word ourselves.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
        }
    return settings


@contextmanager
def spark_session(
    *, master: str = LOCAL_MASTER, settings: Mapping[str, str] | None = None, short: bool = False
) -> Iterator[SparkSession]:
    """Give a session for the `with` block and stop it afterwards.

    A session that is already active in this process (`spark-submit`, a notebook, a test) is used as it is,
    apart from its time zone, and is left running.

    Args:
        master: The Spark master's URL, or `SAIL`.
        settings: More Spark settings; they win over the report's own.
        short: True if little is to be read, on this machine, so that starting and compiling is what takes long.

    Raises:
        ExtraMissing: pyspark, or for Spark Connect what its client needs, is not installed.
        ReportError: No Java was found, or the session could not be started.
    """
    require_pyspark()
    # Errors of PySpark 4 print a long JSON line besides raising; the raised error is enough.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    logging.getLogger().addFilter(_is_not_of_py4j)  # once: a filter that is there is not added again
    active = active_session()
    if active is not None:
        with in_utc(active):
            yield active
        return
    if master == SAIL:
        with (
            sail_server() as (url, own),
            _connected(url, settings=own | dict(settings or {}), hint=_SAIL_HINT) as spark,
        ):
            yield spark
        return
    if master.startswith(CONNECT):
        with _connected(master, settings=settings or {}) as spark:
            yield spark
        return
    own = session_settings(master, cores=os.cpu_count() or 1) | (SHORT_RUN_SETTINGS if short else {})
    handler = signal.getsignal(signal.SIGINT)
    try:
        spark = _start(own | dict(settings or {}))
    finally:
        # A SparkContext puts its own in this place, which calls the JVM in the middle of another call.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
    try:
        yield spark
    finally:
        _stop(spark)


@contextmanager
def _connected(url: str, *, settings: Mapping[str, str], hint: str = _CONNECT_HINT) -> Iterator[SparkSession]:
    """Give a session of a Spark Connect server, which has a JVM of its own: no setting of one is ours."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # gRPC's preparation of a child sometimes aborts it before it is the JVM of the next report of this process.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        grpc = importlib.import_module("grpc")
        importlib.import_module("pyspark.sql.connect.session")  # which looks for all packages that the client needs
    except ImportError as error:
        raise ExtraMissing("Spark Connect", install=install_command("connect")) from error
    with grpc.insecure_channel(url.removeprefix(CONNECT).partition("/")[0]) as channel:
        try:
            # The client of Spark tries for minutes.
            grpc.channel_ready_future(channel).result(CONNECT_S)
        except grpc.FutureTimeoutError as error:
            raise ReportError(f"{url} does not answer within {CONNECT_S} s", hint=hint) from error
    try:
        spark = SparkSession.builder.remote(url).create()
        for key, value in ({"spark.sql.session.timeZone": "UTC"} | dict(settings)).items():
            spark.conf.set(key, value)
    except PySparkException as error:
        raise ReportError(f"{url} cannot be used: {_first_line(error)}", hint=hint) from error
    try:
        yield spark
    finally:
        spark.stop()


def active_session() -> SparkSession | None:
    """Return the session that somebody else started in this process, of whatever engine; None if there is none."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _stop(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    with warnings.catch_warnings(), contextlib.suppress(Py4JError, OSError):
        # A JVM that was ended from outside is as good as stopped.
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process", RuntimeWarning)
        spark.stop()


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if is_submitted():
        # spark-submit started the JVM and says which master, how much memory and what else.
        builder = SparkSession.builder
        for key, value in settings.items():
            if key.startswith("spark.sql."):
                builder = builder.config(key, value)
        return builder.getOrCreate()
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    with tempfile.TemporaryFile() as launch_log:
        try:
            if SparkContext._gateway is None:
                _prepare_environment(find_java(), master=settings["spark.master"])
                # Everything that the JVM would print (its own warnings, log4j) goes to a file, whose end is
                # shown when the start fails. The running JVM keeps the file after it is closed here. HotSpot
                # prints on standard output, which may be where a report's JSON goes.
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    # A group of its own: what ends this process (a shell, Ctrl-C) must not end the JVM first. It
                    # goes when this process goes, however that happens: its standard input is then at its end.
                    conf,
                    popen_kwargs={"stdout": launch_log, "stderr": launch_log, "start_new_session": True},
                )
                context = SparkContext(conf=conf, gateway=gateway)
            else:
                context = SparkContext(conf=conf)
        except ReportError:
            raise
        except Exception as error:
            said = _reason(_tail(launch_log))
            raise ReportError(
                f"Spark could not be started on {settings['spark.master']}: {_first_line(error)}",
                hint=f"Spark said: {said}" if said else "Check the master's address and that Java runs",
            ) from error
    context.setLogLevel("ERROR")
    # PySpark asks for these classes with each column of a query, and each time they are searched for in all packages
    # that its gateway imports: more than a tenth of the time of a report on a small log.
    for name in ("functions", "PythonUtils", "PythonSQLUtils"):
        vars(context._jvm)[name] = getattr(context._jvm, name)
    return SparkSession(context)


def _prepare_environment(java_home: Path | None, *, master: str) -> None:
    """Tell Spark's launcher which Java and which address to use; it reads the environment only."""
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    else:
        os.environ.pop("JAVA_HOME", None)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def is_submitted() -> bool:
    """Return whether `spark-submit` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(master: str) -> bool:
    """Return whether a master is this machine."""
    return master in ("local", SAIL) or master.startswith(("local[", "local-cluster["))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LAUNCH_LOG_TAIL))
    return log.read().decode(errors="replace").strip()


def _reason(said: str) -> str:
    """Return what the first exception in the output of a JVM says; all of the output if there is none."""
    found = _EXCEPTION.search(said)
    return found[1] if found is not None else said


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Say whether a record for the root logger is not py4j's on a JVM that ended during a call, which also raises."""
    return record.msg != "Exception while sending command."
