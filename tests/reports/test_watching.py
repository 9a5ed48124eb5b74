"""The tables that `fanout report watch` keeps, and what of them counts after a kill."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
import pytest

from fanout.errors import LogError, ReportError
from fanout.node.kept_report import KeptReport
from fanout.reports import entry, run_watch
from fanout.reports.document import Report
from fanout.reports.watching.keeper import LATEST_JSON, LATEST_PAGE, Keeper
from fanout.reports.watching.ledger import Ledger, Seen, new_files
from tests.reports.frames import rows_of
from tests.reports.logs import T0, NodeLog, at, selector
from tests.support.object_store import local_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sealed(log: Path, node: str, number: int, table: str = "updates") -> str:
    """Return the path of a sealed file."""
    return str(log / "v1" / table / f"node={node}" / "date=2026-02-02" / "hour=02" / f"{T0}-{number:06}.parquet")


def test_seen_files_are_ranges_of_their_process(tmp_path: Path) -> None:
    """A file counts by table, node, node epoch and number, wherever its copy lies; ranges read back the same."""
    seen = Seen()
    for number in (0, 1, 2, 5):
        seen.add(sealed(tmp_path, "hub", number))
    seen.add(sealed(tmp_path, "edge", 1))
    again = Seen()
    again.add_ranges(json.loads(json.dumps(seen.to_ranges())))
    assert list(seen.to_ranges().values()) == [[[1, 1]], [[0, 2], [5, 5]]]
    assert sealed(tmp_path / "copy", "hub", 5) in again
    assert sealed(tmp_path, "hub", 5, "events") not in again
    assert sealed(tmp_path, "hub", 3) not in again
    assert (len(again), again.count_by_table()) == (5, {"updates": 5})
    paths = [sealed(tmp_path / place, "hub", number) for place in ("a", "b") for number in (2, 3, 4)]
    assert new_files(paths, seen=again, limit=9) == paths[1:3]
    assert new_files(paths, seen=again, limit=1) == paths[1:2]
    with pytest.raises(ReportError, match="no sealed file"):
        new_files(["x.parquet"], seen=again, limit=1)


def test_only_commits_count_and_a_base_replaces_what_is_before(tmp_path: Path) -> None:
    """A number without a commit is given again; after a base the older parts and commits are gone, the files stay."""
    ledger = Ledger(tmp_path)
    with ledger.locked():
        assert (ledger.read().numbers, ledger.read().next_number) == ((), 1)
        for number in (1, 2, 3):
            Path(ledger.table_path("lag", number)).mkdir(parents=True)
            if number < 3:
                ledger.commit(number, files=[sealed(tmp_path, "hub", number)], rows={"updates": number})
        batch = ledger.read()
        assert (batch.numbers, batch.next_number, len(batch.seen), batch.rows) == ((1, 2), 3, 2, {"updates": 3})
        ledger.commit_base(3, before=batch)
        batch = ledger.read()
        assert (batch.numbers, len(batch.seen), batch.rows) == ((3,), 2, {"updates": 3})
        assert [path.name for path in (tmp_path / "lag").iterdir()] == ["batch=3"]
        with pytest.raises(ReportError, match="another process"), Ledger(tmp_path).locked():
            raise AssertionError("locked twice")
    commit = next((tmp_path / "commits").glob("*.json"))
    commit.write_text(commit.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ReportError, match="another version"):
        ledger.read()


def rolling(hub: NodeLog, edge: NodeLog, number: int) -> None:
    """Add what one rolled segment holds: five updates, one of them late, and a heartbeat each."""
    for log in (hub, edge):
        log.updates.clear()
        log.events.clear()
    if not number:
        hub.start(at(0))
        edge.start(at(0), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]})
        edge.ready(at(1), "up", "#")
    for index in range(5):
        row = hub.publish(at(2 + 40 * number + index), 5 * number + index + 1, f"t/{index}", "x")
        edge.apply(row, link="up", selector="#", delay_us=90_000 if index == 4 else 1_000)
    for second in (7, 8):
        edge.event("heartbeat", at(40 * number + second), link="up", lag_us=2_000)


def add_segment(log: Path, nodes: list[NodeLog], number: int) -> None:
    """Seal what the nodes hold as segment `number`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fanout.replog.schema import EVENTS, UPDATES

    for node in nodes:
        for table, rows, schema in (("updates", node.updates, UPDATES), ("events", node.events, EVENTS)):
            path = Path(sealed(log, node.node, number, table))
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def sums(keeper: Keeper, ledger: Ledger) -> dict[str, Any]:
    """Return what the kept tables add up to."""
    batch = ledger.read()
    lag = keeper.table("lag", batch).groupBy("kind").sum("rows")
    traffic = keeper.table("traffic", batch).groupBy("node").sum("updates")
    events = keeper.table("events", batch).groupBy("event").count()
    return {
        "lag": {row["kind"]: row["sum(rows)"] for row in rows_of(lag, "kind")},
        "traffic": {row["node"]: row["sum(updates)"] for row in rows_of(traffic, "node")},
        "events": {row["event"]: row["count"] for row in rows_of(events, "event")},
    }


