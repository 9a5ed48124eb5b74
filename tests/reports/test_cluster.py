"""A real standalone cluster, a master and two workers in processes of their own, gives the bytes of a local run."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.reports import ReportOptions, run_report
from fanout.reports.java import find_java
from fanout.reports.spark import SHORT_RUN_SETTINGS
from tests.reports.conftest import INTERPRETED
from tests.reports.logs import write
from tests.reports.random_logs import random_hub, random_secondary
from tests.support.waiting import wait_until_blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

SETTLE_S = 2.5

DRIVER_DEADLINE_S = 900
"""Ends a driver that hangs; the longer one took 400 seconds on two cores with a load of 15."""

QUICK_JAVA = SHORT_RUN_SETTINGS["spark.driver.extraJavaOptions"]

SETTINGS = {
    **INTERPRETED,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""What makes a run over few rows on two small executors as short as it can be."""

DRIVER = """
import json
import sys
from pathlib import Path
from fanout.reports.spark import spark_session
from tests.reports.test_cluster import make_report

master, settings, log, out = sys.argv[1:]
with spark_session(master=master, settings=json.loads(settings)) as spark:
    make_report(Path(log), out=Path(out))
    print(spark.sparkContext.master, len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()))
"""


def make_report(log: Path, *, out: Path) -> None:
    """Write the JSON of the report on everything, with the Spark session that is active."""
    run_report("all", [log], ReportOptions(settle_s=SETTLE_S, json_path=out))


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    url: str
    environment: dict[str, str]
    spark_home: Path
    master_log: Path

    def applications(self) -> int:
        """Return how many applications have run on the cluster."""
        return self.master_log.read_text().count("Registered app ")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers of one core each, from the jars of the installed pyspark."""
    import pyspark

    directory = tmp_path_factory.mktemp("cluster")
    home = Path(pyspark.__file__).parent
    java_home = find_java()
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_SUBMIT_OPTS": QUICK_JAVA,
        "PYTHONPATH": str(Path(fanout.__file__).parents[1]),
        # The driver runs our Python; an executor could run none if it had to.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": "/nonexistent",
    }
    if java_home is not None:
        environment["JAVA_HOME"] = str(java_home)
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, kind: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        with log.open("wb") as output:
            command += ["--port", "0", "--webui-port", "0", *arguments]
            processes.append(
                subprocess.Popen(command, env=environment, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
            )
        return log

    try:
        master = start("master", "master.Master")
        at = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        wait_until_blocking(lambda: at.search(master.read_text()) is not None, what="the master", deadline_s=120)
        found = at.search(master.read_text())
        assert found is not None
        for name in ("one", "two"):
            work = ["--cores", "1", "--memory", "512m", "--work-dir", str(directory / name)]
            start(name, "worker.Worker", *work, found[1])
        wait_until_blocking(
            lambda: master.read_text().count("Registering worker") == 2, what="both workers", deadline_s=120
        )
        yield Cluster(found[1], environment, home, master)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of a primary and secondaries with every kind of fault, in many files."""
    rng = random.Random(3)
    hub = random_hub(rng, updates=40)
    nodes = [random_secondary(rng, number, hub) for number in range(2)]
    return write(tmp_path_factory.mktemp("log"), [hub, *nodes])


def run(cluster: Cluster, *command: str) -> str:
    """Run a driver to its end and return what it printed."""
    answer = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=DRIVER_DEADLINE_S, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_every_report_has_the_same_bytes_as_a_local_run(
    cluster: Cluster, jvm: SparkSession, log: Path, tmp_path: Path
) -> None:
    """All sections on two executors, each a process of its own, and in this process: the JSON files are equal."""
    on_cluster, local = tmp_path / "cluster.json", tmp_path / "local.json"
    arguments = (cluster.url, json.dumps(SETTINGS), str(log), str(on_cluster))
    said = run(cluster, sys.executable, "-c", DRIVER, *arguments)
    assert said.split() == [cluster.url, "3"], "the driver and two executors"
    assert jvm.sparkContext.master == "local[2]"
    make_report(log, out=local)
    assert on_cluster.read_bytes() == local.read_bytes()


def test_the_command_can_be_submitted(cluster: Cluster, jvm: SparkSession, log: Path, tmp_path: Path) -> None:
    """`spark-submit` of the package's entry runs a report on the cluster that it was given."""
    submitted, local = tmp_path / "submitted.json", tmp_path / "local.json"
    submit = [str(cluster.spark_home / "bin" / "spark-submit"), "--master", cluster.url]
    for key, value in SETTINGS.items():
        submit += ["--conf", f"{key}={value}"]
    entry = str(Path(fanout.__file__).parent / "__main__.py")
    applications = cluster.applications()
    run(cluster, *submit, entry, "report", "stalls", str(log), "--settle", str(SETTLE_S), "--json", str(submitted))
    assert cluster.applications() == applications + 1
    assert jvm.sparkContext.master == "local[2]"
    run_report("stalls", [log], ReportOptions(settle_s=SETTLE_S, json_path=local))
    assert submitted.read_bytes() == local.read_bytes()
