"""The table of readiness: every phase of a node with every state of a link."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fanout.link.model.states import TRANSITIONS, WAITS_FOR, LinkState, Trigger
from fanout.link.model.status import LinkStatus
from fanout.node.drain import NodePhase
from fanout.node.readiness import NodeReadiness, judge
from tests.node.test_documents import LIVE, PLANT

DOWN = dataclasses.replace(LIVE, name="north", state=LinkState.DOWN)
INCOMPLETE = dataclasses.replace(PLANT, complete=False)
STALE = {"stale_reason": "the session expired", "stale_left_s": 41.7, "last_error": "refused"}
WAITS = {state: what for state, what in WAITS_FOR.items() if what is not None}


def test_the_table_has_every_state() -> None:
    """And only one of them may be ready."""
    assert set(WAITS_FOR) == set(LinkState)
    assert [state for state, waits_for in WAITS_FOR.items() if waits_for is None] == [LinkState.LIVE]


def test_readiness_is_latched() -> None:
    """The one ready state is left by a stall, a lost connection or session alone, and comes back only over a proof."""
    ends = {trigger for state, trigger in TRANSITIONS if state is LinkState.LIVE}
    assert ends == {Trigger.STALL, Trigger.LOST, Trigger.LOSS}
    proofs = {trigger for (_, trigger), after in TRANSITIONS.items() if after is LinkState.LIVE}
    assert proofs == {Trigger.COMPLETED, Trigger.VERIFIED}


@pytest.mark.parametrize("state", list(LinkState))
@pytest.mark.parametrize("phase", list(NodePhase))
def test_ready_only_while_it_serves_with_live_links(phase: NodePhase, state: LinkState) -> None:
    """One link that is not live, or one step towards the end, is enough."""
    verdict = judge(phase, [LIVE, dataclasses.replace(LIVE, state=state)])
    ready = phase is NodePhase.SERVING and state is LinkState.LIVE
    assert (verdict.state == "ready") is ready is (verdict.reasons == ())


def test_a_node_that_goes_says_so_whatever_its_links_do() -> None:
    """An operator who drained a node reads `draining`, and the links' reasons besides."""
    assert judge(NodePhase.DRAINING, [LIVE]) == NodeReadiness("draining", ("the node is draining",))
    assert judge(NodePhase.STOPPING, []) == NodeReadiness("stopping", ("the node is stopping",))
    assert judge(NodePhase.DRAINING, [DOWN]).state == "draining"
    assert judge(NodePhase.DRAINING, [DOWN]).reasons == (
        "the node is draining",
        "link north is down, waits for a connection to the primary",
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"last_error": "refused"}, None),
        *(({"state": state}, f"{state.value.replace('_', ' ')}, waits for {what}") for state, what in WAITS.items()),
        (
            {"state": LinkState.DOWN, "last_error": "refused"},
            "down, waits for a connection to the primary: refused",
        ),
        (
            {"state": LinkState.SNAPSHOT, "last_error": "refused", "last_error_over": True},
            "snapshot, waits for the retained set",
        ),
        (
            {"selectors": (PLANT, INCOMPLETE), "refused_total": 3, "short_by": ("bytes_max", "topics_max")},
            "incomplete: a limit kept values out (bytes_max, topics_max)",
        ),
        ({"not_ready_reason": "its primary is not ready"}, "live, but its primary is not ready"),
        ({**STALE, "state": LinkState.DOWN}, "stale (the session expired), down: refused"),
        ({**STALE, "state": LinkState.SNAPSHOT}, "stale (the session expired), snapshot: refused"),
    ],
)
def test_why_a_link_is_not_ready(changes: dict[str, Any], reason: str | None) -> None:
    """One that is live and proved complete is; each other one says what it waits for, and its last error."""
    status = dataclasses.replace(LIVE, **changes)
    assert status.reason == reason
    assert (status.shown_state == "stale") is ("stale_reason" in changes)
    assert judge(NodePhase.SERVING, [status]).reasons == (() if reason is None else (f"link plant is {reason}",))


def test_a_node_offers_stale_values_only_where_every_link_holds_complete_ones() -> None:
    """Their age is that of the oldest; a node that goes, starts, or lacks something offers nothing."""
    stalled = dataclasses.replace(LIVE, state=LinkState.STALLED, stale_s=41.7, serves_stale=True)
    older = dataclasses.replace(stalled, stale_s=60.0)
    without = dataclasses.replace(stalled, serves_stale=False)
    assert judge(NodePhase.SERVING, [LIVE, stalled]).stale_s == 41.7
    assert judge(NodePhase.SERVING, [older, stalled]).stale_s == 60.0
    assert judge(NodePhase.SERVING, [stalled, without]).stale_s is None
    assert judge(NodePhase.SERVING, [stalled], unserved=("no worker serves clients",)).stale_s is None
    assert judge(NodePhase.DRAINING, [stalled]).stale_s is None
    assert judge(NodePhase.SERVING, [LIVE]).stale_s is None


@pytest.mark.parametrize(
    ("status", "later"),
    [
        (
            dataclasses.replace(DOWN, stale_reason="the session expired", stale_left_s=41.7),
            dataclasses.replace(DOWN, stale_reason="the session expired", stale_left_s=12.3),
        ),
        (
            dataclasses.replace(LIVE, selectors=(INCOMPLETE,), refused_total=7),
            dataclasses.replace(LIVE, selectors=(INCOMPLETE,), refused_total=8),
        ),
    ],
)
def test_reasons_stay_the_same_while_nothing_but_figures_change(status: LinkStatus, later: LinkStatus) -> None:
    """Each other reason is a message to every node below."""
    assert status.reason == later.reason is not None


def test_a_node_that_is_held_is_not_ready_and_says_since_when() -> None:
    """Beside what its links say; it is no step towards the end, so the state is not `draining`."""
    verdict = judge(NodePhase.HELD, [LIVE, DOWN], held_since_ns=1_700_000_000_000_000_000)
    assert verdict == NodeReadiness(
        "not_ready",
        ("held by operator since 2023-11-14 22:13:20 UTC", "link north is down, waits for a connection to the primary"),
    )
