"""The tables of results: a contract, appended by runs, and the library that gives them."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.errors import ReportError
from fanout.reports import ReportOptions, completeness, lag, missing_topics, read_logs, run_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(fanout.__file__).parents[1]

DERBY = {
    "spark.sql.catalog.lake": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.lake.url": "jdbc:derby:memory:results;create=true",
    "spark.sql.catalog.lake.driver": "org.apache.derby.jdbc.EmbeddedDriver",
}
"""A catalog of tables that Spark brings: rows are appended to it as to one of Delta or Iceberg."""


def test_columns_and_types_are_those_of_the_page() -> None:
    """Whoever reads the tables goes by it; a column is added to both, and none goes."""
    from fanout.reports.tables.contract import RESULT_TABLES, RUN

    page = (ROOT / "docs" / "reference" / "report-tables.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE))
    for name, schema in {"run": RUN, **RESULT_TABLES}.items():
        listed = re.findall(r"^\| `(\w+)` \| (\w+) \| ", sections[name], flags=re.MULTILINE)
        assert listed == [(field.name, field.dataType.simpleString()) for field in schema.fields], name


def test_each_run_is_appended_below_a_place(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """A path and a URI alike; each run is a partition, and has the time and the window beside each row."""
    from fanout.reports.tables.contract import RESULT_TABLES, RUN

    place = (tmp_path / "tables").as_uri()
    for where in (place, place, str(tmp_path / "tables")):
        run_report("summary", [log], ReportOptions(settle_s=1, tables=where))
    found = spark.read.parquet(f"{place}/completeness")
    runs = sorted(row["run"] for row in found.select("run").distinct().take(5))
    assert [path.name for path in sorted((tmp_path / "tables" / "completeness").glob("run=*"))] == [
        f"run={run}" for run in runs
    ]
    assert len(runs) == 3
    [row, *_] = found.orderBy("run").take(5)
    assert (row["node"], row["expected"], row["missing"], row["complete_percent_at_least"]) == ("edge", 10, 1, 90.0)
    assert row["window_begin"] < row["window_end"]
    for name, schema in RESULT_TABLES.items():
        columns = {field.name: field.dataType for field in spark.read.parquet(f"{place}/{name}").schema.fields}
        assert columns == {field.name: field.dataType for field in (*RUN.fields, *schema.fields)}


@pytest.mark.parametrize("namespace", ["lake.APP", "replication"])
def test_each_run_is_appended_in_a_catalog(
    spark: SparkSession, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """One with tables of version 2 of Spark's interface, and Spark's own, whose tables are files."""
    for key, value in DERBY.items():
        spark.conf.set(key, value)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS replication LOCATION '{(tmp_path / 'warehouse').as_uri()}'")
    try:
        for _ in range(2):
            run_report("lag", [log], ReportOptions(tables=namespace))
        found = spark.table(f"{namespace}.lag").select("run", "node", "updates").take(9)
        assert [(row["node"], row["updates"]) for row in found] == [("edge", 9)] * 2
        assert len({row["run"] for row in found}) == 2
        assert spark.table(f"{namespace}.completeness").count() == 0
    finally:
        spark.sql("DROP DATABASE replication CASCADE")


def test_a_place_for_tables_that_is_none_is_told_first(spark: SparkSession, log: Path) -> None:
    """Before anything is computed, with the option that says where."""
    for where in ("nonsense://x/y", "no.such.catalog"):
        stages: list[str] = []
        with pytest.raises(ReportError, match=f"Spark cannot write tables to {where}") as caught:
            run_report("summary", [log], ReportOptions(tables=where), progress=stages.append)
        assert "--tables" in caught.value.hint
        assert stages == ["starting Spark"]


def test_documents_go_to_uris(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """Text that Spark writes has the bytes of a file that this process writes, and the trend is read there again."""
    place = (tmp_path / "out").as_uri()
    options: dict[str, Any] = {"settle_s": 1, "json_path": f"{place}/r.json", "html_path": f"{place}/r.html"}
    for lines in (1, 2):
        result = run_report("summary", [log], ReportOptions(**options, trend_path=f"{place}/trend.jsonl"))
        assert len((tmp_path / "out" / "trend.jsonl").read_text().splitlines()) == lines
    assert (tmp_path / "out" / "r.json").read_text() == result.report.to_json()
    assert (tmp_path / "out" / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ReportError, match="Spark cannot write to nonsense://x: "):
        run_report("summary", [log], ReportOptions(json_path="nonsense://x"))


def test_the_library_gives_frames_of_the_contract(spark: SparkSession, log: Path) -> None:
    """With the figures of the command, in the session of the caller, whose time zone stays."""
    from fanout.reports.tables.contract import COMPLETENESS, LAG, MISSING_TOPICS

    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        logs = read_logs(spark, str(log))
        got, late, topics = completeness(logs, settle_s=1), lag(logs), missing_topics(logs, settle_s=1)
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (got.schema, late.schema, topics.schema) == (COMPLETENESS, LAG, MISSING_TOPICS)
    result = run_report("completeness", [log], ReportOptions(settle_s=1)).report
    [row] = got.take(5)
    assert result.targets[0].stamped is not None
    assert row["missing"] == result.targets[0].stamped.missing == 1
    assert [row["topic"] for row in topics.take(5)] == ["t/0"]
    assert late.where("kind = 'raw'").take(1)[0]["p99_us"] == result.lag.propagation[0].lag.p99_us
    assert logs.updates.count() == 19


def test_the_example_runs(
    spark: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands in the documents."""
    monkeypatch.setattr(sys, "argv", ["report_library.py", str(log)])
    runpy.run_path(str(ROOT / "docs" / "examples" / "report_library.py"))
    said = capsys.readouterr().out
    assert "|edge|       #|      10|      1|" in said
    assert "|edge|t/0  |1      |" in said
