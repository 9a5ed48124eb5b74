"""Topic Filters as Column expressions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.read.details import Selection
from fanout.reports.read.matching import filter_pattern, matches_any, matches_filter, matches_selection
from fanout.reports.read.rows import small_frame
from tests.reports.oracle import matches, selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LEVELS = (
    "",
    "a",
    "b",
    "ab",
    "$SYS",
    "$",
    "+a",
    "a.b",
    "x*",
    "[z",
    "é",
    "日本",
    "a b",
    "\\Q",
    "\\E",
    "A",
    "\n",
    "(?i)a",
)


def test_matches_filter_agrees_with_the_rules(spark: SparkSession) -> None:
    """Comparisons and patterns match exactly the topics of section 4.7, whatever characters the levels have."""
    rng = random.Random(7)
    topics = {"/".join(rng.choice(LEVELS) for _ in range(rng.randint(1, 4))) for _ in range(400)} - {""}
    filters = {"#", "+", "+/#", "/#", "/+", "+/+", "a/#", "a/+/#", "$SYS/#", "$SYS/+", "a", "a/", "a//#", "+/"}
    for _ in range(120):
        levels = [rng.choice((*LEVELS, "+", "+", "+")) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.4:
            levels[-1] = "#"
        filters.add("/".join(levels))
    wanted = sorted(filters - {""})
    frame = small_frame(spark, [(topic,) for topic in sorted(topics)], schema="topic string")
    rows = frame.select("topic", *(matches_filter(sf.col("topic"), f).alias(str(i)) for i, f in enumerate(wanted)))
    for row in rows.collect():
        for index, topic_filter in enumerate(wanted):
            assert row[str(index)] == matches(topic_filter, row["topic"]), (topic_filter, row["topic"])


def test_matches_selection_leaves_out_what_is_excluded(spark: SparkSession) -> None:
    """A topic that matches any of the excludes, or is a control topic, is not selected."""
    selection = Selection("+/#", ("a/+/debug", "a/x"))
    topics = ["a", "a/x", "a/x/y", "a/b/debug", "a/b/debug/c", "b", "fanout/control", "fanout/control/edge/up"]
    frame = small_frame(spark, [(topic,) for topic in topics], schema="topic string")
    taken = frame.where(matches_selection(sf.col("topic"), selection)).collect()
    oracle = {"filter": selection.filter, "exclude": list(selection.exclude)}
    assert [row["topic"] for row in taken] == [topic for topic in topics if selected(oracle, topic)]


def test_matches_any_is_one_selection_or_another(spark: SparkSession) -> None:
    """Exact topics and whole branches of several levels, many and few of them, with others between them."""
    rng = random.Random(5)

    def topic() -> str:
        return "/".join(rng.choice(LEVELS) for _ in range(rng.randint(1, 4))) or "a"

    topics = sorted({topic() for _ in range(400)} | {"fanout/control/x", "fanout/x"})
    frame = small_frame(spark, [(each,) for each in topics], schema="topic string")
    for others in ([], [Selection("+/a/#", ("+/a/b",)), Selection("b")]):
        filters = sorted({topic() + rng.choice(("", "/#")) for _ in range(150)})
        for selections in ([Selection(one) for one in filters], [Selection(one) for one in filters[:6]]):
            wanted = [*selections, *others]
            taken = {row["topic"] for row in frame.where(matches_any(sf.col("topic"), wanted)).collect()}
            oracle = [{"filter": one.filter, "exclude": list(one.exclude)} for one in wanted]
            assert taken == {each for each in topics if any(selected(one, each) for one in oracle)}


def test_hundreds_of_filters_that_are_not_plain_can_be_asked_for(spark: SparkSession) -> None:
    """Each is a condition of its own; together they are not nested so deeply that the planner fails."""
    frame = small_frame(spark, [("a/600/x",), ("a/599/x",), ("a/0/x",)], schema="topic string")
    filters = [f"+/{number}/x" for number in range(600)]
    taken = frame.where(matches_any(sf.col("topic"), [Selection(one) for one in filters])).collect()
    assert sorted(row["topic"] for row in taken) == ["a/0/x", "a/599/x"]
    left = frame.where(matches_selection(sf.col("topic"), Selection("#", tuple(filters)))).collect()
    assert [row["topic"] for row in left] == ["a/600/x"]


@pytest.mark.parametrize(
    ("topic_filter", "pattern"),
    [
        ("a/+", r"(?s)^a/[^/]*\z"),
        ("+/a", r"(?s)^(?:[^$/][^/]*)?/a\z"),
        ("a/+/#", r"(?s)^a/[^/]*(?:/.*)?\z"),
        ("#", r"(?s)^(?:[^$].*)?\z"),
        ("a.b/+", r"(?s)^a\.b/[^/]*\z"),
    ],
)
def test_filter_pattern_is_anchored_and_escaped(topic_filter: str, pattern: str) -> None:
    """A pattern covers the whole topic, and only `+` and `#` are special in it."""
    assert filter_pattern(topic_filter) == pattern
