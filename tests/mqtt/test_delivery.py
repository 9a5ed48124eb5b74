"""MQTT 5, sections 4.3, 4.4, 4.6 and 4.9: QoS 1 and 2 on both sides, and the two joined back to back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanout.errors import SendQuotaExceeded
from fanout.mqtt.decoder import AckRun
from fanout.mqtt.delivery import AckOutcome, AckRunOutcome, Inbound, Outbound, SendState
from fanout.mqtt.packet_ids import PacketIds
from fanout.mqtt.packet_types import PacketType

C = PacketType


# The receiver


def test_inbound_counts_for_the_receive_maximum() -> None:
    """What is not answered with PUBACK, PUBCOMP or a failing PUBREC counts [MQTT-3.3.4-7]."""
    inbound = Inbound()
    for packet_id in (1, 2):
        inbound.accept(packet_id, 1)
    inbound.accept(3, 2)
    inbound.accept(3, 2, dup=True)
    assert inbound.open_count == 3
    assert not inbound.exceeded(3)
    assert inbound.exceeded(2)
    inbound.acknowledge(1)
    inbound.release(3)
    assert inbound.open_count == 1


def test_inbound_unreleased_is_made_anew_only_when_it_changed() -> None:
    """Who compares it after each read with what it was has the answer from the object, unless it is another one."""
    inbound = Inbound()
    inbound.restore([7])
    steps: list[tuple[Callable[[], object], set[int]]] = [
        (lambda: inbound.accept(1, 2), {1, 7}),
        (lambda: inbound.accept(2, 2), {1, 2, 7}),
        (lambda: inbound.release(1), {2, 7}),
        (lambda: inbound.acknowledge(2), {7}),
        (lambda: inbound.restore([8]), {7, 8}),
    ]
    for step, expected in steps:
        before = inbound.unreleased
        assert inbound.unreleased is before
        step()
        assert inbound.unreleased == expected
    before = inbound.unreleased
    inbound.accept(7, 2, dup=True)
    inbound.accept(3, 1)
    inbound.acknowledge(3)
    inbound.release(9)
    inbound.new_connection()
    assert inbound.unreleased is before


# The sender


@pytest.mark.parametrize(
    ("qos", "before", "ack_type"),
    [
        (1, [], C.PUBREC),
        (1, [], C.PUBCOMP),
        (2, [], C.PUBACK),
        (2, [], C.PUBCOMP),
        (2, [C.PUBREC], C.PUBACK),
        (1, [], C.PUBREL),
    ],
)
def test_outbound_unexpected(qos: int, before: list[PacketType], ack_type: PacketType) -> None:
    """A packet that does not fit the state changes nothing."""
    outbound: Outbound[str] = Outbound()
    packet_id = outbound.send("m", qos)
    for earlier in before:
        outbound.acknowledge(earlier, packet_id)
    state = list(outbound.in_flight())
    assert outbound.acknowledge(ack_type, packet_id, 0x80) is AckOutcome.UNEXPECTED
    assert list(outbound.in_flight()) == state


def test_outbound_window() -> None:
    """Never more in flight than the peer's Receive Maximum [MQTT-4.9.0-2]; a smaller new one is kept too."""
    outbound: Outbound[int] = Outbound(window=2)
    first = outbound.send(1, 1)
    outbound.send(2, 2)
    with pytest.raises(SendQuotaExceeded, match="Receive Maximum"):
        outbound.send(3, 1)
    assert len(outbound) == 2
    outbound.window = 1
    assert outbound.free == 0
    outbound.acknowledge(C.PUBACK, first)
    assert outbound.free == 0
    outbound.window = 10
    assert outbound.free == 9


def test_outbound_shares_packet_identifiers() -> None:
    """A SUBSCRIBE and a PUBLISH in flight never have the same Packet Identifier [MQTT-2.2.1-3]."""
    packet_ids = PacketIds()
    outbound: Outbound[str] = Outbound(packet_ids=packet_ids)
    subscribe = packet_ids.allocate()
    assert outbound.send("m", 1) == subscribe + 1
    assert packet_ids.in_use == 2


@pytest.mark.parametrize(("qos", "state"), [(1, SendState.AWAIT_PUBACK), (2, SendState.AWAIT_PUBREC)])
def test_outbound_run_is_sent_as_one_by_one(qos: int, state: SendState) -> None:
    """Each message has its identifier, in order, behind those that were sent before; the window counts them."""
    outbound: Outbound[str] = Outbound(window=4)
    assert outbound.send("a", qos) == 1
    assert list(outbound.send_run(["b", "c"], qos, size=2)) == [2, 3]
    with pytest.raises(SendQuotaExceeded):
        outbound.send_run(["d", "e"], qos, size=2)
    assert list(outbound.in_flight()) == [(1, "a", state), (2, "b", state), (3, "c", state)]
    assert outbound.free == 1


def test_outbound_is_bounded_by_bytes_too() -> None:
    """From `bytes_max` on nothing is free, until enough of it was completed or refused, in whatever way."""
    outbound: Outbound[str] = Outbound(bytes_max=100)
    one = outbound.send("a", 1, size=40)
    two, three = outbound.send_run(["b", "c"], 2, size=59)
    assert (outbound.bytes, outbound.free) == (98, 0xFFFF - 3)
    outbound.adopt(9, "d", SendState.AWAIT_PUBACK, size=30)
    assert (outbound.bytes, outbound.free) == (128, 0)
    assert outbound.acknowledge_run(AckRun(C.PUBACK, [one, 999], None)).completed == 1
    assert (outbound.bytes, outbound.free) == (88, 0xFFFF - 3)
    outbound.acknowledge(C.PUBREC, two)
    assert outbound.bytes == 88
    outbound.acknowledge(C.PUBCOMP, two)
    outbound.acknowledge(C.PUBREC, three, 0x97)
    assert outbound.bytes == 30
    outbound.acknowledge(C.PUBACK, 9)
    assert (outbound.bytes, len(outbound)) == (0, 0)


