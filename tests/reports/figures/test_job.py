"""Whole reports over random and literal logs, against a plain-Python oracle."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from fanout.errors import ReportError
from fanout.reports.figures import by_identity, counted, lag, topic_states, topics
from fanout.reports.figures.job import make_report
from fanout.reports.figures.parquet import TABLES
from fanout.reports.read import reading
from fanout.reports.read.log_files import LogFiles
from fanout.reports.read.reading import collect_rows
from fanout.reports.render.page import render_page
from fanout.reports.render.terminal import print_report
from fanout.reports.session.query_threads import is_remote
from fanout.reports.values.document import MissingTopic, Parameters, Report, TargetReport
from fanout.reports.values.figures import percent, time_of
from tests.reports.frames import plan_of
from tests.reports.logs import SECOND, T0, NodeLog, at, selector, stamp, when, write
from tests.reports.oracle import NEVER, Expected, Oracle, micros
from tests.reports.random_logs import random_hub, random_reference, random_secondary
from tests.support.examples import source_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Check after each test that no query ran Python, joined row by row, or used a window for words."""
    seen: list[str] = []

    def collect(frame: DataFrame) -> list[dict[str, Any]]:
        seen.append(plan_of(frame))
        return collect_rows(frame)

    for module in (reading, by_identity, counted, lag, topic_states, topics):
        monkeypatch.setattr(module, "collect_rows", collect)
    yield seen
    for plan in seen:
        for forbidden in ("Python", "ArrowEval", "CartesianProduct", "NestedLoop"):
            assert forbidden not in plan
        assert not any("word#" in line for line in plan.splitlines() if "Window [" in line)


def completeness(
    spark: SparkSession, directory: Path, logs: list[NodeLog], *, parquet: Path | None = None, **asked: object
) -> Report:
    """Write logs and report on them."""
    parameters = {"reference": None, "settle_s": 0, "depth": 0, "fail_under_percent": None, "list_limit": 5}
    return make_report(
        spark,
        LogFiles.in_directories([write(directory, logs)]),
        name="completeness",
        parameters=Parameters.model_validate(parameters | asked),
        parquet=None if parquet is None else str(parquet),
        progress=lambda stage: None,
    )


def make_lag_report(spark: SparkSession, files: LogFiles, *, progress: Callable[[str], None]) -> Report:
    """Report on lag alone."""
    parameters = Parameters(reference=None, settle_s=0, depth=0, fail_under_percent=None, list_limit=5)
    return make_report(spark, files, name="lag", parameters=parameters, progress=progress)


def tables_without_rows(spark: SparkSession, parquet: Path) -> set[str]:
    """Return which of the tables that a report left are empty."""
    return {table.name for table in parquet.iterdir() if not spark.read.parquet(str(table)).count()}


def loss_of(expected: Expected, of: str | None = None, *, depth: int = 1000) -> list[object]:
    """Return since when, until when, and whether still, a selector loses updates; of a topic or prefix, or of all."""
    if (loss := expected.loss(of, depth=depth)) is None:
        return [None, None, None]
    first_us, last_us, goes_on = loss
    return [time_of(first_us), time_of(last_us), goes_on]


def check_losses(report: Report, oracle: dict[tuple[str, str, str], Expected], context: object = None) -> None:
    """Assert that every topic and every prefix that lacks updates has its counts and times."""
    assert report.missing_topics is not None
    topics: dict[tuple[str, str, str, str], MissingTopic] = {}
    for one in report.missing_topics.listed:
        expected = oracle[one.node, one.link, one.filter]
        topics[one.node, one.link, one.filter, one.topic] = one
        lost = [at_us for at_us, topic, is_lost in expected.certain if is_lost and topic == one.topic]
        assert one.missing == len(lost), (context, one)
        assert [one.first_missing, one.last_missing, one.going_on] == loss_of(expected, one.topic), (context, one)
    assert topics.keys() == {
        (*place, topic) for place, e in oracle.items() for _, topic, is_lost in e.certain if is_lost
    }, context
    assert report.missing_topics.total == len(topics) == len(report.missing_topics.listed)
    worst_first = [(-one.missing, -one.unknown, one.topic) for one in report.missing_topics.listed]
    assert worst_first == sorted(worst_first), context
    assert report.prefixes is not None
    for prefix in report.prefixes.listed:
        found = [prefix.first_missing, prefix.last_missing, prefix.going_on]
        expected = oracle[prefix.node, prefix.link, prefix.filter]
        assert found == loss_of(expected, prefix.prefix, depth=report.parameters.depth), (context, prefix)


