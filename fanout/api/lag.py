"""Lag of a link as a document: the figure, its basis, and the reason when it is not known (core).

The link measures: a heartbeat is a message that it publishes at the primary and receives back through its own
subscription, and an overdue heartbeat raises the lag (`fanout.link.protocol.control_channel`).
"""

from __future__ import annotations

from fanout.api.models import LinkLag

__all__ = ["link_lag"]


def link_lag(
    name: str,
    *,
    state: str,
    lag_seconds: float | None,
    items_behind: int | None = None,
    heartbeat_age_seconds: float | None,
    heartbeat_interval_seconds: float,
    heartbeat_refusal: str = "",
    received_total: int,
    topics: int,
) -> LinkLag:
    """Return the lag of one link with its basis and, where the number needs it, an explanation.

    Args:
        name: The link's name.
        state: The link's state.
        lag_seconds: Lower bound of the lag; None when not known.
        items_behind: Updates at the primary that the link has not got; None when not known.
        heartbeat_age_seconds: Time since the last heartbeat came back; None for none in this epoch.
        heartbeat_interval_seconds: Time between heartbeats; 0 when they are switched off.
        heartbeat_refusal: Known reason why heartbeats do not come back; empty for none.
        received_total: PUBLISH packets received from the primary.
        topics: Retained topics held.
    """
    detail = ""
    if heartbeat_interval_seconds <= 0:
        detail = "heartbeats are switched off"
    elif lag_seconds is None:
        waiting = "no heartbeat came back yet; the primary may not allow publishing to the control topic"
        detail = heartbeat_refusal or waiting
    elif heartbeat_age_seconds is not None and heartbeat_age_seconds > 2 * heartbeat_interval_seconds:
        detail = "a heartbeat is overdue: the lag is at least this"
    return LinkLag(
        name=name,
        state=state,
        lag_seconds=lag_seconds,
        basis="unknown" if lag_seconds is None else "heartbeat",
        detail=detail,
        items_behind=items_behind,
        heartbeat_age_seconds=heartbeat_age_seconds,
        heartbeat_interval_seconds=heartbeat_interval_seconds or None,
        received_total=received_total,
        topics=topics,
    )
