"""Epochs: their order, and their bytes in the record of a session."""

from __future__ import annotations

import pytest

from fanout.pool.sessions.epochs import NO_EPOCH, Epoch, EpochClock, decode_epoch, encode_epoch


@pytest.mark.parametrize("epoch", [NO_EPOCH, Epoch(1, "edge-1"), Epoch(2**63, "é")])
def test_an_epoch_is_read_as_it_was_written(epoch: Epoch) -> None:
    """The record of a session of a node that was in no pool has none."""
    assert decode_epoch(encode_epoch(epoch)) == epoch
    assert decode_epoch(b"") == NO_EPOCH


def test_epochs_are_later_than_all_that_were_seen() -> None:
    """Also when the clock is behind that of another member."""
    clock = EpochClock("b")
    assert clock.next(now_ns=5_000_000) == Epoch(5, "b")
    clock.see(Epoch(90, "a"))
    assert clock.next(now_ns=6_000_000) == Epoch(91, "b")
