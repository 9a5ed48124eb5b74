"""The rule for how long the next read of a link gathers."""

from __future__ import annotations

import pytest

from fanout.link.transport.coalescing import COALESCED_BYTES, COALESCING_S_MAX, FREE_S, SHARE, coalescing_s


@pytest.mark.parametrize("cost_s", [FREE_S, 0.001, 0.01, 10.0])
def test_nothing_is_coalesced_behind_a_batch(cost_s: float) -> None:
    """A large read is worth its fan-out; to wait would only cost throughput."""
    assert coalescing_s(cost_s=cost_s, read_bytes=COALESCED_BYTES) == 0


def test_coalescing_is_in_proportion_to_the_cost_and_within_the_bound() -> None:
    """What a fan-out takes decides how long to wait, up to a few milliseconds whatever it took."""
    costs_s = [FREE_S * 1.2**step for step in range(80)]
    delays_s = [coalescing_s(cost_s=cost_s, read_bytes=80) for cost_s in costs_s]

    assert delays_s[0] == pytest.approx(SHARE * FREE_S)
    assert delays_s == sorted(delays_s)
    assert all(0 < delay_s <= COALESCING_S_MAX <= 0.005 for delay_s in delays_s)
    assert all(delay_s <= SHARE * cost_s for delay_s, cost_s in zip(delays_s, costs_s, strict=True))
    assert delays_s[-1] == COALESCING_S_MAX
