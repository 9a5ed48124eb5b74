"""Reading the tables, and the first look at them (`transforms.first_look`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import ReportError
from fanout.reports.figures.parquet import TABLES, ParquetTables
from fanout.reports.read import reading
from fanout.reports.read.details import GapRecord
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import collect_rows, read_tables, take_survey
from fanout.reports.read.schemas import EVENTS, UPDATES, struct_of
from fanout.reports.read.scope import AskedWindow
from fanout.reports.read.survey import CompleteSummary, EventSummary, StartRecord, UpdateSummary
from fanout.reports.session.spark_errors import spark_errors
from tests.reports.logs import NodeLog, at, selector, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_tables_have_the_contract_columns_whatever_the_directories_are_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A node named like a number or with a slash keeps its name: values come from the files, not from the paths."""
    logs = [NodeLog("007"), NodeLog("a/b=c%"), NodeLog("only-events")]
    for log in logs:
        log.start(at(0))
        log.update(at(1), "t", "x") if log.node != "only-events" else None
    tables = read_tables(spark, LogFiles.in_directories([write(tmp_path, logs)]))
    assert tables.updates.columns == UPDATES.names
    assert tables.events.columns == EVENTS.names
    assert {row["node"] for row in tables.updates.select("node").collect()} == {"007", "a/b=c%"}
    assert tables.events.count() == 3


def test_a_missing_table_is_empty_and_no_file_at_all_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """A node that logged no update yet is read; directories without a file are refused."""
    log = NodeLog("edge")
    log.start(at(0))
    tables = read_tables(spark, LogFiles.in_directories([write(tmp_path, [log])]))
    assert tables.updates.count() == 0
    with pytest.raises(ReportError, match="no log file in here"):
        read_tables(spark, LogFiles((), (), ("here",)))


def with_a_flipped_bit(content: bytes) -> bytes:
    """Return a sealed file in which a digest is another one, though its checksum is not."""
    rows = pq.read_table(pa.BufferReader(content))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    plain = sink.getvalue().to_pybytes()
    digest = rows["digest"][0].as_py().to_bytes(8, "little", signed=True)
    place = plain.index(digest * 2)  # in the page; the statistics have it once
    return plain[:place] + bytes([plain[place] ^ 1]) + plain[place + 1 :]


def test_what_is_wrong_with_a_file_is_told_by_its_name(jvm: SparkSession, tmp_path: Path) -> None:
    """An empty file, which Spark would pass over in silence, and one whose end is not there; no word of Java."""
    hub = NodeLog("hub", "primary")
    for number in range(4):
        hub.publish(at(number), number + 1, "t", "v")
    files = LogFiles.in_directories([write(tmp_path, [hub])])
    damaged = Path(files.updates[0])
    content = damaged.read_bytes()
    damaged.write_bytes(b"")
    with pytest.raises(ReportError, match=f"^{damaged} is empty"):
        read_tables(jvm, files)
    for broken in (content[:-100], with_a_flipped_bit(content)):
        damaged.write_bytes(broken)
        with pytest.raises(ReportError) as caught, spark_errors():
            collect_rows(read_tables(jvm, files).updates.select("digest"))
        assert caught.value.message == f"{damaged} cannot be read: it is damaged, or of another version"
        assert "fanout log verify" in caught.value.hint


def test_a_file_that_goes_while_it_is_read_is_not_called_damaged(jvm: SparkSession, tmp_path: Path) -> None:
    """Retention removes what was listed: before Spark looks at it, and after."""
    hub = NodeLog("hub", "primary")
    for number in range(4):
        hub.publish(at(number), number + 1, "t", "v")
    files = LogFiles.in_directories([write(tmp_path, [hub])])
    tables = read_tables(jvm, files)
    Path(files.updates[0]).unlink()
    for again in (False, True):
        with pytest.raises(ReportError) as caught, spark_errors():
            collect_rows((read_tables(jvm, files) if again else tables).updates.select("digest"))
        assert caught.value.message.startswith(f"{files.updates[0]} was removed while the report was made")
        assert "Make it again" in caught.value.hint


@pytest.mark.parametrize("uri", ["s3a://bucket/tables", "nonsense://x/y"])
def test_a_place_that_spark_cannot_write_is_told_at_once(spark: SparkSession, tmp_path: Path, uri: str) -> None:
    """A URI without a file system, and a path with a file in it; the hint names the option."""
    with pytest.raises(ReportError, match=f"^Spark cannot write to {uri}: ") as caught:
        ParquetTables(spark, uri)
    assert "java" not in str(caught.value)
    assert "--parquet" in caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="tables cannot be written: Not a directory"):
        ParquetTables(spark, str(tmp_path / "file" / "tables"))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_a_report_does_not_make_has_its_columns_and_no_rows(
    jvm: SparkSession, tmp_path: Path, name: str
) -> None:
    """In the place of what an earlier report left there, which would be taken for this one's."""
    tables = ParquetTables(jvm, str(tmp_path))
    (tmp_path / name).mkdir()
    pq.write_table(pa.table({"left": ["behind"]}), tmp_path / name / "part-0.parquet")
    tables.write_empty(name)
    found = jvm.read.parquet(str(tmp_path / name))
    assert found.schema == struct_of(TABLES[name])
    assert found.count() == 0


