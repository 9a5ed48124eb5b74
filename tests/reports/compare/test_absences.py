"""Why updates were lost: the spans in which links were away, and which of them covers a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.compare.absences import (
    SPANS,
    UNEXPLAINED,
    UNHEARD_US,
    absences_of_targets,
    link_absences,
    skips_of_targets,
    with_cause,
    with_skipped,
)
from fanout.reports.identify.planning import decide_scope
from fanout.reports.read.reading import take_survey
from fanout.reports.read.rows import small_frame
from fanout.reports.read.scope import NEVER_US
from tests.reports.frames import rows_of, tables_of
from tests.reports.logs import SECOND, NodeLog, at, selector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def audit(log: NodeLog, at_us: int, *, changed: int = 0, loss: bool = False) -> None:
    """Log the end of an audit of a link."""
    report = {"checked": 5, "changed": changed, "removed": 0, "kept": 0, "failure": "", "loss": loss}
    log.event("audit", at_us, link="up", detail=json.dumps(report))


def seen(spark: SparkSession, *logs: NodeLog) -> list[tuple[float, float, str]]:
    """Return the spans of the link `up`, in seconds of the test's clock."""
    found = rows_of(link_absences(tables_of(spark, logs).events).where("link = 'up'"), "after_us", "cause")
    return [((row["after_us"] - at(0)) / SECOND, (row["until_us"] - at(0)) / SECOND, row["cause"]) for row in found]


def spans_of_targets(spark: SparkSession, *logs: NodeLog) -> list[tuple[Any, ...]]:
    """Return the spans of each target of a report on these logs, in the columns of `SPANS`."""
    tables = tables_of(spark, logs)
    survey = take_survey(tables)
    scope = decide_scope(survey, requested=None, settle_us=SECOND)
    return sorted(absences_of_targets(rows_of(link_absences(tables.events)), survey=survey, scope=scope))


def test_a_link_is_away_from_the_last_heartbeat_to_the_next_time_that_it_is_live(spark: SparkSession) -> None:
    """From when the heartbeat that came back was sent; a stall is one, what comes back in it ends nothing."""
    edge = NodeLog("edge")
    edge.ready(at(10), "up", "#")
    edge.event("heartbeat", at(15), link="up", lag_us=SECOND)
    edge.event("state", at(30), link="up", state="stalled")
    edge.event("heartbeat", at(40), link="up", lag_us=SECOND)
    edge.event("state", at(40), link="up", state="verifying")
    edge.event("state", at(41), link="up", state="live")
    edge.event("heartbeat", at(50), link="up", lag_us=0)
    edge.event("heartbeat", at(55), link="other", lag_us=0)
    edge.event("tear_down", at(60), link="up")
    edge.event("state", at(60), link="up", state="tearing_down")
    edge.link_epoch += 1
    edge.ready(at(70), "up", "#")
    assert seen(spark, edge) == [(14, 41, "resumed"), (50, 70, "new_epoch")]


def test_a_node_that_was_killed_was_down_since_its_last_heartbeat(spark: SparkSession) -> None:
    """Its log does not say when it died. A link that is not live again has no end."""
    edge = NodeLog("edge")
    edge.ready(at(10), "up", "#")
    edge.event("heartbeat", at(15), link="up", lag_us=0)
    edge.restart(at(100))
    edge.ready(at(110), "up", "#")
    edge.event("heartbeat", at(111), link="up")
    edge.event("state", at(120), link="up", state="down")
    assert seen(spark, edge) == [(15, 110, "restart"), (111, (NEVER_US - at(0)) / SECOND, "away")]


def test_without_heartbeats_a_link_notices_late_but_not_later_than_by_keep_alive(spark: SparkSession) -> None:
    """Nor was it cut off before it was live."""
    edge = NodeLog("edge")
    edge.ready(at(10), "up", "#")
    edge.event("state", at(200), link="up", state="down")
    edge.ready(at(210), "up", "#")
    edge.event("state", at(220), link="up", state="down")
    edge.ready(at(230), "up", "#")
    assert seen(spark, edge) == [(200 - UNHEARD_US / SECOND, 210, "resumed"), (210, 230, "resumed")]


def test_an_audit_that_found_a_difference_covers_the_time_since_the_one_before(spark: SparkSession) -> None:
    """Or since the link was live; one that found nothing covers nothing, and one that shows a loss does."""
    edge = NodeLog("edge")
    edge.ready(at(10), "up", "#")
    audit(edge, at(20), changed=1)
    audit(edge, at(30))
    audit(edge, at(40), loss=True)
    assert seen(spark, edge) == [(10, 20, "audit"), (30, 40, "audit")]


@pytest.mark.parametrize(
    ("rows", "span_us"),
    [(100, (0, 30)), (250_000_000, (0, 30)), (250_000_000, (0, 64_000)), (20_000_000, (14, 15))],
)
def test_each_update_has_the_cause_of_the_span_that_covers_it(
    spark: SparkSession, rows: int, span_us: tuple[int, int]
) -> None:
    """After the begin and up to the end of it, however time is cut into slices.

    The link's own absence goes before an audit, and that before others'.
    """
    spans = [
        (0, 5, 22, "upstream"),
        (0, 10, 20, "audit"),
        (0, 12, 14, "resumed"),
        (0, 14, 19, "new_epoch"),
        (0, 15, 16, "resumed"),
        (1, 0, 99, "away"),
    ]
    lost = [(target, at_us) for target in (0, 1) for at_us in (5, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 23)]
    found = with_cause(
        small_frame(spark, lost, schema="target int, origin_us bigint"),
        absences=small_frame(spark, spans, schema=SPANS),
        span_us=span_us,
        rows=rows,
    )
    assert found.columns == ["target", "origin_us", "cause"]
    causes = {row["origin_us"]: row["cause"] for row in rows_of(found.where("target = 0"))}
    assert causes == {
        **dict.fromkeys((5, 23), "live"),
        **dict.fromkeys((10, 21), "upstream"),
        **dict.fromkeys((11, 12, 20), "audit"),
        **dict.fromkeys((13, 14), "resumed"),
        **dict.fromkeys((15, 16, 17), "new_epoch"),
    }
    assert {row["cause"] for row in rows_of(found.where("target = 1"))} == {"away"}
    assert found.count() == len(lost)