@pytest.mark.spark
def test_each_file_counts_once_through_kills_and_merges(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are killed before and after the commit, and merges, leave the sums of the rows that were logged."""
    log, ledger = tmp_path / "log", Ledger(tmp_path / "kept")
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    keeper = Keeper(spark, logs=[log, log], ledger=ledger)
    with ledger.locked():
        rolling(hub, edge, 0)
        add_segment(log, [hub, edge], 0)
        with monkeypatch.context() as killed:
            killed.setattr(ledger, "commit", _killed)
            with pytest.raises(KeyboardInterrupt):
                keeper.run()
        assert ledger.read().numbers == ()
        for number in (1, 2, 3):
            rolling(hub, edge, number)
            add_segment(log, [hub, edge], number)
            with monkeypatch.context() as killed:
                killed.setattr(ledger, "publish", _killed)
                with pytest.raises(KeyboardInterrupt):
                    keeper.run(parts_max=2)
            assert keeper.run(parts_max=2).files == 0
        assert ledger.read().numbers == (4,), "three batches became one"
        assert ledger.read().rows == {"updates": 40, "events": 14}
        assert sums(keeper, ledger) == {
            "lag": {"propagation": 20, "heartbeat": 8},
            "traffic": {"hub": 20, "edge": 20},
            "events": {"start": 2, "state": 3, "complete": 1, "heartbeat": 1},
        }
    (shown,) = KeptReport(tmp_path / "kept", node="edge").lag() or ()
    assert (shown.link, shown.stamped_by, shown.updates, shown.most_seconds) == ("up", "hub", 5, 0.09)
    assert KeptReport(tmp_path / "kept", node="hub").lag() == (), "what was published at a node itself is no link"
    report = read_report(tmp_path / "kept")
    (propagation,) = report.lag.propagation
    assert (propagation.node, propagation.lag.rows, propagation.lag.most_us) == ("edge", 20, 90_000)
    assert (report.inputs.updates, report.inputs.update_files) == (40, 8)
    assert report.snapshots is not None
    assert [epoch.verdict for epoch in report.snapshots.epochs.listed] == ["ready"]
    assert "Epochs of each link" in (tmp_path / "kept" / LATEST_PAGE).read_text()


@pytest.mark.spark
def test_windows_that_are_too_old_go_at_the_next_merge(spark: SparkSession, tmp_path: Path) -> None:
    """What is kept is bounded: older windows, and events of former processes, go when parts are merged."""
    log, ledger = tmp_path / "log", Ledger(tmp_path / "kept")
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    keeper = Keeper(spark, logs=[log], ledger=ledger, keep_days=1 / 24)
    with ledger.locked():
        for number in (0, 200):
            rolling(hub, edge, number)
            add_segment(log, [hub, edge], number)
            keeper.run(parts_max=1)
        assert sums(keeper, ledger)["lag"] == {"propagation": 5, "heartbeat": 2}
        assert sums(keeper, ledger)["events"] == {"start": 2, "state": 3, "complete": 1, "heartbeat": 1}
        edge.restart(at(400 * 40))
        rolling(hub, edge, 400)
        add_segment(log, [hub, edge], 400)
        keeper.run(parts_max=1)
        assert sums(keeper, ledger)["events"] == {"start": 1, "heartbeat": 1}


@pytest.mark.spark
def test_a_stamp_of_the_future_neither_ends_nor_freezes_the_watching(spark: SparkSession, tmp_path: Path) -> None:
    """What a publisher stamped with the year 33658, or with next year, counts when it came; newer minutes follow."""
    import pyarrow as pa

    from fanout.replog.schema import UPDATES

    log, ledger = tmp_path / "log", Ledger(tmp_path / "kept")
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    keeper = Keeper(spark, logs=[log], ledger=ledger)
    with ledger.locked():
        rolling(hub, edge, 0)
        foreign = {"stamp_primary": "press", "stamp_epoch": 1, "link": "up", "selector": "#"}
        for second, origin_us in ((3, 10**18 - 1), (4, at(365 * 86_400))):
            edge.update(
                at(second),
                "t",
                "x",
                **foreign,
                sequence=second,
                origin=pa.scalar(origin_us, UPDATES.field("origin").type),
            )
        add_segment(log, [hub, edge], 0)
        keeper.run(parts_max=1)
        report = read_report(tmp_path / "kept")
        assert {series.stamped_by: [point.rows for point in series.points] for series in report.lag.over_time} == {
            "hub": [5],
            "press": [2],
        }
        rolling(hub, edge, 3)
        edge.update(at(125), "t", "x", **foreign, sequence=9, origin=at(125))
        add_segment(log, [hub, edge], 1)
        keeper.run(parts_max=1)
    shown = KeptReport(tmp_path / "kept", node="edge").lag() or ()
    assert [(lag.stamped_by, lag.updates) for lag in shown] == [("hub", 5), ("press", 1)]


@pytest.mark.spark
def test_watching_runs_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """Each run is told; a run that fails is told too and the next goes on; one run alone raises."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    rolling(hub, edge, 0)
    add_segment(tmp_path / "log", [hub, edge], 0)
    told: list[str] = []
    stop = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            Path(sealed(tmp_path / "log", "hub", 1)).write_bytes(b"no Parquet")
        elif len(told) == 2:
            Path(sealed(tmp_path / "log", "hub", 1)).unlink()
        else:
            stop.set()

    into = tmp_path / "kept"
    run_watch([tmp_path / "log"], into=into, every_s=0.01, keep_days=30, stop=stop, tell=tell)
    assert told[0] == "4 new files"
    assert told[1].startswith("failed: ")
    assert told[2] == "0 new files"
    assert read_report(into).parameters.settle_s == entry.SETTLE_S
    Path(sealed(tmp_path / "log", "hub", 1)).write_bytes(b"no Parquet")
    with pytest.raises(ReportError):
        run_watch([tmp_path / "log"], into=into, every_s=None, keep_days=30, stop=threading.Event(), tell=tell)


@pytest.mark.spark
def test_the_end_of_spark_ends_the_watching(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that went away is a fault, told once; when the signal that ended it comes here too, it is none."""
    (tmp_path / "log" / "open").mkdir(parents=True)
    stop = threading.Event()
    told: list[str] = []

    def watch() -> None:
        run_watch([tmp_path / "log"], into=tmp_path / "kept", every_s=0.01, keep_days=30, stop=stop, tell=told.append)

    def lose_connection(_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(Keeper, "run", lose_connection)
    monkeypatch.setattr(entry, "has_ended", lambda session: session is spark)
    monkeypatch.setattr(entry, "_SIGNAL_WAIT_S", 0.01)
    with pytest.raises(ReportError, match="Spark ended unexpectedly"):
        watch()
    monkeypatch.setattr(entry, "_SIGNAL_WAIT_S", 60.0)
    threading.Timer(0.05, stop.set).start()
    watch()
    assert told == []


def test_tables_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    """The fault names the directory; an error of anything else inside the block keeps its name."""
    ledger = Ledger(tmp_path / "kept")
    with ledger.locked():
        (tmp_path / "kept" / "commits").rmdir()
        with pytest.raises(ReportError, match="kept cannot be written: No such file"):
            ledger.commit(1, files=[], rows={})
    with pytest.raises(ConnectionRefusedError), ledger.locked():
        raise ConnectionRefusedError
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="cannot be written"), Ledger(tmp_path / "file").locked():
        raise AssertionError("locked")


def test_a_damaged_commit_is_told(tmp_path: Path) -> None:
    """It is named, and what to do; nothing is guessed."""
    ledger = Ledger(tmp_path)
    with ledger.locked():
        ledger.commit(1, files=[], rows={})
        (commit,) = (tmp_path / "commits").glob("*.json")
        commit.write_text("{")
        with pytest.raises(ReportError, match=f"{commit} cannot be read") as caught:
            ledger.read()
    assert "empty directory" in caught.value.hint


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_nodes_ship_is_watched_beside_a_directory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store only what is new is fetched, so many files at a time, and what is in both places counts once.

    A store that is away is told, and does not end the watching.
    """
    log, into, told = tmp_path / "log", tmp_path / "kept", list[str]()
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    monkeypatch.setattr("fanout.reports.watching.keeper._FILES_MAX", 3)
    with local_s3() as server:
        server.make_bucket("watched")
        uri = server.uri("watched/site")
        store, root = server.open("watched/site")
        stop = threading.Event()

        def watch(*logs: str, every_s: float | None) -> None:
            run_watch(logs, into=into, every_s=every_s, keep_days=30, stop=stop, tell=told.append)

        for number in (0, 1):
            rolling(hub, edge, number)
            add_segment(log, [hub, edge], number)
            pafs.copy_files(str(log), root, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=store)
        watch(uri, every_s=None)
        assert told == ["6 new files", "2 new files"], "three of a table, then the fourth"
        assert read_report(into).inputs.directories == (uri,)
        rolling(hub, edge, 2)
        add_segment(log, [hub, edge], 2)
        watch(str(log), uri, every_s=None)
        pafs.copy_files(str(log), root, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=store)
        watch(uri, every_s=None)
        assert told[2:] == ["4 new files", "0 new files"]
        report = read_report(into)
        assert (report.inputs.updates, report.inputs.update_files) == (30, 6)
        with pytest.raises(LogError, match="there is no replication log in"):
            watch(server.uri("watched/elsewhere"), every_s=None)

    def tell(text: str) -> None:
        told.append(text)
        stop.set()

    run_watch([uri], into=into, every_s=0.01, keep_days=30, stop=stop, tell=tell)
    assert told[4].startswith(f"failed: {uri} cannot be read: ")


@pytest.mark.parametrize(
    ("place", "master", "message"),
    [
        ("s3a://b/logs", "local[2]", "s3a://b/logs cannot be watched"),
        ("hdfs://name/logs", "local[2]", "cannot be watched"),
        ("s3://b/logs", "spark://cluster:7077", "on this machine only, where spark://cluster:7077 cannot read it"),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path: Path, place: str, master: str, message: str) -> None:
    """Before Spark starts, with what to do instead."""
    stop = threading.Event()
    with pytest.raises(ReportError, match=message) as caught:
        run_watch([place], into=tmp_path, every_s=None, keep_days=1, master=master, stop=stop, tell=print)
    assert "give the directory" in caught.value.hint
    with pytest.raises(LogError, match="credentials"):
        run_watch(["s3://me:secret@b/logs"], into=tmp_path, every_s=60, keep_days=1, stop=stop, tell=print)


def read_report(into: Path) -> Report:
    """Return the last result."""
    return Report.model_validate_json((into / LATEST_JSON).read_text())


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
