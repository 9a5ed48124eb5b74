"""Tests of the log that followers share, and of how they acknowledge."""

from __future__ import annotations

import pytest

from fanout.mqtt.decoder import AckRun
from fanout.mqtt.delivery import Outbound, SendState
from fanout.mqtt.packets import PacketType, encode_acks
from fanout.server.messages.encoding import Message
from fanout.server.messages.shared_inflight import Follower, SharedInflight
from tests.server.node_in_memory import update

LAST = 65_535


def messages(count: int, *, qos: int = 1) -> list[Message]:
    """Make messages."""
    return [(update(b"t", b"%d" % number, qos=qos), qos, False, ()) for number in range(count)]


def follow(log: SharedInflight, count: int = 1, *, window: int = 100) -> Follower:
    """Make a follower that has joined."""
    follower = Follower(Outbound(window=window))
    assert follower.join(log, count)
    return follower


def kept(log: SharedInflight) -> int:
    """Return how many messages are kept."""
    return sum(len(messages) for _, messages, _ in log._entries)


def test_read_is_taken_only_when_it_is_what_is_expected() -> None:
    """The expected acknowledgements in order are taken, over the end of the identifiers too; nothing else is."""
    log = SharedInflight()
    log.begin_behind(LAST - 1)
    follower = follow(log)
    log.append(messages(3), size=30, oldest=lambda: 0)
    data = encode_acks(PacketType.PUBACK, [LAST, 1, 2])
    for other in (data + data[:4], data[4:], encode_acks(PacketType.PUBREC, [LAST]), b"\xc0\x00", b"\x40\x02", b""):
        assert follower.acknowledge_read(other) == (0, b"")
    assert follower.acknowledge_read(data[:9]) == (8, b"")
    assert follower.in_flight == 1
    assert follower.acknowledge_read(data[8:]) == (4, b"")
    assert (follower.in_flight, kept(log)) == (0, 0)
    follower.leave()
    follower.leave()
    assert follower.acknowledge_read(data) == (0, b"")


def test_qos_2_is_answered_from_a_table() -> None:
    """PUBRECs in order get their PUBRELs, PUBCOMPs are taken behind them; runs of the decoder likewise."""
    log = SharedInflight()
    log.qos = 2
    follower = follow(log)
    log.append(messages(4, qos=2), size=40, oldest=lambda: 0)
    assert follower.acknowledge_read(encode_acks(PacketType.PUBCOMP, [1])) == (0, b"")
    assert follower.acknowledge_read(encode_acks(PacketType.PUBACK, [1])) == (0, b"")
    released = encode_acks(PacketType.PUBREL, [1, 2])
    assert follower.acknowledge_read(encode_acks(PacketType.PUBREC, [1, 2])) == (8, released)
    assert follower.acknowledge(AckRun(PacketType.PUBREC, [3], None)) == encode_acks(PacketType.PUBREL, [3])
    assert follower.acknowledge_read(encode_acks(PacketType.PUBCOMP, [1, 2])) == (8, b"")
    assert follower.acknowledge(AckRun(PacketType.PUBCOMP, [3], None)) == b""
    assert follower.acknowledge(AckRun(PacketType.PUBREC, [4], [0x97])) is None
    assert follower.acknowledge(AckRun(PacketType.PUBREC, [3], None)) is None
    assert follower.in_flight == 1


def test_who_leaves_takes_what_is_in_flight() -> None:
    """It becomes the session's own in order, each with the packet that it waits for; others keep following."""
    log = SharedInflight()
    log.qos = 2
    outbound: Outbound[Message] = Outbound(window=100)
    leaves = Follower(outbound)
    assert leaves.join(log, 3)
    stays = follow(log)
    sent = messages(3, qos=2)
    log.append(sent[:1], size=10, oldest=lambda: 0)
    log.append(sent[1:], size=20, oldest=lambda: 0)
    leaves.acknowledge_read(encode_acks(PacketType.PUBREC, [1, 2]))
    leaves.acknowledge_read(encode_acks(PacketType.PUBCOMP, [1]))
    leaves.leave()
    assert list(outbound.in_flight()) == [(2, sent[1], SendState.AWAIT_PUBCOMP), (3, sent[2], SendState.AWAIT_PUBREC)]
    assert outbound.last_packet_id == 3
    assert (log.followers, stays.in_flight, kept(log)) == (1, 3, 3)


