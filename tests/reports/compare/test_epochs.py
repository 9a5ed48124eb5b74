"""From connect to ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.reports.compare.epochs import count_tear_downs, link_attempts, summarize_attempts
from fanout.reports.read.scope import AskedWindow
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import SECOND, NodeLog, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_attempts_run_from_connecting_to_live(spark: SparkSession) -> None:
    """Each `connecting` begins an attempt; only one that reaches `live` has a time, the first `live` of it."""
    edge = NodeLog("edge")
    edge.event("state", at(0), link="up", state="down")
    edge.event("state", at(1), link="up", state="connecting")
    edge.event("state", at(2), link="up", state="down")
    edge.ready(at(10), "up", "a", "b", took_us=4 * SECOND, evidence="barrier")
    edge.event("complete", at(10.1), link="up", selector="c", evidence="marker")
    edge.event("state", at(30), link="up", state="stalled")
    edge.event("state", at(40), link="up", state="live", topics=99)
    edge.restart(at(50))
    edge.ready(at(60), "up", "a", took_us=SECOND, evidence="marker")
    edge.ready(at(60), "other", "a", took_us=2 * SECOND)
    attempts = link_attempts(tables_of(spark, [edge]).events)
    assert_unique(attempts, "node", "link", "node_epoch", "attempt")
    found = rows_of(attempts.where("link = 'up'"), "node_epoch", "attempt")
    assert [(row["attempt"], row["ready_us"], row["topics"], row["evidence"]) for row in found] == [
        (1, None, None, ""),
        (2, 4 * SECOND, 7, "barrier,marker"),
        (1, SECOND, 7, "marker"),
    ]
    summary = rows_of(summarize_attempts(attempts), "link")
    assert [row["link"] for row in summary] == ["other", "up"]
    up = summary[1]
    assert (up["attempts"], up["ready"], up["evidence"], up["topics"]) == (3, 2, "marker", 7)
    assert (up["first_ready_us"], up["last_ready_us"], up["most_ready_us"]) == (4 * SECOND, SECOND, 4 * SECOND)
    assert up["first_live_us"] == at(10)


def test_attempts_and_tear_downs_of_a_window(spark: SparkSession) -> None:
    """An attempt is of a window when it was under way in it; the end of the window does not belong to it."""
    edge = NodeLog("edge")
    edge.event("state", at(1), link="up", state="connecting")  # never ready
    edge.ready(at(10), "up", "a", took_us=4 * SECOND)
    for second in (20, 30):
        edge.event("tear_down", at(second), link="up")
    events = tables_of(spark, [edge]).events
    for since, until, attempts, torn in (
        (1, 6, [1], 0),
        (2, 6, [], 0),
        (7, 8, [2], 0),
        (10, 21, [2], 1),
        (11, 30, [], 1),
    ):
        window = AskedWindow(at(since), at(until))
        found = rows_of(link_attempts(events, window=window), "attempt")
        assert [row["attempt"] for row in found] == attempts, (since, until)
        counted = rows_of(count_tear_downs(events, window=window), "link")
        assert [row["tear_downs"] for row in counted] == [torn] * (torn > 0), (since, until)
