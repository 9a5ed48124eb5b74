"""Epochs of links; their figures are tested with the whole report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.reports.compare.rolling import delta_events
from fanout.reports.compare.snapshots import link_epochs
from fanout.reports.read.rows import small_frame
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import NodeLog, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ENDS = "node string, end_us bigint, open_epoch bigint"


def test_an_epoch_goes_on_as_long_as_its_heartbeats(spark: SparkSession) -> None:
    """A link that changes nothing for an hour is held for an hour; of watched logs too, and not by another's beat."""
    edge = NodeLog("edge")
    for link in ("quiet", "silent"):
        edge.ready(at(3), link, "#")
    for minute in range(60):
        edge.event("heartbeat", at(60 * minute), link="quiet")
        edge.event("heartbeat", at(60 * minute + 1))
    ends = small_frame(spark, [("edge", at(3541), None)], schema=ENDS)
    events = tables_of(spark, [edge]).events
    for seen in (events, delta_events(events)):
        found = link_epochs(seen, ends=ends, settle_us=0)
        assert_unique(found, "node", "link", "node_epoch", "link_epoch")
        assert [(row["link"], row["last_us"]) for row in rows_of(found, "link")] == [
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
        ends = small_frame(spark, [("edge", at(3600), open_epoch)], schema=ENDS)
        found = rows_of(link_epochs(events, ends=ends, settle_us=0), "link", "link_epoch")
        assert [(row["link"], row["link_epoch"], row["verdict"]) for row in found] == [
            ("slow", 1, "never"),
            ("slow", 2, verdict),
            ("torn", 1, "never"),
            ("torn", 2, "never"),
        ]
