"""What a link sends, read back by a server's decoder."""

from __future__ import annotations

import pytest

from fanout.link.protocol.sender import OutgoingMessage, PacketSender, PrimaryLimits
from fanout.mqtt.decoder import AckRun, Decoder, Item, PublishRun
from fanout.mqtt.packets import Connect, Disconnect, PacketType, Pingreq, Subscribe, Unsubscribe
from fanout.mqtt.reason_codes import ReasonCode
from tests.link.fake_primary import make_config


class Reader:
    """Reads what an `PacketSender` sends."""

    def __init__(self, version: int = 5) -> None:
        """Make a sender that has sent CONNECT, and a reader that has read it."""
        self.sender = PacketSender(make_config(version=version, username="u"), node_id="edge-1")
        self._decoder = Decoder(version=None, packet_bytes_max=1 << 20, role="server")
        self.sender.connect(clean_start=False, password=b"secret", now=1.0)
        (self.connect,) = self.read()

    def read(self) -> list[Item]:
        """Return what was sent since the last call."""
        items = self._decoder.feed(self.sender.take())
        assert self._decoder.fault is None
        return items


def test_connect() -> None:
    """CONNECT says what was asked for."""
    reader = Reader()
    assert isinstance(reader.connect, Connect)
    assert not reader.connect.clean_start
    assert reader.connect.client_id == "fanout-edge-1-plant"
    assert reader.sender.last_sent_s == 1.0
    assert reader.read() == []


def test_subscribe_with_a_sentinel_holds_two_filters_in_order() -> None:
    """The sentinel stands behind the filter, in the same packet, at QoS 0 with retained messages."""
    reader = Reader()
    packet_id = reader.sender.subscribe(b"a/#", qos=0, no_local=True, retain_handling=0, sentinel=b"f", now=2.0)
    (packet,) = reader.read()
    assert isinstance(packet, Subscribe)
    assert packet.packet_id == packet_id
    first, second = packet.subscriptions
    assert (first.topic_filter, first.qos, first.no_local, first.retain_as_published) == (b"a/#", 0, True, True)
    assert (second.topic_filter, second.qos, second.retain_handling) == (b"f", 0, 0)


def test_requests_are_answered_once() -> None:
    """The Packet Identifier of a request is free when it is answered, and is not answered twice."""
    reader = Reader()
    packet_id = reader.sender.unsubscribe(b"a", now=2.0)
    (packet,) = reader.read()
    assert isinstance(packet, Unsubscribe)
    assert packet.packet_id == packet_id
    assert reader.sender.answered(packet_id)
    assert not reader.sender.answered(packet_id)


def test_a_new_connection_forgets_requests_and_what_was_not_written() -> None:
    """Requests die with their Network Connection; messages of the session do not."""
    reader = Reader()
    reader.sender.publish(OutgoingMessage(b"t", b"1"), now=2.0)
    packet_id = reader.sender.subscribe(b"a", qos=0, no_local=False, retain_handling=0, now=2.0)
    reader.sender.ping(2.0)
    reader.sender.begin_connection()
    assert reader.read() == []
    assert not reader.sender.answered(packet_id)
    assert reader.sender.ping_sent_s is None
    reader.sender.resend_in_flight(3.0)
    (run,) = reader.read()
    assert isinstance(run, PublishRun)
    assert run.rows[0][2] == 0b1010


def test_a_new_session_forgets_messages_and_names_them() -> None:
    """Nobody will acknowledge what the former session had in flight."""
    reader = Reader()
    message = OutgoingMessage(b"t", b"1", token=3)
    reader.sender.accept(PrimaryLimits(receive_maximum=20))
    reader.sender.publish(message, now=2.0)
    reader.read()
    assert reader.sender.begin_session() == [message]
    assert reader.sender.free == reader.sender.window == 20
    reader.sender.resend_in_flight(3.0)
    assert reader.read() == []


def test_one_ping_at_a_time() -> None:
    """A second PINGREQ before PINGRESP would make the answer ambiguous."""
    reader = Reader()
    reader.sender.ping(2.0)
    assert reader.read() == [Pingreq()]
    assert reader.sender.ping_sent_s == 2.0
    with pytest.raises(AssertionError):
        reader.sender.ping(3.0)


def test_messages_are_done_when_acknowledged() -> None:
    """QoS 1 is done with PUBACK, QoS 2 with PUBCOMP after PUBREL; a refusal is done at once."""
    reader = Reader()
    one, two, refused = (
        OutgoingMessage(b"t", b"1"),
        OutgoingMessage(b"t", b"2", qos=2),
        OutgoingMessage(b"t", b"3", qos=2),
    )
    for message in (one, two, refused):
        reader.sender.publish(message, now=2.0)
    (run,) = reader.read()
    assert isinstance(run, PublishRun)
    ids = [row[3] for row in run.rows]
    assert reader.sender.acknowledged(AckRun(PacketType.PUBACK, ids[:1], None), now=3.0) == [(one, 0)]
    recs = AckRun(PacketType.PUBREC, ids[1:], [0, 0x97])
    assert reader.sender.acknowledged(recs, now=3.0) == [(refused, 0x97)]
    assert reader.read() == [AckRun(PacketType.PUBREL, [ids[1]], None)]
    reader.sender.resend_in_flight(4.0)
    assert reader.read() == [AckRun(PacketType.PUBREL, [ids[1]], None)], "after PUBREC it is PUBREL that is sent again"
    assert reader.sender.acknowledged(AckRun(PacketType.PUBCOMP, [ids[1]], None), now=4.0) == [(two, 0)]
    assert reader.sender.free == reader.sender.window


def test_acknowledgements_that_fit_nothing() -> None:
    """An unknown PUBREC is answered, others are ignored, and one of the wrong type changes nothing."""
    reader = Reader()
    reader.sender.publish(OutgoingMessage(b"t", b"1"), now=2.0)
    (run,) = reader.read()
    assert isinstance(run, PublishRun)
    packet_id = run.rows[0][3]
    assert reader.sender.acknowledged(AckRun(PacketType.PUBCOMP, [packet_id, 99], None), now=3.0) == []
    assert reader.sender.acknowledged(AckRun(PacketType.PUBREC, [99], None), now=3.0) == []
    assert reader.read() == [AckRun(PacketType.PUBREL, [99], [0x92])]
    assert reader.sender.free == reader.sender.window - 1


def test_disconnect_says_the_reason_and_may_end_the_session() -> None:
    """MQTT 5 says both; MQTT 3.1.1 neither, and with a failure it just closes."""
    reader = Reader()
    reader.sender.disconnect(ReasonCode.PROTOCOL_ERROR, end_session=True, now=2.0)
    (packet,) = reader.read()
    assert isinstance(packet, Disconnect)
    assert packet.reason_code == 0x82
    assert packet.properties.session_expiry_interval == 0
    old = Reader(version=4)
    old.sender.disconnect(ReasonCode.PROTOCOL_ERROR, end_session=True, now=2.0)
    assert old.read() == []
    old.sender.disconnect(ReasonCode.SUCCESS, end_session=True, now=2.0)
    assert old.read() == [Disconnect()]
