"""Whether the primary still answers."""

from __future__ import annotations

import pytest

from fanout.errors import LinkLost
from fanout.link.liveness.keep_alive import KeepAlive
from fanout.link.protocol.sender import PacketSender
from tests.link.fake_primary import make_config

NEVER = float("inf")
PINGREQ = b"\xc0\x00"


def keep_alive(*, accepted_s: int | None = None) -> tuple[KeepAlive, PacketSender]:
    """Return one whose connection began at time 0, with CONNACK at once when a Keep Alive is given."""
    config = make_config()
    sender = PacketSender(config, node_id="edge-1")
    one = KeepAlive(config, sender=sender, probe_filter=b"probe")
    one.begin(now=0.0, timeout_s=10.0)
    if accepted_s is not None:
        one.accept(accepted_s)
    return one, sender


@pytest.mark.parametrize("staged", [False, True])
def test_connack_must_come_in_time(staged: bool) -> None:
    """Until CONNACK nothing else is asked for."""
    one, sender = keep_alive()
    assert one.deadline(staged=staged) == 10.0
    one.tick(9.9, staged=staged)
    assert not sender.has_output
    with pytest.raises(LinkLost, match="does not answer CONNECT"):
        one.tick(10.0, staged=staged)


@pytest.mark.parametrize("staged", [False, True])
def test_a_keep_alive_of_zero_asks_nothing(staged: bool) -> None:
    """Then silence means nothing."""
    one, sender = keep_alive(accepted_s=0)
    assert one.deadline(staged=staged) == NEVER
    one.tick(1e9, staged=staged)
    assert not sender.has_output


def test_pingreq_is_sent_after_silence_on_either_side() -> None:
    """What is received alone does not do: the primary wants to hear of the link, and the link of the primary."""
    one, sender = keep_alive(accepted_s=20)
    one.receive(10.0)
    assert one.deadline(staged=False) == 15.0  # nothing was sent since time 0
    one.tick(14.9, staged=False)
    assert not sender.has_output
    one.tick(15.0, staged=False)
    assert sender.take() == PINGREQ
    assert one.deadline(staged=False) == 30.0
    one.receive(29.0)  # not the answer
    with pytest.raises(LinkLost, match="does not answer PINGREQ"):
        one.tick(30.0, staged=False)


def test_a_stage_has_pingreq_for_itself() -> None:
    """Meanwhile an UNSUBSCRIBE that changes nothing is sent when nothing else was."""
    one, sender = keep_alive(accepted_s=20)
    sender.ping(4.0)
    assert sender.take() == PINGREQ
    assert one.deadline(staged=True) == 19.0
    one.tick(19.0, staged=True)
    assert b"probe" in sender.take()
    assert one.deadline(staged=True) == 34.0


def test_answers_may_take_longer_by_as_long_as_nobody_listened() -> None:
    """CONNACK, and then PINGRESP."""
    one, sender = keep_alive()
    one.postpone(5.0)
    assert one.deadline(staged=False) == 15.0
    one.accept(40)
    sender.ping(20.0)
    one.postpone(10.0)
    assert one.deadline(staged=False) == 60.0
