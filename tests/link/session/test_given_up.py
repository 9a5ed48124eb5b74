"""Forwarded messages at which the primary closes the connection: each costs itself, never the link or another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fanout.link.model.events import Forwarded
from fanout.link.model.skipped import MessageSkipped
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import NOT_TAKEN, UNAVAILABLE
from fanout.link.protocol.sender import OutgoingMessage
from fanout.mqtt.breaches import SkipReason
from fanout.mqtt.packets import Ack, Connack, Disconnect, PacketType, encode
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

BAD = b"plant/\x01"


class Publisher:
    """Local clients of a live link, and the network between it and its primary."""

    def __init__(self, *, closes_at: Callable[[bytes, bytes], bool] = lambda topic, _: b"\x01" in topic) -> None:
        primary = FakePrimary(retained={b"plant/0": b"x"}, closes_at=closes_at)
        primary.connack = Connack(False, 0, Properties(receive_maximum=20))
        self.pair = Pair(make_config(Selector("plant/#", qos=2, writes="forward")), primary)
        self.pair.go_live()
        self.epoch = self.pair.session.lifecycle.epoch
        self.closes = 0

    def forward(self, topic: bytes, payload: bytes = b"x", *, qos: int = 1, properties: bytes = b"") -> int:
        """Publish, and return the token."""
        token = self.try_forward(topic, payload, qos=qos, properties=properties)
        assert not isinstance(token, ReasonCode)
        return token

    def try_forward(
        self, topic: bytes, payload: bytes = b"x", *, qos: int = 1, properties: bytes = b""
    ) -> int | ReasonCode:
        """Publish, and return the token or the verdict."""
        message = OutgoingMessage(topic, payload, qos=qos, properties=properties)
        return self.pair.session.forward(message, now_ns=self.pair.now_ns, now=self.pair.now)

    def settle(self) -> None:
        """Carry everything, and connect again each time that the primary closes the connection."""
        pair = self.pair
        pair.pump()
        while pair.primary.is_closed:
            self.closes += 1
            assert self.closes < 50, "the link never comes to rest"
            pair.lose(by_peer=True)
            pair.connect()
            pair.pump()
        assert pair.session.lifecycle.epoch == self.epoch

    def verdicts(self) -> dict[int, ReasonCode]:
        """Return what became of each token."""
        told = self.pair.of(Forwarded)
        assert len({event.token for event in told}) == len(told)
        return {event.token: event.reason_code for event in told}

    def given_up(self) -> list[str]:
        """Return the topics of the messages that were given up."""
        skipped = self.pair.of(MessageSkipped)
        assert {one.reason for one in skipped} <= {SkipReason.CLOSES_CONNECTION}
        assert self.pair.session.skipped.totals[SkipReason.CLOSES_CONNECTION] == len(skipped)
        return [one.topic for one in skipped]


@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("qos", [1, 2])
def test_everything_around_it_arrives(place: int, qos: int) -> None:
    """In flight, and waiting for a place in flight: each once at least, in order, with the primary's answer."""
    case = Publisher()
    tokens = [case.forward(BAD if number == place else b"plant/%d" % number, qos=qos) for number in range(40)]
    case.settle()
    case.pair.wait(1)
    assert case.verdicts() == {
        token: NOT_TAKEN if number == place else ReasonCode.SUCCESS for number, token in enumerate(tokens)
    }
    arrived = dict.fromkeys(topic for topic, _, _ in case.pair.primary.published if topic.startswith(b"plant/"))
    assert [topic for topic in arrived if topic != BAD] == [b"plant/%d" % n for n in range(40) if n != place]
    assert case.given_up() == ["plant/\\x01"]
    assert case.closes == 3


def test_what_comes_in_between_waits() -> None:
    """Clients that publish while the link comes back are not told that it is away; after a cut they are."""
    case = Publisher()
    case.forward(BAD)
    case.pair.pump()
    case.pair.lose(by_peer=True)
    before = case.forward(b"plant/1")
    case.pair.connect()
    case.pair.lose(by_peer=True)
    between = case.forward(b"plant/2")
    case.pair.connect()
    assert [case.verdicts()[token] for token in (before, between)] == [ReasonCode.SUCCESS] * 2
    case.pair.lose()
    assert case.try_forward(b"plant/3") is UNAVAILABLE
    case.pair.connect()
    case.forward(BAD + b"2")
    case.pair.pump()
    case.pair.lose(by_peer=True)
    waits = case.forward(b"plant/4")
    case.pair.connect(pump=False)
    case.pair.lose()
    assert case.try_forward(b"plant/5") is UNAVAILABLE, "the primary does not come back"
    case.pair.connect()
    case.settle()
    assert case.verdicts()[waits] is ReasonCode.SUCCESS


