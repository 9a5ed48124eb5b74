"""The reports on snapshots, convergence, stalls and traffic, against plain-Python oracles and literal logs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

from fanout.errors import ReportError
from fanout.reports.compare.convergence import digest_sum
from fanout.reports.figures import convergence, job, lag, snapshots, topic_states, topics, traffic
from fanout.reports.figures.job import make_report
from fanout.reports.figures.material import Material
from fanout.reports.figures.parquet import TABLES, ParquetTables
from fanout.reports.figures.registry import REPORTS, ReportKind
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import collect_rows
from fanout.reports.read.rows import small_frame
from fanout.reports.read.schemas import struct_of
from fanout.reports.render.lag_tables import propagation
from fanout.reports.render.tables import tables_of as tables_of_report
from fanout.reports.session.query_threads import is_remote
from fanout.reports.values.document import Parameters, Report, ReportName
from fanout.reports.values.figures import time_of
from tests.reports.frames import plan_of, rows_of, tables_of
from tests.reports.logs import SECOND, NodeLog, at, digest_of, selector, stamp, when, write
from tests.reports.oracle import Oracle
from tests.reports.random_logs import random_hub, random_secondary
from tests.reports.section_oracle import convergence_of, epochs_of, stalls_of, traffic_of
from tests.reports.surveys import survey_of
from tests.support.examples import source_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SETTLE_US = 2_500_000


@contextmanager
def plans_looked_at() -> Iterator[None]:
    """Check in the end that no query of the block ran Python or joined row by row."""
    seen: list[str] = []

    def collect(frame: DataFrame) -> list[dict[str, Any]]:
        seen.append(plan_of(frame))
        return collect_rows(frame)

    with pytest.MonkeyPatch.context() as patch:
        for module in (convergence, snapshots, topics, topic_states, traffic):
            patch.setattr(module, "collect_rows", collect)
        yield
    for plan in seen:
        for forbidden in ("Python", "ArrowEval", "CartesianProduct", "NestedLoop"):
            assert forbidden not in plan


@pytest.fixture(autouse=True)
def plans() -> Iterator[None]:
    """Look at the plans of each test's own reports."""
    with plans_looked_at():
        yield


def section(
    spark: SparkSession, files: LogFiles | Path, name: ReportName, *, parquet: Path | None = None, **asked: object
) -> Report:
    """Return one report over logs on disk."""
    parameters = {"reference": None, "settle_s": 0, "depth": 1, "fail_under_percent": None, "list_limit": 1_000_000}
    return make_report(
        spark,
        files if isinstance(files, LogFiles) else LogFiles.in_directories([files]),
        name=name,
        parameters=Parameters.model_validate(parameters | asked),
        parquet=None if parquet is None else str(parquet),
        progress=lambda stage: None,
    )


def sections(
    spark: SparkSession, files: Path, *names: ReportName, parquet: Path | None = None, **asked: object
) -> Report:
    """Return one report with the sections of several, from one look at the logs as the report on everything has it.

    Each of those reports by itself is made in a test of literal logs.
    """
    built = tuple(one for name in names for one in REPORTS[name].sections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "REPORTS", {**REPORTS, "all": ReportKind(built, REPORTS["all"].basis)})
        return section(spark, files, "all", parquet=parquet, **asked)


@pytest.fixture(scope="module")
def random_nodes() -> tuple[NodeLog, list[NodeLog]]:
    """A primary and secondaries with every kind of fault."""
    rng = random.Random(23)
    hub = random_hub(rng, updates=300)
    return hub, [random_secondary(rng, number, hub) for number in range(15)]


