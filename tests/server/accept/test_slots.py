"""Tests of slots: totals, addresses and rate, without sockets. `test_limits` reaches them over real ones."""

from __future__ import annotations

from fanout.config import ServerConfig
from fanout.server.accept.slots import ConnectionSlot, ConnectionSlots, TokenBucket
from fanout.server.base.counters import Counters, Limit


def slots(**settings: int) -> tuple[ConnectionSlots, Counters]:
    """Return slots with some limits, and what they count with."""
    counters = Counters()
    return ConnectionSlots(ServerConfig(**settings), counters=counters, now_s=0.0), counters  # type: ignore[arg-type]  # keys


def test_total_holds_before_the_address() -> None:
    """A slot that is refused leaves no trace but its count."""
    taken, counters = slots(connections_max=1, connections_per_address_max=1)
    slot = taken.take("10.0.0.1", now_s=1.0)
    assert isinstance(slot, ConnectionSlot)
    assert (slot.since_s, slot.over_rate) == (1.0, False)
    assert taken.take("10.0.0.1", now_s=2.0) is Limit.CONNECTIONS
    assert (len(taken), taken.origins, counters.limits_reached[Limit.CONNECTIONS]) == (1, 1, 1)
    taken.release(slot)
    assert (len(taken), taken.origins) == (0, 0)


def test_rate_marks_a_slot() -> None:
    """A connection that came too soon has a slot, so that it can be told."""
    taken, counters = slots(connection_rate_max=1, connection_burst_max=1)
    marks = [taken.take("", now_s=now_s) for now_s in (0.0, 0.5, 1.0)]
    assert [isinstance(one, ConnectionSlot) and one.over_rate for one in marks] == [False, True, False]
    assert (len(taken), counters.limits_reached[Limit.CONNECTION_RATE]) == (3, 1)


def test_bucket_fills_up_to_the_burst() -> None:
    """So many at once after any silence, then so many in a second."""
    bucket = TokenBucket(rate=8, burst=3, now_s=0.0)
    for now_s in (0.0, 1000.0):
        assert [bucket.take(now_s) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1000.0 + number / 16) for number in range(1, 7)] == [False, True, False, True, False, True]
