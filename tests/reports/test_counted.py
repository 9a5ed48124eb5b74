"""Updates without stamps, counted, over random streams with planted faults: a plain-Python oracle, and the truth."""

from __future__ import annotations

import random
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from fanout.reports.figures.job import make_report
from fanout.reports.read.log_files import LogFiles
from fanout.reports.render.page import render_page
from fanout.reports.render.terminal import print_report
from fanout.reports.values.buckets import window_us
from fanout.reports.values.document import Parameters, Report
from tests.reports.counted_logs import END_S, LINK, Counted, Faults, Message, messages, observe, random_faults
from tests.reports.counted_oracle import Counting, Judged, count_by_value
from tests.reports.logs import SECOND, NodeLog, at, write
from tests.reports.oracle import NEVER, absences, end_of, micros
from tests.support.examples import source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLE_S = 10


def judge(tap: Counted, node: Counted, *, due_us: tuple[int, int], logs: list[NodeLog]) -> Judged:
    """Return what the oracle says of a node."""
    begin_us = min(micros(row["at"]) for log in logs for row in log.events)
    away, tap_away = (
        [(after, until) for after, until, cause in absences(seen.log, LINK) if cause != "audit" and until < NEVER]
        for seen in (node, tap)
    )
    return Counting(
        tap.log.updates,
        node.log.updates,
        due_us=due_us,
        width_us=window_us(max(end_of(log) for log in logs) - begin_us),
        horizon_us=SETTLE_S * SECOND,
        away=away,
        tap_away=tap_away,
    ).judge()


def check_truth(tap: Counted, node: Counted, judged: Judged) -> None:
    """Assert that of no value more is said to be missing, or to be there, than really is."""
    rows = {row["log_pos"]: row for row in tap.log.updates}
    came = {position for position, number in tap.row_of.items() if number in node.came}
    judged_at_all = judged.applied | judged.missing | judged.unknown
    missing = count_by_value(rows, judged_at_all - came)
    there = count_by_value(rows, judged_at_all & came)
    assert count_by_value(rows, judged.missing) <= missing
    assert count_by_value(rows, judged.applied) <= there


@pytest.mark.parametrize(
    ("counters", "toggles", "constants", "unknown_share_max"),
    [(10, 10, 10, 0.01), (20, 0, 0, 0.0), (4, 0, 20, 0.01), (4, 20, 0, 0.01), (0, 10, 10, 1.0)],
)
def test_counting_never_claims_more_than_the_truth(
    counters: int, toggles: int, constants: int, unknown_share_max: float
) -> None:
    """Whatever was lost, repeated, sent again or late; and nearly all of it is known in ordinary traffic.

    Without any value that came once nothing says how late a node is, and more is unknown.
    """
    expected = unknown = lost = 0
    source = source_of(f"counting, {counters}, {toggles}, {constants}")
    for _ in range(12):
        seed = source.randrange(2**32)
        rng = random.Random(seed)
        published = messages(rng, counters=counters, toggles=toggles, constants=constants)
        tap = observe(rng, NodeLog("tap", "tap"), published, Faults(held_s=0.5, tail_s=0.002))
        node = observe(rng, NodeLog("edge"), published, faults := random_faults(rng))
        due_us = (at(faults.held_s + 0.5), at(END_S - SETTLE_S))
        judged = judge(tap, node, due_us=due_us, logs=[tap.log, node.log])
        try:
            check_truth(tap, node, judged)
            assert not judged.extra
        except AssertionError as error:
            error.add_note(f"seed {seed}, {faults}")
            raise
        expected += len(judged.applied) + len(judged.missing) + len(judged.unknown)
        unknown += len(judged.unknown)
        lost += len(judged.missing)
    assert lost
    assert unknown <= unknown_share_max * expected


def test_what_comes_again_after_an_absence_is_not_called_missing() -> None:
    """A constant that waited comes with DUP set, just before the next one; no value that came once waited."""
    away = (60.1, 61.2)
    sent = [(at_s + 0.25, "plant/alive", "1") for at_s in range(120)]
    sent += [(at_s / 3, "plant/count", str(at_s)) for at_s in range(360) if not away[0] < at_s / 3 <= away[1]]
    published = [Message(number, *one) for number, one in enumerate(sorted(sent))]
    tap, node = (
        observe(random.Random(1), NodeLog(name, role), published, Faults(tail_s=0.002, away=span))
        for name, role, span in (("tap", "tap", (0.0, 0.0)), ("edge", "secondary", away))
    )
    judged = judge(tap, node, due_us=(at(2), at(100)), logs=[tap.log, node.log])
    check_truth(tap, node, judged)
    assert not judged.missing
    assert len(judged.unknown) == 1