@pytest.fixture(scope="module")
def random_files(random_nodes: tuple[NodeLog, list[NodeLog]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their logs on disk."""
    hub, nodes = random_nodes
    return write(tmp_path_factory.mktemp("random"), [hub, *nodes])


@pytest.fixture(scope="module")
def random_tables(engine: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Where the tables of the report on them go; Sail writes none."""
    return None if is_remote(engine) else tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def random_report(engine: SparkSession, random_files: Path, random_tables: Path | None) -> Report:
    """Every section of them, with the prefixes of two levels; a window has those of one."""
    names: tuple[ReportName, ...] = ("snapshots", "convergence", "stalls", "traffic")
    with plans_looked_at():
        return sections(engine, random_files, *names, settle_s=2.5, depth=2, parquet=random_tables)


def test_snapshots_equal_the_oracle(
    random_nodes: tuple[NodeLog, list[NodeLog]], random_report: Report, random_tables: Path | None
) -> None:
    """Every epoch of every link has the oracle's figures; the Parquet table holds the same epochs."""
    hub, nodes = random_nodes
    report = random_report
    expected = epochs_of([hub, *nodes], settle_us=SETTLE_US)
    assert report.snapshots is not None
    found = {(e.node, e.link, e.process, e.epoch): e for e in report.snapshots.epochs.listed}
    assert found.keys() == expected.keys()
    for key, epoch in expected.items():
        one = found[key]
        assert epoch.begin_us is not None
        assert (one.begin, one.last) == (time_of(epoch.begin_us), time_of(epoch.last_us)), key
        assert (one.verdict, one.entered_live, one.tear_downs) == (
            epoch.verdict,
            epoch.entered_live,
            epoch.tear_downs,
        ), key
        assert (one.selectors, one.evidence) == (len(epoch.selectors), ",".join(sorted(epoch.evidence))), key
        assert one.ready == (None if epoch.live_us is None else time_of(epoch.live_us)), key
    assert sum(link.epochs for link in report.snapshots.links) == report.snapshots.epochs.total == len(expected)
    assert {"ready"} <= {epoch.verdict for epoch in expected.values()}
    if random_tables is not None:
        table = pq.read_table(random_tables / "snapshots")
        assert table.column_names == struct_of(TABLES["snapshots"]).fieldNames()
        assert len(table) == len(expected)


def test_convergence_equals_the_oracle(
    random_nodes: tuple[NodeLog, list[NodeLog]], random_report: Report, random_tables: Path | None
) -> None:
    """Each topic's verdict, each member's digest: as replaying the logs row by row says."""
    hub, nodes = random_nodes
    report = random_report
    expected = convergence_of(Oracle(hub, nodes, settle_us=SETTLE_US))
    assert report.convergence is not None
    sets = {(one.filter, one.exclude): one for one in report.convergence.sets}
    assert sets.keys() == expected.keys()
    kinds: set[str] = set()
    for key, wanted in expected.items():
        one = sets[key]
        verdicts = list(wanted.verdicts.values())
        kinds |= set(verdicts)
        for verdict in ("equal", "apart", "pending"):
            assert getattr(one, verdict) == verdicts.count(verdict), (key, verdict)
        assert one.unknown == 0
        digests = {member.node: (member.topics, int(member.digest or "", 16)) for member in one.members}
        assert digests == wanted.digests, key
    assert kinds == {"equal", "apart", "pending"}
    assert report.convergence.apart is not None
    apart = {(one.filter, one.topic) for one in report.convergence.apart.listed}
    assert apart == {(key[0], t) for key, one in expected.items() for t, v in one.verdicts.items() if v == "apart"}
    if random_tables is not None:
        assert len(pq.read_table(random_tables / "convergence")) == sum(len(one.verdicts) for one in expected.values())


def test_stalls_equal_the_oracle(
    random_nodes: tuple[NodeLog, list[NodeLog]], random_report: Report, random_tables: Path | None
) -> None:
    """Each selector's topics by verdict, and each stalled topic with its times and the other links' state."""
    hub, nodes = random_nodes
    report = random_report
    counts, stalled = stalls_of(Oracle(hub, nodes, settle_us=SETTLE_US))
    assert report.stalls is not None
    figures = {(t.node, t.link, t.filter): t for t in report.stalls.targets}
    assert figures.keys() == counts.keys()
    names = ("current", "stalled", "alone", "pending", "unknown")
    for place, wanted in counts.items():
        found = {name: getattr(figures[place], name) for name in names}
        assert found == {name: wanted[name] for name in found}, place
    assert all(sum(count[name] for count in counts.values()) for name in names)
    listed = {((t.node, t.link, t.filter), t.topic): t for t in report.stalls.topics.listed}
    assert listed.keys() == stalled.keys()
    for key, one in stalled.items():
        topic = listed[key]
        assert topic.newest == (None if one.newest_us is None else time_of(one.newest_us)), key
        assert (topic.first_lacking, topic.reference_newest) == (time_of(one.first_us), time_of(one.reference_us)), key
        assert (topic.lacking, topic.stalled_links, topic.current_links) == (
            one.lacking,
            one.stalled_links,
            one.current_links,
        ), key
    assert report.stalls.topics.total == len(stalled)
    assert random_tables is None or len(pq.read_table(random_tables / "stalls")) == len(stalled)


def test_traffic_equals_the_oracle(
    random_nodes: tuple[NodeLog, list[NodeLog]], random_report: Report, random_tables: Path | None
) -> None:
    """Each prefix has the oracle's updates, bytes, topics and shares; control topics are no traffic."""
    hub, nodes = random_nodes
    report, tables = random_report, random_tables
    counts, pending = traffic_of(hub, end_us=Oracle(hub, nodes, settle_us=0).end_us, settle_us=SETTLE_US, depth=2)
    assert report.traffic is not None
    (source,) = report.traffic.sources
    total = sum(count["updates"] for count in counts.values())
    assert (source.updates, source.pending, source.prefixes, source.exact) == (total, pending, len(counts), True)
    found = {p.prefix: p for p in report.traffic.prefixes.listed}
    assert found.keys() == counts.keys()
    for prefix, wanted in counts.items():
        one = found[prefix]
        assert {name: getattr(one, name) for name in ("updates", "payload_bytes", "retained", "topics")} == {
            name: wanted[name] for name in ("updates", "payload_bytes", "retained", "topics")
        }, prefix
        assert one.updates_percent == pytest.approx(100 * wanted["updates"] / total)
        assert [(p.node, p.updates) for p in one.publishers] == [("hub", wanted["updates"])]
    assert pending
    assert tables is None or len(pq.read_table(tables / "traffic")) == len(counts)


def test_a_window_of_sections_equals_the_oracle(
    engine: SparkSession, random_nodes: tuple[NodeLog, list[NodeLog]], random_files: Path
) -> None:
    """Epochs with a part in it, topics that stopped in it, what was published in it; another window each long run."""
    hub, nodes = random_nodes
    seed = source_of("window of sections").randrange(2**32)
    since_us, until_us = sorted(random.Random(seed).sample([at(second) for second in range(3, 59)], 2))
    asked: dict[str, Any] = {"settle_s": 2.5, "since": when(since_us), "until": when(until_us)}
    bounds: dict[str, Any] = {"since_us": since_us, "until_us": until_us}
    report = sections(engine, random_files, "snapshots", "stalls", "traffic", **asked)
    found = report.snapshots
    assert found is not None
    epochs = epochs_of([hub, *nodes], settle_us=SETTLE_US, **bounds)
    assert {(e.node, e.link, e.process, e.epoch): e.verdict for e in found.epochs.listed} == {
        key: epoch.verdict for key, epoch in epochs.items()
    }, seed
    stopped = report.stalls
    assert stopped is not None
    oracle = Oracle(hub, nodes, settle_us=SETTLE_US, **bounds)
    counts, stalled = stalls_of(oracle)
    names = ("current", "stalled", "alone", "pending", "unknown")
    assert {(t.node, t.link, t.filter): [getattr(t, name) for name in names] for t in stopped.targets} == {
        place: [wanted[name] for name in names] for place, wanted in counts.items()
    }, seed
    listed = {((t.node, t.link, t.filter), t.topic): (t.lacking, t.first_lacking) for t in stopped.topics.listed}
    assert listed == {key: (one.lacking, time_of(one.first_us)) for key, one in stalled.items()}, seed
    published = report.traffic
    assert published is not None
    (source,) = published.sources
    prefixes, pending = traffic_of(hub, end_us=oracle.end_us, settle_us=SETTLE_US, depth=1, **bounds)
    assert source.pending == pending, seed
    assert {p.prefix: p.updates for p in published.prefixes.listed} == {
        prefix: wanted["updates"] for prefix, wanted in prefixes.items()
    }, seed


def two_secondaries() -> tuple[NodeLog, NodeLog, NodeLog]:
    """Return a primary and two secondaries that replicate everything, ready after a second."""
    hub, one, two = NodeLog("hub", "primary"), NodeLog("one"), NodeLog("two")
    hub.start(at(0))
    for node in (one, two):
        node.start(at(0), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]})
        node.ready(at(1), "up", "#")
    return hub, one, two