def checked_counts(target: TargetReport, expected: Expected, place: object) -> tuple[dict[str, int], int | None]:
    """Return what is counted of a selector, the causes of what it misses among it, and apart what nobody has seen.

    All but that is what the oracle expects.
    """
    assert target.stamped is not None
    figures = {k: v for k, v in target.stamped.model_dump().items() if not k.startswith("complete_")}
    causes, unseen = figures.pop("causes"), figures.pop("unseen")
    since = [figures.pop(name) for name in ("first_missing", "last_missing", "going_on")]
    assert since == loss_of(expected), place
    assert {name: number for name, number in causes.items() if number} == expected.causes, place
    assert figures == {name: expected.updates[name] for name in figures}, place
    return figures | causes, unseen


def test_random_logs_give_what_the_oracle_says(engine: SparkSession, tmp_path: Path) -> None:
    """Every figure of every selector equals the oracle's, with faults of every kind and sequences near 2**60."""
    rng = random.Random(1)
    hub = random_hub(rng, updates=500)
    nodes = [random_secondary(rng, number, hub) for number in range(30)]
    report = completeness(engine, tmp_path, [hub, *nodes], settle_s=2.5, list_limit=1_000_000, depth=2)
    oracle = Oracle(hub, nodes, settle_us=2_500_000).figures()

    assert len(report.targets) == len(oracle)
    seen: set[str] = set()
    for target in report.targets:
        place = (target.node, target.link, target.filter)
        expected = oracle[place]
        assert target.basis == "stamped"
        figures, unseen = checked_counts(target, expected, place)
        assert unseen == 0
        assert target.final is not None
        finals = {k: v for k, v in target.final.model_dump().items() if not k.startswith("equal_")}
        assert finals == {name: expected.finals[name] for name in finals}, place
        seen |= {name for counts in (figures, finals) for name, number in counts.items() if number}
    # A kind of fault that no log had would prove nothing.
    assert seen >= {"missing", "superseded", "unknown", "reobtained", "conflated", "duplicated", "stale", "refused"}
    assert seen >= {"pending", "equal", "different", "absent", "extra"}
    assert seen >= {"restart", "new_epoch", "resumed", "audit", "live"}

    assert report.over_time is not None
    assert report.over_time.window_s == 1
    over_time: defaultdict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for (node, link, _), one in oracle.items():
        for second, counts in one.over_time.items():
            over_time[node, link, second] += counts
    assert {
        (series.node, series.link, round(point.at.timestamp())): Counter(point.model_dump(exclude={"at"}))
        for series in report.over_time.series
        for point in series.points
    } == over_time

    assert report.missing is not None
    listed = {(m.node, m.link, m.filter, m.primary, m.epoch, m.sequence) for m in report.missing.listed}
    assert listed == {(*place, *update) for place, e in oracle.items() for update in e.missing}
    assert report.missing.total == len(listed) == len(report.missing.listed)
    assert report.prefixes is not None
    assert sum(p.missing for p in report.prefixes.listed) == report.missing.total
    check_losses(report, oracle)
    assert {loss[2] for e in oracle.values() if (loss := e.loss()) is not None} >= {True, False}


