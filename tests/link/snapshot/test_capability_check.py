"""What a primary shows at the beginning of an epoch."""

from __future__ import annotations

import pytest

from fanout.errors import LinkLost
from fanout.link.model.evidence import Order
from fanout.link.protocol.sender import PrimaryLimits
from fanout.link.snapshot.capability_check import (
    CONTROL_PATIENCE_S,
    OWN_SENTINEL_REQUESTS,
    SERVER_SENTINEL,
    TRIALS,
    CapabilityCheck,
    is_checked,
)
from fanout.mqtt.decoder import AckRun
from fanout.mqtt.packets import PacketType, Suback
from fanout.selection import Selector
from tests.link.fake_primary import make_config, make_context

CONTROL = b"fanout/control/edge-1/plant"
OWN_SENTINEL = CONTROL + b"/fence"


class Case:
    """A capability check that has begun at time 0."""

    def __init__(self, *, wants_sentinel: bool = True) -> None:
        """Begin."""
        context = make_context(make_config(Selector("plant/1")))
        context.peer.node = None if wants_sentinel else "root"
        self.sender = context.sender
        self.control = context.control
        self.capability_check = CapabilityCheck(context)
        self.capability_check.begin(0.0)
        self.first = self.sender.take()

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


def test_one_write_asks_everything() -> None:
    """The control topic, a message on it, the primary's own sentinel and PINGREQ, in this order."""
    first = Case().first
    places = [first.index(each) for each in (b"fanout/control/edge-1/plant", b"7 1", SERVER_SENTINEL, b"\xc0\x00")]
    assert places == sorted(places)


def test_the_primarys_sentinel_is_taken() -> None:
    """With the control message, the sentinel and PINGRESP all is answered."""
    case = Case()
    case.come_back()
    case.capability_check.receive_retained(b"other", b"x", 0.1)
    case.capability_check.receive_retained(SERVER_SENTINEL, b"mosquitto version 2.0.11", 0.1)
    assert not case.is_done()
    case.pong()
    assert case.is_done()
    assert case.capability_check.sentinel == SERVER_SENTINEL
    assert case.sender.take() == b""


def test_without_the_primarys_sentinel_an_own_one_is_tried() -> None:
    """A retained message with an expiry is published and requested after its PUBACK; it is the sentinel if it comes."""
    case = Case()
    case.come_back()
    case.pong()
    assert not case.is_done()
    second = case.sender.take()
    assert second.count(OWN_SENTINEL) == 1
    assert b"\x02\x00\x01\x51\x80" in second, "it expires after a day"
    case.acknowledge(OWN_SENTINEL)
    assert case.sender.take().count(OWN_SENTINEL) == 1
    for _ in range(TRIALS):
        assert not case.is_done()
        case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 0.2)
        case.pong()
    assert case.is_done()
    assert case.capability_check.sentinel == OWN_SENTINEL
    assert case.capability_check.order is Order.LIKELY
    assert case.sender.take().count(OWN_SENTINEL) == TRIALS - 1, "it is asked for again, and not published again"


def test_a_sentinel_that_could_be_asked_for_late_is_waited_for_anew() -> None:
    """The time for the sentinel in front of it is over; nothing is due while the new one may still come."""
    case = Case()
    case.sender.accept(PrimaryLimits(receive_maximum=1))
    case.come_back()
    case.pong()
    case.sender.take()
    assert case.capability_check.deadline == 0.1 + CONTROL_PATIENCE_S, "the only place is taken by the control message"
    case.sender.acknowledged(AckRun(PacketType.PUBACK, [2], None), now=0.2)
    case.acknowledge(now=0.2)
    assert OWN_SENTINEL in case.sender.take()
    case.acknowledge(OWN_SENTINEL, 0.3)
    assert OWN_SENTINEL in case.sender.take()
    assert case.capability_check.deadline == 0.3 + 10.0


def test_an_own_sentinel_is_asked_for_without_its_puback_after_a_second() -> None:
    """A primary may acknowledge late; the PUBACK is no further request then."""
    case = Case()
    case.come_back()
    case.pong()
    case.sender.take()
    assert case.capability_check.deadline == 0.1 + CONTROL_PATIENCE_S
    case.capability_check.tick(0.1 + CONTROL_PATIENCE_S)
    assert case.sender.take().count(OWN_SENTINEL) == 1
    case.acknowledge(OWN_SENTINEL, 1.5)
    assert case.sender.take() == b""


def test_a_refused_own_sentinel_is_none() -> None:
    """It is not asked for."""
    case = Case()
    case.come_back()
    case.pong()
    case.sender.take()
    case.capability_check.receive_puback(OWN_SENTINEL, 0x87, 0.2)
    assert case.is_done()
    assert case.capability_check.order is Order.NONE
    assert case.sender.take() == b""


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


