"""Attempts and epochs of links; the figures of epochs are tested with the whole report too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fanout.reports.compare.link_periods import latest_periods, link_periods, summarize_periods
from fanout.reports.read.rows import small_frame
from fanout.reports.read.scope import WHOLE, AskedWindow
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import SECOND, NodeLog, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def periods_of(
    spark: SparkSession, events: DataFrame, *, open_epoch: int | None = None, window: AskedWindow = WHOLE
) -> DataFrame:
    """Return the periods of one node's links, whose log goes on for an hour."""
    ends = small_frame(spark, [("edge", at(3600), open_epoch)], schema="node string, end_us bigint, open_epoch bigint")
    periods = link_periods(events, ends=ends, settle_us=0, window=window)
    assert_unique(periods, "node", "link", "node_epoch", "kind", "number")
    return periods


def of_kind(periods: DataFrame, kind: str) -> list[dict[str, Any]]:
    """Return the periods of a kind that are shown, in the order of a link, its processes and numbers."""
    return rows_of(periods.where(f"shown AND kind = '{kind}'"), "link", "node_epoch", "number")


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
    edge.ready(at(62), "other", "a", took_us=2 * SECOND)
    periods = periods_of(spark, tables_of(spark, [edge]).events)
    found = of_kind(periods.where("link = 'up'"), "attempt")
    assert [(row["number"], row["ready_us"], row["topics"], row["evidence"]) for row in found] == [
        (1, None, None, ""),
        (2, 4 * SECOND, 7, "barrier,marker"),
        (1, SECOND, 7, "marker"),
    ]
    summary = rows_of(summarize_periods(periods).where("kind = 'attempt'"), "link")
    assert [row["link"] for row in summary] == ["other", "up"]
    up = summary[1]
    assert (up["shown"], up["ready"], up["evidence"], up["topics"]) == (3, 2, "marker", 7)
    assert (up["first_ready_us"], up["last_ready_us"], up["most_ready_us"]) == (4 * SECOND, SECOND, 4 * SECOND)
    assert up["first_live_us"] == at(10)
    latest = [row.asDict() for row in latest_periods(periods, limit=2).collect()]
    for kind in ("epoch", "attempt"):
        seen = [(row["link"], row["live_us"]) for row in latest if row["kind"] == kind]
        assert seen == [("other", at(62)), ("up", at(60))], (
            "the epochs that began last, the attempts that were ready last"
        )


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
        periods = periods_of(spark, events, window=AskedWindow(at(since), at(until)))
        assert [row["number"] for row in of_kind(periods, "attempt")] == attempts, (since, until)
        (counted,) = rows_of(summarize_periods(periods).where("kind = 'epoch'"))
        assert counted["torn"] == torn, (since, until)


def test_an_epoch_goes_on_as_long_as_its_heartbeats(spark: SparkSession) -> None:
    """A link that changes nothing for an hour is held for an hour, and not by another's beat."""
    edge = NodeLog("edge")
    for link in ("quiet", "silent"):
        edge.ready(at(3), link, "#")
    for minute in range(60):
        edge.event("heartbeat", at(60 * minute), link="quiet")
        edge.event("heartbeat", at(60 * minute), link="only/heartbeats")
        edge.event("heartbeat", at(60 * minute + 1))
    events = tables_of(spark, [edge]).events
    assert [(row["link"], row["last_us"]) for row in of_kind(periods_of(spark, events), "epoch")] == [
        ("quiet", at(3540)),
        ("silent", at(3)),
    ]


def test_a_snapshot_under_way_is_pending_until_its_process_ends(spark: SparkSession) -> None:
    """Of the epochs that never held everything a link's newest still may, but not once torn down or stopped."""
    edge = NodeLog("edge")
    for link_epoch in (1, 2):
        edge.link_epoch = link_epoch
        for link in ("slow", "torn"):
            edge.event("state", at(10 * link_epoch), link=link, state="connecting")
            edge.event("state", at(10 * link_epoch + 1), link=link, state="snapshot")
    edge.event("tear_down", at(25), link="torn")
    events = tables_of(spark, [edge]).events
    for open_epoch, verdict in ((edge.node_epoch, "pending"), (None, "never")):
        found = of_kind(periods_of(spark, events, open_epoch=open_epoch), "epoch")
        assert [(row["link"], row["number"], row["verdict"]) for row in found] == [
            ("slow", 1, "never"),
            ("slow", 2, verdict),
            ("torn", 1, "never"),
            ("torn", 2, "never"),
        ]
