"""Lower bounds without stamps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.compare import absences, multisets
from fanout.reports.identify.planning import decide_scope
from fanout.reports.read.reading import take_survey
from fanout.reports.read.scope import WHOLE, AskedWindow, Target
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import SECOND, NodeLog, Row, at, selector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LINK = {"name": "up", "primary": ["mqtt://broker"], "selectors": [selector("#")]}


def counts_of(
    spark: SparkSession,
    logs: list[NodeLog],
    *,
    settle_us: int = SECOND,
    requested: str | None = None,
    window: AskedWindow = WHOLE,
    unique: bool = False,
    place: Callable[[Target], Any] = attrgetter("node"),
) -> dict[Any, dict[str, Any]]:
    """Return the counts by node or `place`; with `unique` after a look at what each frame promises to have once."""

    def look(frame: DataFrame, *key: str) -> None:
        if unique:
            assert_unique(frame, *key)

    tables = tables_of(spark, logs)
    survey = take_survey(tables)
    scope = decide_scope(survey, requested=requested, settle_us=settle_us, window=window)
    published, logged = multisets.rows_by_value(tables, scope=scope, targets=scope.targets)
    gaps = any(target.gaps_us for target in scope.targets)
    seen = multisets.reference_multiset(published, scope=scope, gaps=gaps)
    look(seen, "target", "topic", "digest")
    got = multisets.node_multiset(logged)
    look(got, "target", "topic", "digest")
    differences = multisets.value_differences(seen, nodes=got)
    look(differences, "target", "topic", "digest")
    counts = multisets.count_multisets(multisets.sum_by_topic(differences))
    found = absences.link_absences(tables.events)
    spans_away = absences.absences_of_targets(found, survey=survey, scope=scope)
    causes = multisets.count_causes(
        differences, rows=published, absences=spans_away, span_us=survey.span_us(WHOLE), log_rows=survey.rows, gaps=gaps
    )
    look(causes, "target")
    by_target = {row.pop("target"): row for row in rows_of(causes)}
    return {
        place(scope.targets[row["target"]]): row
        | {"causes": {k: n for k, n in by_target.get(row["target"], {}).items() if n}}
        for row in rows_of(counts)
    }


def observers(*nodes: str, tap: bool = True) -> list[NodeLog]:
    """Return a tap and secondaries that hold everything since second 1, without stamps."""
    logs = [NodeLog("tap", "tap")] if tap else []
    logs += [NodeLog(node) for node in nodes]
    for log in logs:
        log.start(at(0), LINK)
        log.ready(at(1), "up", "#")
    return logs


def see(log: NodeLog, at_us: int, topic: str, payload: str, **columns: Any) -> Row:
    """Log an unstamped update of the link."""
    return log.update(at_us, topic, payload, link="up", selector="#", **columns)


def test_bounds_hold_and_are_exact_for_unique_values(spark: SparkSession) -> None:
    """The bound equals the losses where no value repeats, and never exceeds them where values toggle."""
    rng = random.Random(11)
    tap, unique, toggling = observers("unique", "toggling")
    lost = {"unique": 0, "toggling": 0}
    for number in range(600):
        now = at(2 + number / 20)
        for node, topic, payload in ((unique, "u", str(number)), (toggling, "s", rng.choice("01"))):
            see(tap, now, topic, payload)
            judged = now <= at(60) - SECOND
            if rng.random() < 0.1:
                lost[node.node] += judged
                continue
            see(node, now + rng.randrange(-200_000, 900_000), topic, payload)
    for log in (tap, unique, toggling):
        log.event("heartbeat", at(60))
    counts = counts_of(spark, [tap, unique, toggling], unique=True)
    # Each selects both topics, so each lacks the other's 600 too.
    assert counts["unique"]["missing"] == lost["unique"] + 600
    assert 600 < counts["toggling"]["missing"] <= 600 + lost["toggling"]
    assert counts["toggling"]["repeated_topics"] == 1
    assert counts["unique"]["extra"] == 0
    assert counts["unique"]["reference_updates"] == 1200


def test_doubtful_rows_never_accuse(spark: SparkSession) -> None:
    """A possible second copy, a retained copy, a neighbour of the window and a gap are no proof of a loss."""
    tap, edge = observers("edge")
    see(tap, at(2), "t", "twice")
    see(tap, at(2.1), "t", "twice", flags=1)  # DUP: perhaps the same message again
    see(edge, at(2), "t", "twice")
    see(tap, at(3), "t", "copied")
    see(edge, at(4), "t", "copied", phase=1)
    see(tap, at(0.5), "t", "before")
    see(tap, at(59.5), "t", "young")
    see(tap, at(10), "t", "in the gap")
    see(tap, at(11.9), "t", "in the gap by another clock")
    edge.gap(at(11), link="up", rows=2, first_us=at(9), last_us=at(11))
    see(tap, at(20), "t", "lost")
    see(edge, at(21), "t", "only here")
    tap.event("heartbeat", at(60))
    edge.event("heartbeat", at(60))
    found = counts_of(spark, [tap, edge])["edge"]
    assert (found["missing"], found["extra"], found["unknown"]) == (1, 1, 2)
    assert (found["reference_updates"], found["node_updates"]) == (3, 2)


def test_a_union_counts_the_source_that_saw_most(spark: SparkSession) -> None:
    """What two nodes saw is not added up: the larger count of the two is what there was at least."""
    one, two = observers("one", "two", tap=False)
    for second in (2, 3):
        see(one, at(second), "t", "x")
    see(two, at(2), "t", "x")
    see(two, at(4), "t", "y")
    one.event("heartbeat", at(60))
    two.event("heartbeat", at(60))
    found = counts_of(spark, [one, two])
    assert {node: (row["reference_updates"], row["missing"]) for node, row in found.items()} == {
        "one": (3, 1),
        "two": (3, 1),
    }


@pytest.mark.parametrize("tap", [True, False])
def test_losses_are_explained_by_times_away_as_far_as_those_go(spark: SparkSession, tap: bool) -> None:
    """A value that came once says when it was lost; of one that came often, those are taken that an absence explains.

    What is left was lost while the link was live. Clocks and ways may differ by the settle horizon.
    """
    *rest, whole, cut = observers("whole", "cut", tap=tap)
    for number in range(100):
        now = at(2 + number / 2)
        topic, payload = ("unique", str(number)) if number % 2 else ("same", "x")
        for log in (whole, *rest):
            see(log, now, topic, payload)
        # Away from second 20 to 30; and one loss before, one behind it.
        if not 20 < now / SECOND - at(0) / SECOND <= 30 and number not in (11, 75, 90):
            see(cut, now, topic, payload)
        if number == 36:
            cut.event("heartbeat", at(20), link="up", lag_us=0)
            cut.event("state", at(25), link="up", state="down")
        if number == 56:
            cut.ready(at(30), "up", "#")
    for log in (whole, cut, *rest):
        log.event("heartbeat", at(60))
    counts = counts_of(spark, [whole, cut, *rest], unique=not tap)
    assert counts["cut"]["missing"] == 20 + 3
    # The repeated value that was lost at 90 falls to the two that fell within the horizon around the absence.
    assert counts["cut"]["causes"] == {"resumed": 21, "live": 2}
    assert counts["whole"]["causes"] == {}


def test_what_came_after_the_window_is_late_not_lost(spark: SparkSession) -> None:
    """A link that was away at an end of the window and resumed its session got everything: it lost and made up nothing.

    The same when it was the tap's. A heartbeat that was sent behind the window and came back proves that no update of
    the window comes any more, so that later ones of the same value hide no loss; without heartbeats they do. Each case
    has a link of its own, to a primary of its own.
    """
    cases = {"heard": ("edge", True), "unheard": ("edge", False), "behind": ("tap", True)}
    logs = [NodeLog("tap", "tap"), NodeLog("edge"), NodeLog("lossy")]
    links = [{"name": name, "primary": [f"mqtt://{name}"], "selectors": [selector("#")]} for name in cases]
    for log in logs:
        log.start(at(0), *links)
        for name in cases:
            log.ready(at(1), name, "#")
    for number, (name, (away, heartbeats)) in itertools.product(range(100), cases.items()):
        now = at(2 + number / 2)
        topic, payload = ("unique", str(number)) if number % 2 else ("same", "x")
        # Away from second 18 to 23, and from 28 to 35; what was queued comes then.
        back = next((until for since, until in ((18, 23), (28, 35)) if at(since) < now <= at(until)), 0)
        for log in logs:
            late = bool(back) and log.node == away
            if log.node != "lossy" or number not in (42, 44, 46, 47, 48, 50, 52):
                log.update(at(back) if late else now, topic, payload, link=name, selector="#")
            if heartbeats and not late:
                log.event("heartbeat", now, link=name, lag_us=0)
    for log in logs:
        log.event("heartbeat", at(60))
    found = counts_of(spark, logs, window=AskedWindow(at(20), at(30)), place=lambda target: (target.node, target.link))
    assert {link: (found["edge", link]["missing"], found["edge", link]["extra"]) for link in cases} == dict.fromkeys(
        cases, (0, 0)
    )
    # Of the value that came once a second, 6 of 10; the one before and the three behind may stand for some of them.
    lossy = {link: (found["lossy", link]["missing"], found["lossy", link]["extra"]) for link in cases}
    assert (lossy["heard"], lossy["unheard"]) == ((1 + 2, 0), (1, 0))