def test_a_gap_makes_stalls_and_values_unknown(spark: SparkSession, tmp_path: Path) -> None:
    """What a gap may hide is neither stalled nor apart; the table of stalled topics is there, and empty."""
    hub, one, two = two_secondaries()
    for number in range(2):
        row = hub.publish(at(2 + number), number + 1, "a", f"{number}")
        one.apply(row, link="up", selector="#")
        if not number:
            two.apply(row, link="up", selector="#")
    two.gap(at(3.5), link="up", rows=1, first_us=at(2.5), last_us=at(3.2), first_log_pos=9, last_log_pos=9)
    for node in (hub, one, two):
        node.event("heartbeat", at(60))
    files = write(tmp_path, [hub, one, two])
    report = sections(spark, files, "stalls", "convergence", parquet=tmp_path / "tables")
    stalled, converged = report.stalls, report.convergence
    assert stalled is not None
    assert spark.read.parquet(str(tmp_path / "tables" / "stalls")).count() == 0
    assert [(t.node, t.current, t.stalled, t.unknown) for t in stalled.targets] == [("one", 1, 0, 0), ("two", 0, 0, 1)]
    assert converged is not None
    assert [(s.equal, s.apart, s.unknown) for s in converged.sets] == [(0, 0, 1)]


def test_without_stamps_no_topic_stalls_by_less_than_the_settle_horizon(spark: SparkSession, tmp_path: Path) -> None:
    """Two nodes log one update at different times, which of them first is chance; later ones are counted from there."""
    tap, edge = NodeLog("tap", "tap"), NodeLog("edge")
    for node in (tap, edge):
        node.start(at(0), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]})
        node.ready(at(1), "up", "#")
    for topic, seconds in (("early", (3.0,)), ("stopped", (3.0, 5.0, 7.0))):
        for second in seconds:
            tap.update(at(second + 0.004), topic, f"{second}", link="up", selector="#")
            if second == 3.0:
                edge.update(at(second), topic, f"{second}", link="up", selector="#")
    for node in (tap, edge):
        node.event("heartbeat", at(60))
    stalls = section(spark, write(tmp_path, [tap, edge]), "stalls", settle_s=2.5).stalls
    assert stalls is not None
    assert [(one.current, one.stalled, one.unknown) for one in stalls.targets] == [(1, 1, 0)]
    (stopped,) = stalls.topics.listed
    assert (stopped.topic, stopped.newest, stopped.first_lacking) == ("stopped", time_of(at(3)), time_of(at(7.004)))
    assert stopped.lacking == 1  # at least: the one at 5.004 may be the one of 3