@pytest.mark.parametrize(
    "kind", ["first_tier", pytest.param("primary", marks=pytest.mark.long), pytest.param("tap", marks=pytest.mark.long)]
)
def test_references_with_gaps_give_what_the_oracle_says(engine: SparkSession, tmp_path: Path, kind: str) -> None:
    """Whatever the reference is and lacks, every figure equals the oracle's, and what is not shown is not complete.

    Each long run has other logs; a failure names the seed.
    """
    seed = source_of(f"gaps, {kind}").randrange(2**32)
    rng = random.Random(seed)
    hub = random_hub(rng, updates=400)
    nodes = [random_secondary(rng, number, hub) for number in range(8)]
    reference = random_reference(rng, kind, hub)
    report = completeness(engine, tmp_path, [reference, *nodes], settle_s=2.5, list_limit=1_000_000, behind_max_s=4)
    assert report.reference is not None
    assert report.reference.kind == kind
    link = "" if kind == "primary" else "up"
    oracle = Oracle(reference, nodes, link=link, settle_us=2_500_000, behind_max_us=4_000_000).figures()
    assert len(report.targets) == len(oracle)
    for target in report.targets:
        place = (seed, target.node, target.link, target.filter)
        expected = oracle[place[1:]]
        figures, unseen = checked_counts(target, expected, place)
        assert target.stamped is not None
        assert target.final is not None
        finals = {k: v for k, v in target.final.model_dump().items() if not k.startswith("equal_")}
        # A tap has one process, so its gap leaves open what its topics have that were not logged since.
        assert kind == "tap" or finals == {name: expected.finals[name] for name in finals}, place
        assert target.stamped.complete_percent is None, place
        if kind == "tap":
            assert (unseen, target.stamped.complete_percent_at_least) == (None, None), place
            continue
        assert unseen == expected.updates["unseen"], place
        there = figures["expected"] - figures["missing"] - figures["unknown"]
        assert target.stamped.complete_percent_at_least == percent(there, figures["expected"] + unseen), place


@pytest.mark.parametrize("kind", ["primary", pytest.param("tap", marks=pytest.mark.long)])
def test_a_window_of_random_logs_gives_what_the_oracle_says(
    engine: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: list[str], kind: str
) -> None:
    """Asked for a window, every figure is of what was stamped in it, whenever it arrived; others are not there.

    Each long run has other logs and another window; a failure names the seed.
    """
    monkeypatch.setattr(by_identity, "_CLOCK_STEP_US", 0)  # logs of a minute; their clocks are steady
    seed = source_of(f"window, {kind}").randrange(2**32)
    rng = random.Random(seed)
    hub = random_hub(rng, updates=400)
    nodes = [random_secondary(rng, number, hub) for number in range(8)]
    reference = random_reference(rng, kind, hub)
    edges = sorted(rng.sample([at(second) for second in range(3, 57)], 2))
    if rng.random() < 0.5:  # an update at the very edge
        edges[0] = int((rng.choice(hub.updates[:100])["origin"] - when(0)) / timedelta(microseconds=1))
    since_us, until_us = min(edges), NEVER if kind == "tap" else max(edges)
    until = None if kind == "tap" else when(until_us)
    report = completeness(
        engine,
        tmp_path,
        [reference, *nodes],
        settle_s=2.5,
        list_limit=1_000_000,
        behind_max_s=4,
        depth=1,
        since=when(since_us),
        until=until,
    )
    oracle = Oracle(
        reference,
        nodes,
        link="" if kind == "primary" else "up",
        settle_us=2_500_000,
        behind_max_us=4_000_000,
        since_us=since_us,
        until_us=until_us,
    ).figures()
    skips = [re.search(r"Filter [^\n]*applied#\d+ >= ", plan) for plan in plans if "bit_or" in plan]
    assert is_remote(engine) or any(skips) is (kind == "primary")
    assert len(report.targets) == len(oracle)
    for target in report.targets:
        place = (seed, target.node, target.link, target.filter)
        expected = oracle[place[1:]]
        _, unseen = checked_counts(target, expected, place)
        assert unseen == (expected.updates["unseen"] if kind == "primary" else None), place
        assert (target.complete_at is not None) is expected.held, place
        assert (target.final is None) is (until is not None), "with a begin alone the logs end when the window does"
    assert report.missing is not None
    listed = {(m.node, m.link, m.filter, m.primary, m.epoch, m.sequence) for m in report.missing.listed}
    assert listed == {(*place, *update) for place, e in oracle.items() for update in e.missing}, seed
    assert all(since_us <= micros(m.origin) < until_us for m in report.missing.listed), seed
    assert report.prefixes is not None
    assert sum(p.missing for p in report.prefixes.listed) == report.missing.total, seed
    check_losses(report, oracle, seed)
    assert report.window is not None
    assert report.window.begin == when(since_us), seed
    assert until is None or report.window.end == until, seed
    for points in (series.points for series in report.lag.over_time):
        assert all(since_us - report.lag.window_s * SECOND < micros(p.at) < until_us for p in points), seed


