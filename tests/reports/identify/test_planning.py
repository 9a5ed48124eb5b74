"""The spans in which selectors had to apply every update, and what a reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import pytest

from fanout.errors import ReportError
from fanout.reports.figures.counted import Clock
from fanout.reports.identify.planning import basis_statements, decide_scope
from fanout.reports.read.absences import Absence
from fanout.reports.read.details import GapRecord
from fanout.reports.read.scope import NEVER_US, WHOLE, AskedWindow, Scope
from tests.reports.logs import SECOND, T0, NodeLog, Row, at, selector, stamp, when
from tests.reports.surveys import survey_of

LINK: Row = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("a/#"), selector("b/#")]}


def hub_log() -> NodeLog:
    """Return a primary with an update each second until 30 and a heartbeat at 40."""
    hub = NodeLog("hub", "primary")
    hub.start(at(0))
    for second in range(1, 31):
        hub.publish(at(second), second, "a/t", str(second))
    hub.event("heartbeat", at(40))
    return hub


def edge_log(*, offset_us: int = 0, delay_us: int = 1000, ready_s: float = 5) -> NodeLog:
    """Return a secondary that got everything from second 5 on, by a clock that may differ."""
    edge = NodeLog("edge")
    edge.start(at(0) + offset_us, LINK)
    edge.ready(at(ready_s) + offset_us, "up", "a/#", "b/#")
    for row in hub_log().updates[round(ready_s) :]:
        edge.apply(row, link="up", selector="a/#", delay_us=delay_us + offset_us)
    return edge


def scope_of(
    *logs: NodeLog,
    settle_s: float = 0,
    requested: str | None = None,
    behind_max_s: float = 0,
    window: AskedWindow = WHOLE,
    clocks: Mapping[tuple[str, str], Clock] = MappingProxyType({}),
) -> Scope:
    """Return the scope of a report over these logs."""
    return decide_scope(
        survey_of(*logs),
        requested=requested,
        settle_us=round(settle_s * SECOND),
        behind_max_us=round(behind_max_s * SECOND),
        window=window,
        clocks=clocks,
    )


@pytest.mark.parametrize("offset_s", [0, 3, -4])
def test_spans_are_by_the_primary_clock(offset_s: int) -> None:
    """The proof of completeness is moved to the primary's clock by the least delay, whatever the clocks say."""
    scope = scope_of(hub_log(), edge_log(offset_us=offset_s * SECOND), settle_s=2)
    for target in scope.targets:
        assert target.covered_from_us == at(5) - 1000
        assert target.covered_until_us == at(40)
        assert target.settled_until_us == at(38)
        assert target.held_from_us == at(5 + offset_s)
    assert [target.selection.filter for target in scope.targets] == ["a/#", "b/#"]


def test_a_window_cuts_the_spans() -> None:
    """Its begin belongs to it and its end does not; the settle horizon matters near the end of the logs alone."""
    logs = (hub_log(), edge_log(offset_us=3 * SECOND))
    for since, until, expected in (
        (7, 20, (at(7) - 1, at(20) - 1, at(20) - 1)),
        (2, 39, (at(5) - 1000, at(39) - 1, at(38))),
        (None, 20, (at(5) - 1000, at(20) - 1, at(20) - 1)),
        (7, None, (at(7) - 1, at(40), at(38))),
    ):
        window = AskedWindow.between(
            None if since is None else when(at(since)), None if until is None else when(at(until))
        )
        target = scope_of(*logs, settle_s=2, window=window).targets[0]
        spans = (target.covered_from_us, target.covered_until_us, target.settled_until_us)
        assert spans == expected
        assert target.held_from_us == at(8)
    before = scope_of(*logs, window=AskedWindow(until_us=at(4))).targets[0]
    assert (before.held_from_us, before.covered_from_us) == (None, NEVER_US), "it held everything only later"


def test_a_window_takes_in_the_gaps_of_its_own_time() -> None:
    """A reference that lost rows at another time shows all of the window."""
    hub = hub_log()
    hub.gap(at(41), rows=2, first_log_pos=900, last_log_pos=901, first_us=at(20), last_us=at(22))
    for since, until, exact in ((10, 15, True), (21, 25, False), (22, 25, False), (23, 25, True), (10, 20, True)):
        window = AskedWindow(at(since), at(until))
        assert scope_of(hub, edge_log(), window=window).groups[0].exact is exact, (since, until)
    assert not scope_of(hub, edge_log()).groups[0].exact


