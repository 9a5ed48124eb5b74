"""The tables that `fanout report watch` keeps, and what of them counts after a kill."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
import pytest

from fanout.errors import LogError, ReportError
from fanout.node.watch_results import WatchResults
from fanout.reports import ReportOptions, entry, run_report, run_watch
from fanout.reports.keep import recent
from fanout.reports.keep.keeper import (
    COMPLETENESS_JSON,
    LATEST_JSON,
    LATEST_PAGE,
    Keeper,
    Kept,
    LastMinutes,
)
from fanout.reports.read.ledger import Ledger, Seen, checked_text, new_files, parse_checked
from fanout.reports.values.document import Report
from fanout.reports.values.figures import percent
from tests.reports.frames import rows_of
from tests.reports.logs import NodeLog, at, selector, when
from tests.reports.segments import add_segment, sealed
from tests.support.object_store import local_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    commit.write_text(checked_text(parse_checked(commit.read_bytes()) | {"format": 2}))
    with pytest.raises(ReportError, match="another version"):
        ledger.read()


EDGE_LINK = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]}


def rolling(hub: NodeLog, edge: NodeLog, number: int, *, restart: bool = False, lost: int = 0) -> None:
    """Add what one rolled segment holds: five updates, one late and the first few lost, and a heartbeat each."""
    for log in (hub, edge):
        log.updates.clear()
        log.events.clear()
    if not number:
        hub.start(at(0))
        edge.start(at(0), EDGE_LINK)
        edge.ready(at(1), "up", "#")
    if restart:
        edge.restart(at(40 * number))
        edge.start(at(40 * number), EDGE_LINK)
        edge.ready(at(40 * number + 3.5), "up", "#")
    for index in range(5):
        row = hub.publish(at(2 + 40 * number + index), 5 * number + index + 1, f"t/{index}", "x")
        if index >= lost:
            edge.apply(row, link="up", selector="#", delay_us=90_000 if index == 4 else 1_000)
    for second in (7, 8):
        edge.event("heartbeat", at(40 * number + second), link="up", lag_us=2_000)


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
    (shown,) = WatchResults(tmp_path / "kept", node="edge").lag() or ()
    assert (shown.link, shown.stamped_by, shown.updates, shown.most_seconds) == ("up", "hub", 5, 0.09)
    assert WatchResults(tmp_path / "kept", node="hub").lag() == (), "what was published at a node itself is no link"
    report = read_report(tmp_path / "kept")
    (propagation,) = report.lag.propagation
    assert (propagation.node, propagation.lag.rows, propagation.lag.most_us) == ("edge", 20, 90_000)
    assert (report.inputs.updates, report.inputs.update_files) == (40, 8)
    assert report.snapshots is not None
    assert [epoch.verdict for epoch in report.snapshots.epochs.listed] == ["ready"]
    assert "Epochs of each link" in (tmp_path / "kept" / LATEST_PAGE).read_text()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_completeness_of_the_last_minutes_is_what_the_report_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the newest files and the kept events alone it is that of the whole logs, and each new segment moves it on.

    Where it cannot be computed the tables are kept all the same.
    """
    monkeypatch.setattr(recent, "MARGIN_US", 10_000_000)
    log, into = tmp_path / "log", tmp_path / "kept"
    ledger = Ledger(into)
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    last = LastMinutes(2, None, entry.BEHIND_MAX_S, lambda: when(at(900)))
    keeper = Keeper(spark, logs=[log], ledger=ledger, settle_s=entry.SETTLE_S, last=last)

    with ledger.locked():
        rolling(hub, edge, 0)
        add_segment(log, [hub], 0)
        kept = keeper.run()
        assert kept.failure is not None
        assert "no link in the logs" in str(kept.failure)
        assert (kept.files, ledger.read().rows, (into / LATEST_JSON).exists()) == (2, {"updates": 5, "events": 1}, True)
        add_segment(log, [edge], 0)
        for number in range(1, 6):
            rolling(hub, edge, number, restart=number == 4, lost=2 if number == 4 else 0)
            add_segment(log, [hub, edge], number)
        assert keeper.run() == Kept(22, more=False)
        found = Report.model_validate_json((into / COMPLETENESS_JSON).read_text())
        window = ReportOptions(since=found.parameters.since, until=found.parameters.until)
        whole = run_report("completeness", [log], window).report
        assert found.inputs.update_files < whole.inputs.update_files
        # What was read, and of which rows each log is made, is another thing.
        same = {"inputs": whole.inputs, "logs": whole.logs}
        assert found.model_copy(update=same).to_json() == whole.to_json()
        assert found.missing is not None
        assert [(one.topic, one.cause) for one in found.missing.listed] == [("t/0", "restart"), ("t/1", "restart")]
        (shown,) = WatchResults(into, node="edge").completeness() or ()
        assert (shown.link, shown.basis, shown.exact) == ("up", "stamped", True)
        assert (shown.expected, shown.applied, shown.missing, shown.unknown, shown.pending) == (11, 9, 2, 0, 5)
        assert shown.complete_percent_at_least == shown.complete_percent_at_most == percent(9, 11)
        assert (shown.since, shown.until, shown.computed) == (when(at(86)), when(at(206) + 1), when(at(900)))
        for number in (6, 7):
            rolling(hub, edge, number, lost=7 - number)
            add_segment(log, [hub, edge], number)
        assert keeper.run() == Kept(8, more=False)
        found = Report.model_validate_json((into / COMPLETENESS_JSON).read_text())
        assert found.missing is not None
        assert [(one.topic, one.sequence, one.cause) for one in found.missing.listed] == [("t/0", 31, "live")]
        assert ledger.read().rows["updates"] == 77, "each file counted once, beside all that"
        latest = read_report(into)
        assert (latest.report, latest.targets, latest.missing) == ("watch", found.targets, found.missing)
        assert "Updates, by identity" in (into / LATEST_PAGE).read_text()
        Keeper(spark, logs=[log], ledger=ledger).run()
    assert WatchResults(into, node="edge").completeness() is None, "it is not asked for any more"
    assert not (into / COMPLETENESS_JSON).exists()


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

    from fanout.replog.files.schema import UPDATES

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
    shown = WatchResults(tmp_path / "kept", node="edge").lag() or ()
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
def test_a_completeness_that_fails_is_told_apart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken in is told before it, and the watching goes on; one run alone raises it."""
    (tmp_path / "log" / "open").mkdir(parents=True)
    stop = threading.Event()
    told: list[str] = []

    def fail(keeper: Keeper) -> Kept:
        if len(told) == 2:
            stop.set()
        return Kept(4, more=False, failure=ReportError("there is nothing to compare hub with", hint="Add logs"))

    def watch(every_s: float | None) -> None:
        run_watch(
            [tmp_path / "log"], into=tmp_path / "kept", every_s=every_s, keep_days=30, stop=stop, tell=told.append
        )

    monkeypatch.setattr(Keeper, "run", fail)
    watch(0.01)
    assert told == ["4 new files", "completeness failed: there is nothing to compare hub with"] * 2
    stop.clear()
    with pytest.raises(ReportError, match="nothing to compare"):
        watch(None)
    assert told[4:] == ["4 new files"]


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
        ledger.commit(1, files=[], rows={"updates": 4_321})
        (commit,) = (tmp_path / "commits").glob("*.json")
        written = commit.read_text()
        # Other digits are JSON as before; without a checksum an older version wrote it.
        without = {name: value for name, value in json.loads(written).items() if name != "crc"}
        commit.write_text(json.dumps(without))
        assert ledger.read().rows == {"updates": 4_321}
        for damaged in ("{", written.replace("4321", "4329")):
            commit.write_text(damaged)
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
    monkeypatch.setattr("fanout.reports.keep.keeper._FILES_MAX", 3)
    with local_s3() as server:
        server.make_bucket("watched")
        uri = server.uri("watched/site")
        store, root = server.open("watched/site")
        stop = threading.Event()

        def watch(*logs: str, every_s: float | None, minutes: float | None = None) -> None:
            run_watch(
                logs,
                into=into,
                every_s=every_s,
                keep_days=30,
                completeness_minutes=minutes,
                stop=stop,
                tell=told.append,
            )

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
        watch(uri, every_s=None, minutes=60)
        assert told[2:] == ["4 new files", "0 new files"]
        report = read_report(into)
        assert (report.inputs.updates, report.inputs.update_files) == (30, 6)
        assert [(target.stamped.expected, target.stamped.missing) for target in report.targets if target.stamped] == [
            (10, 0)
        ]
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
