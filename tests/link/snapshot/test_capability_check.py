"""What a primary shows at the beginning of an epoch."""

from __future__ import annotations

import pytest

from fanout.link.model.evidence import Order
from fanout.link.protocol.sender import PrimaryLimits
from fanout.link.snapshot.capability_check import (
    CONTROL_PATIENCE_S,
    OWN_SENTINEL_REQUESTS,
    TRIALS,
    CapabilityCheck,
)
from fanout.selection import Selector
from tests.link.fake_primary import make_config, make_context

CONTROL = b"fanout/control/edge-1/plant"
OWN_SENTINEL = CONTROL + b"/fence"


class Case:
    """A capability check that has begun at time 0."""

    def __init__(self) -> None:
        """Begin."""
        context = make_context(make_config(Selector("plant/1")))
        self.sender = context.sender
        self.control = context.control
        self.capability_check = CapabilityCheck(context)
        self.capability_check.begin(0.0)
        self.sender.take()

    def is_done(self) -> bool:
        """Say whether all is answered."""
        return self.capability_check.done

    def come_back(self) -> None:
        """Bring the control message back."""
        assert self.control.receive(b"7 1", now=0.1) is not None
        self.capability_check.receive_control(b"7 1", 0.1)

    def acknowledge(self, topic: bytes = CONTROL, now: float = 0.1) -> None:
        """Bring the PUBACK of the control message, or of the own sentinel."""
        self.capability_check.receive_puback(topic, 0, now)

    def pong(self) -> None:
        """Bring PINGRESP."""
        self.sender.receive_pingresp()
        self.capability_check.receive_pingresp(0.1)


def test_an_own_sentinel_that_comes_late_is_asked_for_again() -> None:
    """nats-server under load needs seconds until it has what was retained: the sentinel is not given up after one."""
    case = Case()
    case.come_back()
    case.pong()
    case.acknowledge(OWN_SENTINEL)
    case.sender.take()
    case.pong()
    case.capability_check.tick(0.1 + CONTROL_PATIENCE_S)
    assert case.sender.take().count(OWN_SENTINEL) == 1
    for _ in range(TRIALS):
        assert not case.is_done()
        case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 1.2)
        case.pong()
    assert case.is_done()
    assert case.capability_check.order is Order.LIKELY


def test_without_any_sentinel_there_is_none() -> None:
    """An own sentinel that never comes is none."""
    case = Case()
    case.come_back()
    case.pong()
    case.acknowledge(OWN_SENTINEL)
    case.sender.take()
    for request in range(1, OWN_SENTINEL_REQUESTS + 1):
        case.pong()
        assert not case.is_done()
        assert case.capability_check.deadline == 0.1 + CONTROL_PATIENCE_S
        case.capability_check.tick(0.1 + CONTROL_PATIENCE_S)
        assert (OWN_SENTINEL in case.sender.take()) == (request < OWN_SENTINEL_REQUESTS)
    assert case.is_done()
    assert case.capability_check.deadline == float("inf")
    assert case.capability_check.sentinel is None
    assert case.capability_check.order is Order.NONE
    assert "$SYS/broker/version" in case.capability_check.why
    assert case.sender.take() == b""


@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_sentinel_behind_pingresp_shows_that_answers_overtake(trial: int) -> None:
    """Even if it came in time before: then it is no sentinel."""
    case = Case()
    case.come_back()
    case.pong()
    case.acknowledge(OWN_SENTINEL)
    for _ in range(trial):
        case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 0.2)
        case.pong()
    case.pong()
    case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 0.3)
    assert case.is_done()
    assert case.capability_check.sentinel is None
    assert case.capability_check.order is Order.NONE
    assert "overtake" in case.capability_check.why


def test_a_live_copy_of_the_own_sentinel_shows_nothing() -> None:
    """A session that was resumed in the middle of a check has the subscription of that check still."""
    case = Case()
    case.come_back()
    case.pong()
    case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 0.2)
    case.acknowledge(OWN_SENTINEL)
    for _ in range(TRIALS):
        assert not case.is_done()
        case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 0.3)
        case.pong()
    assert case.capability_check.order is Order.LIKELY


def test_without_room_in_flight_no_own_sentinel_is_tried() -> None:
    """A Receive Maximum that is used up is respected."""
    case = Case()
    case.sender.accept(PrimaryLimits(receive_maximum=1))
    case.come_back()
    case.pong()
    case.capability_check.tick(2.0)
    assert case.is_done()
    assert case.capability_check.sentinel is None
