"""The states of all topics at all targets, computed once for final values, convergence and stalls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from fanout.reports.compare import convergence, final_values, stalls
from fanout.reports.compare.topic_states import node_topics, reference_topics, topic_states
from fanout.reports.figures.counted import CountedUpdates
from fanout.reports.figures.replicated_sets import ReplicatedSet, replicated_sets
from fanout.reports.read import rows
from fanout.reports.read.reading import Tables, collect_rows
from fanout.reports.read.scope import APART_US, Scope, Target
from fanout.reports.read.survey import Survey
from fanout.reports.session.sail import keep

__all__ = ["TopicStates"]

_TARGETS = (
    "target int, `group` int, node string, link string, selector string, covered_from_us bigint, "
    "settled_until_us bigint, silent_after_us bigint, tolerance_us bigint, "
    "gaps array<struct<after_us: bigint, until_us: bigint>>, reference_gap boolean, node_gap boolean, "
    "set int, members int, with_reference boolean, gap_members int, judged_until_us bigint"
)
_COLUMNS = (
    *("target", "group", "set", "node", "link", "selector", "topic", "wanted_digest", "held_digest", "final", "stall"),
    *("settled_us", "held_us", "after_us", "stalled_links", "current_links"),
)
_OF_SETS = ("set_verdict", "speaks_for_set")


class TopicStates:
    """One row for each (target, topic) with its verdicts; nothing is read before it is asked for.

    Several threads may ask at once. Call `close` to free what Spark keeps.

    Args:
        tables: The logs.
        survey: Result of the first look.
        scope: The scope of the report.
        counted: Returns the updates with an identity for each.
        by_set: True to compare the members of each set with one another, too.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        survey: Survey,
        scope: Scope,
        counted: Callable[[], CountedUpdates],
        by_set: bool = False,
    ) -> None:
        self.tables = tables
        self.survey = survey
        self.scope = scope
        self.by_set = by_set
        self._counted = counted
        self.sets: tuple[ReplicatedSet, ...] = replicated_sets(survey, scope)
        self._frame: DataFrame | None = None
        self._counts: Mapping[int, dict[str, Any]] | None = None
        self._lock = Lock()

    def close(self) -> None:
        """Free what Spark keeps."""
        if self._frame is not None:
            self._frame.unpersist()

    @property
    def frame(self) -> DataFrame:
        """The rows, which Spark keeps.

        Columns target, group, set, node, link, selector, topic; wanted_digest and held_digest; `final` and `stall`: the
        verdicts of `final_values` and `stalls`, null where they say nothing; settled_us, held_us, after_us;
        stalled_links and current_links, how many links stalled on the topic and how many have its newest update. By
        set also set_verdict, the verdict of `convergence`, and speaks_for_set, whether it is the row of its set that is
        counted.
        """
        self._count()
        assert self._frame is not None
        return self._frame

    @property
    def counts(self) -> Mapping[int, dict[str, Any]]:
        """The counts of each target that has a topic: its topics by `final_X` and `stall_X` for each verdict X.

        Also alone (stalled here and not elsewhere) and most_behind_us. By set also held_topics and held_digest, and of
        those topics that it speaks for: set_X, reference_topics, reference_digest.
        """
        return self._count()

    def of(self, target: int, name: str) -> int:
        """Return a count of a target; 0 when it has no topic."""
        return self.counts.get(target, {}).get(name) or 0

    def _count(self) -> Mapping[int, dict[str, Any]]:
        with self._lock:  # the first query computes the rows, so that no other does it too
            if self._counts is None:
                self._frame = keep(self._states())
                self._counts = {row["target"]: row for row in collect_rows(_counts(self._frame, by_set=self.by_set))}
            return self._counts

    def _states(self) -> DataFrame:
        named: dict[str, Any] = {"survey": self.survey, "scope": self.scope}
        states = topic_states(
            reference_topics(self.tables.updates, **named),
            nodes=node_topics(self.tables.updates, **named),
            late=self._late(),
            targets=self._targets(),
        )
        is_stalled, has_newest = sf.col("stall") == "stalled", sf.col("stall").isin("current", "pending")
        over_rows = {
            "stalled_links": stalls.links_where(is_stalled),
            # Pending: what it lacks is young, so it has the newest settled update.
            "current_links": stalls.links_where(has_newest),
        }
        if self.by_set:
            over_rows |= dict(zip(_OF_SETS, (convergence.set_verdict(), convergence.speaks_for_set()), strict=True))
        judged = states.withColumn("after_us", stalls.after_us()).withColumns(
            {"final": final_values.final_verdict(), "stall": stalls.stall_verdict()}
        )
        return judged.withColumns(over_rows).select(*_COLUMNS, *(_OF_SETS if self.by_set else ()))

    def _late(self) -> DataFrame | None:
        """Return the updates without a stamp that may have come after a window."""
        if not self.scope.targets_of("unstamped") or not self.scope.window.has_end:
            return None
        counted = self._counted()
        return stalls.newest_late(counted.updates, scope=counted.scope)

    def _targets(self) -> DataFrame:
        scope, survey = self.scope, self.survey
        with_gap = {group for node, link, group in scope.sources if survey.gap_pos(node, link=link)}
        found: list[tuple[object, ...]] = [
            (
                *(target.id, target.group, target.node, target.link, target.selection.filter),
                *(target.covered_from_us, target.settled_until_us, target.silent_after_us),
                *(_apart_us(scope, target), list(target.gaps_us)),
                *(target.group in with_gap, bool(survey.gap_pos(target.node, link=target.link))),
                *(one.id, one.members, one.reference is not None, one.gap_members, one.judged_until_us),
            )
            for one in self.sets
            for target in one.targets
        ]
        return rows.small_frame(self.tables.updates.sparkSession, found, schema=_TARGETS)


def _apart_us(scope: Scope, target: Target) -> int:
    """Return the age difference of two updates from which on a topic has stopped."""
    is_stamped = scope.groups[target.group].basis == "stamped"
    return 0 if is_stamped else max(scope.settle_us, APART_US)


def _counts(states: DataFrame, *, by_set: bool) -> DataFrame:
    stalled = sf.col("stall") == "stalled"
    verdicts: dict[str, tuple[Column, tuple[str, ...]]] = {
        "final": (sf.col("final"), final_values.VERDICTS),
        "stall": (sf.col("stall"), stalls.VERDICTS),
    }
    counts = {
        "alone": sf.count_if(stalled & (sf.col("current_links") > 0)),
        "most_behind_us": sf.max(sf.when(stalled, sf.col("settled_us") - sf.col("held_us"))),
    }
    if by_set:
        speaks, held = sf.col("speaks_for_set"), sf.col("held_digest")
        of_reference = sf.when(speaks, sf.col("wanted_digest"))
        verdicts["set"] = (sf.when(speaks, sf.col("set_verdict")), convergence.VERDICTS)
        for name, digest in (("held", held), ("reference", of_reference)):
            counts |= {f"{name}_topics": sf.count(digest), f"{name}_digest": convergence.digest_sum(digest)}
    for name, (verdict, values) in verdicts.items():
        counts |= {f"{name}_{value}": sf.count_if(verdict == value) for value in values}
    return states.groupBy("target").agg(*(count.alias(name) for name, count in counts.items()))