def test_what_a_log_does_not_reach_back_to_is_unknown_in_a_window() -> None:
    """Of a time of which the files were removed, a node's log says nothing, and a reference's does not say all."""

    def begun(node: str, since: float) -> Scope:
        removed = GapRecord(node, "", T0, first_us=at(0), last_us=at(15), last_pos=9, lost_positions=9)
        survey = replace(survey_of(hub_log(), edge_log()), begins=(removed,))
        return decide_scope(survey, requested=None, settle_us=0, window=AskedWindow(at(since), at(25)))

    reaches = begun("edge", 20)
    assert (reaches.targets[0].gaps_us, reaches.notices, reaches.cut_off) == ((), (), "")
    scope = begun("edge", 10)
    assert scope.targets[0].covered_from_us == at(10) - 1
    assert scope.targets[0].gaps_us == ((-NEVER_US, at(15) - 1000),)
    assert "edge: the beginning of its log is gone: nothing is known from before" in scope.notices[0]
    assert not begun("hub", 20).cut_off
    assert begun("hub", 10).cut_off == "what was before 2026-02-02 02:40:15 UTC is not in the reference's log any more"


def test_a_window_beyond_the_logs_is_told() -> None:
    """What was asked for and is not in the reference's log, or of a time when a node was stopped, is said."""
    edge = edge_log()
    edge.event("stop", at(31))
    scope = scope_of(hub_log(), edge, window=AskedWindow(at(-60), at(100)))
    assert [notice.partition(": ")[0] for notice in scope.notices] == [
        "The requested window begins before the reference's log, which begins at 2026-02-02 02:40:00 UTC",
        "The requested window ends after the reference's log, which ends at 2026-02-02 02:40:40 UTC",
    ]
    scope = scope_of(hub_log(), edge, window=AskedWindow(at(35)))
    assert scope.notices == ("edge/up was stopped in good order before the window: nothing was expected of it.",)
    ended = scope_of(hub_log(), edge_log(), behind_max_s=30, window=AskedWindow(at(41), at(100)))
    assert [notice.partition(", which")[0] for notice in ended.notices if "stopped in good order" in notice] == []
    late = scope_of(hub_log(), edge_log(), window=AskedWindow(at(10), at(20)))
    assert not late.notices, "that the log ends before the reference's matters to later updates only"


