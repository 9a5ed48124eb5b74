"""How far a link is behind, from what its heartbeats say (core).

A heartbeat is a message that the link publishes at the primary and receives back through its own subscription. It
must not know how heartbeats are sent. The rule: a lag that only moves with traffic lies when the link stalls, so an
overdue heartbeat raises the lag, and a link without heartbeats has no known lag.
"""

from __future__ import annotations

from fanout.api.models import LinkLag

__all__ = ["link_lag"]


def link_lag(
    name: str,
    *,
    state: str,
    round_trip_seconds: float | None,
    heartbeat_age_seconds: float | None,
    heartbeat_interval_seconds: float,
    received_total: int,
    topics: int,
) -> LinkLag:
    """Derive a link's lag from its newest heartbeat.

    Everything the primary sent before the newest returned heartbeat is applied. The next one left one interval after
    it, so once its age exceeds interval plus round trip, the link is behind by at least age minus interval.

    Args:
        name: The link's name.
        state: The link's state.
        round_trip_seconds: What the newest heartbeat of this epoch took; None when none came back.
        heartbeat_age_seconds: Time since the newest heartbeat came back; None when none did.
        heartbeat_interval_seconds: Time between heartbeats; 0 when they are switched off.
        received_total: PUBLISH packets received from the primary.
        topics: Retained topics held.
    """
    lag_seconds: float | None = None
    detail = ""
    if heartbeat_interval_seconds <= 0:
        detail = "heartbeats are switched off"
    elif round_trip_seconds is None or heartbeat_age_seconds is None:
        detail = "no heartbeat came back yet; the primary may not allow publishing to the control topic"
    else:
        at_least = heartbeat_age_seconds - heartbeat_interval_seconds
        lag_seconds = max(round_trip_seconds, at_least)
        if at_least > round_trip_seconds:
            detail = "a heartbeat is overdue: the lag is at least this"
    return LinkLag(
        name=name,
        state=state,
        lag_seconds=lag_seconds,
        basis="unknown" if lag_seconds is None else "heartbeat",
        detail=detail,
        heartbeat_age_seconds=heartbeat_age_seconds,
        heartbeat_interval_seconds=heartbeat_interval_seconds or None,
        received_total=received_total,
        topics=topics,
    )