def test_without_stamps_what_came_after_the_window_is_no_stall(spark: SparkSession, tmp_path: Path) -> None:
    """What waited while a link was away at the window's end is late: its row is counted as the reference's.

    A topic that goes on with other values, or with as many fewer of the same one, did stop, and so did one of which an
    older value came late. There is a link with heartbeats and one without, each to a primary of its own.
    """
    logs = {name: NodeLog(name, "tap" if name == "tap" else "secondary") for name in ("tap", "edge", "lossy")}
    links = {"heard": True, "unheard": False}
    described = [{"name": link, "primary": [f"mqtt://{link}"], "selectors": [selector("#")]} for link in links]
    for log in logs.values():
        log.start(at(0), *described)
        for link in links:
            log.ready(at(1), link, "#")
    for second, (link, heartbeats) in itertools.product(range(10, 90), links.items()):
        for name, log in logs.items():
            late = name == "edge" and 50 < second <= 70
            for topic in ("ends", "older", "other", "same"):
                lost = name == "lossy" and topic in ("other", "same") and 40 <= second < 80
                lost |= name == "edge" and topic == "older" and second >= 56
                if not lost and (topic not in ("ends", "older") or second < 60):
                    payload = "x" if topic == "same" else f"{second}"
                    log.update(at(70 if late else second), topic, payload, link=link, selector="#")
            if heartbeats and not late:
                log.event("heartbeat", at(second), link=link, lag_us=0)
    for log in logs.values():
        log.event("heartbeat", at(100))
    asked: dict[str, Any] = {"since": when(at(20)), "until": when(at(60)), "settle_s": 2.5}
    stalls = section(spark, write(tmp_path, logs.values()), "stalls", **asked).stalls
    assert stalls is not None
    older = (time_of(at(55)), time_of(at(58)), 2)  # at least: that of 56 and 57 may be the one of 55
    stopped = (time_of(at(39)), time_of(at(42)), 18)
    for link in links:
        listed = {
            (one.node, one.topic): (one.newest, one.first_lacking, one.lacking)
            for one in stalls.topics.listed
            if one.link == link
        }
        assert listed == {("edge", "older"): older} | {("lossy", topic): stopped for topic in ("other", "same")}
        assert [(one.node, one.current, one.stalled, one.alone) for one in stalls.targets if one.link == link] == [
            ("edge", 3, 1, 1),
            ("lossy", 2, 2, 2),
        ]
    assert len(stalls.targets) == 2 * len(links)


