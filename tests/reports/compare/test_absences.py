"""Why updates were lost: the spans in which links were away, and which of them covers a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.compare.absences import (
    SPANS,
    UNEXPLAINED,
    absences_of_targets,
    skips_of_targets,
    with_cause,
    with_skipped,
)
from fanout.reports.identify.planning import decide_scope
from fanout.reports.read.absences import UNHEARD_US
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


def seen(spark: SparkSession, *logs: NodeLog) -> dict[str, list[tuple[float, float, str]]]:
    """Return the spans of the link `up` of each node, in seconds of the test's clock."""
    found: dict[str, list[tuple[float, float, str]]] = {log.node: [] for log in logs}
    for one in sorted(take_survey(tables_of(spark, logs)).absences, key=lambda one: (one.after_us, one.cause)):
        if one.link == "up":
            found[one.node].append(((one.after_us - at(0)) / SECOND, (one.until_us - at(0)) / SECOND, one.cause))
    return found


def spans_of_targets(spark: SparkSession, *logs: NodeLog) -> list[tuple[Any, ...]]:
    """Return the spans of each target of a report on these logs, in the columns of `SPANS`."""
    survey = take_survey(tables_of(spark, logs))
    return sorted(absences_of_targets(survey, scope=decide_scope(survey, requested=None, settle_us=SECOND)))


def test_spans_in_which_a_link_may_have_lost_updates(spark: SparkSession) -> None:
    """Each has a cause: the link was away, its node was down, or an audit found a difference."""
    away = NodeLog("away")
    away.ready(at(10), "up", "#")
    away.event("heartbeat", at(15), link="up", lag_us=SECOND)
    away.event("state", at(30), link="up", state="stalled")
    away.event("heartbeat", at(40), link="up", lag_us=SECOND)
    away.event("state", at(40), link="up", state="verifying")
    away.event("state", at(41), link="up", state="live")
    away.event("heartbeat", at(50), link="up", lag_us=0)
    away.event("heartbeat", at(55), link="other", lag_us=0)
    away.event("tear_down", at(60), link="up")
    away.event("state", at(60), link="up", state="tearing_down")
    away.link_epoch += 1
    away.ready(at(70), "up", "#")

    killed = NodeLog("killed")
    killed.ready(at(10), "up", "#")
    killed.event("heartbeat", at(15), link="up", lag_us=0)
    killed.restart(at(100))
    killed.ready(at(110), "up", "#")
    killed.event("heartbeat", at(111), link="up")
    killed.event("state", at(120), link="up", state="down")

    silent = NodeLog("silent")
    silent.ready(at(10), "up", "#")
    silent.event("state", at(200), link="up", state="down")
    silent.ready(at(210), "up", "#")
    silent.event("state", at(220), link="up", state="down")
    silent.ready(at(230), "up", "#")

    audited = NodeLog("audited")
    audited.ready(at(10), "up", "#")
    audit(audited, at(20), changed=1)
    audit(audited, at(30))
    audit(audited, at(40), loss=True)

    assert seen(spark, away, killed, silent, audited) == {
        # From when the heartbeat that came back was sent. A stall is one; what comes back in it ends nothing.
        "away": [(14, 41, "resumed"), (50, 70, "new_epoch")],
        # Its log does not say when it died. A link that is not live again has no end.
        "killed": [(15, 110, "restart"), (111, (NEVER_US - at(0)) / SECOND, "away")],
        # Without heartbeats a link notices late, but not later than by Keep Alive; it was not cut off before it was
        # live.
        "silent": [(200 - UNHEARD_US / SECOND, 210, "resumed"), (210, 230, "resumed")],
        # Since the audit before, or since the link was live.
        "audited": [(10, 20, "audit"), (30, 40, "audit")],
    }


@pytest.mark.parametrize(
    ("rows", "span_us"),
    [(250_000_000, (0, 30)), (20_000_000, (14, 15))],
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


def test_what_a_node_above_missed_is_explained_by_its_log(spark: SparkSession) -> None:
    """All the way up: the link of the last node of a chain was live while that of the first was away.

    The clock of the first is an hour ahead; all are told by the clock that stamped.
    """
    hub, logs = NodeLog("hub", "primary"), [NodeLog(name) for name in ("first", "second", "third")]
    hub.start(at(0))
    row = hub.publish(at(5), 1, "a", "x")
    for log, above, ahead in zip(logs, ("hub", "first", "second"), (3600, 0, 0), strict=True):
        log.start(at(ahead), {"name": "up", "primary": ["mqtt://x"], "selectors": [selector("#")]})
        log.event("state", at(ahead + 0.1), link="up", state="connecting", detail=json.dumps({"primary_node": above}))
        log.ready(at(ahead + 1), "up", "#")
        log.apply(row, link="up", selector="#", delay_us=ahead * SECOND)
    logs[0].event("heartbeat", at(3610), link="up", lag_us=0)
    logs[0].event("state", at(3611), link="up", state="down")
    logs[0].ready(at(3620), "up", "#")
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
