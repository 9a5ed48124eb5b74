"""Topics that stopped at a node: how the rows that it lacks are found; the figures are tested with the whole report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.reports.compare.stalls import lacking_updates
from fanout.reports.read.rows import small_frame
from tests.reports.frames import plan_of, rows_of, tables_of
from tests.reports.logs import NodeLog, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = (
    "`group` int, target int, node string, link string, selector string, topic string, settled_us bigint, "
    "held_us bigint, after_us bigint, stalled_links bigint, current_links bigint"
)
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


def test_rows_of_the_reference_are_not_shuffled_for_few_stalled_topics(jvm: SparkSession) -> None:
    """Whatever Spark guesses, the stalled topics go to the rows: before these meet a join, nothing moves them."""
    hub = NodeLog("hub", "primary")
    for number in range(8):
        hub.publish(at(number), number + 1, f"t/{number % 2}", "v")
    rows = tables_of(jvm, [hub]).updates.selectExpr("*", "0 AS `group`")
    target = (0, 3, "edge", "up", "#")
    stopped = [(*target, "t/0", at(6), None, at(1), 1, 0), (*target, "t/1", at(5), at(5), at(5), 1, 0)]
    stalled = small_frame(jvm, stopped, schema=COLUMNS)
    jvm.conf.set(THRESHOLD, "-1")  # it would broadcast by itself what it knows to be small
    try:
        plans = {few: plan_of(lacking_updates(stalled, rows=rows, few=few)) for few in (True, False)}
        found = rows_of(lacking_updates(stalled, rows=rows, few=True), "topic")
    finally:
        jvm.conf.unset(THRESHOLD)
    assert [(row["topic"], row["lacking"], row["first_us"]) for row in found] == [("t/0", 3, at(2))]
    # The lines of a plan below a join are its inputs; the rows' input is what has their columns.
    _, _, below = plans[True].rpartition("BroadcastHashJoin")
    assert "Exchange hashpartitioning" not in below, plans[True]
    assert "SortMergeJoin" in plans[False]
    assert "Exchange hashpartitioning" in plans[False].rpartition("SortMergeJoin")[2]
