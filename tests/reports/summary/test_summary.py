"""The three answers of a report, by literal figures."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fanout.reports.summary.summarize import summarize
from fanout.reports.values.document import (
    ClockDifference,
    CorrectedLag,
    HiddenBranch,
    HopLag,
    LagSection,
    MissingTopic,
    PrefixFigures,
    Propagation,
    Report,
    TargetReport,
)
from fanout.reports.values.figures import LagFigures, Listed, MissingCauses
from fanout.reports.values.summary import NodeSummary
from tests.reports.documents import BEGIN, END, final, report, stalls, stamped, target, unstamped


def made(*targets: TargetReport, **others: Any) -> Report:
    """Return a report on these selectors whose other sections are empty unless they are given."""
    empty = {"logs": (), "prefixes": None, "over_time": None, "lag": LagSection()}
    return report(*targets).model_copy(update=empty | others)


def only(*targets: TargetReport, **others: Any) -> NodeSummary:
    """Return what the summary says of the only node."""
    (node,) = summarize(made(*targets, **others)).nodes
    return node


def test_a_node_that_got_everything() -> None:
    """Its share is exact, and nothing else is said of it."""
    node = only(target(figures=stamped(expected=100)))
    assert (node.answer, node.missing_is_exact) == ("complete", True)
    assert (node.complete_percent_at_least, node.complete_percent_at_most) == (100, 100)
    assert (node.missing, node.first_missing, node.going_on, node.causes) == (0, None, None, ())
    assert (node.topics_different, node.topics_behind) == (0, None)


def test_selectors_of_a_node_are_added_up() -> None:
    """Counts, causes and times of all links; the loss goes on when that of one of them does."""
    times = [BEGIN + timedelta(seconds=second) for second in range(4)]
    first = stamped(expected=100, missing=10, first_missing=times[1], last_missing=times[2], going_on=False)
    second = stamped(expected=300, missing=30, first_missing=times[0], last_missing=times[3], going_on=True)
    second = second.model_copy(update={"causes": MissingCauses(live=25, new_epoch=5)})
    node = only(target(figures=first), target(figures=second, topic_filter="site/#"))
    assert (node.missing, node.complete_percent_at_least, node.complete_percent_at_most) == (40, 90, 90)
    assert (node.first_missing, node.last_missing, node.going_on) == (times[0], times[3], True)
    assert [(one.cause, one.updates) for one in node.causes] == [("live", 25), ("new_epoch", 15)]
    assert (node.answer, node.missing_is_exact) == ("not_complete", True)


@pytest.mark.parametrize(
    ("one", "at_least", "at_most"),
    [
        (target(figures=stamped(unknown=10)), 90, 100),
        (target(figures=stamped(unseen=25)), 80, 100),
        (target(figures=stamped(unseen=None), exact=False), None, 100),
        (target(figures=stamped(unidentified=25)), 80, 100),
        (target(figures=unstamped(unknown=10)), 90, 100),
    ],
    ids=["unknown", "gaps of the reference", "tap", "without identity", "unstamped"],
)
def test_what_nobody_can_know_is_not_proved(one: TargetReport, at_least: float | None, at_most: float) -> None:
    """Nothing is known to be missing; the share is a bound, alone and beside a complete selector."""
    node = only(one)
    assert (node.answer, node.missing, node.missing_is_exact) == ("not_proved", 0, False)
    assert (node.complete_percent_at_least, node.complete_percent_at_most) == (at_least, at_most)
    beside = only(one, target(figures=stamped(expected=100), topic_filter="site/#"))
    assert (beside.answer, beside.complete_percent_at_most) == ("not_proved", 100)
    assert (beside.complete_percent_at_least is None) == (at_least is None)
    assert beside.complete_percent_at_least is None or at_least is None or beside.complete_percent_at_least > at_least


def test_losses_on_either_basis_are_added_up() -> None:
    """What is missing by identity, and what is by counting, are of one node."""
    node = only(
        target(figures=stamped(expected=100, missing=10)), target(figures=unstamped(missing=20), topic_filter="x/#")
    )
    assert (node.answer, node.missing, node.missing_is_exact) == ("not_complete", 30, True)
    assert (node.complete_percent_at_least, node.complete_percent_at_most) == (85, 85)


def test_a_union_and_a_cut_reference_prove_nothing() -> None:
    """Whatever the figures are."""
    union = report(reference="union").reference
    node = only(target(), reference=union)
    assert (node.answer, node.complete_percent_at_least, node.complete_percent_at_most) == ("not_proved", None, 100)
    (node,) = summarize(made(target()), cut_off=True).nodes
    assert (node.answer, node.complete_percent_at_least, node.missing_is_exact) == ("not_proved", None, False)


def test_what_was_never_held_or_differs_is_not_complete() -> None:
    """A selector that was never held, a value that is not the reference's, a topic that stopped."""
    never = only(target(figures=stamped(expected=0), held=False))
    assert (never.answer, never.never_held) == ("not_complete", ("plant/#",))
    assert (never.complete_percent_at_least, never.missing_is_exact) == (None, False)
    different = only(target(finals=final(different=3)))
    assert (different.answer, different.topics_different) == ("not_complete", 3)
    section = stalls("edge")
    behind = only(target(), stalls=section)
    assert behind.topics_behind == sum(one.stalled for one in section.targets) > 0
    assert behind.answer == "not_complete"


