"""The states of a link and what leads from one to another, as a table.

Owns nothing but the table. It must not know what happens in a state (`fanout.link.session.lifecycle`).
"""

from __future__ import annotations

import enum

__all__ = ["TRANSITIONS", "IllegalTransitionError", "LinkState", "Trigger", "next_state"]


class LinkState(enum.Enum):
    """Where a link is in its life; the values are those of the status and of the replication log."""

    DOWN = "down"
    """No Network Connection. The replica of a session that may be resumed is kept."""
    CONNECTING = "connecting"
    """A Network Connection is being opened, or CONNACK is awaited."""
    SNAPSHOT = "snapshot"
    """Retained sets are arriving; or first what is pending in a session that was resumed without a whole one."""
    PROVING = "proving"
    """A retained set is past its barrier; the marker, another pass, or the subscription at the full QoS is awaited."""
    LIVE = "live"
    """The replica is proved complete, and updates flow."""
    RESUMING = "resuming"
    """The session was resumed; what was pending in it is awaited."""
    VERIFYING = "verifying"
    """Retained sets are compared with the replica, to find what a resumed or stalled session lost."""
    STALLED = "stalled"
    """Connected, but heartbeats do not come back."""
    TEARING_DOWN = "tearing_down"
    """The replica is being removed."""


class Trigger(enum.Enum):
    """What changes the state of a link."""

    OPEN = "open"
    """A Network Connection is wanted."""
    SESSION_NEW = "session new"
    """CONNACK: there was no session at the primary, and the replica is empty, or served on although it is stale."""
    SESSION_LOST = "session lost"
    """CONNACK: there was no session at the primary any more, and the replica is not empty."""
    SESSION_RESUMED = "session resumed"
    """CONNACK: the session is there, and the replica was complete."""
    SESSION_UNFINISHED = "session unfinished"
    """CONNACK: the session is there, and the replica was never complete."""
    BARRIER = "barrier"
    """SUBACK, PINGRESP and the fence came for a retained set, or, at an unordered primary, silence behind it."""
    PROVED = "proved"
    """The evidence for a retained set is there, and another selector follows."""
    COMPLETED = "completed"
    """Every selector is proved and subscribed at its own QoS."""
    PENDING_APPLIED = "pending applied"
    """What was pending in the resumed session has arrived."""
    VERIFIED = "verified"
    """The retained sets equal the replica."""
    UNPROVED = "unproved"
    """A retained set was cut short, or its evidence does not come."""
    LOSS = "loss"
    """The retained sets differ from the replica."""
    STALL = "stall"
    """Heartbeats are overdue, at the primary or here: the node itself may have been stopped for a while."""
    REVIVED = "revived"
    """A heartbeat came back after a stall."""
    LOST = "lost"
    """The Network Connection ended."""
    ABANDONED = "abandoned"
    """The primary has forgotten the session by now: it was not resumed in time."""
    GRACE_OVER = "grace over"
    """A stale replica may not be served any longer."""
    TORN_DOWN = "torn down"
    """The replica is empty; the Network Connection is there."""
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
    (_S.SNAPSHOT, _T.LOST): _S.DOWN,
    (_S.PROVING, _T.PROVED): _S.SNAPSHOT,
    (_S.PROVING, _T.COMPLETED): _S.LIVE,
    (_S.PROVING, _T.UNPROVED): _S.TEARING_DOWN,
    (_S.PROVING, _T.LOST): _S.DOWN,
    (_S.LIVE, _T.STALL): _S.STALLED,
    (_S.LIVE, _T.LOST): _S.DOWN,
    (_S.RESUMING, _T.PENDING_APPLIED): _S.VERIFYING,
    (_S.RESUMING, _T.LOST): _S.DOWN,
    (_S.VERIFYING, _T.VERIFIED): _S.LIVE,
    (_S.VERIFYING, _T.UNPROVED): _S.TEARING_DOWN,
    (_S.VERIFYING, _T.LOSS): _S.TEARING_DOWN,
    (_S.VERIFYING, _T.LOST): _S.DOWN,
    (_S.STALLED, _T.REVIVED): _S.VERIFYING,
    (_S.STALLED, _T.LOST): _S.DOWN,
    (_S.DOWN, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.CONNECTING, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.SNAPSHOT, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.PROVING, _T.GRACE_OVER): _S.TEARING_DOWN,
    (_S.VERIFYING, _T.GRACE_OVER): _S.TEARING_DOWN,
    # A tear-down is never broken off: a connection that ends meanwhile changes only where it leads.
    (_S.TEARING_DOWN, _T.LOST): _S.TEARING_DOWN,
    (_S.TEARING_DOWN, _T.TORN_DOWN): _S.SNAPSHOT,
    (_S.TEARING_DOWN, _T.TORN_DOWN_OFFLINE): _S.DOWN,
}
"""The state that follows; a pair that is not here cannot happen."""


class IllegalTransitionError(AssertionError):
    """A trigger that the state does not know: a bug of ours, never a fault of the primary."""

    def __init__(self, state: LinkState, trigger: Trigger) -> None:
        self.state = state
        self.trigger = trigger
        super().__init__(f"{trigger.value!r} cannot happen while {state.value}")


def next_state(state: LinkState, trigger: Trigger) -> LinkState:
    """Return the state that follows `state` at `trigger`.

    Raises:
        IllegalTransitionError: There is none.
    """
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise IllegalTransitionError(state, trigger) from None