def test_a_late_version_shows_that_answers_overtake() -> None:
    """The version topic is there, and came behind PINGRESP: an own sentinel in time does not change that."""
    case = Case()
    case.come_back()
    case.pong()
    case.capability_check.receive_retained(SERVER_SENTINEL, b"mosquitto version 2.0.11", 0.2)
    case.capability_check.receive_retained(OWN_SENTINEL, b"fence", 0.2)
    case.pong()
    assert case.is_done()
    assert case.capability_check.sentinel is None
    assert "overtake" in case.capability_check.why


@pytest.mark.parametrize(
    ("version", "trials"), [(b"mosquitto version 2.0.11", 1), (b"fanout version 1.0", 1), (b"other 1.0", TRIALS)]
)
def test_the_order_of_mosquitto_and_of_fanout_is_known(version: bytes, trials: int) -> None:
    """Another primary with the same topic has to show it; and what a Mosquitto counts, a fanout node does not."""
    case = Case()
    case.come_back()
    for _ in range(trials):
        assert not case.is_done()
        case.capability_check.receive_retained(SERVER_SENTINEL, version, 0.2)
        case.pong()
    assert case.is_done()
    assert case.capability_check.order is (Order.KNOWN if trials == 1 else Order.LIKELY)
    assert case.capability_check.is_mosquitto is version.startswith(b"mosquitto")


def test_a_primary_that_needs_no_sentinel_is_not_asked_for_one() -> None:
    """A fanout node is asked for the control message only."""
    case = Case(wants_sentinel=False)
    assert SERVER_SENTINEL not in case.first
    case.come_back()
    case.pong()
    case.capability_check.tick(2.0)
    assert case.is_done()
    assert case.capability_check.sentinel is None


def test_a_refused_control_topic_is_known_at_once() -> None:
    """A SUBACK or a PUBACK that refuses ends the waiting; no own sentinel is tried."""
    subscription = Case()
    subscription.capability_check.receive_suback(Suback(99, (0x87,)), 0.1)
    subscription.capability_check.receive_suback(Suback(1, (0x87,)), 0.1)
    subscription.pong()
    publication = Case()
    publication.control.refuse("no")
    publication.capability_check.receive_puback(CONTROL, 0x87, 0.1)
    publication.pong()
    for case in (subscription, publication):
        case.capability_check.tick(0.1 + CONTROL_PATIENCE_S)
        assert case.is_done()
        assert not case.control.permitted
        assert case.sender.take() == b""


def test_a_message_that_vanished_is_given_a_second() -> None:
    """After PUBACK the control message has a second to come back."""
    case = Case()
    case.capability_check.receive_suback(Suback(1, (1,)), 0.1)
    case.acknowledge(now=0.5)
    case.pong()
    assert case.capability_check.deadline == 1.5
    case.capability_check.tick(1.4)
    assert not case.is_done()
    case.capability_check.tick(1.5)
    assert case.control.permitted is False
    case.capability_check.tick(2.5)
    assert case.is_done()


def test_a_late_pingresp_keeps_the_capability_check_waiting() -> None:
    """The message has vanished, but PINGRESP is not there yet."""
    case = Case()
    case.acknowledge(now=0.5)
    case.capability_check.tick(1.5)
    assert not case.is_done()
    assert case.capability_check.deadline == 10.0


def test_a_primary_that_does_not_answer_is_left() -> None:
    """Within the time-out an answer must come."""
    case = Case()
    case.capability_check.tick(9.9)
    with pytest.raises(LinkLost, match="does not answer"):
        case.capability_check.tick(10.0)


def test_without_room_in_flight_no_own_sentinel_is_tried() -> None:
    """A Receive Maximum that is used up is respected."""
    case = Case()
    case.sender.accept(PrimaryLimits(receive_maximum=1))
    case.come_back()
    case.pong()
    case.capability_check.tick(2.0)
    assert case.is_done()
    assert case.capability_check.sentinel is None


@pytest.mark.parametrize(
    ("permitted", "sentinel", "node", "checked"),
    [
        (None, None, None, False),
        (None, b"sentinel", None, False),
        (True, None, None, False),
        (False, b"sentinel", None, True),
        (True, None, "root", True),
    ],
)
def test_the_check_is_made_once_an_epoch(
    permitted: bool | None, sentinel: bytes | None, node: str | None, checked: bool
) -> None:
    """It is complete when it is known whether messages come back, and what ends a retained set."""
    context = make_context()
    context.control.restore(permitted=permitted)
    context.peer.sentinel, context.peer.node = sentinel, node
    assert is_checked(context) is checked
