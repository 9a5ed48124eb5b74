"""States of a link and the transitions between them, as a table.

`fanout.link.session.lifecycle` acts on them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["TRANSITIONS", "WAITS_FOR", "IllegalTransitionError", "LinkState", "Trigger", "next_state"]


class LinkState(enum.Enum):
    """State of a link; the values appear in the status and in the replication log."""

    DOWN = "down"
    """No Network Connection. The replica stays while its session may be resumed."""
    CONNECTING = "connecting"
    """A Network Connection is opened, or CONNACK is awaited."""
    SNAPSHOT = "snapshot"
    """Retained sets arrive. In a session resumed before its snapshot was complete, its pending messages come first."""
    PROVING = "proving"
    """The barrier after a retained set came; the marker, another pass, or SUBACK at the full QoS is awaited."""
    LIVE = "live"
    """The replica is proved complete, and updates flow."""
    RESUMING = "resuming"
    """The session was resumed; its pending messages are awaited."""
    VERIFYING = "verifying"
    """Retained sets are compared with the replica, to find messages that a resumed or stalled session lost."""
    STALLED = "stalled"
    """Connected, but heartbeats do not come back."""
    TEARING_DOWN = "tearing_down"
    """The replica is being removed."""


WAITS_FOR: Final[Mapping[LinkState, str | None]] = MappingProxyType(
    {
        LinkState.DOWN: "a connection to the primary",
        LinkState.CONNECTING: "the primary's answer",
        LinkState.SNAPSHOT: "the retained set",
        LinkState.PROVING: "evidence that the retained set is complete",
        LinkState.LIVE: None,
        LinkState.RESUMING: "messages pending in the resumed session",
        LinkState.VERIFYING: "an audit of possible losses in the session",
        LinkState.STALLED: "a heartbeat",
        LinkState.TEARING_DOWN: "the end of the tear-down",
    }
)
"""For each state of a link, the step that it must complete to be ready; None in `LIVE`."""


class Trigger(enum.Enum):
    """An occurrence that changes the state of a link."""

    OPEN = "open"
    """A Network Connection is wanted."""
    SESSION_NEW = "session new"
    """CONNACK without a session; the replica is empty, or stale and still served."""
    SESSION_LOST = "session lost"
    """CONNACK without a session, while the replica has values of one."""
    SESSION_RESUMED = "session resumed"
    """CONNACK with the session; the replica was complete."""
    SESSION_UNFINISHED = "session unfinished"
    """CONNACK with the session; the replica was never complete."""
    BARRIER = "barrier"
    """SUBACK, PINGRESP and the sentinel came for a retained set; at an unordered primary, silence followed it."""
    PROVED = "proved"
    """A retained set is proved complete, and another selector follows."""
    COMPLETED = "completed"
    """Every selector is proved and subscribed at its own QoS."""
    PENDING_APPLIED = "pending applied"
    """The pending messages of the resumed session have arrived."""
    VERIFIED = "verified"
    """The retained sets equal the replica."""
    UNPROVED = "unproved"
    """A retained set was truncated, or its evidence does not come."""
    LOSS = "loss"
    """Messages were lost: retained sets differ from the replica, or another process took the session."""
    STALL = "stall"
    """Heartbeats are overdue: the primary does not return them, or this node did not run for a while."""
    REVIVED = "revived"
    """A heartbeat came back after a stall."""
    LOST = "lost"
    """The Network Connection ended."""
    ABANDONED = "abandoned"
    """The session at the primary has expired: it was not resumed in time."""
    GRACE_OVER = "grace over"
    """The grace period of a stale replica is over."""
    TORN_DOWN = "torn down"
    """The replica is empty; there is a Network Connection."""
    TORN_DOWN_OFFLINE = "torn down offline"
    """The replica is empty; there is no Network Connection."""


_S = LinkState
_T = Trigger

TRANSITIONS: dict[tuple[LinkState, Trigger], LinkState] = {
    (_S.DOWN, _T.OPEN): _S.CONNECTING,
    (_S.DOWN, _T.ABANDONED): _S.TEARING_DOWN,
    (_S.CONNECTING, _T.SESSION_NEW): _S.SNAPSHOT,
    (_S.CONNECTING, _T.SESSION_LOST): _S.TEARING_DOWN,
    (_S.CONNECTING, _T.SESSION_RESUMED): _S.RESUMING,
    (_S.CONNECTING, _T.SESSION_UNFINISHED): _S.SNAPSHOT,
    (_S.CONNECTING, _T.LOST): _S.DOWN,
    (_S.SNAPSHOT, _T.BARRIER): _S.PROVING,
    (_S.SNAPSHOT, _T.UNPROVED): _S.TEARING_DOWN,
    (_S.SNAPSHOT, _T.LOSS): _S.TEARING_DOWN,
    (_S.SNAPSHOT, _T.LOST): _S.DOWN,
    (_S.PROVING, _T.PROVED): _S.SNAPSHOT,
    (_S.PROVING, _T.COMPLETED): _S.LIVE,
    (_S.PROVING, _T.UNPROVED): _S.TEARING_DOWN,
    (_S.PROVING, _T.LOSS): _S.TEARING_DOWN,
    (_S.PROVING, _T.LOST): _S.DOWN,
    (_S.LIVE, _T.STALL): _S.STALLED,
    (_S.LIVE, _T.LOSS): _S.TEARING_DOWN,
    (_S.LIVE, _T.LOST): _S.DOWN,
    (_S.RESUMING, _T.PENDING_APPLIED): _S.VERIFYING,
    (_S.RESUMING, _T.LOSS): _S.TEARING_DOWN,
    (_S.RESUMING, _T.LOST): _S.DOWN,
    (_S.VERIFYING, _T.VERIFIED): _S.LIVE,
    (_S.VERIFYING, _T.UNPROVED): _S.TEARING_DOWN,
    (_S.VERIFYING, _T.LOSS): _S.TEARING_DOWN,
    (_S.VERIFYING, _T.LOST): _S.DOWN,
    (_S.STALLED, _T.REVIVED): _S.VERIFYING,
    (_S.STALLED, _T.LOSS): _S.TEARING_DOWN,
    (_S.STALLED, _T.LOST): _S.DOWN,
    (_S.DOWN, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.CONNECTING, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.SNAPSHOT, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.PROVING, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.VERIFYING, _T.GRACE_OVER): _S.TEARING_DOWN,
    # A tear-down always completes: a connection that ends meanwhile changes only the state that follows.
    (_S.TEARING_DOWN, _T.LOST): _S.TEARING_DOWN,
    (_S.TEARING_DOWN, _T.TORN_DOWN): _S.SNAPSHOT,
    (_S.TEARING_DOWN, _T.TORN_DOWN_OFFLINE): _S.DOWN,
}
"""Next state by state and trigger; a pair that is absent cannot happen."""


class IllegalTransitionError(AssertionError):
    """A trigger that is not allowed in the state: a bug in fanout, never a fault of the primary."""

    def __init__(self, state: LinkState, trigger: Trigger) -> None:
        self.state = state
        self.trigger = trigger
        super().__init__(f"{trigger.value!r} cannot happen while {state.value}")


def next_state(state: LinkState, trigger: Trigger) -> LinkState:
    """Return the state that follows `state` at `trigger`.

    Raises:
        IllegalTransitionError: The table has no such transition.
    """
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise IllegalTransitionError(state, trigger) from None
