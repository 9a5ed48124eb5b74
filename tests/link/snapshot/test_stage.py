"""The interface of a stage, and waiting for what is pending."""

from __future__ import annotations

import pytest

from fanout.errors import LinkLost
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.protocol.sender import PacketSender
from fanout.link.snapshot.stage import PendingStage
from tests.link.fake_primary import make_context


def pending(*, permitted: bool = True) -> tuple[PendingStage, PacketSender, ControlChannel]:
    """Return a stage that has begun at time 0, with a quiet time of 5 s."""
    context = make_context()
    context.control.restore(permitted=permitted)
    stage = PendingStage(context)
    assert not stage.done
    stage.begin(0.0)
    return stage, context.sender, context.control


def test_a_pending_stage_that_has_not_begun_waits_for_nothing() -> None:
    """Before `begin` nothing is due, and what comes means nothing."""
    stage = PendingStage(make_context())
    stage.receive_bytes(1.0)
    stage.receive_unsuback(1)
    stage.receive_pingresp(1.0)
    stage.receive_control(b"", 1.0)
    stage.tick(100.0)
    assert not stage.done
    assert stage.deadline == float("inf")


def test_a_marker_that_stays_away_does_not_hold_the_link() -> None:
    """Behind PINGRESP the marker is awaited for the quiet time."""
    stage, _, _ = pending()
    stage.receive_pingresp(1.0)
    stage.tick(5.9)
    assert not stage.done
    assert stage.deadline == 6.0
    stage.tick(6.0)
    assert stage.done


@pytest.mark.parametrize(("messages", "lost"), [(0, True), (1, False)])
def test_a_probe_answered_without_progress_is_a_lost_link(messages: int, lost: bool) -> None:
    """When a later request is answered, and no message came in between, PINGRESP was dropped."""
    stage, sender, _ = pending()
    sender.take()
    stage.receive_bytes(4.0)
    stage.tick(5.0)
    probe_id = int.from_bytes(sender.take()[2:4], "big")
    stage.receive_bytes(6.0)
    stage.receive_messages(messages)
    stage.receive_unsuback(probe_id)
    if not lost:
        stage.tick(6.1)
        return
    with pytest.raises(LinkLost):
        stage.tick(6.1)