@pytest.mark.parametrize("code", [0x00, 0x8B, 0x98])  # 0x8E ends the session
def test_a_disconnect_for_another_reason_is_no_evidence(code: int) -> None:
    """A primary that shuts down says so: what was under way is sent again at once, all of it."""
    case = Publisher()
    case.pair.primary.swallow = (Ack,)
    tokens = [case.forward(b"plant/1"), case.forward(b"plant/2")]
    case.pair.pump()
    for _ in range(3):
        case.pair.feed(encode(Disconnect(code), version=5))
        case.pair.lose()
        published = len(case.pair.primary.published)
        case.pair.connect()
        topics = [topic for topic, _, _ in case.pair.primary.published[published:]]
        assert topics[:2] == [b"plant/1", b"plant/2"]
    case.pair.primary.swallow = ()
    case.pair.lose()
    case.pair.connect()
    assert case.verdicts() == dict.fromkeys(tokens, ReasonCode.SUCCESS)
    assert case.given_up() == []


def test_a_disconnect_at_a_message_is_evidence() -> None:
    """As a close without a word."""
    case = Publisher(closes_at=lambda topic, payload: False)
    case.pair.primary.swallow = (Ack,)
    token = case.forward(b"plant/1")
    case.pair.pump()
    for _ in range(2):
        case.pair.feed(encode(Disconnect(0x99), version=5))
        case.pair.lose()
        case.pair.connect()
    assert case.verdicts() == {token: NOT_TAKEN}


@pytest.mark.parametrize(
    ("first", "again", "other"),
    [
        ((BAD, b"1", b""), (BAD, b"2", b""), (b"plant/2", b"1", b"")),
        ((b"plant/" + b"/" * 300, b"1", b""), (b"plant/" + b"/" * 300, b"2", b""), (b"plant/2", b"1", b"")),
        (
            (b"plant/1", b"1", b"\x26\x00\x01\x01\x00\x01v"),
            (b"plant/2", b"2", b"\x26\x00\x01\x01\x00\x01v"),
            (b"plant/1", b"3", b"\x26\x00\x01k\x00\x01v"),
        ),
        ((b"plant/1", b"bad", b""), (b"plant/1", b"bad", b""), (b"plant/1", b"good", b"")),
    ],
)
def test_the_same_cause_costs_no_second_connection(
    first: tuple[bytes, bytes, bytes], again: tuple[bytes, bytes, bytes], other: tuple[bytes, bytes, bytes]
) -> None:
    """A client that publishes there each second does not keep the link down; other messages still go."""
    case = Publisher(closes_at=lambda topic, payload: (topic, payload) == first[:2])
    case.forward(first[0], first[1], properties=first[2])
    case.settle()
    assert len(case.given_up()) == 1
    assert case.try_forward(again[0], again[1], properties=again[2]) is NOT_TAKEN
    case.forward(other[0], other[1], properties=other[2])
    case.settle()
    assert case.closes == 2


def test_in_a_new_session_everything_may_be_tried_again() -> None:
    """What was under way and what waited is given up with the old one, and the primary may be another now."""
    case = Publisher()
    pair = case.pair
    case.forward(BAD)
    case.settle()
    pair.primary.swallow = (Ack,)
    tokens = [case.forward(b"plant/%d" % number) for number in range(40)]
    pair.pump()
    pair.lose(by_peer=True)
    pair.primary.has_session, pair.primary.swallow = False, ()
    pair.connect()
    pair.tear_down()
    assert [case.verdicts()[token] for token in tokens] == [UNAVAILABLE] * 40
    assert pair.is_in(LinkState.LIVE)
    assert not isinstance(case.try_forward(BAD), ReasonCode)


def test_the_packet_identifier_of_a_given_up_qos_2_message_is_not_used_again() -> None:
    """The primary may know it, until the session ends; the next process releases it, as others that were under way."""
    case = Publisher()
    case.forward(BAD, qos=2)
    case.settle()
    stored = case.pair.session.stored_session()
    assert stored is not None
    (packet_id,) = stored.unfinished
    case.pair.feed(encode(Ack(PacketType.PUBREC, packet_id), version=5))
    acks = len(case.pair.primary.acks)
    case.pair.pump()
    assert case.pair.primary.acks[acks:] == [(PacketType.PUBREL, packet_id)], "it has its end at the primary"
    case.pair.lose()
    case.pair.primary.has_session = False
    case.pair.connect()
    case.pair.tear_down()
    stored = case.pair.session.stored_session()
    assert stored is not None
    assert stored.unfinished == frozenset()
