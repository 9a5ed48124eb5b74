"""Messages of local clients on their way to the primary."""

from __future__ import annotations

import pytest

from fanout.errors import ProtocolError
from fanout.link.protocol.forwarding import BUSY, NOT_TAKEN, UNAVAILABLE, Forwarding, puback_reason_code
from fanout.link.protocol.sender import PacketSender, PrimaryLimits
from fanout.mqtt.decoder import Decoder
from fanout.mqtt.packets import Ack, PacketType, encode
from fanout.server.base.refusals import NOT_NOW
from tests.link.fake_primary import make_config


def forwarding(receive_maximum: int) -> tuple[Forwarding, PacketSender]:
    """Return a queue in front of a primary's Receive Maximum."""
    sender = PacketSender(make_config(), node_id="edge-1")
    sender.accept(PrimaryLimits(receive_maximum=receive_maximum))
    return Forwarding(sender), sender


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
