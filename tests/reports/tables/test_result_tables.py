"""The tables of results: a contract, appended by runs, and the library that gives them."""

from __future__ import annotations

import re
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.errors import ReportError
from fanout.reports import ReportOptions, run_report
from fanout.reports.summary.past_reports import past_report
from fanout.reports.summary.trend_file import trend_text
from tests.reports.documents import BEGIN, report

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


def test_each_run_is_appended_below_a_place(jvm: SparkSession, log: Path, tmp_path: Path) -> None:
    """A path and a URI alike; each run is a partition, and has the time and the window beside each row.

    Text that Spark writes to a URI has the bytes of a file that this process writes, and the trend is read there again.
    """
    from fanout.reports.tables.appending import append_tables
    from fanout.reports.tables.contract import RESULT_TABLES, RUN

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trend.jsonl").write_text(trend_text((), added=past_report(report())))
    place = (tmp_path / "out").as_uri()
    options: dict[str, Any] = {"settle_s": 1, "json_path": f"{place}/r.json", "html_path": f"{place}/r.html"}
    asked = ReportOptions(**options, trend_path=f"{place}/trend.jsonl", tables=f"{place}/tables")
    result = run_report("summary", [log], asked)
    append_tables(jvm, str(tmp_path / "out" / "tables"), result.report, run_at=BEGIN)
    assert len((tmp_path / "out" / "trend.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "out" / "r.json").read_text() == result.report.to_json()
    assert (tmp_path / "out" / "r.html").read_text().startswith("<!doctype html>")
    found = jvm.read.parquet(f"{place}/tables/completeness")
    runs = sorted(row["run"] for row in found.select("run").distinct().take(5))
    assert [path.name for path in sorted((tmp_path / "out" / "tables" / "completeness").glob("run=*"))] == [
        f"run={run}" for run in runs
    ]
    assert len(runs) == 2
    [row, *_] = found.orderBy("run").take(5)
    assert (row["node"], row["expected"], row["missing"], row["complete_percent_at_least"]) == ("edge", 10, 1, 90.0)
    assert row["window_begin"] < row["window_end"]
    for name, schema in RESULT_TABLES.items():
        columns = {field.name: field.dataType for field in jvm.read.parquet(f"{place}/tables/{name}").schema.fields}
        assert columns == {field.name: field.dataType for field in (*RUN.fields, *schema.fields)}


@pytest.mark.parametrize("namespace", ["lake.APP", "replication"])
def test_each_run_is_appended_in_a_catalog(jvm: SparkSession, tmp_path: Path, namespace: str) -> None:
    """One with tables of version 2 of Spark's interface, and Spark's own, whose tables are files."""
    from fanout.reports.tables.appending import append_tables, check_appendable

    for key, value in DERBY.items():
        jvm.conf.set(key, value)
    jvm.sql(f"CREATE DATABASE IF NOT EXISTS replication LOCATION '{(tmp_path / 'warehouse').as_uri()}'")
    try:
        for second in range(2):
            check_appendable(jvm, namespace)
            append_tables(jvm, namespace, report(), run_at=BEGIN + timedelta(seconds=second))
        found = jvm.table(f"{namespace}.completeness").select("run", "node", "expected").take(9)
        assert [(row["node"], row["expected"]) for row in found] == [("edge", 100)] * 2
        assert len({row["run"] for row in found}) == 2
    finally:
        jvm.sql("DROP DATABASE replication CASCADE")


def test_a_place_for_tables_that_is_none_is_told_first(jvm: SparkSession, log: Path) -> None:
    """Before anything is computed, with the option that says where."""
    for where in ("nonsense://x/y", "no.such.catalog"):
        stages: list[str] = []
        with pytest.raises(ReportError, match=f"Spark cannot write tables to {where}") as caught:
            run_report("summary", [log], ReportOptions(tables=where), progress=stages.append)
        assert "--tables" in caught.value.hint
        assert stages == ["starting Spark"]
    with pytest.raises(ReportError, match="Spark cannot write to nonsense://x: "):
        run_report("summary", [log], ReportOptions(json_path="nonsense://x"))


def test_the_library_gives_frames_of_the_contract(
    jvm: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the example as it stands in the documents, in the session of the caller.

    The caller's time zone stays.
    """
    from fanout.reports.tables.contract import COMPLETENESS, LAG

    monkeypatch.setattr(sys, "argv", ["report_library.py", str(log)])
    jvm.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        made = runpy.run_path(str(ROOT / "docs" / "examples" / "report_library.py"))
        assert jvm.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        jvm.conf.set("spark.sql.session.timeZone", "UTC")
    said = capsys.readouterr().out
    assert "|edge|       #|      10|      1|" in said
    assert "|edge|t/0  |1      |" in said
    assert (made["got"].schema, made["late"].schema) == (COMPLETENESS, LAG)
    assert [row["p99_us"] for row in made["late"].take(5)] == [1_000]
    assert made["logs"].updates.count() == 19
