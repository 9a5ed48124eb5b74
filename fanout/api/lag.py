"""Words about the lag of a link: the reason when it is not known, or only a lower bound (core).

The link measures: a heartbeat is a message that it publishes at the primary and receives back through its own
subscription, and an overdue heartbeat raises the lag (`fanout.link.protocol.control_channel`).
"""

from __future__ import annotations

__all__ = ["lag_detail"]


def lag_detail(*, lag_s: float | None, age_s: float | None, interval_s: float, refusal: str = "") -> str:
    """Return why a lag is unknown or only a lower bound; empty otherwise.

    Args:
        lag_s: Lower bound of the lag; None when not known.
        age_s: Time since the last heartbeat came back; None for none in this epoch.
        interval_s: Time between heartbeats; 0 when they are switched off.
        refusal: Known reason why heartbeats do not come back; empty for none.
    """
    if interval_s <= 0:
        return "heartbeats are switched off"
    if lag_s is None:
        return refusal or "no heartbeat came back yet; the primary may not allow publishing to the control topic"
    if age_s is not None and age_s > 2 * interval_s:
        return "a heartbeat is overdue: the lag is at least this"
    return ""
