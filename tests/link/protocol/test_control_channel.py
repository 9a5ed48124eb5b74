"""The link's own messages."""

from __future__ import annotations

import pytest

from fanout.link.protocol.control_channel import STALL_INTERVALS, UNDER_WAY_MAX, ControlChannel
from fanout.replica.update import Stamp

NEVER = float("inf")


def channel(heartbeat_s: float = 5.0) -> ControlChannel:
    """Return a channel."""
    return ControlChannel("fanout/control", node_id="edge-1", link="plant", nonce=7, heartbeat_s=heartbeat_s)


def test_topics_lie_below_the_control_topic() -> None:
    """Every link has topics of its own."""
    control = channel()
    assert control.topic == b"fanout/control/edge-1/plant"
    assert control.sentinel_topic == b"fanout/control/edge-1/plant/fence"
    assert control.topic.startswith(control.prefix)


def test_a_message_that_comes_back_measures_its_round_trip() -> None:
    """The round trip is told once; a duplicate or a foreign message measures nothing."""
    control = channel()
    payload = control.send(10.0)
    before = control.permitted
    assert before is None
    assert control.round_trip_ns() is None
    assert control.age_s(11.0) is None
    assert control.receive(b"8 1", now=10.2) is None
    stamp = Stamp("root", 1, 2, 3)
    assert control.receive(payload, now=10.25, stamp=stamp) == 250_000_000
    assert control.receive(payload, now=10.5) is None
    assert control.permitted
    assert control.stamp == stamp
    assert control.round_trip_ns() == 250_000_000
    assert control.age_s(11.25) == 1.0


def test_lag_grows_when_the_next_heartbeat_is_overdue() -> None:
    """Lag is the round trip until the next heartbeat should have left, and then its age."""
    control = channel()
    assert control.lag_ns(0.0) is None
    control.receive(control.send(10.0), now=10.5)
    assert control.lag_ns(10.5) == 500_000_000
    assert control.lag_ns(15.2) == 500_000_000
    assert control.lag_ns(18.0) == 3_000_000_000


@pytest.mark.parametrize("heartbeat_s", [0.0])
def test_without_heartbeats_lag_is_unknown(heartbeat_s: float) -> None:
    """With heartbeats switched off nothing is due, nothing stalls, and lag is not known."""
    control = channel(heartbeat_s)
    control.receive(control.send(0.0), now=0.1)
    control.send(1.0)
    assert control.lag_ns(2.0) is None
    assert not control.heartbeat_due(1e9)
    assert not control.is_stalled(1e9)
    assert control.deadline(1.0) == NEVER


def test_a_refused_channel_is_silent() -> None:
    """Without permission there are no heartbeats and no stall; a new epoch asks again."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    control.send(1.0)
    control.refuse("no")
    refused = control.permitted
    assert refused is False
    assert control.lag_ns(2.0) is None
    assert control.deadline(2.0) == NEVER
    control.begin_epoch()
    assert control.permitted is None
    assert control.round_trip_ns() is None


def test_heartbeats_are_due_each_interval() -> None:
    """The interval counts from the newest message, left out or sent."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    assert control.deadline(0.1) == 5.0
    assert not control.heartbeat_due(4.9)
    assert control.heartbeat_due(5.0)
    control.skip_heartbeat(5.0)
    assert not control.heartbeat_due(9.9)
    assert control.heartbeat_due(10.0)


def test_a_message_that_stays_away_is_a_stall() -> None:
    """The oldest message under way decides, after three intervals and again after six."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    control.send(5.0)
    control.send(10.0)
    assert not control.is_stalled(19.9)
    assert control.is_stalled(20.0)
    assert not control.is_stalled(20.0, intervals=2 * STALL_INTERVALS)
    assert control.is_stalled(35.0, intervals=2 * STALL_INTERVALS)
    assert control.deadline(14.0) == 15.0
    assert control.deadline(10.0) == 15.0
    control.skip_heartbeat(17.0)
    assert control.deadline(17.0) == 20.0
    assert control.deadline(20.0) == 22.0


def test_a_newer_message_that_comes_back_forgives_older_ones() -> None:
    """Messages come in order, so an older one that is missing was dropped; the stall is over."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    control.send(5.0)
    newest = control.send(5.0)
    control.receive(newest, now=6.0)
    assert not control.is_stalled(1e9)


def test_messages_that_a_newer_one_passes_were_dropped() -> None:
    """Those since heartbeats began; of a stage, or of a former connection, they are no heartbeats of a live link."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    assert control.dropped == 0
    control.send(1.0)
    control.send(2.0)
    control.begin_heartbeats(2.0)
    control.send(7.0)
    control.send(12.0)
    newest, next_one = control.send(17.0), control.send(22.0)
    control.receive(newest, now=22.1)
    assert control.dropped == 2
    control.receive(next_one, now=22.2)
    assert control.dropped == 0


def test_a_message_that_the_primary_refused_was_not_dropped() -> None:
    """It never was on the way back."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    control.refuse_message(control.send(5.0), "quota")
    control.receive(control.send(10.0), now=10.1)
    assert control.dropped == 0


def test_a_younger_message_stays_under_way() -> None:
    """What was sent behind the one that came back is still awaited, even when sent at the same time."""
    control = channel()
    first, second = control.send(5.0), control.send(5.0)
    control.receive(first, now=6.0)
    assert control.receive(second, now=7.0) == 2_000_000_000


def test_messages_under_way_are_bounded() -> None:
    """While too many are under way, no further heartbeat is due, and the next look is at the stall."""
    control = channel()
    control.receive(control.send(0.0), now=0.1)
    for _ in range(UNDER_WAY_MAX):
        control.send(1.0)
    assert not control.heartbeat_due(100.0)
    assert control.deadline(2.0) == 16.0
    assert control.deadline(100.0) == NEVER


def test_what_was_away_while_nobody_listened_is_awaited_from_then_on() -> None:
    """It is no stall before it could have been read; its round trip is what it was."""
    control = channel()
    payload = control.send(10.0)
    control.restore(permitted=True)
    control.begin_listening(100.0)
    assert not control.is_stalled(100.0 + STALL_INTERVALS * 5.0 - 0.1)
    assert control.is_stalled(100.0 + STALL_INTERVALS * 5.0)
    assert control.receive(payload, now=101.0) == 91_000_000_000


def test_it_is_open_until_it_is_known_that_nothing_comes_back() -> None:
    """A refusal of one message is none of the next; a new epoch knows neither, nor what came back before."""
    control = channel()
    assert (control.may_be_open, control.is_open, control.returned_sent_s) == (True, False, None)
    control.receive(control.send(10.0), now=10.5)
    assert (control.may_be_open, control.is_open, control.returned_sent_s) == (True, True, 10.0)
    control.refuse_message(control.send(11.0), "quota")
    assert (control.may_be_open, control.is_open, control.returned_sent_s) == (True, False, 10.0)
    control.refuse("not authorized")
    assert (control.may_be_open, control.is_open) == (False, False)
    control.begin_epoch()
    assert (control.may_be_open, control.is_open, control.returned_sent_s) == (True, False, None)