def test_digests_over_time_say_when_nodes_agreed(spark: SparkSession, tmp_path: Path) -> None:
    """Heartbeats of both links carry digests: the windows in which they are the same are counted, the last is named."""
    hub, one, two = two_secondaries()
    hub.publish(at(2), 1, "a", "x")
    for second in range(5, 10):
        for node in (one, two):
            same = second < 8 or node is one
            node.event("heartbeat", at(second + 0.2), link="up", topics=1, digest=-5 if same else 9, lag_us=100)
    hub.event("heartbeat", at(60))
    report = section(spark, write(tmp_path / "log", [hub, one, two]), "convergence", parquet=tmp_path)
    assert report.convergence is not None
    (found,) = report.convergence.sets
    assert report.convergence.window_s == 1
    # The window of `ready` compares too; there both logged no value.
    assert (found.windows_compared, found.windows_equal, found.last_equal) == (7, 5, time_of(at(7)))
    points = rows_of(spark.read.parquet(str(tmp_path / "digests")), "node", "window")
    assert [point["digest"] for point in points if point["node"] == "two"][-3:] == [-5, 9, 9]
    asked: dict[str, Any] = {"since": when(at(6)), "until": when(at(9))}
    assert spark.read.parquet(str(tmp_path / "convergence")).count() > 0
    window = section(spark, tmp_path / "log", "convergence", parquet=tmp_path, **asked).convergence
    assert spark.read.parquet(str(tmp_path / "convergence")).count() == 0
    assert window is not None
    (found,) = window.sets
    assert (found.windows_compared, found.windows_equal, found.last_equal) == (3, 2, time_of(at(7)))
    # What is held at the end of the logs is not of the window.
    assert (found.equal, found.apart, found.pending, found.unknown, window.apart) == (None,) * 5
    assert {(member.topics, member.digest) for member in found.members} == {(None, None)}
    assert {table.key for table in tables_of_report(report.model_copy(update={"convergence": window}))} >= {
        "convergence"
    }


def test_a_digest_of_many_values_wraps_as_the_nodes_do(spark: SparkSession) -> None:
    """The sum modulo 2**64 leaves the range of a long without an error."""
    digests = [2**63 - 1, 2**63 - 1, -(2**63), -1, digest_of("a", "b"), 5]
    for case in ([2**63 - 1] * 3, [-(2**63)] * 3, digests, [-1]):
        values = small_frame(spark, [(digest,) for digest in case], schema="digest bigint")
        (row,) = rows_of(values.agg(digest_sum(sf.col("digest")).alias("sum")))
        assert row["sum"] % 2**64 == sum(case) % 2**64


