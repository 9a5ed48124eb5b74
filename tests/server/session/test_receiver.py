"""Tests of the receiver's side of a session."""

from __future__ import annotations

import asyncio

from fanout.mqtt.decoder import AckRun, Decoder, PublishRow
from fanout.mqtt.packets import PacketType
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.counters import Counters
from fanout.server.base.ports import Accepted
from fanout.server.session.receiver import SessionReceiver

OK, NO = ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED


class Later:
    """A verdict that comes when it is set."""

    def __init__(self) -> None:
        self.code: ReasonCode | None = None

    def done(self) -> bool:
        """Return whether it has come."""
        return self.code is not None

    def result(self) -> ReasonCode:
        """Return it."""
        assert self.code is not None
        return self.code


def row(packet_id: int, qos: int = 1, *, dup: bool = False) -> PublishRow:
    """Make a row."""
    return (b"t", b"p", qos << 1 | dup << 3, packet_id, b"", None, 0)


def accept(receiver: SessionReceiver, *rows: PublishRow, receive_maximum: int = 100) -> list[PublishRow]:
    """Accept rows that hold no fault."""
    fresh, fault = receiver.accept(list(rows), qos_max=2, receive_maximum=receive_maximum)
    assert fault is None
    return fresh


def acks(data: bytes, version: int = 5) -> list[tuple[PacketType, int, int]]:
    """Decode acknowledgements: type, Packet Identifier, Reason Code."""
    found: list[tuple[PacketType, int, int]] = []
    for item in Decoder(version=version, packet_bytes_max=1 << 20, role="client").feed(data):
        assert isinstance(item, AckRun)
        codes = item.reason_codes or [0] * len(item.packet_ids)
        found += [(item.type, packet_id, code) for packet_id, code in zip(item.packet_ids, codes, strict=True)]
    return found


def test_qos_2_duplicate_of_an_unanswered_message_is_answered_once() -> None:
    """A duplicate that comes before the verdict waits for the same answer."""
    receiver = SessionReceiver(version=5, counters=Counters())
    late = Later()
    accept(receiver, row(7, 2))
    receiver.note_verdicts([row(7, 2)], [late])
    assert accept(receiver, row(7, 2, dup=True)) == []
    late.code = OK
    assert acks(receiver.take_acks()[0]) == [(PacketType.PUBREC, 7, 0)]


async def test_a_message_whose_answer_waits_for_the_disk_is_received() -> None:
    """Its Packet Identifier is part of the session before the client is told, unlike that of an undecided one."""
    receiver = SessionReceiver(version=5, counters=Counters())
    loop = asyncio.get_running_loop()
    kept, undecided = Accepted(loop=loop), loop.create_future()
    rows = [row(1, qos=2), row(2, qos=2)]
    accept(receiver, *rows)
    receiver.note_verdicts(rows, [kept, undecided])
    assert (receiver.unreleased, receiver.undecided) == (frozenset({1}), 1)
    assert acks(receiver.take_acks()[0]) == []
    kept.set_result(ReasonCode.SUCCESS)
    assert acks(receiver.take_acks()[0]) == [(PacketType.PUBREC, 1, 0)]


def test_unknown_pubrel_is_told_in_mqtt_5_and_counted() -> None:
    """An unknown Packet Identifier is answered with 0x92; in MQTT 3.1.1, which has no code, with PUBCOMP."""
    counters = Counters()
    receiver = SessionReceiver(version=5, counters=counters)
    accept(receiver, row(2, 2), row(3, 2))
    assert acks(receiver.release([1, 2, 9, 3])) == [
        (PacketType.PUBCOMP, 1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
        (PacketType.PUBCOMP, 2, 0),
        (PacketType.PUBCOMP, 9, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
        (PacketType.PUBCOMP, 3, 0),
    ]
    assert counters.unknown_releases == 2
    assert acks(SessionReceiver(version=4, counters=counters).release([1, 2]), 4) == [
        (PacketType.PUBCOMP, 1, 0),
        (PacketType.PUBCOMP, 2, 0),
    ]
    assert counters.unknown_releases == 4


def test_receive_maximum_is_enforced_in_mqtt_5() -> None:
    """A PUBLISH beyond the Receive Maximum is a fault; those before it count [MQTT-3.3.4-9]."""
    receiver = SessionReceiver(version=5, counters=Counters())
    rows = [row(1), row(2), row(3)]
    fresh, fault = receiver.accept(rows, qos_max=2, receive_maximum=2)
    assert fresh == rows
    assert fault is not None
    assert fault.reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert SessionReceiver(version=4, counters=Counters()).accept(rows, qos_max=2, receive_maximum=2) == (rows, None)


def test_new_connection_begins_with_an_empty_count() -> None:
    """What was open at QoS 1 is forgotten, since it is sent again; QoS 2 goes on where it was."""
    receiver = SessionReceiver(version=5, counters=Counters())
    late, refused = Later(), Later()
    rows = [row(1), row(2, 2), row(3, 2), row(4, 2)]
    accept(receiver, *rows)
    receiver.note_verdicts(rows, [Later(), late, refused, OK])
    refused.code = NO
    receiver.new_connection(5)
    assert receiver.unanswered == 1
    assert accept(receiver, row(1, dup=True), row(2, 2, dup=True), row(3, 2, dup=True), row(4, 2, dup=True)) == [
        row(1, dup=True),
        row(3, 2, dup=True),
    ]
    late.code = OK
    assert acks(receiver.take_acks()[0]) == [(PacketType.PUBREC, 2, 0), (PacketType.PUBREC, 4, 0)]


def test_retained_messages_are_refused_where_they_are_not_available() -> None:
    """[MQTT-3.2.2-14]: what came before is taken, and the fault is Retain not supported (0x9A)."""
    receiver = SessionReceiver(version=5, counters=Counters())
    rows = [row(1, 1), (b"t", b"x", 0b0001, 0, b"", None, 0)]
    fresh, fault = receiver.accept(rows, qos_max=2, receive_maximum=9, retain_available=False)
    assert fresh == rows[:1]
    assert fault is not None
    assert fault.reason_code is ReasonCode.RETAIN_NOT_SUPPORTED
    assert SessionReceiver(version=5, counters=Counters()).accept(rows, qos_max=2, receive_maximum=9) == (rows, None)