def test_a_node_of_which_nothing_was_judged() -> None:
    """Nothing was expected; or its log is there and compared with nothing, which keeps all from being proved."""
    young = target("young", figures=stamped(expected=0), finals=final(equal=0))
    assert summarize(made(young)).answer == "nothing_judged"
    (log,) = report().logs
    logs = (
        log.model_copy(update={"node": "alone"}),
        log.model_copy(update={"node": "hub", "role": "secondary"}),
        log.model_copy(update={"node": "origin", "role": "primary"}),
    )
    found = summarize(made(target(), logs=logs))
    assert [(node.node, node.answer) for node in found.nodes] == [("alone", "nothing_judged"), ("edge", "complete")]
    assert found.answer == "not_proved"


def test_the_worst_come_first() -> None:
    """By answer, by what is missing, then by name; the answer for all is that of the worst."""
    found = summarize(
        made(
            target("b", figures=stamped()),
            target("c", figures=stamped(missing=1)),
            target("d", figures=stamped(missing=7)),
            target("a", figures=stamped()),
            target("e", figures=stamped(unknown=1)),
        )
    )
    assert [node.node for node in found.nodes] == ["d", "c", "e", "a", "b"]
    assert found.answer == "not_complete"
    assert summarize(made(target("a"), target("b"))).answer == "complete"
    assert summarize(made(target("a"), target("b", figures=stamped(unknown=1)))).answer == "not_proved"


def prefix(node: str, name: str, missing: int, topic_filter: str = "plant/#") -> PrefixFigures:
    """Return one prefix at one selector."""
    return PrefixFigures(
        node=node,
        link="up",
        filter=topic_filter,
        prefix=name,
        expected=100,
        missing=missing,
        unknown=0,
        complete_percent_at_least=100 - missing,
    )


def test_where_most_is_missing() -> None:
    """Every prefix, added up over selectors, or none; topics where no prefixes were asked for."""
    listed = (
        *(prefix("edge", name, missing) for name, missing in (("a", 5), ("b", 9), ("d", 4), ("e", 0))),
        prefix("edge", "d", 3, "site/#"),
        prefix("other", "a", 50),
    )
    node = only(target(figures=stamped(missing=21)), prefixes=Listed[PrefixFigures](total=7, listed=listed))
    assert [(one.prefix, one.missing) for one in node.prefixes] == [("b", 9), ("d", 7), ("a", 5)]
    node = only(target(figures=stamped(missing=22)), prefixes=Listed[PrefixFigures](total=7, listed=listed))
    assert not node.prefixes
    four = (*listed, prefix("edge", "c", 1))
    node = only(target(figures=stamped(missing=22)), prefixes=Listed[PrefixFigures](total=8, listed=four))
    assert not node.prefixes
    topics = tuple(
        MissingTopic(
            node="edge",
            link="up",
            filter="plant/#",
            topic=topic,
            missing=missing,
            unknown=0,
            superseded=0,
            first_missing=BEGIN,
            last_missing=END,
            going_on=True,
            cause="live",
        )
        for topic, missing in (("plant/hot", 430), ("plant/b", 12))
    )
    node = only(
        target(figures=stamped(missing=442)), missing_topics=Listed[MissingTopic](total=2, listed=topics), prefixes=None
    )
    assert [(one.prefix, one.missing) for one in node.prefixes] == [("plant/hot", 430), ("plant/b", 12)]


