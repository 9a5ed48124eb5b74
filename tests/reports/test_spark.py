"""The session of a report."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from fanout.errors import ExtraMissing
from fanout.reports.spark import _start, require_pyspark, session_settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_settings_of_a_local_run_stay_on_this_machine() -> None:
    """A local run listens on the loopback interface only, without a web page, in UTC; a cluster run chooses itself."""
    local = session_settings("local[*]", cores=8)
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert local["spark.sql.shuffle.partitions"] == "16"
    assert local["spark.ui.enabled"] == "false"
    assert local["spark.sql.session.timeZone"] == "UTC"
    assert local["spark.sql.adaptive.enabled"] == "true"
    assert "spark.driver.host" not in session_settings("spark://master:7077", cores=8)
    assert session_settings("local-cluster[2,1,1024]", cores=1)["spark.driver.host"] == "127.0.0.1"


def test_missing_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyspark the error is the command that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"-m pip install 'fanout-mqtt\[report\]'"):
        require_pyspark()
    with pytest.raises(ExtraMissing), spark_session():
        raise AssertionError("no session without pyspark")


def test_importing_the_reports_does_not_import_pyspark() -> None:
    """The command line can offer reports without paying for Spark."""
    code = "import sys, fanout.reports; print('pyspark' in sys.modules, 'rich' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False False"


def test_a_start_that_fails_says_what_spark_printed(tmp_path: Path) -> None:
    """A JVM that dies at once becomes a report error with the end of what it printed, and nothing on the terminal."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && { echo \'version "17"\' >&2; exit 0; }\necho no heap for you >&2\nexit 1\n'
    )
    java.chmod(0o755)
    code = (
        "from fanout.errors import ReportError\n"
        "from fanout.reports.spark import spark_session\n"
        "try:\n"
        "    with spark_session(master='local[1]', short=True): pass\n"
        "except ReportError as error: print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"JAVA_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
    )
    for said in ("Spark could not be started on local[1]", "no heap for you"):
        assert said in answer.stdout
    assert answer.stderr == ""


def test_a_master_that_is_none_is_told_in_one_line() -> None:
    """What Spark says of it, without the lines of Java around it."""
    code = (
        "from fanout.errors import ReportError\n"
        "from fanout.reports.spark import spark_session\n"
        "try:\n"
        "    with spark_session(master='nonsense'): pass\n"
        "except ReportError as error: print(error.hint)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "Spark said: Master must either be yarn or start with spark, k8s, or local\n"


def test_packages_of_spark_connect_that_are_missing_are_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody is asked: gRPC, or one of those that Spark looks for itself."""
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    for missing in ("grpc", "pyspark.sql.connect.session"):
        monkeypatch.setitem(sys.modules, "grpc", ModuleType("grpc"))
        monkeypatch.setitem(sys.modules, missing, None)
        told = pytest.raises(ExtraMissing, match=r"Spark Connect .*-m pip install 'fanout-mqtt\[connect\]'")
        with told, spark_session(master="sc://nowhere"):
            raise AssertionError("no session without them")


@pytest.mark.spark
def test_the_session_is_in_utc_and_quiet(jvm: SparkSession) -> None:
    """The shared session has the report's settings."""
    assert jvm.conf.get("spark.sql.session.timeZone") == "UTC"
    assert jvm.sparkContext.uiWebUrl is None
    assert jvm.sparkContext.pythonExec == "/nonexistent"


@pytest.mark.spark
def test_the_session_notes_and_searches_nothing_for_each_column(jvm: SparkSession) -> None:
    """Neither the line of a step, for errors that are worded here, nor a class that is asked for all the time."""
    from pyspark.errors.utils import is_debugging_enabled

    assert is_debugging_enabled() is False
    assert {"functions", "PythonUtils", "PythonSQLUtils"} <= vars(jvm.sparkContext._jvm).keys()


@pytest.mark.spark
def test_a_jvm_that_ends_in_a_call_is_not_told_beside_the_error(jvm: SparkSession) -> None:
    """Py4J tells the root logger of it with a traceback, and raises; other records go on."""
    with spark_session():
        shown = [
            bool(logging.getLogger().filter(logging.LogRecord("root", logging.ERROR, "", 1, text, None, None)))
            for text in ("Exception while sending command.", "something else")
        ]
    assert shown == [False, True]


@pytest.mark.spark
def test_an_active_session_is_used_and_left_running(jvm: SparkSession) -> None:
    """Inside a program that has a session already, it is borrowed in UTC and given back as it was."""
    jvm.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with spark_session(master="local[7]") as borrowed:
            assert borrowed is jvm
            assert borrowed.conf.get("spark.sql.session.timeZone") == "UTC"
        assert jvm.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert jvm.range(2).count() == 2
    finally:
        jvm.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.spark
def test_under_spark_submit_the_place_is_not_ours_to_choose(jvm: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by `spark-submit`, a report sets its SQL settings and leaves master, host and memory as submitted."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    wanted = {
        "spark.master": "local[7]",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.maxMetadataStringLength": "99",
    }
    started = _start(wanted)
    assert started.conf.get("spark.sql.maxMetadataStringLength") == "99"
    assert started.sparkContext.master == "local[2]"
