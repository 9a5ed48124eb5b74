"""The table of states."""

from __future__ import annotations

import pytest

from fanout.link.model.states import TRANSITIONS, IllegalTransitionError, LinkState, Trigger, next_state


def test_names_are_those_of_the_status_and_the_log() -> None:
    """The values are part of documents and logs and do not change."""
    assert [state.value for state in LinkState] == [
        "down",
        "connecting",
        "snapshot",
        "proving",
        "live",
        "resuming",
        "verifying",
        "stalled",
        "tearing_down",
    ]


@pytest.mark.parametrize("state", LinkState)
@pytest.mark.parametrize("trigger", Trigger)
def test_a_pair_that_is_not_in_the_table_is_illegal(state: LinkState, trigger: Trigger) -> None:
    """Every pair leads where the table says, or raises with both names."""
    if (state, trigger) in TRANSITIONS:
        assert next_state(state, trigger) is TRANSITIONS[state, trigger]
        return
    with pytest.raises(IllegalTransitionError, match=trigger.value) as raised:
        next_state(state, trigger)
    assert (raised.value.state, raised.value.trigger) == (state, trigger)


def test_every_state_is_reached_and_left() -> None:
    """No state is a trap, none is unreachable, every trigger is used."""
    assert {state for state, _ in TRANSITIONS} == set(LinkState)
    assert set(TRANSITIONS.values()) == set(LinkState)
    assert {trigger for _, trigger in TRANSITIONS} == set(Trigger)


def test_live_is_entered_with_proof_only() -> None:
    """Only a complete snapshot or a verification leads to live."""
    ways = {trigger for (_, trigger), state in TRANSITIONS.items() if state is LinkState.LIVE}
    assert ways == {Trigger.COMPLETED, Trigger.VERIFIED}


def test_a_lost_connection_leads_down_from_everywhere_but_a_tear_down() -> None:
    """Every state with a connection knows that it may be lost."""
    for state in set(LinkState) - {LinkState.DOWN, LinkState.TEARING_DOWN}:
        assert next_state(state, Trigger.LOST) is LinkState.DOWN
    assert next_state(LinkState.TEARING_DOWN, Trigger.LOST) is LinkState.TEARING_DOWN