@pytest.mark.parametrize("own_too", [True, False])
@pytest.mark.parametrize("publisher_s", [-3600, 3600])
def test_publishers_clocks_do_not_move_the_spans(publisher_s: int, own_too: bool) -> None:
    """What publishers stamped by clocks that are far off leaves the spans by the clock of the reference."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    hub.start(at(0))
    edge.start(at(3), LINK)
    edge.ready(at(5) + 3 * SECOND, "up", "a/#", "b/#")
    for second in range(1, 31):
        own = own_too and second % 2
        given = stamp("hub", T0, second, at(second)) if own else stamp("machine", 1, second, at(second + publisher_s))
        row = hub.update(at(second), "a/t", str(second), **given)
        if second > 5:
            edge.apply(row, link="up", selector="a/#", applied=row["applied"] + timedelta(microseconds=3_001_000))
    scope = scope_of(hub, edge)
    assert {target.covered_from_us for target in scope.targets} == {at(5) - 1000}
    assert not scope.stamped_once


def test_a_link_covers_from_the_proof_of_its_last_selector() -> None:
    """As long as one selector is not complete, rows of the others may still be copies."""
    edge = edge_log()
    for row in edge.events:
        if row["selector"] == "b/#":
            row["at"] = when(at(9))
    scope = scope_of(hub_log(), edge)
    assert {target.covered_from_us for target in scope.targets} == {at(9) - 1000}


def test_a_link_that_never_held_everything_covers_nothing() -> None:
    """Without proof and without updates nothing is expected; with updates they begin the span, and it is said."""
    edge = NodeLog("edge")
    edge.start(at(0), LINK)
    scope = scope_of(hub_log(), edge)
    assert {(t.held_from_us, t.covered_from_us) for t in scope.targets} == {(None, NEVER_US)}
    edge = edge_log()
    for row in edge.events:
        if row["event"] == "complete":
            row["event"] = "heartbeat"
    scope = scope_of(hub_log(), edge)
    assert {t.covered_from_us for t in scope.targets} == {at(6)}
    assert any("no proof of completeness" in notice for notice in scope.notices)


def test_a_stop_in_good_order_ends_the_span() -> None:
    """A node that was stopped is not expected to apply anything later; one that was started again is."""
    edge = edge_log(offset_us=SECOND)
    edge.event("stop", at(26))
    assert {t.covered_until_us for t in scope_of(hub_log(), edge).targets} == {at(25) - 1000}
    edge.restart(at(30))
    edge.start(at(30), LINK)
    assert {t.covered_until_us for t in scope_of(hub_log(), edge).targets} == {at(40)}


def test_a_changed_configuration_is_judged_from_its_first_proof() -> None:
    """What an earlier configuration selected is not compared, and it is said."""
    edge = NodeLog("edge")
    edge.start(at(0), {**LINK, "selectors": [selector("c/#")]})
    edge.ready(at(1), "up", "c/#")
    edge.restart(at(10))
    edge.start(at(10), LINK)
    edge.ready(at(11), "up", "a/#", "b/#")
    scope = scope_of(hub_log(), edge)
    assert {t.covered_from_us for t in scope.targets} == {at(11)}
    assert "edge was configured differently before: only its latest configuration counts." in scope.notices


def test_gaps_are_moved_to_the_primary_clock_and_widened_by_the_horizon() -> None:
    """An update sent up to a horizon before a gap may have come in it; without a begin it begins with the process."""
    edge = edge_log(offset_us=SECOND)
    edge.gap(at(20), link="up", rows=1, first_us=at(18), last_us=at(19))
    edge.gap(at(22), rows=None, reason="crash", first_us=None, last_us=at(22))
    edge.gap(at(22), link="other", rows=1, first_us=at(1), last_us=at(2))
    edge.event("heartbeat", at(41))
    scope = scope_of(hub_log(), edge, settle_s=2)
    expected = ((at(-3) - 1000, at(21) - 1000), (at(15) - 1000, at(18) - 1000))
    assert {t.gaps_us for t in scope.targets} == {expected}
    assert any("edge reported 3 gaps in its log" in notice for notice in scope.notices)


def test_measured_delays_near_a_gap_take_the_place_of_the_horizon() -> None:
    """Wider or narrower, and whatever half of the log says: of a log of waits that is no ordinary delay."""
    edge = edge_log()
    edge.gap(at(20), link="up", rows=1, first_us=at(18), last_us=at(19))
    edge.event("heartbeat", at(41))
    for measured in ((-3 * SECOND, 9 * SECOND), (-1_000, 2_000)):
        windows = {at(second) // SECOND: measured for second in range(17, 21)}
        clock = Clock(6 * SECOND, -3 * SECOND, quick_us=0, slow_us=0, intervals=windows, width_us=SECOND)
        scope = scope_of(hub_log(), edge, settle_s=2, clocks={("edge", "up"): clock})
        least_us, most_us = measured
        assert {t.gaps_us[0] for t in scope.targets} == {(at(18) - most_us - 1, at(19) - least_us)}


@pytest.mark.parametrize("ends", ["silent", "late", "stop"])
def test_measured_delays_near_the_end_of_a_log_say_what_came_before_it(ends: str) -> None:
    """Where the reference was away, half of the updates came early, and those at the end need not have."""
    edge = edge_log()
    if ends == "stop":
        edge.event("stop", at(30))
    windows = {at(second) // SECOND: (-9 * SECOND, 4 * SECOND) for second in range(28, 32)}
    clock = Clock(-8 * SECOND, -9 * SECOND, quick_us=0, slow_us=0, intervals=windows, width_us=SECOND)
    scope = scope_of(
        hub_log(),
        edge,
        settle_s=1,
        behind_max_s=1 if ends == "silent" else 9,
        clocks={("edge", "up"): clock},
    )
    ends_us = at(30) if ends == "stop" else at(30) + 1_000
    assert {min(t.silent_after_us, t.settled_until_us) for t in scope.targets} == {ends_us - 4 * SECOND - 1}
    assert {t.silent_after_us < NEVER_US for t in scope.targets} == {ends == "silent"}


def test_rows_that_are_not_there_make_a_gap_and_a_removed_beginning_a_later_span() -> None:
    """A lost file leaves what it held unknown; a log whose oldest files were removed is covered from what is left."""
    hub, edge = NodeLog("hub", "primary"), NodeLog("edge")
    hub.start(at(0))
    edge.start(at(0), LINK)
    edge.ready(at(1), "up", "a/#", "b/#")
    for number in range(600):
        edge.apply(hub.publish(at(2 + number), number + 1, "a/t", "x"), link="up", selector="a/#")
    kept = edge.updates
    edge.updates = [row for row in kept if not 200 <= row["log_pos"] <= 250]
    scope = scope_of(hub, edge, settle_s=2)
    ((after_us, until_us),) = {gap for target in scope.targets for gap in target.gaps_us}
    assert after_us < at(2 + 193) < until_us < at(2 + 260)
    assert any("edge: 51 rows inside its log are absent" in n and "unknown, not missing" in n for n in scope.notices)
    edge.updates = [row for row in kept if row["log_pos"] > 300]
    scope = scope_of(hub, edge, settle_s=2)
    assert {target.gaps_us for target in scope.targets} == {()}
    assert {at(290) < target.covered_from_us < at(330) for target in scope.targets} == {True}
    assert any("edge: the beginning of its log is gone" in notice for notice in scope.notices)


def test_without_stamps_spans_are_by_the_tap_and_common_to_both() -> None:
    """The window begins when both held everything; the clocks' difference is left to the horizon."""
    tap, edge = NodeLog("tap", "tap"), NodeLog("edge")
    for log, ready in ((tap, 8), (edge, 5)):
        log.start(at(0), LINK)
        log.ready(at(ready), "up", "a/#", "b/#")
        log.update(at(20), "a/t", "x", link="up", selector="a/#")
    tap.event("heartbeat", at(33))
    scope = scope_of(tap, edge, settle_s=3)
    assert {(t.covered_from_us, t.covered_until_us, t.settled_until_us) for t in scope.targets} == {
        (at(8), at(33), at(30))
    }
    assert scope.targets_of("unstamped") == scope.targets
    assert scope.targets_of("stamped") == ()


