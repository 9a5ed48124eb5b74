"""A report over Spark Connect: Spark's own server is a process, and the command runs without a JVM."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fanout
from bench.processes import free_port
from fanout.reports import ReportOptions, run_report
from fanout.reports.java import find_java
from fanout.reports.spark import SHORT_RUN_SETTINGS
from tests.reports.conftest import INTERPRETED
from tests.reports.logs import HOUR, at, when, write
from tests.reports.random_logs import random_hub, random_secondary
from tests.reports.segments import damage_hours, hourly_log
from tests.support.waiting import wait_until_blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(fanout.__file__).parents[1]

SETTINGS = {
    **INTERPRETED,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


@dataclass(frozen=True)
class Server:
    """A running Spark Connect server."""

    url: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One from the jars of the installed pyspark."""
    import pyspark

    directory, port = tmp_path_factory.mktemp("connect"), free_port()
    home = Path(pyspark.__file__).parent
    java_home = find_java()
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    if java_home is not None:
        environment["JAVA_HOME"] = str(java_home)
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--driver-java-options", SHORT_RUN_SETTINGS["spark.driver.extraJavaOptions"]]
    for key, value in (SETTINGS | {"spark.connect.grpc.binding.port": str(port)}).items():
        command += ["--conf", f"{key}={value}"]
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "spark-internal"], env=environment, cwd=directory, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_blocking(lambda: "server started at" in log.read_text(), what="the server", deadline_s=120)
        yield Server(f"sc://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(60)


def fanout_report(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `fanout report` in a process that has no Java."""
    environment = os.environ | {"JAVA_HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fanout", "report", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_a_report_over_connect_is_that_of_a_local_session(server: Server, jvm: SparkSession, tmp_path: Path) -> None:
    """Documents, tables and the trend go to URIs, written by the server; the JSON is the same."""
    rng = random.Random(3)
    hub = random_hub(rng, updates=40)
    log = write(tmp_path / "log", [hub, *(random_secondary(rng, number, hub) for number in range(2))])
    out = (tmp_path / "out").as_uri()
    outputs = ["--json", f"{out}/r.json", "--trend", f"{out}/trend.jsonl", "--tables", f"{out}/tables"]
    for lines in (1, 2):
        answer = fanout_report("all", log.as_uri(), "--settle", "2.5", "--master", server.url, *outputs)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert len(jvm.read.text(f"{out}/trend.jsonl").take(9)) == lines
    [written] = (tmp_path / "out" / "r.json").glob("part-*")
    local = run_report("all", [log.as_uri()], ReportOptions(settle_s=2.5)).report
    document, expected = json.loads(written.read_text()), json.loads(local.to_json())
    for one in (document, expected):
        one["summary"].pop("trend")  # which is of another number of reports
    assert document == expected
    assert jvm.read.parquet(f"{out}/tables/completeness").select("run").distinct().count() == 2


def test_a_window_over_connect_opens_no_updates_of_other_hours(server: Server, tmp_path: Path) -> None:
    """The server lists the names of the files; their rows would not be read."""
    log = hourly_log(tmp_path / "log")
    damage_hours(log, range(3))
    window = ["--since", f"{when(at(4 * HOUR)):%FT%T}", "--until", f"{when(at(5 * HOUR)):%FT%T}"]
    asked = [*window, "--settle", "1", "--json", "-", "--master", server.url]
    answer = fanout_report("completeness", log.as_uri(), *asked)
    assert (answer.returncode, answer.stderr) == (0, "")
    (target,) = json.loads(answer.stdout)["targets"]
    assert (target["stamped"]["expected"], target["stamped"]["missing"]) == (10, 1)


def test_a_server_that_cannot_be_used_is_told_in_words(server: Server) -> None:
    """One that is not there, logs that it does not see, and a place without a file system."""
    answer = fanout_report("lag", "file:///nowhere", "--master", f"sc://127.0.0.1:{free_port()}")
    assert answer.returncode == 5
    assert "does not answer within" in answer.stderr
    answer = fanout_report("lag", "file:///nowhere", "--master", server.url)
    assert answer.returncode == 5
    assert answer.stderr.startswith("error: there is no log file in file:///nowhere\n")
    answer = fanout_report("lag", "nonsense://x", "--master", server.url)
    assert answer.returncode == 5
    assert answer.stderr.startswith("error: Spark cannot read nonsense://x/v1/updates: ")
    for said in ("Traceback", "java.", "grpc", "at org."):
        assert said not in answer.stderr
