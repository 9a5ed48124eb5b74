"""The reports as the command line calls them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import ExtraMissing, ReportError
from fanout.reports import LogFiles, ReportOptions, ReportResult, entry, run_report
from fanout.reports.entry import is_short_run
from fanout.reports.summary.past_reports import past_report
from fanout.reports.summary.trend_file import read_trend
from tests.reports.documents import report
from tests.reports.logs import at, when

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_completeness_is_written_and_judged(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """One run gives the JSON, the page and the exit code; directories are made as needed."""
    stages: list[str] = []
    options = ReportOptions(
        settle_s=0.001,
        fail_under=95,
        json_path=tmp_path / "new" / "report.json",
        html_path=tmp_path / "report.html",
        trend_path=tmp_path / "new" / "trend.jsonl",
    )
    result = run_report("completeness", [log], options, progress=stages.append)
    assert (result.passed, result.exit_code) == (False, 1)
    assert result.report.verdict is not None
    assert result.report.verdict.lowest_percent == 90
    assert result.report.parameters.behind_max_s == entry.BEHIND_MAX_S  # of sealed files alone
    text = (tmp_path / "new" / "report.json").read_text()
    assert text == result.report.to_json()
    assert json.loads(text)["inputs"]["directories"] == [str(log)]
    assert "Replication report" in (tmp_path / "report.html").read_text()
    assert read_trend(tmp_path / "new" / "trend.jsonl") == (past_report(result.report),)
    assert stages[0] == "starting Spark"
    assert stages[-1] == "epochs, 19 rows"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "new", "report.html"]


@pytest.mark.spark
def test_lag_alone_passes_without_a_verdict(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """The lag report has nothing to fail, and no settle horizon.

    It goes to a named pipe, which stays one: nobody who may do so puts a file in the place of `/dev/stdout`.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        text = reader.submit(pipe.read_text)
        result = run_report("lag", LogFiles.in_directories([log]), ReportOptions(json_path=pipe))
        assert json.loads(text.result(30))["lag"]["propagation"][0]["lag"]["rows"] == 9
    assert pipe.is_fifo()
    assert (result.report.parameters.settle_s, result.report.parameters.behind_max_s) == (0, 0)
    assert (result.passed, result.exit_code, result.report.report) == (True, 0, "lag")


def test_what_cannot_be_written_is_told_before_spark_starts(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large report takes long, and would be lost."""

    def never(**_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(entry, "spark_session", never)
    (tmp_path / "file").write_text("")
    for place, problem in (
        (tmp_path / "file" / "report", "report cannot be written: a file is in the place of a directory"),
        (tmp_path / "file" / "x" / "report", "report cannot be written: a file is in the place of a directory"),
        (tmp_path, f"{tmp_path} cannot be written: it is a directory"),
    ):
        for options in (ReportOptions(json_path=place), ReportOptions(html_path=place)):
            with pytest.raises(ReportError, match=problem):
                run_report("summary", [log], options)


def test_wrong_parameters_and_inputs_are_refused_before_spark_starts(log: Path, tmp_path: Path) -> None:
    """A mistake costs no start of a JVM."""
    negative: list[dict[str, Any]] = [{"settle_s": -1}, {"depth": -1}, {"behind_max_s": -1}]
    for wrong in negative:
        with pytest.raises(ReportError, match="cannot be negative"):
            ReportOptions(**wrong)
    with pytest.raises(ReportError, match="the window begins at"):
        ReportOptions(since=when(at(2)), until=when(at(1)))
    for name in ("all", "traffic"):
        with pytest.raises(ReportError, match="at least one level"):
            run_report(name, [tmp_path], ReportOptions(depth=0))
    with pytest.raises(ReportError, match="nowhere does not exist"):
        run_report("lag", [tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("asked", "memory", "master"),
    [
        ({}, 1 << 30, "sail"),
        ({"json_path": Path("r.json"), "html_path": Path("r.html")}, 1 << 30, "sail"),
        ({}, 64, "local[*]"),
        ({"tables": "lake.mqtt"}, 1 << 30, "local[*]"),
        ({"parquet": "out"}, 1 << 30, "local[*]"),
        ({"json_path": "file:///r.json"}, 1 << 30, "local[*]"),
        ({"trend_path": "file:///trend.jsonl"}, 1 << 30, "local[*]"),
        ({"master": "local[1]"}, 1 << 30, "local[1]"),
        ({"master": "sail"}, 64, "sail"),
    ],
)
def test_the_engine_suits_the_logs_and_the_output(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], memory: int, master: str
) -> None:
    """Sail for small logs and documents; Spark for what Sail cannot do, or where it is not installed."""
    started: list[str] = []

    def stop(*, master: str, **_: object) -> None:
        started.append(master)
        raise ReportError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entry, "spark_session", stop)
    monkeypatch.setattr(entry, "active_session", lambda: None)
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PAGE_SIZE" else memory)
    options = ReportOptions(**asked)
    with pytest.raises(ReportError, match="enough"):
        run_report("summary", [log], options)
    monkeypatch.setattr("fanout.reports.session.sail.is_installed", lambda: False)
    with pytest.raises(ReportError, match="enough"):
        run_report("summary", [log], options)
    assert started == [master, asked.get("master", "local[*]")]


def test_what_sail_cannot_do_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not write, and that it is not installed: in both cases what to do."""
    monkeypatch.setattr(entry, "active_session", lambda: None)
    for asked in (
        ReportOptions(master="sail", tables="lake.mqtt"),
        ReportOptions(master="sail", json_path="s3a://bucket/r.json"),
    ):
        with pytest.raises(ReportError, match="neither URIs nor tables"):
            run_report("summary", [log], asked)
    monkeypatch.setattr("fanout.reports.session.sail.is_installed", lambda: False)
    monkeypatch.setattr("fanout.reports.spark.active_session", lambda: None)
    with pytest.raises(ExtraMissing, match=r"fanout-mqtt\[report\]"):
        run_report("summary", [log], ReportOptions(master="sail"))


def test_small_local_runs_are_started_for_speed(log: Path) -> None:
    """Only a local run over little data is compiled simply."""
    files = LogFiles.in_directories([log])
    assert is_short_run(files, "local[*]")
    assert not is_short_run(files, "spark://master:7077")
    assert not is_short_run(LogFiles.in_directories(["s3a://bucket"]), "local[2]")


def test_a_result_without_a_verdict_passes() -> None:
    """The exit code follows the verdict alone."""
    assert ReportResult(report(), passed=True).exit_code == 0


def test_the_file_of_another_program_is_refused_first(log: Path, tmp_path: Path) -> None:
    """Before Spark is started, and nothing is written into it; nor is a report compared in two ways."""
    (tmp_path / "notes.txt").write_text("mine\n")
    stages: list[str] = []
    with pytest.raises(ReportError, match="is not a file of the trend"):
        run_report("summary", [log], ReportOptions(trend_path=tmp_path / "notes.txt"), progress=stages.append)
    assert (stages, (tmp_path / "notes.txt").read_text()) == ([], "mine\n")