@pytest.mark.parametrize(
    ("is_measured", "away", "doubtful"),
    [
        (True, (), ()),
        (False, (), ((5, 7),)),
        (True, (3, 6), ()),
        (False, (3, 6), ((5, 10),)),
        (False, (9, 12), ((5, 7),)),
    ],
)
def test_without_stamps_the_begin_is_doubtful_where_the_reference_may_log_what_is_older(
    is_measured: bool, away: tuple[()] | tuple[int, int], doubtful: tuple[tuple[int, int], ...]
) -> None:
    """For a settle horizon where nothing compares the clocks, and for as long as a tap was away about then."""
    tap, edge = NodeLog("tap", "tap"), NodeLog("edge")
    for log, ready in ((tap, 1), (edge, 5)):
        log.start(at(0), LINK)
        log.ready(at(ready), "up", "a/#", "b/#")
        log.event("heartbeat", at(33))
    clock = Clock(0, 0, quick_us=0, slow_us=0, intervals={at(5) // SECOND: (0, 1)}, width_us=SECOND)
    survey = survey_of(tap, edge)
    if away:
        survey = replace(survey, absences=(Absence("tap", "up", at(away[0]), at(away[1]), "resumed"),))
    scope = decide_scope(
        survey, requested=None, settle_us=2 * SECOND, clocks={("edge", "up"): clock} if is_measured else {}
    )
    spans = tuple((at(after), at(until)) for after, until in doubtful)
    assert [(one.covered_from_us, one.gaps_us) for one in scope.targets] == [(at(5), spans)] * 2


def test_rows_of_unknown_selectors_are_reported() -> None:
    """Rows of a selector that the configuration lacks are not compared silently."""
    edge = edge_log()
    edge.update(at(9), "z", "x", link="up", selector="z/#")
    edge.update(at(9), "z", "x", link="up", selector="")
    notices = scope_of(hub_log(), edge).notices
    assert "edge/up logged rows of selectors that its configuration lacks: z/#." in notices


@pytest.mark.parametrize("offset_s", [0, 3])
def test_what_comes_after_a_late_log_is_pending(offset_s: int) -> None:
    """A log that ends early without a stop may be sealed to there only: nothing later is judged, and it is said."""
    edge = edge_log(offset_us=offset_s * SECOND)
    edge.event("heartbeat", at(30 + offset_s))
    scope = scope_of(hub_log(), edge, behind_max_s=15)
    assert {(t.covered_until_us, t.settled_until_us) for t in scope.targets} == {(at(40), at(30))}
    assert {(t.behind_us, t.silent_after_us, t.gaps_us) for t in scope.targets} == {(10 * SECOND, NEVER_US, ())}
    ends = "edge: its log ends 10.0 s before the reference's without a stop; what came later is not judged."
    assert scope.notices == (ends,)
    assert not scope_of(hub_log(), edge, settle_s=15).notices


def test_what_comes_after_a_silent_log_is_unknown() -> None:
    """One that ends too early to be late only has a gap without end: its node may be dead."""
    edge = edge_log()
    scope = scope_of(hub_log(), edge, settle_s=2, behind_max_s=9)
    assert {t.settled_until_us for t in scope.targets} == {at(38)}
    assert {(t.silent_after_us, t.gaps_us) for t in scope.targets} == {(at(28), ((at(28), NEVER_US),))}
    assert any("its log ends 10.0 s before" in n and "later is unknown" in n for n in scope.notices)
    edge.event("stop", at(30.5))
    scope = scope_of(hub_log(), edge, settle_s=2)
    assert {(t.behind_us, t.gaps_us) for t in scope.targets} == {(0, ())}
    assert not scope.notices


def test_unstamped_rows_of_a_stamping_reference_are_reported() -> None:
    """They cannot be compared by identity, so a reader is told how many there are."""
    hub = hub_log()
    hub.update(at(35), "a/t", "")
    assert any("hub: 1 of its rows carry no stamp" in notice for notice in scope_of(hub, edge_log()).notices)


def test_a_node_without_a_start_event_is_reported() -> None:
    """Selectors that were guessed have no excludes, which can make too much expected."""
    edge = edge_log()
    edge.events = [row for row in edge.events if row["event"] != "start"]
    assert any("no start event says what it selects" in n for n in scope_of(hub_log(), edge).notices)


def test_the_same_rows_given_twice_are_refused() -> None:
    """Every figure would be wrong, so there is none."""
    edge = edge_log()
    edge.updates += edge.updates
    with pytest.raises(ReportError, match="the log of edge holds 25 or more rows twice"):
        scope_of(hub_log(), edge)


def test_nothing_fed_by_the_reference_is_refused() -> None:
    """Logs that have nothing to do with each other give no report."""
    edge = NodeLog("edge")
    edge.start(at(0), LINK)
    edge.event("state", at(1), link="up", state="snapshot", detail='{"primary_node": "other"}')
    edge.update(at(9), "z", "x", link="up", selector="a/#")
    with pytest.raises(ReportError, match="no link in the logs of edge, hub is fed by the reference hub"):
        scope_of(hub_log(), edge)
    with pytest.raises(ReportError, match="fed by the reference hub"):
        scope_of(hub_log())


def test_statements_name_the_basis_and_its_limits() -> None:
    """Exact, relative, lower bounds and union each have their sentence."""
    exact = basis_statements(scope_of(hub_log(), edge_log()))
    assert len(exact) == 1
    assert "exact relative to the log of hub, which stamped them" in exact[0]
    tap = edge_log()
    tap.node = "tap"
    for row in (*tap.updates, *tap.events):
        row.update(node="tap", role="tap")
    relative = basis_statements(scope_of(tap, edge_log()))
    assert "at least as many were lost as are shown" in relative[0]
    union = basis_statements(scope_of(edge_log(), _renamed("other", stamped=False)))
    assert [statement.partition(":")[0] for statement in union[:2]] == [
        "Stamped",
        "Counted in order, from all secondaries together",
    ]
    assert union[2].startswith("The secondaries are compared with one another")


def _renamed(name: str, *, stamped: bool) -> NodeLog:
    log = edge_log()
    for row in (*log.updates, *log.events):
        row.update(node=name)
    if not stamped:
        for row in log.updates:
            row.update(link="else", stamp_primary=None, stamp_epoch=None, sequence=None, origin=None)
        link = {"name": "else", "primary": ["mqtt://elsewhere"], "selectors": [selector("a/#")]}
        log.events = []
        log.node = name
        log.start(at(0), link)
    return log