def test_an_update_that_is_a_little_late_is_known() -> None:
    """A busy node does nothing for some tenths of a second, now and then; all came, and the counts of values say so."""
    rng = random.Random(3)
    published = messages(rng, counters=4, toggles=20, constants=4)
    tap = observe(rng, NodeLog("tap", "tap"), published, Faults(held_s=0.5, tail_s=0.002))
    node = observe(rng, NodeLog("edge"), published, Faults(tail_s=0.002, hiccups=0.01))
    judged = judge(tap, node, due_us=(at(1.5), at(END_S - SETTLE_S)), logs=[tap.log, node.log])
    check_truth(tap, node, judged)
    assert (len(judged.missing), len(judged.unknown)) == (0, 0)
    assert max(judged.timed.values()) > 300_000


def draw(seed: int) -> tuple[Counted, list[tuple[Counted, Faults]]]:
    """Return a tap and six nodes, of which the first has no fault but its clock."""
    rng = random.Random(seed)
    published = messages(rng, counters=4, toggles=4, constants=4)
    tap = observe(rng, NodeLog("tap", "tap"), published, Faults(held_s=0.5, tail_s=0.002))
    faults = [Faults(ahead_s=3.0, hiccups=0.005), *(random_faults(rng) for _ in range(5))]
    return tap, [(observe(rng, NodeLog(f"edge-{n}"), published, one), one) for n, one in enumerate(faults)]


def completeness(spark: SparkSession, directory: Path, logs: list[NodeLog]) -> Report:
    """Return the report on logs."""
    files = LogFiles.in_directories([write(directory, logs)])
    parameters = Parameters(
        reference=None, settle_s=SETTLE_S, behind_max_s=0, depth=1, fail_under_percent=None, list_limit=100_000
    )
    return make_report(spark, files, name="completeness", parameters=parameters, progress=lambda stage: None)


@pytest.mark.spark
def test_a_report_without_stamps_counts_as_the_oracle_does(engine: SparkSession, tmp_path: Path) -> None:
    """Each long run has other logs; a failure names the seed."""
    seed = source_of("counted report").randrange(2**32)
    tap, nodes = draw(seed)
    logs = [tap.log, *(seen.log for seen, _ in nodes)]
    report = completeness(engine, tmp_path, logs)
    console = Console(width=120, file=StringIO(), record=True)
    print_report(report, console=console, verbose=True)
    for output in (report.to_json(), render_page(report), console.export_text()):
        assert "counted in order, from tap" in output.lower()
    try:
        assert report.missing is not None
        assert {one.primary for one in report.missing.listed} <= {"tap"}
        for target, (node, faults) in zip(report.targets, nodes, strict=True):
            assert target.covered_from is not None
            assert target.judged_until is not None
            assert target.unstamped is not None
            due_us = (micros(target.covered_from), micros(target.judged_until))
            judged = judge(tap, node, due_us=due_us, logs=logs)
            check_truth(tap, node, judged)
            figures = target.unstamped
            assert (figures.expected, figures.applied, figures.missing, figures.unknown, figures.unreferenced) == (
                len(judged.applied) + len(judged.missing) + len(judged.unknown),
                *(len(judged.applied), len(judged.missing), len(judged.unknown), judged.extra),
            ), (node.log.node, faults)
            assert {one.sequence for one in report.missing.listed if one.node == target.node} == judged.missing
            (lag,) = [one for one in report.lag.propagation if one.node == target.node]
            assert (lag.stamped_by, lag.lag.least_us, lag.lag.most_us, lag.lag.rows) == (
                "tap",
                *(min(judged.timed.values()), max(judged.timed.values()), len(judged.timed)),
            )
        assert report.summary is not None
        clean = next(one for one in report.summary.nodes if one.node == "edge-0")
        assert (clean.answer, clean.complete_percent_at_least, clean.missing) == ("complete", 100, 0)
        late = next(one for one in report.summary.lag if one.node == "edge-0")
        assert late.clock_ahead_us is not None
        assert abs(late.clock_ahead_us - 3 * SECOND) <= 20_000
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