@pytest.mark.parametrize(
    ("causes", "going_on"),
    [
        (MissingCauses(restart=5, new_epoch=3, resumed=2), False),
        (MissingCauses(restart=9, live=1), True),
        (MissingCauses(restart=9, away=1), True),
    ],
)
def test_a_loss_ends_when_the_link_is_live_again(causes: MissingCauses, going_on: bool) -> None:
    """Though it is live again in the time that is not judged yet, in which no update counts."""
    lacking = stamped(missing=10, first_missing=BEGIN, last_missing=END, going_on=True)
    assert only(target(figures=lacking.model_copy(update={"causes": causes}))).going_on is going_on


def test_a_branch_that_is_not_readable_goes_on() -> None:
    """Nothing of it came any more, though few updates may not show that the loss goes on."""
    branch = HiddenBranch(node="edge", link="up", filter="plant/#", branch="plant/s/#", missing=3)
    lacking = target(figures=stamped(missing=3).model_copy(update={"causes": MissingCauses(live=3)}))
    assert only(lacking).going_on is None
    assert only(lacking, hidden_branches=(branch,)).going_on is True
    assert only(lacking, hidden_branches=(branch.model_copy(update={"node": "other"}),)).going_on is None


def propagation(
    node: str = "edge",
    *,
    p99_us: int,
    ahead_us: int | None = 0,
    topic_filter: str = "plant/#",
    stamped_by: str = "hub",
    rows: int = 1000,
) -> Propagation:
    """Return the lag of one selector, whose node's clock is ahead, or by nobody knows how much."""
    corrected = None
    if ahead_us is not None:
        p50_us, most_us = p99_us // 2 - ahead_us, p99_us + 9 - ahead_us
        corrected = CorrectedLag(
            p50_us=p50_us, p95_us=p50_us, p99_us=p99_us - ahead_us, most_us=most_us, uncertain_us=500
        )
    return Propagation(
        node=node,
        link="up",
        filter=topic_filter,
        stamped_by=stamped_by,
        lag=LagFigures(
            rows=rows,
            least_us=0,
            p50_us=p99_us // 2,
            p95_us=p99_us // 2,
            p99_us=p99_us,
            most_us=p99_us + 9,
            cumulative=(),
        ),
        corrected=corrected,
    )


def test_lag_is_that_of_the_latest_selector_by_corrected_clocks() -> None:
    """The raw value stands behind it, and how far the clock is ahead; without a known difference only the raw one."""
    clock = ClockDifference(
        node="edge", link="up", stamped_by="hub", at_most_us=3_000_400, at_least_us=2_999_600, estimate_us=3_000_000
    )
    lag = LagSection(
        propagation=(
            propagation(p99_us=3_010_000, ahead_us=3_000_000),
            propagation(p99_us=3_030_000, ahead_us=3_000_000, topic_filter="site/#"),
            propagation("tap", p99_us=90),
            propagation("blind", p99_us=70_000, ahead_us=None),
        ),
        clocks=(clock,),
        hops=(
            HopLag(
                from_node="hub",
                to_node="edge",
                stamped_by="hub",
                mean_us=3_004_000,
                corrected_mean_us=4_000,
                uncertain_us=300,
            ),
            HopLag(
                from_node="edge",
                to_node="leaf",
                stamped_by="hub",
                mean_us=900,
                corrected_mean_us=None,
                uncertain_us=None,
            ),
        ),
    )
    found = summarize(made(target("edge"), target("blind"), lag=lag))
    blind, edge = found.lag
    assert (edge.node, edge.updates, edge.p50_us) == ("edge", 2000, 3_030_000 // 2 - 3_000_000)
    assert (edge.p99_us, edge.uncertain_us, edge.raw_p99_us) == (30_000, 500, 3_030_000)
    assert edge.clock_ahead_us == 3_000_000
    assert (blind.node, blind.p99_us, blind.raw_p99_us, blind.clock_ahead_us) == ("blind", None, 70_000, None)
    assert [(hop.from_node, hop.to_node, hop.mean_us, hop.uncertain_us) for hop in found.hops] == [
        ("hub", "edge", 4_000, 300),
        ("edge", "leaf", 900, None),
    ]


def test_of_many_that_stamp_the_latest_are_kept() -> None:
    """Anybody who publishes can stamp: three of each node."""
    lag = LagSection(
        propagation=tuple(propagation(p99_us=number * 100, stamped_by=f"p{number}") for number in range(9))
    )
    assert [one.stamped_by for one in summarize(made(target(), lag=lag)).lag] == ["p8", "p7", "p6"]