def primary_and_secondaries() -> list[NodeLog]:
    """Return a primary whose 200 updates one secondary got and another was cut off from for a while."""
    hub, whole, cut = NodeLog("hub", "primary"), NodeLog("whole"), NodeLog("cut")
    hub.start(at(0))
    link = {"name": "up", "primary": ["mqtt://hub:1883"], "selectors": [selector("plant/#", "plant/debug/#")]}
    for node in (whole, cut):
        node.start(at(0.1), link)
        node.ready(at(1), "up", "plant/#")
    for number in range(200):
        topic = "plant/debug/x" if number % 10 == 9 else f"plant/{number % 7}"
        row = hub.publish(at(2 + number / 10), number + 1, topic, str(number))
        if number % 10 == 9:
            continue
        whole.apply(row, link="up", selector="plant/#")
        if not 50 <= number < 100:
            cut.apply(row, link="up", selector="plant/#")
    for node in (hub, whole, cut):
        node.event("stop", at(60))
    return [hub, whole, cut]


def copy_of(log: NodeLog, node: str) -> NodeLog:
    """Return the log of a node that saw the same."""
    events, updates = ([row | {"node": node} for row in rows] for rows in (log.events, log.updates))
    return NodeLog(node, updates=updates, events=events, log_pos=log.log_pos)