def test_outbound_order_for_sending_again() -> None:
    """PUBLISH in the order of sending, PUBREL in the order of the PUBRECs [MQTT-4.6.0-1] [MQTT-4.6.0-4]."""
    outbound: Outbound[str] = Outbound()
    a, b, c, d = (outbound.send(name, 2) for name in "abcd")
    outbound.acknowledge(C.PUBREC, c)
    outbound.acknowledge(C.PUBREC, a)
    outbound.acknowledge(C.PUBREC, c)
    assert list(outbound.in_flight()) == [
        (b, "b", SendState.AWAIT_PUBREC),
        (d, "d", SendState.AWAIT_PUBREC),
        (c, "c", SendState.AWAIT_PUBCOMP),
        (a, "a", SendState.AWAIT_PUBCOMP),
    ]


def test_outbound_run_of_pubacks() -> None:
    """A run completes what waits for PUBACK and names the rest; refusals free their place too."""
    outbound: Outbound[int] = Outbound()
    ids = [outbound.send(index, 1) for index in range(4)]
    other = outbound.send(9, 2)
    run = AckRun(C.PUBACK, [*ids[:3], ids[0], 999, other], [0, 0x10, 0x97, 0, 0, 0])
    assert outbound.acknowledge_run(run) == AckRunOutcome(3, [], [ids[0], 999, other])
    assert [packet_id for packet_id, _, _ in outbound.in_flight()] == [ids[3], other]


def test_outbound_run_of_pubrecs_and_pubcomps() -> None:
    """A run of PUBREC gives what to release, in order; a run of PUBCOMP completes."""
    outbound: Outbound[int] = Outbound()
    first, second, third = (outbound.send(index, 2) for index in range(3))
    pubrec = AckRun(C.PUBREC, [second, first, third, 999], [0, 0, 0x87, 0])
    assert outbound.acknowledge_run(pubrec) == AckRunOutcome(1, [second, first], [999])
    pubcomp = AckRun(C.PUBCOMP, [first, second, third], None)
    assert outbound.acknowledge_run(pubcomp) == AckRunOutcome(2, [], [third])
    assert outbound.free == 65_535


class BackToBack(RuleBasedStateMachine):
    """A sender and a receiver in one resumed Session over connections that lose what is on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.sender: Outbound[int] = Outbound(window=4)
        self.receiver = Inbound()
        self.next_message = 0
        self.to_receiver: list[tuple[PacketType, int, int, int]] = []  # (type, packet_id, qos, message)
        self.to_sender: list[tuple[PacketType, int]] = []
        self.qos_of: dict[int, int] = {}
        self.applied: list[int] = []

    @precondition(lambda self: self.sender.free > 0)
    @rule(qos=st.sampled_from([1, 2]))
    def send(self, qos: int) -> None:
        message = self.next_message
        self.next_message += 1
        self.qos_of[message] = qos
        self.to_receiver.append((C.PUBLISH, self.sender.send(message, qos), qos, message))

    @precondition(lambda self: self.to_receiver)
    @rule()
    def receive(self) -> None:
        kind, packet_id, qos, message = self.to_receiver.pop(0)
        if kind is C.PUBREL:
            self.receiver.release(packet_id)
            self.to_sender.append((C.PUBCOMP, packet_id))
            return
        if self.receiver.accept(packet_id, qos):
            self.applied.append(message)
        if qos == 1:
            self.receiver.acknowledge(packet_id)
        self.to_sender.append((C.PUBACK if qos == 1 else C.PUBREC, packet_id))

    @precondition(lambda self: self.to_sender)
    @rule()
    def acknowledge(self) -> None:
        kind, packet_id = self.to_sender.pop(0)
        outcome = self.sender.acknowledge(kind, packet_id)
        assert outcome in (AckOutcome.COMPLETED, AckOutcome.RELEASE)
        if outcome is AckOutcome.RELEASE:
            self.to_receiver.append((C.PUBREL, packet_id, 2, -1))

    @rule()
    def lose_the_connection(self) -> None:
        self.to_receiver.clear()
        self.to_sender.clear()
        self.receiver.new_connection()
        for packet_id, message, state in self.sender.in_flight():
            if state is SendState.AWAIT_PUBCOMP:
                self.to_receiver.append((C.PUBREL, packet_id, 2, -1))
            else:
                self.to_receiver.append((C.PUBLISH, packet_id, self.qos_of[message], message))

    @invariant()
    def receive_maximum_is_kept(self) -> None:
        assert len(self.sender) <= 4
        assert not self.receiver.exceeded(4)

    @invariant()
    def qos_2_is_applied_once(self) -> None:
        exactly_once = [message for message in self.applied if self.qos_of[message] == 2]
        assert len(exactly_once) == len(set(exactly_once))

    def teardown(self) -> None:
        self.lose_the_connection()
        while self.to_receiver or self.to_sender:
            if self.to_receiver:
                self.receive()
            else:
                self.acknowledge()
        assert len(self.sender) == 0
        assert set(self.applied) == set(range(self.next_message))


TestBackToBack = BackToBack.TestCase
TestBackToBack.settings = settings(max_examples=60, stateful_step_count=40)
