"""The rule for how long the next read of a link gathers."""

from __future__ import annotations

import pytest

from fanout.link.transport.coalescing import FREE_S, GATHERED_BYTES, GATHERING_S_MAX, SHARE, gathering_s


@pytest.mark.parametrize("cost_s", [0.0, 0.00005, FREE_S * 0.99])
@pytest.mark.parametrize("read_bytes", [2, 80, GATHERED_BYTES * 10])
def test_nothing_gathers_behind_a_cheap_read(cost_s: float, read_bytes: int) -> None:
    """With few clients the next update is taken as soon as it comes."""
    assert gathering_s(cost_s=cost_s, read_bytes=read_bytes) == 0


@pytest.mark.parametrize("cost_s", [FREE_S, 0.001, 0.01, 10.0])
def test_nothing_gathers_behind_a_batch(cost_s: float) -> None:
    """A large read is worth its fan-out; to wait would only cost throughput."""
    assert gathering_s(cost_s=cost_s, read_bytes=GATHERED_BYTES) == 0


def test_costly_reads_gather_in_proportion_and_within_the_bound() -> None:
    """What a fan-out takes decides how long to wait, up to a few milliseconds whatever it took."""
    costs_s = [FREE_S * 1.2**step for step in range(80)]
    delays_s = [gathering_s(cost_s=cost_s, read_bytes=80) for cost_s in costs_s]

    assert delays_s[0] == pytest.approx(SHARE * FREE_S)
    assert delays_s == sorted(delays_s)
    assert all(0 < delay_s <= GATHERING_S_MAX <= 0.005 for delay_s in delays_s)
    assert all(delay_s <= SHARE * cost_s for delay_s, cost_s in zip(delays_s, costs_s, strict=True))
    assert delays_s[-1] == GATHERING_S_MAX
