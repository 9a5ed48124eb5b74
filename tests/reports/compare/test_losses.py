"""What was expected around losses; that losses are counted right shows the oracle of `figures/test_job.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.reports.compare import losses
from fanout.reports.read.rows import small_frame
from tests.reports.frames import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_PLACES = "target int, node string, link string"


def absent(spark: SparkSession, *rows: tuple[int, str, int, bool, bool, str]) -> DataFrame:
    """Return absent updates: target, topic, origin_us, known, superseded, cause."""
    schema = "target int, topic string, origin_us bigint, known boolean, superseded boolean, cause string"
    return small_frame(spark, list(rows), schema=schema)


def test_expected_updates_lie_before_within_and_behind_a_loss(spark: SparkSession) -> None:
    """The two ends of a loss belong to it; what has no loss counts in its window alone, and what is unknown too."""
    rows = [(0, "a", at_us, 1, 1) for at_us in (1, 2, 3, 4, 9)] + [(0, "b", 3, 1, 1), (1, "a", 3, 1, 1)]
    expected = small_frame(spark, rows, schema="target int, topic string, at_us bigint, expected int, certain int")
    lacking = absent(spark, (0, "a", 9, False, False, "live"), (0, "a", 2, True, False, "live"))
    expected = expected.unionByName(losses.unknown_updates(lacking))
    of_target = small_frame(spark, [(0, 2, 3)], schema="target int, first_us bigint, last_us bigint")
    of_topic = small_frame(spark, [(0, "a", 4, 4)], schema="target int, topic string, first_us bigint, last_us bigint")
    scopes = {"target": of_target, "topic": of_topic}
    places = small_frame(spark, [(0, "edge", "up"), (1, "leaf", "up")], schema=_PLACES)
    counted = losses.count_around(expected, scopes=scopes, places=places, depth=0, window_us=5)
    found = rows_of(counted, "scope", "node", "window_us", "place")
    by_scope = {name: [row for row in found if row["scope"] == name] for name in ("window", *scopes)}
    assert [(row["node"], row["link"], row["window_us"], row["expected"]) for row in by_scope["window"]] == [
        ("edge", "up", 0, 5),
        ("edge", "up", 5, 1),
        ("leaf", "up", 0, 1),
    ]
    around = [(row["target"], row["place"], row["certain"]) for row in by_scope["target"]]
    assert around == [(0, 1, 3), (0, 2, 1)]
    around = [(row["topic"], row["place"], row["certain"]) for row in by_scope["topic"]]
    assert around == [("a", 1, 1), ("a", 2, 0)]
    alone = losses.count_around(expected, scopes={}, places=places, depth=0, window_us=5)
    assert rows_of(alone, "scope")[0]["scope"] == "window"
