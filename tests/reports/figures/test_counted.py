"""Updates without stamps, counted: doubtful rows, unions, causes, and windows of time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.figures.by_identity import describe_by_identity
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read.reading import take_survey
from fanout.reports.read.scope import Target
from fanout.reports.values.document import Parameters
from fanout.reports.values.figures import UpdateFigures
from tests.reports.frames import tables_of
from tests.reports.logs import SECOND, NodeLog, Row, at, selector, when

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINK = {"name": "up", "primary": ["mqtt://broker"], "selectors": [selector("#")]}


def describe(
    spark: SparkSession,
    logs: list[NodeLog],
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    place: Callable[[Target], Any] = attrgetter("id"),
) -> Part:
    """Return what is said of updates, with the figures by target or `place`."""
    tables = tables_of(spark, logs)
    parameters = Parameters(
        reference=None,
        settle_s=1,
        depth=0,
        fail_under_percent=None,
        list_limit=10,
        since=None if since_us is None else when(since_us),
        until=None if until_us is None else when(until_us),
    )
    survey = take_survey(tables)
    with closing(
        Material(spark, tables, survey=survey, parameters=parameters, parquet=ParquetTables(spark, None))
    ) as material:
        part = describe_by_identity(material)
        return replace(part, by_target={place(target): part.by_target[target.id] for target in material.scope.targets})


def counts_of(spark: SparkSession, logs: list[NodeLog], **asked: Any) -> dict[Any, UpdateFigures]:
    """Return the figures by node, or as `describe` is asked for them."""
    found = describe(spark, logs, **{"place": attrgetter("node")} | asked).by_target
    return {place: one["unstamped"] for place, one in found.items()}


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
    # One is lost; one came again as a retained copy; of the second copy, and of two in the gap, nobody knows.
    assert (found.expected, found.missing, found.reobtained, found.unknown) == (6, 1, 1, 3)
    assert (found.applied, found.unreferenced, found.complete_percent) == (1, 1, None)


def test_a_killed_node_lacks_what_came_while_it_was_down(spark: SparkSession) -> None:
    """Of the moment between its last row and its end nobody knows; of the time until it was back all is missing.

    How late updates are is measured, so the horizon in which others may travel makes no more of them unknown.
    """
    tap, edge = observers("edge")
    for number in range(400):
        now = at(2 + number / 10)
        see(tap, now, "count", str(number))
        see(tap, now, "constant", "x")
        if now <= at(20) or now > at(30):
            if number % 10 == 0:
                edge.event("heartbeat", now, link="up", lag_us=0)
            for topic, payload in (("count", str(number)), ("constant", "x")):
                if (topic, number) == ("count", 163):
                    continue  # 0.7 s before a heartbeat
                see(edge, now + 4_000 + number % 3 * 1_000, topic, payload)
        if number == 180:
            crashed = edge.node_epoch
            edge.restart(at(29.5))
            edge.start(at(29.5), LINK)
            edge.gap(at(29.6), reason="crash", first_us=at(20.005), last_us=at(21), node_epoch=crashed)
            edge.ready(at(30), "up", "#", took_us=SECOND // 4)
    for log in (tap, edge):
        log.event("heartbeat", at(60))
    found = counts_of(spark, [tap, edge])["edge"]
    # In the gap and 60 ms to either side of it.
    assert (found.expected, found.missing, found.unknown) == (800, 181, 20)
    assert (found.causes.restart, found.causes.live, found.going_on) == (180, 1, False)


def test_a_union_counts_the_source_that_saw_most(spark: SparkSession) -> None:
    """What two nodes saw is not added up: of each value the log counts that saw it most often."""
    one, two = observers("one", "two", tap=False)
    for second in (2, 3):
        see(one, at(second), "t", "x")
    see(two, at(2), "t", "x")
    see(two, at(4), "t", "y")
    one.event("heartbeat", at(60))
    two.event("heartbeat", at(60))
    found = counts_of(spark, [one, two])
    assert {node: (one.expected, one.missing, one.unseen) for node, one in found.items()} == {
        "one": (3, 1, None),
        "two": (3, 1, None),
    }


@pytest.mark.parametrize("tap", [True, False])
def test_losses_without_stamps_are_explained_by_times_away(spark: SparkSession, tap: bool) -> None:
    """What was lost while the link was live has no explanation. Clocks and ways may differ by the settle horizon."""
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
    counts = counts_of(spark, [whole, cut, *rest])
    assert (counts["cut"].missing, counts["cut"].unknown) == (20 + 3, 0)
    assert (counts["cut"].causes.resumed, counts["cut"].causes.live) == (20, 3)
    assert counts["whole"].missing == 0


def test_what_came_after_the_window_is_late_not_lost(spark: SparkSession) -> None:
    """A link that was away at an end of the window and resumed its session got everything: it lost and made up nothing.

    The same when it was the tap's. Each case has a link of its own, to a primary of its own.
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
    found = counts_of(spark, logs, since_us=at(20), until_us=at(30), place=lambda target: (target.node, target.link))
    for name in cases:
        whole, lossy = found["edge", name], found["lossy", name]
        assert (whole.expected, whole.applied, whole.unreferenced, whole.complete_percent) == (20, 20, 0, 100)
        # The value that came once is missing for sure.
        assert (lossy.expected, lossy.missing + lossy.unknown, lossy.unreferenced) == (20, 7, 0)
        assert lossy.missing > 0


def test_a_branch_that_never_comes_is_named(spark: SparkSession) -> None:
    """Its user may not read it at the primary: nothing came of it, and its neighbours are whole."""
    tap, edge = observers("edge")
    for number in range(60):
        now = at(2 + number / 2)
        for topic in ("plant/s/1/t", "plant/s/2/t", "plant/t/1", "site/x"):
            see(tap, now, topic, str(number))
            if not topic.startswith("plant/s/") and (topic, number) != ("site/x", 30):
                see(edge, now + 5_000, topic, str(number))
    for log in (tap, edge):
        log.event("heartbeat", at(60))
    part = describe(spark, [tap, edge])
    (figures,) = (one["unstamped"] for one in part.by_target.values())
    assert (figures.missing, figures.causes.hidden, figures.causes.live) == (121, 120, 1)
    assert [(one.node, one.branch, one.missing) for one in part.fields["hidden_branches"]] == [
        ("edge", "plant/s/#", 120)
    ]
    assert {one.topic: one.cause for one in part.fields["missing_topics"].listed} == {
        "plant/s/1/t": "hidden",
        "plant/s/2/t": "hidden",
        "site/x": "live",
    }
