"""What is said about the lag of a link."""

from __future__ import annotations

from fanout.api.lag import lag_detail


def test_lag_detail_with_heartbeats_in_time() -> None:
    """A measured lag needs no explanation, also while the next heartbeat is a little late."""
    for age_s in (0.1, 5.0, 9.9):
        assert lag_detail(lag_s=0.004, age_s=age_s, interval_s=5.0) == ""


def test_lag_detail_with_a_heartbeat_overdue() -> None:
    """A stalled link's lag is a lower bound, and says so."""
    detail = lag_detail(lag_s=55.004, age_s=60.0, interval_s=5.0)
    assert detail == "a heartbeat is overdue: the lag is at least this"


def test_lag_detail_before_the_first_heartbeat() -> None:
    """No heartbeat means no known lag, and a reason."""
    assert "no heartbeat came back" in lag_detail(lag_s=None, age_s=None, interval_s=5.0)
    assert lag_detail(lag_s=None, age_s=None, interval_s=5.0, refusal="not allowed") == "not allowed"


def test_lag_detail_with_heartbeats_off() -> None:
    """Switched off is told apart from not allowed."""
    assert lag_detail(lag_s=None, age_s=None, interval_s=0.0) == "heartbeats are switched off"
