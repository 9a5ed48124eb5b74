"""From a log's rows to the targets of a report."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.read import rows
from fanout.reports.read.details import Selection
from fanout.reports.read.scope import NEVER_US, Group, Reference, Scope, Target
from tests.reports.frames import assert_unique, rows_of, tables_of
from tests.reports.logs import NodeLog, at
from tests.reports.oracle import selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def group(number: int, *selections: Selection) -> Group:
    """Return a group that selects everything, or these."""
    source = ("tap", "ab"[number])
    return Group(number, (source,), "stamped", True, ("hub",), 5, 9, selections or None, gap=False)


def target(number: int, node: str, selection: Selection, *, group: int = 0) -> Target:
    """Return a target of the link `up`."""
    return Target(number, node, "up", selection, group, 1, 10, 20, 15, ((3, 4),))


ALL, PLANT = Selection("#"), Selection("plant/#", ("plant/x",))
SCOPE = Scope(
    Reference("tap", ("tap",), "asked for"),
    5,
    (group(0), group(1, Selection("plant/+"))),
    (target(0, "one", ALL), target(1, "two", PLANT), target(2, "one", PLANT), target(3, "two", ALL, group=1)),
    (),
)


def test_reference_rows_go_to_every_target_of_their_group_that_selects_them(spark: SparkSession) -> None:
    """A row is repeated for each target that takes its topic, and only within its own group."""
    tap = NodeLog("tap", "tap")
    for link, topic in (("a", "plant/y"), ("a", "plant/x"), ("b", "plant/y"), ("c", "plant/y")):
        tap.update(at(1), topic, "1", link=link)
    sources = rows.source_rows(tables_of(spark, [tap]).updates, scope=SCOPE)
    exploded = rows.explode_targets(sources, scope=SCOPE, targets=SCOPE.targets)
    found = [(row["link"], row["topic"], row["target"]) for row in rows_of(exploded, "link", "topic", "target")]
    assert found == [
        ("a", "plant/x", 0),
        ("a", "plant/y", 0),
        ("a", "plant/y", 1),
        ("a", "plant/y", 2),
        ("b", "plant/y", 3),
    ]
    assert rows.explode_targets(sources, scope=SCOPE, targets=()).count() == 0


def test_many_selections_are_looked_up(spark: SparkSession) -> None:
    """Exact topics and whole branches of one to three levels, with others between them, in two groups."""
    rng = random.Random(11)
    levels = ("a", "b", "ab", "", "$SYS", "é", "a b", ".")

    def topic() -> str:
        return "/".join(rng.choice(levels) for _ in range(rng.randint(1, 4))) or "a"

    filters = sorted({topic() + rng.choice(("", "/#")) for _ in range(250)} | {"#", "+", "a/+", "/#", "fanout/#"})
    selections = [Selection(one, ("a/b",) if one == "#" else ()) for one in filters]
    targets = tuple(
        target(number, f"node-{number}", selection, group=rng.randint(0, 1))
        for number, selection in enumerate([*selections, *selections[::3]])
    )
    scope = replace(SCOPE, groups=(group(0), group(1)), targets=targets)
    tap = NodeLog("tap", "tap")
    topics = sorted({topic() for _ in range(150)} | {"fanout/control/x", "fanout/x", "a/b"})
    for each in topics:
        for link in ("a", "b"):
            tap.update(at(1), each, "1", link=link)
    sources = rows.source_rows(tables_of(spark, [tap]).updates, scope=scope)
    exploded = rows.explode_targets(sources, scope=scope, targets=targets)
    assert sorted(exploded.columns) == sorted([*sources.columns, "target"])
    found = Counter(
        (row["group"], row["topic"], row["target"]) for row in rows_of(exploded, "group", "topic", "target")
    )
    assert found == Counter(
        (one.group, each, one.id)
        for one in targets
        for each in topics
        if selected({"filter": one.selection.filter, "exclude": one.selection.exclude}, each)
    )
    assert len({one.selection.filter.count("/") for one in targets if one.selection.filter.endswith("/#")}) >= 3


def test_node_rows_go_to_the_target_they_name_if_the_reference_selects_them(spark: SparkSession) -> None:
    """A row belongs to the target of its link and selector; topics that the reference leaves out are dropped."""
    one, two = NodeLog("one"), NodeLog("two")
    one.update(at(1), "plant/y", "1", link="up", selector="plant/#")
    one.update(at(1), "site", "1", link="up", selector="#")
    one.update(at(1), "site", "1", link="up", selector="")
    two.update(at(1), "plant/y", "1", link="up", selector="#")
    two.update(at(1), "plant/y/z", "1", link="up", selector="#")
    two.update(at(1), "site", "1", link="other", selector="#")
    logged = rows.target_rows(tables_of(spark, [one, two]).updates, scope=SCOPE, targets=SCOPE.targets)
    found = [(row["target"], row["group"], row["topic"]) for row in rows_of(logged, "target")]
    assert found == [(0, 0, "site"), (2, 0, "plant/y"), (3, 1, "plant/y")]


def test_targets_have_their_spans_and_a_primary_has_no_bounds(spark: SparkSession) -> None:
    """Each target is one row with its spans and gaps; only a reference that selects bounds what is compared."""
    frame = rows.targets_frame(spark, SCOPE)
    assert_unique(frame, "target")
    found = rows_of(frame, "target")
    assert [row["covered_from_us"] for row in found] == [10] * 4
    assert [(row["reference_from_us"], row["reference_until_us"]) for row in found] == [
        (-NEVER_US, NEVER_US),
        (-NEVER_US, NEVER_US),
        (-NEVER_US, NEVER_US),
        (5, 9),
    ]
    inside = frame.where("target = 0").select(*(rows.in_gap(sf.lit(us)).alias(f"at{us}") for us in (3, 4, 5)))
    assert [tuple(row) for row in inside.collect()] == [(False, True, False)]


def test_live_rows_are_updates_that_were_applied(spark: SparkSession) -> None:
    """Copies of retained values and updates that were folded away are not applied updates."""
    one = NodeLog("one")
    for phase, flags in ((0, 0), (0, 3), (1, 0), (2, 0), (0, 8)):
        one.update(at(1), f"{phase}/{flags}", "1", phase=phase, flags=flags)
    frame = tables_of(spark, [one]).updates
    assert [row["topic"] for row in frame.where(rows.is_live()).collect()] == ["0/0", "0/3"]
    assert [row["topic"] for row in frame.where(rows.conflated()).collect()] == ["0/8"]