def test_window_and_own_identifiers_limit_a_follower() -> None:
    """Own messages in flight count for the window, and their identifiers are not used twice."""
    log = SharedInflight()
    outbound: Outbound[Message] = Outbound(window=5)
    (own,) = messages(1)
    outbound.adopt(4, own, SendState.AWAIT_PUBACK, size=1)
    follower = Follower(outbound)
    assert not follower.join(log, 5)
    assert not follower.join(log, 4)  # 4 is in use
    assert follower.join(log, 3)
    assert follower.limit == 3
    outbound.acknowledge(PacketType.PUBACK, 4)
    follower.refresh()
    assert follower.limit == 5


@pytest.mark.parametrize("rounds", [1000])
def test_what_nobody_has_in_flight_is_forgotten(rounds: int) -> None:
    """With a follower that is always one batch behind, what is kept stays small."""
    log = SharedInflight()
    follower = follow(log)
    for number in range(rounds):
        log.append(messages(1), size=10, oldest=lambda: follower.completed)
        if number:
            assert follower.acknowledge_read(encode_acks(PacketType.PUBACK, [number])) == (4, b"")
        assert kept(log) <= 100
    assert follower.in_flight == 1


def test_who_has_too_many_bytes_in_flight_is_below_the_floor() -> None:
    """The floor is behind what follows the last messages that fit; with nothing in flight the count begins anew."""
    log = SharedInflight(bytes_max=100)
    slow, quick = follow(log), follow(log)
    for _ in range(3):
        log.append(messages(2), size=40, oldest=lambda: 0)
        assert quick.acknowledge_read(encode_acks(PacketType.PUBACK, [log.end - 1, log.end])) == (8, b"")
    assert (log.floor, slow.completed, quick.completed, log.bytes) == (2, 0, 6, 120)
    log.append(messages(1), size=300, oldest=lambda: 0)
    assert (log.floor, log.bytes) == (7, 420)  # alone it is more than may be, so whoever has it waits
    slow.leave()
    assert quick.acknowledge_read(encode_acks(PacketType.PUBACK, [7])) == (4, b"")
    assert (log.bytes, kept(log), quick.completed >= log.floor) == (0, 0, True)
    log.append(messages(1), size=100, oldest=lambda: 0)
    assert log.floor == 7
    quick.leave()
    log.begin_behind(3)
    assert follow(log).completed >= log.floor


def test_a_read_with_both_answers_of_qos_2_is_taken_run_by_run() -> None:
    """Of a client that answers PUBLISH and PUBREL in one write; the first that is not expected ends it."""
    log = SharedInflight()
    log.qos = 2
    follower = follow(log)
    log.append(messages(6, qos=2), size=60, oldest=lambda: 0)
    assert follower.acknowledge_read(encode_acks(PacketType.PUBREC, [1, 2]))[0] == 8
    recs, comps = encode_acks(PacketType.PUBREC, [3, 4]), encode_acks(PacketType.PUBCOMP, [1, 2])
    more, wrong = encode_acks(PacketType.PUBREC, [5]), encode_acks(PacketType.PUBCOMP, [4])
    taken, answer = follower.acknowledge_read(recs + comps + more + wrong + b"\xc0\x00")
    assert (taken, answer) == (20, encode_acks(PacketType.PUBREL, [3, 4, 5]))
    assert (follower.completed, follower.received) == (2, 5)
    assert follower.acknowledge_read(b"\xc0\x00" + comps) == (0, b"")