def test_take_survey_summarizes_both_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Every summary has the columns and values that `fanout.reports.read.survey` works with."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    edge.start(at(0), detail="{}")
    edge.event("state", at(1), link="up", state="snapshot", detail='{"primary_node": "hub"}')
    edge.event("state", at(1), link="up", state="down", detail="not JSON")
    edge.event("state", at(1), link="up", state="live", detail='{"primary": "mqtt://hub", "primary_node": ""}')
    edge.event("state", at(1), link="up", state="live", detail='{"primary": "mqtt://hub", "primary_node": null}')
    edge.event("complete", at(3), link="up", selector="#", evidence="marker")
    edge.event("complete", at(2), link="up", selector="#", evidence="marker")
    row = hub.publish(at(4), 1, "t", "x")
    edge.apply(row, link="up", selector="#", delay_us=-7)
    edge.apply(row, link="up", selector="#", delay_us=9, phase=2)
    edge.event("tear_down", at(5), link="up")
    edge.gap(at(6), link="up", rows=2, events=1, first_us=at(5), last_us=at(5.5), last_log_pos=7)
    edge.event("stop", at(7))
    survey = take_survey(read_tables(spark, LogFiles.in_directories([write(tmp_path, [hub, edge])])))
    epoch = edge.node_epoch
    assert set(survey.updates) == {
        UpdateSummary(
            "hub", "primary", epoch, "", epoch, True, "hub", frozenset({""}), 1, 1, 1, at(4), at(4), at(4), at(4), 0
        ),
        UpdateSummary(
            *("edge", "secondary", epoch, "up", 1, True, "hub", frozenset({"#"}), 1, 8, 8),
            *(at(4) - 7, at(4) - 7, at(4), at(4), -7),
        ),
        UpdateSummary(
            *("edge", "secondary", epoch, "up", 1, False, "hub", frozenset({"#"}), 1, 9, 9),
            *(at(4) + 9, at(4) + 9, at(4), at(4), 9),
        ),
    }
    assert set(survey.events) == {
        EventSummary("edge", "secondary", epoch, "", 2, 1, 12, at(0), at(7), 0, None, at(7), ()),
        EventSummary("edge", "secondary", epoch, "up", 8, 2, 11, at(1), at(6), 1, 10, None, ("", "hub")),
    }
    assert survey.completes == (CompleteSummary("edge", epoch, "up", 1, "#", at(2)),)
    assert survey.starts == (StartRecord("edge", epoch, at(0), "{}"),)
    assert survey.gaps == (GapRecord("edge", "up", epoch, at(5), at(5.5), 7, 3),)


def test_nodes_are_configured_as_they_were_at_the_end_of_a_window(spark: SparkSession, tmp_path: Path) -> None:
    """What a node selects since then says nothing of what it had to get before."""
    edge, new = NodeLog("edge"), NodeLog("new")
    for node, second, topic_filter in ((edge, 0, "a/#"), (edge, 10, "b/#"), (new, 10, "c/#")):
        if second and node is edge:
            node.restart(at(second))
        node.start(at(second), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector(topic_filter)]})
        node.ready(at(second + 1), "up", topic_filter)
    tables = read_tables(spark, LogFiles.in_directories([write(tmp_path, [edge, new])]))
    for until_us, expected in ((at(10), "a/#"), (at(10) + 1, "b/#")):
        survey = take_survey(tables, window=AskedWindow(until_us=until_us))
        (link,) = survey.config("edge").links
        assert [selection.filter for selection in link.selections] == [expected]
        since_epoch = survey.config("edge").since_epoch
        held = survey.held_from("edge", link=link, since_epoch=since_epoch)
        assert held == (at(1) if expected == "a/#" else at(11), 1)
        assert survey.config("new").stated


def test_many_sessions_of_many_selectors_are_few_rows(spark: SparkSession, tmp_path: Path) -> None:
    """They say what is needed of links, selectors, spans, and the delays of the session that was proved complete."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    filters = ("a/#", "b/#", "c/#")
    edge.start(at(0), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector(name) for name in filters]})
    for session in range(1, 9):
        edge.link_epoch = session
        edge.ready(at(10 * session), "up", *filters)
        for number, name in enumerate(filters):
            row = hub.publish(at(10 * session + 1 + number), 10 * session + number, name[:2], "x")
            edge.apply(row, link="up", selector=name, delay_us=100 * session + number)
            edge.apply(row, link="up", selector=name, delay_us=1, phase=1)
    tables = read_tables(spark, LogFiles.in_directories([write(tmp_path, [hub, edge])]))
    survey = take_survey(tables)
    assert len(survey.updates) == 2 * 2 + 1
    assert len(survey.completes) == 3, "each selector's first proof"
    (link,) = survey.config("edge").links
    assert survey.held_from("edge", link=link, since_epoch=0) == (at(10), 1)
    assert survey.selectors_seen("edge", link="up", since_epoch=edge.node_epoch) == set(filters)
    assert survey.first_live("edge", link="up", since_epoch=0) == (at(11) + 100, 1)
    assert survey.origins_us("edge", link="up") == (at(11), at(83))
    delays = [survey.delay_us_min("edge", link="up", stamped_by="hub", link_epoch=epoch) for epoch in (1, 2, None)]
    assert delays == [100, 200, 100]
    assert survey.live_rows("edge", link="up") == 24
    assert survey.log_rows("edge")[0] == 48


def test_only_so_many_rows_leave_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary that grew beyond its bound is an error, not a full memory."""
    monkeypatch.setattr(reading, "ROWS_MAX", 3)
    assert collect_rows(spark.range(3).toDF("n")) == [{"n": 0}, {"n": 1}, {"n": 2}]
    with pytest.raises(ReportError, match="more than 3 rows"):
        collect_rows(spark.range(4).toDF("n"))
