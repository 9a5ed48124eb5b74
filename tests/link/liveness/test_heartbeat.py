"""Heartbeats of a live link."""

from __future__ import annotations

import pytest

from fanout.errors import LinkLost
from fanout.link.liveness.heartbeat import Heartbeat
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.sender import OutgoingMessage, PacketSender, PrimaryLimits
from tests.link.fake_primary import make_config


def heartbeat(*, receive_maximum: int = 10) -> tuple[Heartbeat, ControlChannel, PacketSender]:
    """Return one with an interval of 5 s, whose first message was sent at time 0 and came back at once."""
    sender = PacketSender(make_config(), node_id="edge-1")
    sender.accept(PrimaryLimits(receive_maximum=receive_maximum))
    control = ControlChannel("fanout/control", node_id="edge-1", link="plant", nonce=7, heartbeat_s=5.0)
    control.receive(control.send(0.0), now=0.0)
    return Heartbeat(control, sender=sender), control, sender


def test_a_heartbeat_is_sent_each_interval() -> None:
    """Not before."""
    one, control, sender = heartbeat()
    assert one.tick(4.9, live=True) == ""
    assert sender.take() == b""
    assert one.tick(5.0, live=True) == ""
    assert control.topic in sender.take()


def test_a_heartbeat_is_left_out_while_nothing_can_be_published() -> None:
    """The next one is due an interval later."""
    one, control, sender = heartbeat(receive_maximum=1)
    sender.publish(OutgoingMessage(b"t", b""), now=1.0)
    sender.take()
    assert one.tick(5.0, live=True) == ""
    assert sender.take() == b""
    assert control.deadline(5.0) == 10.0


def test_heartbeats_that_stay_away_mean_a_stall_and_then_a_lost_connection() -> None:
    """It is told while the link is live; a stalled one goes on sending."""
    one, _, sender = heartbeat()
    one.tick(5.0, live=True)
    sender.take()
    assert one.tick(20.0, live=True) == "heartbeats do not come back"
    assert sender.take() == b""
    assert one.tick(20.0, live=False) == ""
    assert sender.has_output
    with pytest.raises(LinkLost, match="heartbeats do not come back"):
        one.tick(35.0, live=False)


@pytest.mark.parametrize(("live", "stall"), [(True, "the node itself did not run for 15.0 s"), (False, "")])
def test_a_node_that_did_not_run_is_stalled(live: bool, stall: str) -> None:
    """A heartbeat that is overdue by three intervals says so; it is sent all the same."""
    one, _, sender = heartbeat()
    assert one.tick(20.0, live=live) == stall
    assert sender.has_output


def test_a_node_that_did_not_run_blames_no_primary() -> None:
    """A heartbeat that was under way did not come back because nobody read; the reason says for how long."""
    one, _, sender = heartbeat()
    one.tick(5.0, live=True)
    sender.take()
    assert one.tick(25.3, live=True) == "the node itself did not run for 15.3 s"
    with pytest.raises(LinkLost, match=r"the node itself did not run for 40\.0 s") as caught:
        one.tick(50.0, live=True)
    assert "stopped or suspended" in caught.value.hint