def test_each_secondary_lacks_exactly_what_it_did_not_get(jvm: SparkSession, tmp_path: Path, plans: list[str]) -> None:
    """Of one that was cut off, of logs that end early, and of logs from which rows were removed.

    After a log that is late updates are pending; after one whose node may be dead they are unknown. Rows that were
    logged and are not there any more are no loss of the node. One that keeps its log for a shorter time than the
    primary is covered from what is left, and says from when.
    """
    hub, whole, cut = primary_and_secondaries()
    late, torn, short = (copy_of(whole, name) for name in ("late", "torn", "short"))
    late.events[-1].update(event="heartbeat", at=when(at(61)))  # instead of the stop
    del torn.updates[100:103]
    short.updates = [row for row in short.updates if row["log_pos"] > 100]
    dead = NodeLog("dead")
    dead.start(at(0), {"name": "up", "primary": ["mqtt://hub:1883"], "selectors": [selector("plant/#")]})
    dead.ready(at(1), "up", "plant/#")
    for row in hub.updates:
        dead.apply(row, link="up", selector="plant/#")
    for number in range(8):
        hub.publish(at(100 + 10 * number), 201 + number, "plant/1", str(number))
    hub.event("heartbeat", at(180))
    logs = [hub, whole, cut, late, torn, short, dead]
    report = completeness(jvm, tmp_path, logs, fail_under_percent=99.9, behind_max_s=120, depth=1)
    by_node = {target.node: target for target in report.targets}
    figures = {node: target.stamped for node, target in by_node.items() if target.stamped is not None}
    assert {node: (one.expected, one.missing, one.unknown, one.pending) for node, one in figures.items()} == {
        "whole": (180, 0, 0, 0),
        "cut": (180, 45, 0, 0),
        "late": (180, 0, 0, 8),
        "torn": (180, 0, 3, 0),
        "short": (figures["short"].expected, 0, 0, 0),
        "dead": (208, 0, 8, 0),
    }
    assert 50 < figures["short"].expected < 100
    assert {node: one.complete_percent for node, one in figures.items()} == {
        **dict.fromkeys(("whole", "late", "short"), 100),
        **{"cut": 75, "torn": None, "dead": None},
    }
    assert all(target.exact for target in report.targets), "the primary's log has everything"
    finals = {node: target.final for node, target in by_node.items() if target.final is not None}
    assert {node: (finals[node].equal, finals[node].pending, finals[node].unknown) for node in ("late", "dead")} == {
        "late": (6, 1, 0),
        "dead": (7, 0, 1),
    }
    assert report.reference is not None
    assert [(s.first, s.last, s.absent) for s in report.reference.sequences] == [(1, 208, 0)]
    assert report.verdict is not None
    assert (report.verdict.passed, report.verdict.lowest_percent) == (False, 75)
    assert report.missing is not None
    assert (report.missing.total, len(report.missing.listed)) == (45, 5)
    assert report.prefixes is not None
    assert [(p.node, p.prefix, p.missing) for p in report.prefixes.listed][:1] == [("cut", "plant", 45)]
    assert report.prefix_map is not None
    (prefix,) = report.prefix_map.listed
    assert (prefix.prefix, report.prefix_map.total) == ("plant", 1)
    at_nodes = [(one.node, one.expected, one.missing, one.complete_percent_at_least) for one in prefix.nodes]
    assert [at_nodes[0], at_nodes[-1]] == [("cut", 180, 45, 75), ("whole", 180, 0, 100)]
    assert {p.lag.p50_us for p in report.lag.propagation} == {1000}
    assert {link.last_ready_s for link in report.ready.links} == {1}
    assert [notice.partition(";")[0].partition(": ")[2] for notice in report.notices if "its log ends" in notice] == [
        "its log ends 158.1 s before the reference's without a stop: whether it got what came later is unknown.",
        "its log ends 119.0 s before the reference's without a stop",
    ]
    (notice,) = (notice for notice in report.notices if "are absent" in notice)
    assert notice.endswith(
        ": 3 rows inside its log are absent, and no gap event says why: updates that it lacks of that time are "
        "unknown, not missing."
    )
    assert any("short: the beginning of its log is gone" in notice for notice in report.notices)
    assert report.window is not None
    judged = {node: target.judged_until for node, target in by_node.items()}
    assert judged["dead"] == report.window.settled_until
    assert judged["late"] is not None
    assert round((report.window.settled_until - judged["late"]).total_seconds(), 1) == 119
    assert len(plans) >= 10


def test_a_window_is_judged_by_what_was_published_in_it(jvm: SparkSession, tmp_path: Path) -> None:
    """Loss, lag and final values of another time are not of it; what came after its end is no loss."""
    hub, whole, cut = primary_and_secondaries()
    late = next(row for row in whole.updates if row["sequence"] == 85)
    late["applied"] += timedelta(seconds=30)
    for node in (whole, cut):
        for second in range(3, 50):
            node.event("heartbeat", at(second), link="up", lag_us=100)
    directory = write(tmp_path, [hub, whole, cut])

    def asked(since: float, until: float) -> Report:
        window = {"since": when(at(since)), "until": when(at(until))}
        return completeness(jvm, directory, [], parquet=tmp_path / "tables", fail_under_percent=99, **window)

    report = asked(7, 12)
    assert tables_without_rows(jvm, tmp_path / "tables") == {"final_values"}
    figures = {target.node: target.stamped for target in report.targets}
    assert figures["cut"] is not None
    assert figures["whole"] is not None
    assert (figures["whole"].expected, figures["whole"].applied, figures["whole"].complete_percent) == (45, 45, 100)
    assert (figures["cut"].expected, figures["cut"].missing) == (45, 45)
    assert report.verdict is not None
    assert (report.verdict.passed, report.verdict.lowest_percent) == (False, 0)
    assert [(one.node, one.lag.rows, one.lag.most_us) for one in report.lag.propagation] == [("whole", 45, 30_001_000)]
    assert [one.lag.rows for one in report.lag.heartbeat] == [5, 5]
    assert report.ready.links == (), "both were ready before"
    assert [target.final for target in report.targets] == [None, None]
    assert report.differing is None
    console = Console(width=120, file=StringIO(), record=True)
    print_report(report, console=console, verbose=True)
    for output in (render_page(report), console.export_text()):
        assert "from 2026-02-02\u00a002:40:07 until 2026-02-02\u00a002:40:12 UTC" in output
        assert "Final values (" not in output
    with pytest.raises(ReportError, match="hold nothing of the window") as caught:
        asked(61, 62)
    assert "2026-02-02 02:40:00 to 2026-02-02 02:41:00 UTC" in caught.value.hint


