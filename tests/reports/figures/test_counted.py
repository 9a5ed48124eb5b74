"""Updates without stamps, counted: doubtful rows, unions, causes, and windows of time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.figures.by_identity import describe_by_identity
from fanout.reports.figures.material import Material, Part
from fanout.reports.figures.parquet import ParquetTables
from fanout.reports.read.reading import take_survey
from fanout.reports.values.document import Parameters
from fanout.reports.values.figures import UpdateFigures
from tests.reports.frames import tables_of
from tests.reports.logs import SECOND, NodeLog, Row, at, selector, when

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Place = tuple[str, str]
"""A node and its link."""


def describe(
    spark: SparkSession, logs: Iterable[NodeLog], *, since_us: int | None = None, until_us: int | None = None
) -> tuple[Part, dict[Place, UpdateFigures]]:
    """Return what is said of updates, and the figures by node and link."""
    tables = tables_of(spark, list(logs))
    parameters = Parameters(
        reference=None,
        settle_s=1,
        depth=0,
        fail_under_percent=None,
        list_limit=20,
        since=None if since_us is None else when(since_us),
        until=None if until_us is None else when(until_us),
    )
    survey = take_survey(tables)
    with closing(
        Material(spark, tables, survey=survey, parameters=parameters, parquet=ParquetTables(spark, None))
    ) as material:
        part = describe_by_identity(material)
        targets = material.scope.targets
        return part, {(one.node, one.link): part.by_target[one.id]["unstamped"] for one in targets}


def observers(links: Iterable[str], *nodes: str, tap: bool = True) -> list[NodeLog]:
    """Return a tap and nodes that hold everything of these links since second 1, without stamps."""
    logs = [NodeLog("tap", "tap")] if tap else []
    logs += [NodeLog(node) for node in nodes]
    described = [{"name": name, "primary": [f"mqtt://{name}"], "selectors": [selector("#")]} for name in links]
    for log in logs:
        log.start(at(0), *described)
        for link in described:
            log.ready(at(1), str(link["name"]), "#")
    return logs


def see(log: NodeLog, at_us: int, topic: str, payload: str, *, link: str, **columns: Any) -> Row:
    """Log an unstamped update of the link."""
    return log.update(at_us, topic, payload, link=link, selector="#", **columns)


def doubt(tap: NodeLog, edge: NodeLog, link: str) -> None:
    """Log a possible second copy, a retained copy, updates at both ends of the logs, some in a gap, and a loss."""
    see(tap, at(2), "t", "twice", link=link)
    see(tap, at(2.1), "t", "twice", link=link, flags=1)  # DUP: perhaps the same message again
    see(edge, at(2), "t", "twice", link=link)
    see(tap, at(3), "t", "copied", link=link)
    see(edge, at(4), "t", "copied", link=link, phase=1)
    see(tap, at(0.5), "t", "before", link=link)
    see(tap, at(59.5), "t", "young", link=link)
    see(tap, at(10), "t", "in the gap", link=link)
    see(tap, at(11.9), "t", "in the gap by another clock", link=link)
    edge.gap(at(11), link=link, rows=2, first_us=at(9), last_us=at(11))
    see(tap, at(20), "t", "lost", link=link)
    see(edge, at(21), "t", "only here", link=link)


def kill(tap: NodeLog, edge: NodeLog, link: str) -> None:
    """Log what a node got that was killed after 20 s, and was there again 10 s later."""
    for number in range(400):
        now = at(2 + number / 10)
        see(tap, now, "count", str(number), link=link)
        see(tap, now, "constant", "x", link=link)
        if now <= at(20) or now > at(30):
            if number % 10 == 0:
                edge.event("heartbeat", now, link=link, lag_us=0)
            for topic, payload in (("count", str(number)), ("constant", "x")):
                if (topic, number) == ("count", 163):
                    continue  # 0.7 s before a heartbeat
                see(edge, now + 4_000 + number % 3 * 1_000, topic, payload, link=link)
        if number == 180:
            crashed = edge.node_epoch
            edge.restart(at(29.5))
            edge.start(at(29.5), {"name": link, "primary": [f"mqtt://{link}"], "selectors": [selector("#")]})
            edge.gap(at(29.6), reason="crash", first_us=at(20.005), last_us=at(21), node_epoch=crashed)
            edge.ready(at(30), link, "#", took_us=SECOND // 4)


def cut(whole: list[NodeLog], edge: NodeLog, link: str) -> None:
    """Log what came while a link was away from second 20 to 30, of which nothing was kept for it, and three losses."""
    for number in range(100):
        now = at(2 + number / 2)
        topic, payload = ("unique", str(number)) if number % 2 else ("same", "x")
        for log in whole:
            see(log, now, topic, payload, link=link)
        if not 20 < now / SECOND - at(0) / SECOND <= 30 and number not in (11, 75, 90):
            see(edge, now, topic, payload, link=link)
        if number == 36:
            edge.event("heartbeat", at(20), link=link, lag_us=0)
            edge.event("state", at(25), link=link, state="down")
        if number == 56:
            edge.ready(at(30), link, "#")


def resume(tap: NodeLog, edge: NodeLog, link: str) -> None:
    """Log a constant that waited a second for a link and comes with DUP set, just before the next one; one is lost."""
    for number in range(400):
        now = at(2 + number / 10)
        if not at(20) < now <= at(21):
            see(tap, now, "count", str(number), link=link)
            see(edge, now + 5_000, "count", str(number), link=link)
        if number == 180:
            edge.event("heartbeat", now, link=link, lag_us=0)
            edge.event("state", at(20.5), link=link, state="down")
            edge.event("state", at(21), link=link, state="live")
            see(edge, at(21.01), "constant", "x", link=link, flags=1)
        if number % 10 == 0:
            see(tap, now + 20_000, "constant", "x", link=link)
            if number not in (180, 300):
                see(edge, now + 25_000, "constant", "x", link=link)


def hide(tap: NodeLog, edge: NodeLog, link: str) -> None:
    """Log what comes to a user who may not read a branch."""
    for number in range(60):
        now = at(2 + number / 2)
        for topic in ("plant/s/1/t", "plant/s/2/t", "plant/t/1", "site/x"):
            see(tap, now, topic, str(number), link=link)
            if not topic.startswith("plant/s/") and (topic, number) != ("site/x", 30):
                see(edge, now + 5_000, topic, str(number), link=link)


def leave_out(tap: NodeLog, narrow: NodeLog, aged: NodeLog) -> None:
    """Log updates that a selector leaves out, and a link with a bound on the age of values; one more is lost of each.

    Values of no other size, and a heartbeat, say that both were there.
    """
    limits = {"narrow": {"max_payload": 3, "retained_only": True}}
    for log in (narrow, aged):
        taken = selector("#") | limits.get(log.node, {})
        log.events[0]["detail"] = json.dumps(
            {"format": 1, "links": [{"name": log.node, "primary": [f"mqtt://{log.node}"], "selectors": [taken]}]}
        )
    detail = json.loads(aged.events[0]["detail"])
    detail["links"][0] |= {"max_age_s": 1, "max_age_qos": 0}
    aged.events[0]["detail"] = json.dumps(detail)
    lost: dict[tuple[str, int], dict[str, Any]] = {
        ("narrow", 10): {"payload_bytes": 4},
        ("narrow", 20): {"retain": False},
        ("narrow", 30): {},
        ("aged", 10): {"qos": 0},
        ("aged", 30): {},
    }
    for number in range(50):
        for log in (narrow, aged):
            columns = lost.get((log.node, number))
            see(tap, at(2 + number), "t", str(number), link=log.node, **columns or {})
            if columns is None:
                see(log, at(2 + number) + 5_000, "t", str(number), link=log.node)


def test_losses_beside_a_tap_have_their_numbers_and_causes(spark: SparkSession) -> None:
    """Doubtful rows never accuse; a killed node, a link that was away, a hidden branch and settings are told apart.

    Each case has a link of its own, to a primary of its own.
    """
    cases = ("doubt", "kill", "cut", "resume", "hide", "narrow", "aged")
    (tap,) = observers(cases)
    doubtful, killed, away, back, hidden, narrow, aged = (observers([case], case, tap=False)[0] for case in cases)
    doubt(tap, doubtful, "doubt")
    kill(tap, killed, "kill")
    cut([tap], away, "cut")
    resume(tap, back, "resume")
    hide(tap, hidden, "hide")
    leave_out(tap, narrow, aged)
    logs = [tap, doubtful, killed, away, back, hidden, narrow, aged]
    for log in logs:
        log.event("heartbeat", at(60))
    part, counts = describe(spark, logs)

    # One is lost; one came again as a retained copy; of the second copy, and of two in the gap, nobody knows.
    found = counts["doubt", "doubt"]
    assert (found.expected, found.missing, found.reobtained, found.unknown) == (6, 1, 1, 3)
    assert (found.applied, found.unreferenced, found.complete_percent) == (1, 1, None)

    # Unknown is what came in the gap and 60 ms to either side of it: how late updates are is measured, so the horizon
    # in which others may travel makes no more of them unknown.
    found = counts["kill", "kill"]
    assert (found.expected, found.missing, found.unknown) == (800, 181, 20)
    assert (found.causes.restart, found.causes.live, found.going_on) == (180, 1, False)

    found = counts["cut", "cut"]
    assert (found.missing, found.unknown, found.causes.resumed, found.causes.live) == (20 + 3, 0, 20, 3)

    # The row with DUP may be the update of second 20.02, or a second copy of the next one.
    found = counts["resume", "resume"]
    assert (found.missing, found.unknown, found.unreferenced, found.causes.live) == (1, 1, 0, 1)

    found = counts["hide", "hide"]
    assert (found.missing, found.causes.hidden, found.causes.live) == (121, 120, 1)
    branches = [(one.node, one.branch, one.missing) for one in part.fields["hidden_branches"]]
    assert branches == [("hide", "plant/s/#", 120)]
    assert {one.topic: one.cause for one in part.fields["missing_topics"].listed if one.node == "hide"} == {
        "plant/s/1/t": "hidden",
        "plant/s/2/t": "hidden",
        "site/x": "live",
    }

    found = counts["narrow", "narrow"]
    assert (found.missing, found.causes.selector, found.causes.live) == (3, 2, 1)
    found = counts["aged", "aged"]
    assert (found.missing, found.causes.max_age, found.causes.live) == (2, 1, 1)


def test_one_misleading_value_is_no_clock(spark: SparkSession) -> None:
    """A value was published twice: the tap logged the first alone, and the node, which came later, the second.

    That pair is twelve seconds apart, which the clocks are not: what came before the node was there is not missing.
    """
    (tap,) = observers(["up"])
    edge = NodeLog("edge")
    edge.start(at(9), {"name": "up", "primary": ["mqtt://up"], "selectors": [selector("#")]})
    edge.ready(at(10), "up", "#")
    see(tap, at(4), "t", "twice", link="up")
    see(edge, at(16), "t", "twice", link="up")
    for second in (5, 6, 20, 30, 40):
        see(tap, at(second), "alive", "x", link="up")
        if second >= 20:
            see(edge, at(second) + 5_000, "alive", "x", link="up")
    for log in (tap, edge):
        log.event("heartbeat", at(60))
    _, counts = describe(spark, [tap, edge])
    found = counts["edge", "up"]
    assert (found.expected, found.applied, found.missing, found.unknown) == (3, 3, 0, 0)


def test_a_union_counts_the_source_that_saw_most(spark: SparkSession) -> None:
    """What two nodes saw is not added up: of each value the log counts that saw it most often.

    Losses have their causes there too.
    """
    one, two = observers(("few", "cut"), "one", "two", tap=False)
    for second in (20, 30):  # not so soon after both held everything that their clocks may hide it
        see(one, at(second), "t", "x", link="few")
    see(two, at(20), "t", "x", link="few")
    see(two, at(40), "t", "y", link="few")
    cut([one], two, "cut")
    one.event("heartbeat", at(60))
    two.event("heartbeat", at(60))
    _, counts = describe(spark, [one, two])
    assert {place: (found.expected, found.missing, found.unseen) for place, found in counts.items()} == {
        ("one", "few"): (3, 1, None),
        ("two", "few"): (3, 1, None),
        ("one", "cut"): (100, 0, None),
        ("two", "cut"): (100, 23, None),
    }
    found = counts["two", "cut"]
    assert (found.unknown, found.causes.resumed, found.causes.live) == (0, 20, 3)


def test_a_union_judges_an_update_by_the_time_of_one_log(spark: SparkSession) -> None:
    """The log that counts got the last update after a node stopped in good order; one whose clock is behind, before."""
    logs = observers(("up",), "counts", "behind", "stopped", tap=False)
    for log, ahead_s in zip(logs, (0, -3, 0), strict=True):
        for second in range(2, 42):
            if log.node != "stopped" or second < 40:
                see(log, at(second + ahead_s), "t", str(second), link="up")
    logs[2].event("stop", at(40))
    for log in logs[:2]:
        log.event("heartbeat", at(60))
    _, counts = describe(spark, logs)
    found = counts["stopped", "up"]
    assert (found.missing, found.unknown, found.duplicated) == (0, 0, 0)


def test_what_came_after_the_window_is_late_not_lost(spark: SparkSession) -> None:
    """A link that was away at an end of the window and resumed its session got everything: it lost and made up nothing.

    The same when it was the tap's. Each case has a link of its own, to a primary of its own.
    """
    cases = {"heard": ("edge", True), "unheard": ("edge", False), "behind": ("tap", True)}
    logs = observers(cases, "edge", "lossy")
    for number, (name, (away, heartbeats)) in itertools.product(range(100), cases.items()):
        now = at(2 + number / 2)
        topic, payload = ("unique", str(number)) if number % 2 else ("same", "x")
        # Away from second 18 to 23, and from 28 to 35; what was queued comes then.
        back = next((until for since, until in ((18, 23), (28, 35)) if at(since) < now <= at(until)), 0)
        for log in logs:
            late = bool(back) and log.node == away
            if log.node != "lossy" or number not in (42, 44, 46, 47, 48, 50, 52):
                see(log, at(back) if late else now, topic, payload, link=name)
            if heartbeats and not late:
                log.event("heartbeat", now, link=name, lag_us=0)
    for log in logs:
        log.event("heartbeat", at(60))
    _, found = describe(spark, logs, since_us=at(20), until_us=at(30))
    for name in cases:
        whole, lossy = found["edge", name], found["lossy", name]
        assert (whole.expected, whole.applied, whole.unreferenced, whole.complete_percent) == (20, 20, 0, 100)
        # The value that came once is missing for sure.
        assert (lossy.expected, lossy.missing + lossy.unknown, lossy.unreferenced) == (20, 7, 0)
        assert lossy.missing > 0
