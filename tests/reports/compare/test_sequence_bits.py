"""The word plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from fanout.reports.compare import sequence_bits as words
from fanout.reports.identify.planning import decide_scope
from fanout.reports.read import rows
from fanout.reports.read.reading import take_survey
from fanout.reports.read.scope import WHOLE, AskedWindow
from tests.reports.frames import assert_unique, plan_of, rows_of, tables_of
from tests.reports.logs import NodeLog, at, selector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FIRST = 2**60
"""A multiple of 64 above what floating point can tell apart."""


def hub_and_edge(lost: set[int], *, updates: int = 192) -> list[NodeLog]:
    """Return a primary with sequences from FIRST, and a secondary that lacks some of them."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    edge.start(at(0), {"name": "up", "primary": "mqtt://hub", "selectors": [selector("#")]})
    edge.ready(at(1), "up", "#")
    for number in range(updates):
        row = hub.publish(at(2) + number, FIRST + number, f"t/{number % 3}", str(number))
        if number not in lost:
            edge.apply(row, link="up", selector="#")
    hub.event("heartbeat", at(100))
    return [hub, edge]


def merged_words(jvm: SparkSession, logs: list[NodeLog]) -> DataFrame:
    """Return the words of some logs, without a settle horizon."""
    tables = tables_of(jvm, logs)
    scope = decide_scope(take_survey(tables), requested=None, settle_us=0)
    spans = sf.broadcast(rows.targets_frame(jvm, scope))
    wanted = rows.explode_targets(
        rows.source_rows(tables.updates, scope=scope).where(words.stamped(scope)),
        scope=scope,
        targets=scope.targets,
    )
    logged = rows.target_rows(tables.updates, scope=scope, targets=scope.targets)
    return words.merge_words(
        words.expected_words(wanted.join(spans, on="target", how="inner"), gaps=False),
        words.applied_words(logged.where(words.stamped(scope)).join(spans, on="target", how="inner")),
    )


def sequences(updates: DataFrame, *, window: AskedWindow = WHOLE) -> list[tuple[int, int, int]]:
    """Return, of each epoch of a reference, the first and last sequence and how many are there."""
    found = rows_of(words.count_words(words.merge_words(words.sequence_words(updates, window=window))), "epoch")
    assert {row["target"] for row in found} <= {words.REFERENCE}
    assert not any(row["hole_words"] for row in found), "no update is absent at the reference itself"
    spans = [(row["first_sequence"], row["last_sequence"], row["expected"]) for row in found]
    return [span for span in spans if None not in span and span[0] <= span[1]]


def test_holes_at_the_edges_of_words_are_counted(jvm: SparkSession) -> None:
    """Bits 0 and 63, a whole word, and sequences above 2**53 are counted exactly, each in its own word."""
    lost = {0, 63, *range(64, 128), 128, 191}
    merged = merged_words(jvm, hub_and_edge(lost))
    assert_unique(merged, *words.KEY)
    found = rows_of(merged.select("word", words.missing_bits().alias("missing")), "word")
    unsigned = {row["word"] - FIRST // 64: row["missing"] % 2**64 for row in found}
    assert unsigned == {0: 1 | 1 << 63, 1: 2**64 - 1, 2: 1 | 1 << 63}
    counts = rows_of(words.count_words(merged))[0]
    assert (counts["expected"], counts["applied"], counts["missing"]) == (192, 192 - len(lost), len(lost))
    assert counts["hole_words"] == 3


def test_plan_has_no_python_no_window_and_merges_before_the_shuffle(jvm: SparkSession) -> None:
    """The words are made by partial aggregation alone: no window, no Python, no join of two logs."""
    plan = plan_of(words.count_words(merged_words(jvm, hub_and_edge({3}))))
    assert "partial_bit_or" in plan
    for forbidden in ("Window", "Python", "ArrowEval", "SortMergeJoin", "CartesianProduct"):
        assert forbidden not in plan
    # Every join is with one of the small frames, sent to all executors.
    assert plan.count("Join") == plan.count("BroadcastHashJoin")


def test_reference_sequences_find_holes_in_the_reference(jvm: SparkSession) -> None:
    """For each epoch the span and what is there of it are counted, so that lost rows of the reference show."""
    hub = NodeLog("hub", "primary")
    for sequence in (FIRST, FIRST + 1, FIRST + 70, FIRST + 70):
        hub.publish(at(1), sequence, "t", "x")
    hub.restart(at(50))
    hub.publish(at(50), 1, "t", "y")
    assert sequences(tables_of(jvm, [hub]).updates) == [(FIRST, FIRST + 70, 3), (1, 1, 1)]


def test_reference_sequences_of_a_window_reach_to_what_is_next_to_it(jvm: SparkSession) -> None:
    """What is absent between the last before a window and the first after it may be of the window."""
    hub = NodeLog("hub", "primary")
    for sequence in (1, 2, 3, 6, 7, 8, 9):
        hub.publish(at(sequence), sequence, "t", "x")
    updates = tables_of(jvm, [hub]).updates
    for since, until, expected in (
        (1, 4, [(1, 5, 3)]),
        (7, 9, [(7, 8, 2)]),
        (4.2, 5.5, [(4, 5, 0)]),
        (5, 7, [(4, 6, 1)]),
        (8.2, 8.6, []),
        (8, 20, [(8, 9, 2)]),
        (20, 30, []),
    ):
        assert sequences(updates, window=AskedWindow(at(since), at(until))) == expected, (since, until)


def test_the_first_and_the_last_bit_of_a_word_are_found(jvm: SparkSession) -> None:
    """The highest bit is the sign of a word."""
    hub = NodeLog("hub", "primary")
    for sequence in (FIRST - 1, FIRST + 63, FIRST + 64):
        hub.publish(at(1), sequence, "t", "x")
    updates = tables_of(jvm, [hub]).updates
    assert sequences(updates) == [(FIRST - 1, FIRST + 64, 3)]
    assert sequences(updates.where(sf.col("sequence") == FIRST + 63)) == [(FIRST + 63, FIRST + 63, 1)]
