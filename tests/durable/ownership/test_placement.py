"""Tests of the placement of copies."""

from __future__ import annotations

from collections import Counter

import pytest

from fanout.durable.ownership.placement import keeper_of

CLIENTS = [f"client-{number}" for number in range(3_000)]
MEMBERS = ("node-1", "node-2", "node-3", "node-4")


def test_copies_are_spread_evenly() -> None:
    """Each member keeps about as many copies as the others, within a tenth."""
    counts = Counter(keeper_of(client_id, MEMBERS) for client_id in CLIENTS)
    assert set(counts) == set(MEMBERS)
    share = len(CLIENTS) / len(MEMBERS)
    assert all(abs(count - share) < share / 10 for count in counts.values())


@pytest.mark.parametrize("gone", MEMBERS)
def test_member_that_goes_moves_its_own_copies_only(gone: str) -> None:
    """Copies that another member kept stay when a member goes, and come to no third one when it comes back."""
    left = [member for member in MEMBERS if member != gone]
    for client_id in CLIENTS:
        before, after = keeper_of(client_id, MEMBERS), keeper_of(client_id, left)
        assert after == before if before != gone else after in left


def test_keeper_does_not_depend_on_the_order_of_members() -> None:
    """All members find the same keeper, in whatever order they know each other."""
    assert all(keeper_of(one, MEMBERS) == keeper_of(one, reversed(MEMBERS)) for one in CLIENTS[:100])


def test_no_member_keeps_nothing() -> None:
    """There is no keeper where no member can be one."""
    assert keeper_of("client", ()) is None
