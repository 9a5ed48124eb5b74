"""Final values after a gap, and of a union; whole reports are compared with an oracle in `figures/test_job.py`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fanout.reports.compare.final_values import VERDICTS
from fanout.reports.figures.counted import CountedUpdates
from fanout.reports.figures.topic_states import TopicStates
from fanout.reports.identify.planning import decide_scope
from fanout.reports.read.reading import take_survey
from tests.reports.frames import rows_of, tables_of
from tests.reports.logs import NodeLog, at, selector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LINK = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#", "no/#")]}


def no_counting() -> CountedUpdates:
    """Stand for what only windows with an end ask for."""
    raise AssertionError("updates without stamps are counted")


def verdicts_of(spark: SparkSession, logs: list[NodeLog]) -> dict[tuple[str, str], str]:
    """Return the verdict by (node, topic)."""
    tables = tables_of(spark, logs)
    survey = take_survey(tables)
    scope = decide_scope(survey, requested=None, settle_us=0)
    with closing(TopicStates(tables, survey=survey, scope=scope, counted=no_counting)) as states:
        rows = [row for row in rows_of(states.frame) if row["final"] is not None]
        assert sum(states.of(t.id, f"final_{v}") for t in scope.targets for v in VERDICTS) == len(rows)
    return {(row["node"], row["topic"]): row["final"] for row in rows}


def test_what_was_not_logged_since_a_gap_is_unknown(spark: SparkSession) -> None:
    """After a gap only a later row, or the reference's very last update before it, proves what a node holds."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    edge.start(at(0), LINK)
    edge.ready(at(1), "up", "#")
    first = {t: hub.publish(at(2 + n), n + 1, t, "x") for n, t in enumerate(["kept", "after", "toggled", "changed"])}
    for row in first.values():
        edge.apply(row, link="up", selector="#")
    hub.publish(at(10), 5, "toggled", "y")
    toggled = hub.publish(at(11), 6, "toggled", "x")
    assert toggled["digest"] == first["toggled"]["digest"]
    hub.publish(at(12), 7, "changed", "y")
    hub.publish(at(13), 8, "never seen", "y")
    edge.log_pos += 3
    edge.gap(at(14), link="up", rows=3, last_log_pos=edge.log_pos, first_us=at(10), last_us=at(14))
    edge.apply(hub.publish(at(15), 9, "after", "y"), link="up", selector="#")
    hub.event("heartbeat", at(30))
    found = verdicts_of(spark, [hub, edge])
    assert {topic: verdict for (_, topic), verdict in found.items()} == {
        "kept": "equal",
        "after": "equal",
        "toggled": "unknown",
        "changed": "unknown",
        "never seen": "unknown",
    }


def test_sections_in_threads_share_one_frame(jvm: SparkSession) -> None:
    """Whoever asks first computes the states; everyone else waits for them and gets the same."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    edge.start(at(0), LINK)
    edge.ready(at(1), "up", "#")
    edge.apply(hub.publish(at(2), 1, "t", "x"), link="up", selector="#")
    hub.event("heartbeat", at(30))
    tables = tables_of(jvm, [hub, edge])
    survey = take_survey(tables)
    scope = decide_scope(survey, requested=None, settle_us=0)
    with (
        closing(TopicStates(tables, survey=survey, scope=scope, counted=no_counting)) as states,
        ThreadPoolExecutor(3) as threads,
    ):
        frames = list(threads.map(lambda _: states.frame, range(3)))
        assert states.of(scope.targets[0].id, "final_equal") == 1
        assert all(frame is frames[0] for frame in frames)
        assert frames[0].storageLevel.useMemory
    assert not frames[0].storageLevel.useMemory, "nothing is kept behind the report"


def test_a_union_holds_the_newest_value_of_any_node(spark: SparkSession) -> None:
    """Without a primary and a tap the value stamped last is the reference, also within one microsecond."""
    hub, one, two = NodeLog("hub", "primary"), NodeLog("one"), NodeLog("two")
    for node in (one, two):
        node.start(at(0), LINK)
        node.ready(at(1), "up", "#")
    first = hub.publish(at(2), 1, "t", "x")
    second = hub.publish(at(2), 2, "t", "y")
    removed = hub.publish(at(3), 3, "u", "")
    one.apply(first, link="up", selector="#")
    two.apply(second, link="up", selector="#")
    one.apply(hub.publish(at(2.5), 4, "u", "x"), link="up", selector="#")
    two.apply(removed, link="up", selector="#")
    one.event("heartbeat", at(4))
    assert verdicts_of(spark, [one, two]) == {
        ("one", "t"): "different",
        ("two", "t"): "equal",
        ("one", "u"): "extra",
    }
