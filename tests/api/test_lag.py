"""What is said about the lag of a link."""

from __future__ import annotations

from fanout.api.lag import link_lag
from fanout.api.models import LinkLag


def lag(*, seconds: float | None, age: float | None, interval: float = 5.0) -> LinkLag:
    """Return the lag of one link."""
    return link_lag(
        "plant",
        state="live",
        lag_seconds=seconds,
        heartbeat_age_seconds=age,
        heartbeat_interval_seconds=interval,
        received_total=10,
        topics=3,
    )


def test_link_lag_with_heartbeats_in_time() -> None:
    """A measured lag needs no explanation, also while the next heartbeat is a little late."""
    for age in (0.1, 5.0, 9.9):
        one = lag(seconds=0.004, age=age)
        assert (one.lag_seconds, one.basis, one.detail) == (0.004, "heartbeat", "")


def test_link_lag_with_a_heartbeat_overdue() -> None:
    """A stalled link's lag is a lower bound, and says so."""
    one = lag(seconds=55.004, age=60.0)
    assert (one.lag_seconds, one.basis) == (55.004, "heartbeat")
    assert one.detail == "a heartbeat is overdue: the lag is at least this"


def test_link_lag_before_the_first_heartbeat() -> None:
    """No heartbeat means no known lag, and a reason."""
    one = lag(seconds=None, age=None)
    assert (one.lag_seconds, one.basis) == (None, "unknown")
    assert "no heartbeat came back" in one.detail
    assert one.heartbeat_interval_seconds == 5.0


def test_link_lag_with_heartbeats_off() -> None:
    """Switched off is told apart from not allowed."""
    one = lag(seconds=None, age=None, interval=0)
    assert (one.lag_seconds, one.basis, one.heartbeat_interval_seconds) == (None, "unknown", None)
    assert one.detail == "heartbeats are switched off"
