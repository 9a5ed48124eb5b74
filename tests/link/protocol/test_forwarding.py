"""Messages of local clients on their way to the primary."""

from __future__ import annotations

import pytest

from fanout.errors import ProtocolError
from fanout.link.protocol.forwarding import BUSY, NOT_TAKEN, QUEUE_MAX, UNAVAILABLE, Forwarding, puback_reason_code
from fanout.link.protocol.sender import OutgoingMessage, PacketSender, PrimaryLimits
from fanout.mqtt.decoder import Decoder
from fanout.mqtt.packets import Ack, PacketType, encode
from fanout.server.base.refusals import NOT_NOW
from tests.link.fake_primary import make_config


def forwarding(receive_maximum: int) -> tuple[Forwarding, PacketSender]:
    """Return a queue in front of a primary's Receive Maximum."""
    sender = PacketSender(make_config(), node_id="edge-1")
    sender.accept(PrimaryLimits(receive_maximum=receive_maximum))
    return Forwarding(sender), sender


def test_messages_are_sent_while_there_is_room() -> None:
    """What does not fit waits, in order; four places are left for control messages."""
    queue, sender = forwarding(10)
    for number in range(8):
        queue.add(OutgoingMessage(b"t", b"%d" % number), now=1.0)
    assert sender.free == 4
    assert sender.take().count(b"\x00\x01t") == 6
    assert [message.payload for message in queue.note_lost(by_primary=False)[1]] == [b"6", b"7"]
    assert queue.note_lost(by_primary=False) == (None, [])


def test_a_receive_maximum_of_one_still_forwards() -> None:
    """A primary that takes one message at a time gets one at a time."""
    queue, sender = forwarding(1)
    queue.add(OutgoingMessage(b"t", b"1"), now=1.0)
    queue.add(OutgoingMessage(b"t", b"2"), now=1.0)
    assert sender.take().count(b"\x00\x01t") == 1


def test_the_queue_is_bounded() -> None:
    """Beyond the bound nothing more is taken; what is taken has tokens of its own."""
    queue, _ = forwarding(1)
    taken = [queue.add(OutgoingMessage(b"t", b"x"), now=1.0) for _ in range(QUEUE_MAX + 1)]
    assert taken == list(range(1, QUEUE_MAX + 2))
    assert queue.add(OutgoingMessage(b"t", b"x"), now=1.0) is BUSY
    assert len(queue.note_lost(by_primary=False)[1]) == QUEUE_MAX


@pytest.mark.parametrize("reason_code", range(256))
def test_verdicts_are_codes_that_puback_may_carry(reason_code: int) -> None:
    """Whatever the primary answers, the publisher gets a Reason Code that its acknowledgement may have."""
    told = puback_reason_code(reason_code)
    assert told.is_failure == (reason_code >= 0x80)
    for code in (NOT_NOW.get(told, told), NOT_TAKEN, NOT_NOW[UNAVAILABLE], NOT_NOW[BUSY]):
        assert code in (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x97, 0x99)
        for ack_type in (PacketType.PUBACK, PacketType.PUBREC):
            decoder = Decoder(version=5, packet_bytes_max=100, role="client")
            assert decoder.feed(encode(Ack(ack_type, 1, code), version=5))
            assert not isinstance(decoder.fault, ProtocolError)
