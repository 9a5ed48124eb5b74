"""Epochs of links; their figures are tested with the whole report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.reports.transforms.kept import delta_events
from fanout.reports.transforms.rows import small_frame
from fanout.reports.transforms.snapshots import link_epochs
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import NodeLog, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_an_epoch_goes_on_as_long_as_its_heartbeats(spark: SparkSession) -> None:
    """A link that changes nothing for an hour is held for an hour; of watched logs too, and not by another's beat."""
    edge = NodeLog("edge")
    for link in ("quiet", "silent"):
        edge.ready(at(3), link, "#")
    for minute in range(60):
        edge.event("heartbeat", at(60 * minute), link="quiet")
        edge.event("heartbeat", at(60 * minute + 1))
    ends = small_frame(spark, [("edge", at(3541))], schema="node string, end_us bigint")
    events = tables_of(spark, [edge]).events
    for seen in (events, delta_events(events)):
        found = link_epochs(seen, ends=ends, settle_us=0)
        assert_unique(found, "node", "link", "node_epoch", "link_epoch")
        assert [(row["link"], row["last_us"]) for row in rows_of(found, "link")] == [
            ("quiet", at(3540)),
            ("silent", at(3)),
        ]