def test_an_epoch_that_is_torn_down_gives_way_to_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """A session lost at a reconnect: the old epoch has the tear-down, the new one begins after it."""
    edge = NodeLog("edge")
    edge.start(at(0), {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#")]})
    edge.ready(at(3), "up", "#", took_us=2 * SECOND, evidence="marker")
    edge.event("state", at(10), link="up", state="down")
    edge.event("state", at(11), link="up", state="connecting")
    edge.event("state", at(12), link="up", state="tearing_down")
    edge.event("tear_down", at(14), link="up")
    edge.link_epoch = 2
    edge.event("state", at(15), link="up", state="snapshot")
    edge.event("complete", at(16), link="up", selector="#", evidence="barrier")
    edge.event("state", at(17), link="up", state="live", topics=5)
    edge.event("state", at(18), link="up", state="down")
    edge.event("state", at(19), link="up", state="connecting")
    edge.link_epoch = 3
    edge.event("state", at(19.5), link="up", state="snapshot")
    report = section(spark, write(tmp_path, [edge]), "snapshots", settle_s=1)
    assert report.snapshots is not None
    found = [(e.epoch, e.verdict, e.ready_s, e.tear_downs, e.evidence) for e in report.snapshots.epochs.listed]
    assert found == [(3, "pending", None, 0, ""), (2, "ready", 3, 0, "barrier"), (1, "ready", 2, 1, "marker")]
    (link,) = report.snapshots.links
    assert (link.epochs, link.ready, link.pending, link.never, link.topics) == (3, 2, 1, 0, 5)


def test_traffic_without_a_primary_is_a_lower_bound(spark: SparkSession, tmp_path: Path) -> None:
    """Of a union the node that saw most of a topic counts; nobody knows where unstamped updates were published."""
    _, one, two = two_secondaries()
    for number in range(5):
        one.update(at(2 + number), "a/b", f"{number}", link="up", selector="#")
        if number < 3:
            two.update(at(2 + number), "a/b", f"{number}", link="up", selector="#")
    two.update(at(3), "c", "", link="up", selector="#")
    report = section(spark, write(tmp_path, [one, two]), "traffic")
    assert report.traffic is not None
    (source,) = report.traffic.sources
    assert (source.source, source.exact, source.updates) == ("one/up, two/up", False, 6)
    found = [(p.prefix, p.updates, p.publishers[0].node) for p in report.traffic.prefixes.listed]
    assert found == [("a", 5, None), ("c", 1, None)]
    assert "at least" in report.basis[0]


def test_reports_that_compare_need_something_to_compare(spark: SparkSession, tmp_path: Path) -> None:
    """One secondary alone can neither converge nor stall."""
    files = write(tmp_path, [two_secondaries()[1]])
    names: tuple[ReportName, ...] = ("convergence", "stalls")
    for name in names:
        with pytest.raises(ReportError, match="nothing to compare"):
            section(spark, files, name)


def test_the_publishers_beyond_the_bound_are_added_up(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stamped most has figures of its own, the rest one line; it is said how many they are."""
    monkeypatch.setattr(lag, "_SERIES_MAX", 2)
    edge = NodeLog("edge")
    edge.start(at(0))
    for number, publisher in enumerate("aaabbbccd"):
        row = edge.update(at(60 + number), "t", "x", link="up", selector="#")
        row |= stamp(publisher, 1, number, at(60 + number) - 1000 * (number + 1)) | {"link_epoch": 1}
    # Stamped long before there was a log: in the figures, but not over time.
    edge.updates[-1]["origin"] = when(at(-(10**8)))
    tables, nowhere = tables_of(spark, [edge]), ParquetTables(spark, None)
    asked = Parameters(reference=None, settle_s=0, depth=0, fail_under_percent=None, list_limit=9)
    part = lag.describe_lag(Material(spark, tables, survey=survey_of(edge), parameters=asked, parquet=nowhere))
    report = part.fields["lag"]
    assert [(one.stamped_by, one.lag.rows) for one in report.propagation] == [("(others)", 3), ("a", 3), ("b", 3)]
    assert report.others == 2
    assert [one.stamped_by for one in report.clocks] == ["a", "b"], "the others have no clock in common"
    assert {one.stamped_by: sum(point.rows for point in one.points) for one in report.over_time} == {
        "(others)": 2,
        "a": 3,
        "b": 3,
    }
    table = propagation(Report.model_construct(lag=report))
    assert "The 2 that stamped the fewest updates are added up as (others)." in table.note