def test_spans_of_a_node_are_told_by_the_clock_that_stamped(spark: SparkSession) -> None:
    """A node whose clock is an hour ahead was away at the same time as the others; each of its selectors was."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    link = {"name": "up", "primary": ["mqtt://hub:1883"], "selectors": [selector("a/#"), selector("b/#")]}
    hub.start(at(0))
    edge.start(at(3600), link)
    edge.ready(at(3601), "up", "a/#", "b/#")
    edge.apply(hub.publish(at(5), 1, "a/1", "x"), link="up", selector="a/#", delay_us=3600 * SECOND)
    edge.event("heartbeat", at(3610), link="up", lag_us=0)
    edge.event("state", at(3611), link="up", state="down")
    edge.ready(at(3620), "up", "a/#", "b/#")
    found = spans_of_targets(spark, hub, edge)
    assert found == [(0, at(10), at(20), "resumed"), (1, at(10), at(20), "resumed")]


def test_what_a_node_above_missed_is_explained_by_its_log(spark: SparkSession) -> None:
    """All the way up: the link of the last node of a chain was live while that of the first was away."""
    hub, logs = NodeLog("hub", "primary"), [NodeLog(name) for name in ("first", "second", "third")]
    hub.start(at(0))
    for log, above in zip(logs, ("hub", "first", "second"), strict=True):
        log.start(at(0), {"name": "up", "primary": ["mqtt://x"], "selectors": [selector("#")]})
        log.event("state", at(0.1), link="up", state="connecting", detail=json.dumps({"primary_node": above}))
        log.ready(at(1), "up", "#")
    row = hub.publish(at(5), 1, "a", "x")
    for log in logs:
        log.apply(row, link="up", selector="#", delay_us=0)
    logs[0].event("heartbeat", at(10), link="up", lag_us=0)
    logs[0].event("state", at(11), link="up", state="down")
    logs[0].ready(at(20), "up", "#")
    assert spans_of_targets(spark, hub, *logs) == [
        (0, at(10), at(20), "resumed"),
        (1, at(10), at(20), "upstream"),
        (2, at(10), at(20), "upstream"),
    ]


def test_a_link_that_ended_with_its_node_was_not_away_before(spark: SparkSession) -> None:
    """Of a node that was stopped in good order; one whose link was lost long before it stopped was away."""
    found = []
    for left_s in (59.8, 30):
        tap, edge = NodeLog("tap", "tap"), NodeLog("edge")
        for log in (tap, edge):
            log.start(at(0), {"name": "up", "primary": ["mqtt://a:1883"], "selectors": [selector("#")]})
            log.ready(at(5), "up", "#")
            log.event("heartbeat", at(10), link="up", lag_us=0)
        edge.event("state", at(left_s), link="up", state="down")
        edge.event("stop", at(60))
        tap.event("stop", at(90))
        found += [(after_us - at(0)) / SECOND for _, after_us, _, _ in spans_of_targets(spark, tap, edge)]
    assert found == [58.8, 9]  # nothing says how far updates are apart, so a second of settling is


def test_only_the_topics_that_were_skipped_then_have_that_cause(spark: SparkSession) -> None:
    """What another cause explains keeps it, and so does what was lost at another time."""
    tap, edge = NodeLog("tap", "tap"), NodeLog("edge")
    for log in (tap, edge):
        log.start(at(0), {"name": "up", "primary": ["mqtt://a:1883"], "selectors": [selector("#")]})
        log.ready(at(5), "up", "#")
    for first_s, topics in ((30, ["a/large", "b"]), (40, ["a/large"])):
        told = {"reason": "packet_too_large", "messages": 2, "topics": topics}
        times = {"first_us": at(first_s), "last_us": at(first_s + 1)}
        edge.event("skipped", at(first_s + 1), link="up", detail=json.dumps(told | times))
    tables = tables_of(spark, [tap, edge])
    survey = take_survey(tables)
    assert [(one.event, one.times, one.first_us, one.last_us) for one in survey.alarms] == [
        ("skipped", 4, at(31), at(41))
    ]
    scope = decide_scope(survey, requested=None, settle_us=SECOND)
    (target,) = scope.targets
    lost = [("a/large", 30, "live"), ("a/large", 41, "live"), ("a/large", 40, "audit"), ("a/large", 60, "live")]
    lost += [("b", 30, "live"), ("b", 42, "live"), ("c", 30, "live")]
    rows: list[tuple[object, ...]] = [(target.id, topic, at(second), cause) for topic, second, cause in lost]
    frame = small_frame(spark, rows, schema="target int, topic string, origin_us bigint, cause string")
    found = rows_of(with_skipped(frame, skips=skips_of_targets(tables.events, scope=scope)), "topic", "origin_us")
    assert [(row["topic"], (row["origin_us"] - at(0)) // SECOND, row["cause"]) for row in found] == [
        ("a/large", 30, "skipped"),
        ("a/large", 40, "audit"),
        ("a/large", 41, "skipped"),
        ("a/large", 60, UNEXPLAINED),
        ("b", 30, "skipped"),
        ("b", 42, UNEXPLAINED),
        ("c", 30, UNEXPLAINED),
    ]
