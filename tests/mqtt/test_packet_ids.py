"""MQTT 5, section 2.2.1: Packet Identifiers."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fanout.errors import SendQuotaExceeded
from fanout.mqtt.packet_ids import PacketIds


def test_all_in_use() -> None:
    """All 65,535 can be in use at once; then there is none until one is released [MQTT-2.2.1-3]."""
    packet_ids = PacketIds()
    assert {packet_ids.allocate() for _ in range(65_535)} == set(range(1, 65_536))
    with pytest.raises(SendQuotaExceeded):
        packet_ids.allocate()
    packet_ids.release(500)
    packet_ids.release(40_000)
    assert packet_ids.allocate() == 500
    assert packet_ids.allocate() == 40_000
    assert packet_ids.in_use == 65_535


def test_a_run_is_what_one_by_one_would_be() -> None:
    """Ascending behind the last; over the end, and around what is in use, too."""
    packet_ids = PacketIds()
    assert list(packet_ids.allocate_run(3)) == [1, 2, 3]
    assert packet_ids.allocate() == 4
    packet_ids.release_all([1, 2])
    packet_ids.continue_behind(65_533)
    assert list(packet_ids.allocate_run(5)) == [65_534, 65_535, 1, 2, 5]
    packet_ids.continue_behind(0)
    packet_ids.release(4)
    assert list(packet_ids.allocate_run(2)) == [4, 6]
    assert packet_ids.in_use == 8
    assert list(packet_ids.allocate_run(0)) == []


def test_a_run_that_is_too_long_changes_nothing() -> None:
    """All of them or none."""
    packet_ids = PacketIds()
    packet_ids.allocate_run(65_530)
    with pytest.raises(SendQuotaExceeded):
        packet_ids.allocate_run(6)
    assert packet_ids.in_use == 65_530
    assert list(packet_ids.allocate_run(5)) == [65_531, 65_532, 65_533, 65_534, 65_535]


class PacketIdsMachine(RuleBasedStateMachine):
    """Allocates and releases at random, beside a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.packet_ids = PacketIds()
        self.in_use: set[int] = set()

    @rule()
    def allocate(self) -> None:
        packet_id = self.packet_ids.allocate()
        assert 1 <= packet_id <= 65_535
        assert packet_id not in self.in_use
        self.in_use.add(packet_id)

    @rule(packet_id=st.integers(1, 20))
    def release(self, packet_id: int) -> None:
        self.packet_ids.release_all([packet_id])
        self.in_use.discard(packet_id)

    @invariant()
    def count_is_right(self) -> None:
        assert self.packet_ids.in_use == len(self.in_use)
        assert all(packet_id in self.packet_ids for packet_id in self.in_use)


TestPacketIdsMachine = PacketIdsMachine.TestCase
