"""Tests of pauses: who is told of one, and what it costs when nobody wants to know."""

from __future__ import annotations

import pytest

from fanout.server.base.pauses import Pauses
from tests.server.node_in_memory import ManualClock, NodeInMemory, update


def test_a_pause_is_told_once_its_time_has_passed() -> None:
    """Until then nobody is told."""
    clock = ManualClock()
    pauses = Pauses(clock)
    told: list[float] = []
    pauses.look = lambda: told.append(clock.monotonic())
    pauses.check()
    pauses.until_s = clock.monotonic() + 1.0
    clock.advance(1.0)
    pauses.check()
    assert told == []
    clock.advance(0.5)
    pauses.check()
    assert told == [clock.monotonic()]


async def test_a_batch_without_a_pool_reads_no_time_for_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no limit then; with one each batch asks."""
    node = NodeInMemory()
    reads: list[float] = []

    def read() -> float:
        reads.append(1000.0)
        return 1000.0

    monkeypatch.setattr(node.clock, "monotonic", read)
    node.server.dispatch([update(b"t", b"1")])
    assert reads == []
    node.server.pauses.until_s = 1001.0
    node.server.dispatch([update(b"t", b"2")])
    assert reads == [1000.0]
