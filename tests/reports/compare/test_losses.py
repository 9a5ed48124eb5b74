"""What targets lack, counted by scope, and what was expected around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare import losses
from fanout.reports.read.rows import small_frame
from fanout.reports.values.figures import goes_on
from tests.reports.frames import assert_rows, assert_unique, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_PLACES = "target int, node string, link string"


def absent(spark: SparkSession, *rows: tuple[int, str, int, bool, bool, str]) -> DataFrame:
    """Return absent updates: target, topic, origin_us, known, superseded, cause."""
    schema = "target int, topic string, origin_us bigint, known boolean, superseded boolean, cause string"
    return small_frame(spark, list(rows), schema=schema)


def test_losses_are_counted_in_each_scope(spark: SparkSession) -> None:
    """By target, topic, prefix and window of a link, with the times of what is missing for sure."""
    lacking = absent(
        spark,
        (0, "a/x", 11, True, True, "away"),
        (0, "a/x", 15, True, False, "live"),
        (0, "a/y", 16, False, False, "live"),
        (1, "b", 12, True, False, "restart"),
    )
    places = small_frame(spark, [(0, "edge", "up"), (1, "edge", "up")], schema=_PLACES)
    counted = losses.count_losses(lacking, places=places, depth=1, window_us=5)
    assert_unique(counted, "scope", "target", "topic", "prefix", "node", "link", "window_us")

    expected: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "target": (
            "target int, missing bigint, unknown bigint, superseded bigint, away bigint, live bigint, restart bigint, "
            "first_us bigint, last_us bigint",
            [(0, 2, 1, 1, 1, 1, 0, 11, 15), (1, 1, 0, 0, 0, 0, 1, 12, 12)],
        ),
        "topic": (
            "target int, topic string, missing bigint, unknown bigint",
            [(0, "a/x", 2, 0), (0, "a/y", 0, 1), (1, "b", 1, 0)],
        ),
        "prefix": ("target int, prefix string, missing bigint", [(0, "a", 2), (1, "b", 1)]),
        "window": (
            "node string, link string, window_us bigint, missing bigint, unknown bigint",
            [("edge", "up", 10, 2, 0), ("edge", "up", 15, 1, 1)],
        ),
    }
    for scope, (schema, rows) in expected.items():
        assert_rows(counted.where(sf.col("scope") == scope), rows, schema=schema)


@pytest.mark.parametrize("limit", [1, 9])
def test_of_the_topics_that_lack_anything_the_worst_are_listed(spark: SparkSession, limit: int) -> None:
    """All of them are counted; targets and windows are there whatever the limit."""
    lacking = absent(
        spark,
        (1, "b", 12, True, False, "live"),
        (0, "a", 11, True, False, "live"),
        (0, "a", 12, True, False, "live"),
        (0, "c", 12, False, False, "live"),
    )
    places = small_frame(spark, [(0, "edge", "up"), (1, "edge", "up")], schema=_PLACES)
    counted = losses.count_losses(lacking, places=places, depth=1, window_us=5)
    worst = losses.worst_losses(counted, limit=limit)
    listed = [(0, "a", 1, 2), (1, "b", 2, 2)][:limit]
    assert_rows(worst.where("scope = 'topic'"), listed, schema="target int, topic string, rank int, topics bigint")
    assert [row["scope"] for row in rows_of(worst.where("scope != 'topic'"), "scope")] == ["target"] * 2 + ["window"]


@pytest.mark.parametrize("repeats", [False, True])
def test_an_update_is_expected_once_and_only_in_the_covered_span(spark: SparkSession, repeats: bool) -> None:
    """What is not settled or not covered is left out, and a second copy in a tap's log counts once."""
    rows = small_frame(
        spark,
        [(0, "a", "p", 1, number, at_us) for number, at_us in enumerate((9, 10, 20, 21))],
        schema="target int, topic string, stamp_primary string, stamp_epoch bigint, sequence bigint, at_us bigint",
    ).withColumns({"origin": sf.timestamp_micros("at_us"), "applied": sf.timestamp_micros("at_us")})
    rows = rows.drop("at_us").withColumns({"covered_from_us": sf.lit(9), "settled_until_us": sf.lit(20)})
    expected = losses.expected_updates(rows.unionByName(rows) if repeats else rows, repeats=repeats)
    assert [(row["topic"], row["at_us"]) for row in rows_of(expected, "at_us")] == [("a", 10), ("a", 20)]


def test_expected_updates_lie_before_within_and_behind_a_loss(spark: SparkSession) -> None:
    """The two ends of a loss belong to it; what has no loss counts in its window alone, and what is unknown too."""
    rows = [(0, "a", at_us, 1, 1) for at_us in (1, 2, 3, 4, 9)] + [(0, "b", 3, 1, 1), (1, "a", 3, 1, 1)]
    expected = small_frame(spark, rows, schema="target int, topic string, at_us bigint, expected int, certain int")
    lacking = absent(spark, (0, "a", 9, False, False, "live"), (0, "a", 2, True, False, "live"))
    expected = expected.unionByName(losses.unknown_updates(lacking))
    of_target = small_frame(spark, [(0, 2, 3)], schema="target int, first_us bigint, last_us bigint")
    of_topic = small_frame(spark, [(0, "a", 4, 4)], schema="target int, topic string, first_us bigint, last_us bigint")
    scopes = {"target": of_target, "topic": of_topic}
    placed = losses.place_expected(expected, scopes=scopes, depth=0, window_us=5)
    places = small_frame(spark, [(0, "edge", "up"), (1, "leaf", "up")], schema=_PLACES)
    found = rows_of(losses.count_placed(placed, scopes=scopes, places=places), "scope", "node", "window_us", "place")
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
    alone = losses.place_expected(expected, scopes={}, depth=0, window_us=5)
    assert rows_of(losses.count_placed(alone, scopes=(), places=places), "scope")[0]["scope"] == "window"


@pytest.mark.parametrize(
    ("missing", "within", "after", "expected"),
    [
        (1, 1, 0, None),  # nothing came since, and one loss shows no row of them
        (50, 50, 0, True),  # all are lost, up to the end
        (50, 50, 1, False),  # all were lost, and then one came
        (2, 100, 200, None),  # of 50 one: 200 without a loss come now and then
        (2, 100, 230, False),
        (50, 100, 2, True),  # no more came since the last than between two of them
        (50, 100, 3, None),
        (50, 100, 7, False),
    ],
)
def test_a_loss_goes_on_until_what_came_shows_its_end(
    missing: int, within: int, after: int, expected: bool | None
) -> None:
    """It goes on, or has ended with one chance in a hundred of an error; otherwise that is not known."""
    assert goes_on(missing, within=within, after=after) is expected