def test_what_publishers_stamped_is_counted_once_and_by_the_clock_of_the_primary(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An update that a publisher sent twice is one; its clock, an hour behind, does not take updates out."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    hub.start(at(0))
    edge.start(at(0), {"name": "up", "primary": "mqtt://hub:1883", "selectors": [selector("plant/#")]})
    edge.ready(at(1), "up", "plant/#")
    for number in range(40):
        theirs = stamp("machine-7", 1, number // 2, at(number - 3600))
        own = stamp("hub", T0, number, at(2 + number))
        row = hub.update(at(2 + number), f"plant/{number // 2}", "v", **(own if number < 20 else theirs))
        if number not in (7, 30, 31):  # one of the primary's own, and both copies of one of the publisher's
            edge.apply(row, link="up", selector="plant/#", applied=row["applied"] + timedelta(milliseconds=1))
    report = completeness(spark, tmp_path, [hub, edge], depth=1)
    (target,) = report.targets
    assert target.stamped is not None
    assert target.stamped_by == ("hub", "machine-7")
    assert (target.stamped.expected, target.stamped.applied, target.stamped.missing) == (30, 28, 2)
    assert target.stamped.duplicated == 9
    assert report.prefixes is not None
    assert [(p.expected, p.missing) for p in report.prefixes.listed] == [(30, 2)]
    assert report.missing is not None
    assert [(one.primary, one.origin) for one in report.missing.listed] == [
        ("hub", time_of(at(9))),
        ("machine-7", time_of(at(32))),
    ]


def test_what_the_reference_lacks_is_not_complete(spark: SparkSession, tmp_path: Path) -> None:
    """Updates that the primary could not log may be lost at a node as well: only what it logged itself is not."""
    hub, whole, cut = primary_and_secondaries()
    hub.updates = [row for row in hub.updates if not 50 < row["sequence"] <= 100]
    hub.gap(at(61), rows=50, first_log_pos=52, last_log_pos=101, first_us=at(7), last_us=at(12))
    report = completeness(spark, tmp_path, [hub, whole, cut], fail_under_percent=90, depth=1)
    by_node = {target.node: target.stamped for target in report.targets}
    figures = by_node["cut"]
    assert figures is not None
    assert (figures.expected, figures.missing, figures.unknown, figures.unreferenced) == (135, 0, 0, 0)
    assert (figures.unseen, figures.complete_percent, figures.complete_percent_at_most) == (50, None, 100)
    assert figures.complete_percent_at_least == 100 * 135 / 185
    figures = by_node["whole"]
    assert figures is not None
    assert (figures.unreferenced, figures.unseen) == (45, 5)
    assert report.verdict is not None
    assert not report.verdict.passed
    assert "cut/up" in report.verdict.because
    assert report.prefixes is not None
    assert {(p.complete_percent_at_least, p.complete_percent_at_most) for p in report.prefixes.listed} == {(None, 100)}
    page = render_page(report)
    assert "≥ 72.9" in page.replace("\u00a0", " ")
    assert 'class="number heat-0"' not in page


def test_rows_removed_from_the_log_of_the_primary_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is called complete that is compared with such a log."""
    hub, whole, _ = primary_and_secondaries()
    del hub.updates[30:32]
    report = completeness(spark, tmp_path, [hub, whole], fail_under_percent=99)
    (target,) = report.targets
    figures = target.stamped
    assert figures is not None
    assert (figures.expected, figures.missing, figures.unknown, figures.unreferenced) == (178, 0, 0, 2)
    assert (figures.complete_percent, target.exact) == (None, False)
    assert report.reference is not None
    assert [s.absent for s in report.reference.sequences] == [2]
    (notice,) = (notice for notice in report.notices if "are absent" in notice)
    assert ": 2 rows inside the reference's log are absent, and no gap event says why: " in notice


def test_what_a_mixed_reference_did_not_stamp_counts_against(spark: SparkSession, tmp_path: Path) -> None:
    """When stamps begin half-way, the updates before have no figure but their number, and are not called complete."""
    hub, whole, _ = primary_and_secondaries()
    tap = NodeLog("tap", "tap")
    tap.start(at(0), {"name": "up", "primary": ["mqtt://hub:1883"], "selectors": [selector("plant/#")]})
    tap.ready(at(1), "up", "plant/#")
    for row in hub.updates:
        tap.apply(row, link="up", selector="plant/#", delay_us=700)
    for row in (*tap.updates, *whole.updates):
        if row["origin"] < when(at(12)):
            row.update(stamp_primary=None, stamp_epoch=None, sequence=None, origin=None)
    tap.event("stop", at(60))
    report = completeness(spark, tmp_path, [tap, whole], fail_under_percent=60)
    (target,) = report.targets
    assert target.stamped is not None
    assert target.basis == "stamped"
    assert (target.stamped.expected, target.stamped.missing, target.stamped.unidentified) == (90, 0, 90)
    assert (target.stamped.unseen, target.stamped.complete_percent) == (None, None)
    assert report.verdict is not None
    assert (report.verdict.passed, report.verdict.lowest_percent) == (False, 50)


def test_everything_is_in_one_report(jvm: SparkSession, tmp_path: Path) -> None:
    """One look at the logs gives every section with one reference, its basis and its table.

    One secondary brings no stamps, as over MQTT 3.1.1, beside one that does. So the primary is compared with by
    identity and by counting, and its traffic counts once.
    """
    hub, whole, cut = primary_and_secondaries()
    cut.updates = [row for row in cut.updates if row["topic"] != "plant/3" or row["applied"] < when(at(15))]
    for position, row in enumerate(sorted([*cut.updates, *cut.events], key=lambda row: int(row["log_pos"])), 1):
        row["log_pos"] = position
    for row in cut.updates:
        row.update(stamp_primary=None, stamp_epoch=None, sequence=None, origin=None)
    stages: list[str] = []
    report = make_report(
        jvm,
        LogFiles.in_directories([write(tmp_path / "log", [hub, whole, cut])]),
        name="all",
        parameters=Parameters(reference=None, settle_s=1, depth=2, fail_under_percent=99, list_limit=5),
        parquet=str(tmp_path / "tables"),
        progress=stages.append,
    )
    assert [stage.partition(",")[0] for stage in stages] == [
        *("first look at the logs", "updates", "final values", "lag"),
        *("epochs", "stalls", "convergence", "traffic"),
    ]
    assert (report.report, report.reference and report.reference.name) == ("all", "hub")
    assert [statement.split()[0] for statement in report.basis] == ["Stamped:", "Counted", "Traffic:", "Epochs:"]
    by_node = {target.node: target for target in report.targets}
    exact, bounds = by_node["whole"].stamped, by_node["cut"].unstamped
    assert exact is not None
    assert bounds is not None
    assert (by_node["whole"].exact, exact.expected, exact.missing, exact.pending) == (True, 180, 0, 0)
    late = sum(1 for number in range(130, 200) if number % 7 == 3 and number % 10 != 9)
    assert (by_node["cut"].exact, bounds.expected, bounds.missing) == (True, 180, 45 + late)
    finals = {node: target.final for node, target in by_node.items()}
    assert finals["whole"] is not None
    assert finals["cut"] is not None
    assert (finals["whole"].equal, finals["cut"].equal, finals["cut"].different) == (7, 6, 1)
    assert report.reference is not None
    assert [(one.first, one.last) for one in report.reference.sequences] == [(1, 200)]
    assert report.verdict is not None
    assert (report.verdict.passed, report.verdict.lowest_percent) == (False, 100 * (135 - late) / 180)
    assert [notice for notice in report.notices if "brought no stamps" in notice]
    assert report.stalls is not None
    assert {(topic.node, topic.topic) for topic in report.stalls.topics.listed} == {("cut", "plant/3")}
    assert report.convergence is not None
    assert report.convergence.apart is not None
    assert {(one.topic, len(one.values)) for one in report.convergence.apart.listed} == {("plant/3", 2)}
    assert report.snapshots is not None
    assert [(link.node, link.ready) for link in report.snapshots.links] == [("cut", 1), ("whole", 1)]
    assert report.traffic is not None
    assert [(source.source, source.updates) for source in report.traffic.sources] == [("hub, published", 200)]
    assert {prefix.prefix for prefix in report.traffic.prefixes.listed} <= {
        "plant/debug",
        *map("plant/{}".format, range(7)),
    }
    assert [p.node for p in report.lag.propagation] == ["cut", "whole"]
    assert {path.name for path in (tmp_path / "tables").iterdir()} == set(TABLES)


def test_secondaries_alone_are_compared_with_one_another(spark: SparkSession, tmp_path: Path) -> None:
    """The union is the reference, and it is said: by identity where there are stamps, and by counting where not.

    By identity all that the one without stamps got would be missing, and every topic have stopped.
    """
    _, whole, cut = primary_and_secondaries()
    bare = copy_of(cut, "bare")
    for row in bare.updates:
        row.update(stamp_primary=None, stamp_epoch=None, sequence=None, origin=None)
    report = make_report(
        spark,
        LogFiles.in_directories([write(tmp_path / "log", [whole, cut, bare])]),
        name="summary",
        parameters=Parameters(reference=None, settle_s=1, depth=2, fail_under_percent=1, list_limit=5),
        progress=lambda stage: None,
    )
    assert report.reference is not None
    assert (report.reference.name, report.reference.nodes) == ("union", ("bare", "cut", "whole"))
    assert any("compared with one another" in statement for statement in report.basis)
    assert not any(target.exact for target in report.targets)
    figures = {target.node: target.stamped or target.unstamped for target in report.targets}
    assert {node: (one.expected, one.missing) for node, one in figures.items() if one is not None} == {
        "whole": (171, 0),  # by its clock of stamps nine are too young
        "cut": (171, 45),
        "bare": (180, 45),
    }
    by_node = {target.node: target for target in report.targets}
    assert by_node["bare"].unstamped is not None
    assert by_node["bare"].final is not None
    assert by_node["bare"].final.equal == 7
    assert report.stalls is not None
    assert {one.node: one.stalled for one in report.stalls.targets} == {"whole": 0, "cut": 0, "bare": 0}
    assert report.verdict is not None
    assert not report.verdict.passed
    assert "compared with one another only" in report.verdict.because


def test_lag_needs_no_reference(jvm: SparkSession, tmp_path: Path) -> None:
    """The lag report is made of the nodes' own rows, for a single node too; without any row it is refused."""
    logs = primary_and_secondaries()[1:2]
    files = LogFiles.in_directories([write(tmp_path, logs)])
    stages: list[str] = []
    report = make_lag_report(jvm, files, progress=stages.append)
    assert (report.report, report.reference, report.targets) == ("lag", None, ())
    (basis,) = report.basis
    assert all(said in basis for said in ("from an update's stamp", "without a stamp", "heartbeats", "two clocks"))
    assert [p.lag.rows for p in report.lag.propagation] == [180]
    assert stages == ["first look at the logs", "lag, 180 rows", "epochs, 180 rows"]
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not Parquet")
    for wrong, said in (
        (LogFiles(files.updates[:0], (), ()), "no log file"),
        (LogFiles.of_files(updates=[broken], events=[], directories=[tmp_path]), f"^{broken} cannot be read"),
    ):
        with pytest.raises(ReportError, match=said):
            make_lag_report(jvm, wrong, progress=stages.append)
