"""What CONNACK excludes is never sent, on any way that a session goes [MQTT-3.2.2-15]; section 3.2.2.3.11, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fanout.config import Address
from fanout.errors import PrimaryRefused
from fanout.link.connack_probe import ask
from fanout.link.model.events import ControlRefused, Failed, Forwarded
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import UNAVAILABLE
from fanout.link.protocol.sender import OutgoingMessage, PacketSender, PrimaryLimits
from fanout.mqtt.packets import Connack, Subscribe
from fanout.mqtt.properties import Properties
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer

VALUES = {b"plant/1": b"x", b"plant/2": b"y", b"plant/line/3": b"z"}


def split(data: bytes) -> list[bytes]:
    """Return the packets in `data`, which ends with one."""
    packets = []
    while data:
        length, end = 0, 1
        while True:
            length |= (data[end] & 0x7F) << 7 * (end - 1)
            end += 1
            if data[end - 1] < 0x80:
                break
        packets.append(data[: end + length])
        data = data[end + length :]
    return packets


@dataclass
class StrictPrimary(FakePrimary):
    """Takes nothing that its CONNACK excludes, other than CONNECT, which comes before it."""

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        told = self.connack.properties
        most = told.maximum_packet_size or 1 << 20
        assert [packet for packet in split(data) if packet[0] != 0x10 and len(packet) > most] == []
        super().receive(data)
        if told.wildcard_subscription_available == 0:
            filters = [each.topic_filter for packet in self.subscribes for each in packet.subscriptions]
            assert [each for each in filters if {b"+", b"#"} & set(each.split(b"/"))] == []


def strict(*, version_text: bytes = b"mosquitto version 2.0.11", **told: Any) -> StrictPrimary:
    """Return a primary with some values whose CONNACK tells properties."""
    connack = Connack(False, 0, Properties(**told))
    return StrictPrimary(retained=dict(VALUES), version_text=version_text, connack=connack)


@pytest.mark.parametrize("version_text", [b"mosquitto version 2.0.11", b"other 1.0"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_packet_is_larger_than_the_primary_takes(version_text: bytes, asynchronous: bool) -> None:
    """At each limit the link comes up within it, or says that it cannot, and what to do."""
    came_up = []
    for most in range(1, 130):
        primary = strict(version_text=version_text, maximum_packet_size=most)
        primary.asynchronous = asynchronous
        pair = Pair(primary=primary)
        pair.connect()
        for _ in range(40):
            pair.wait(1.0)
        came_up.append(pair.is_in(LinkState.LIVE))
        if came_up[-1]:
            assert pair.values() == VALUES
            pair.session.close(end_session=True, now=pair.now)
            pair.pump()
        else:
            error = pair.of(Failed)[0].error
            assert isinstance(error, PrimaryRefused)
            assert f"packets of at most {most} bytes (CONNACK: Maximum Packet Size)" in error.message
            assert "max_packet_size of Mosquitto" in error.hint
    assert came_up == sorted(came_up)
    assert came_up[0] is False
    assert came_up[-1] is True


def test_a_selector_that_is_too_long_is_named_at_once() -> None:
    """Nothing else is asked for: the operator reads of the selector, not of the capability check."""
    long = "plant/" + "x" * 200
    pair = Pair(make_config(Selector("plant/1"), Selector(long)), strict(maximum_packet_size=150))
    pair.connect()
    assert pair.failure().startswith(
        "the primary accepts packets of at most 150 bytes (CONNACK: Maximum Packet Size), and SUBSCRIBE for"
        f" {long} has 215. Raise that limit"
    )
    assert pair.primary.subscribes == []


def test_a_sentinel_that_does_not_fit_beside_its_filter_follows_it() -> None:
    """Two packets, in order, where one would be too large; the sentinel is asked for as it is in one."""
    sender = PacketSender(make_config(), node_id="edge-1")
    sender.accept(PrimaryLimits(packet_bytes_max=30))
    packet_id = sender.subscribe(b"plant/#", qos=0, no_local=True, retain_handling=0, sentinel=b"f" * 8, now=1.0)
    (together,) = split(sender.take())
    assert len(together) <= 30
    apart_id = sender.subscribe(b"plant/#", qos=0, no_local=True, retain_handling=0, sentinel=b"f" * 21, now=1.0)
    first, second = split(sender.take())
    assert (len(first), len(second)) == (15, 29)
    assert int.from_bytes(first[2:4], "big") == apart_id
    assert (together[-9:-1], together[-1]) == (b"f" * 8, second[-1])
    assert sender.answered(packet_id)
    assert sender.answered(apart_id)
    assert sender.answered(int.from_bytes(second[2:4], "big"))


def test_what_is_too_large_leaves_nothing_behind() -> None:
    """Neither bytes nor a Packet Identifier."""
    sender = PacketSender(make_config(), node_id="edge-1")
    sender.accept(PrimaryLimits(packet_bytes_max=20))
    with pytest.raises(PrimaryRefused, match="and SUBSCRIBE for plant/long/long has 23"):
        sender.subscribe(b"plant/long/long", qos=0, no_local=True, retain_handling=0, now=1.0)
    with pytest.raises(PrimaryRefused, match="UNSUBSCRIBE for plant/long/long has 22"):
        sender.unsubscribe(b"plant/long/long", now=1.0)
    assert not sender.output
    assert sender.unsubscribe(b"a", now=1.0) == 1


def test_wildcards_that_the_primary_does_not_take_are_refused() -> None:
    """The selector is named; nothing is asked for."""
    pair = Pair(make_config(Selector("plant/1"), Selector("plant/line/+")), strict(wildcard_subscription_available=0))
    pair.connect()
    assert pair.failure() == (
        "the primary accepts no Topic Filters with wildcards, as plant/line/+ is one (CONNACK: Wildcard Subscription"
        " Available 0). Use a selector for each topic, or another primary"
    )
    assert pair.primary.subscribes == []


@pytest.mark.parametrize("version_text", [b"mosquitto version 2.0.11", b"other 1.0"])
def test_selectors_without_wildcards_do_without_them(version_text: bytes) -> None:
    """Neither a capability check, a pass, an audit nor a resumption uses one."""
    config = make_config(Selector("plant/1"), Selector("plant/line/3"), audit_interval_s=20.0)
    pair = Pair(config, strict(version_text=version_text, wildcard_subscription_available=0))
    pair.go_live()
    pair.wait(60)
    pair.lose()
    pair.connect()
    pair.wait(30)
    assert pair.is_in(LinkState.LIVE)
    assert pair.values() == {b"plant/1": b"x", b"plant/line/3": b"z"}


def test_a_limit_that_is_noticed_behind_a_tear_down() -> None:
    """The session is lost, and the primary takes less than before: the link fails as in any other state."""
    pair = Pair(make_config(Selector("a")), FakePrimary(retained={b"a": b"x"}))
    pair.go_live()
    pair.lose()
    pair.primary.has_session = False
    pair.primary.connack = Connack(False, 0, Properties(maximum_packet_size=20))
    pair.connect()
    assert pair.is_in(LinkState.TEARING_DOWN)
    pair.tear_down()
    assert "SUBSCRIBE for fanout/" in pair.failure()
    assert len(pair.primary.disconnects) == 1
    assert all(isinstance(packet, Subscribe) for packet in pair.primary.subscribes)


def test_a_resumed_session_keeps_to_the_limits_of_now() -> None:
    """What is in flight and not taken any more is given up, and heartbeats that are not, end."""
    pair = Pair(make_config(Selector("plant/#", writes="forward")), strict())
    pair.go_live()
    pair.primary.truncate_after = 0
    for message in (
        OutgoingMessage(b"plant/1", b"x" * 200),
        OutgoingMessage(b"plant/1", b"y", qos=2),
        OutgoingMessage(b"plant/1", b"z"),
    ):
        pair.session.forward(message, now_ns=pair.now_ns, now=pair.now)
    pair.pump()
    pair.lose()
    pair.primary.truncate_after = None
    pair.primary.connack = Connack(False, 0, Properties(maximum_packet_size=70, maximum_qos=1))
    published = len(pair.primary.published)
    pair.connect()
    pair.wait(20)
    assert pair.is_in(LinkState.LIVE)
    assert [payload for topic, payload, _ in pair.primary.published[published:] if topic == b"plant/1"] == [b"z"]
    assert [event.reason_code for event in pair.of(Forwarded)].count(UNAVAILABLE) == 2
    assert len(pair.of(Forwarded)) == 3
    assert [event.reason for event in pair.of(ControlRefused)] == [
        "the primary accepts no messages as large as a heartbeat (CONNACK: Maximum Packet Size)"
    ]


@pytest.mark.parametrize("told", [{"maximum_packet_size": 12}, {"wildcard_subscription_available": 0}])
async def test_an_address_that_takes_no_selector_is_not_gone_to(told: dict[str, Any]) -> None:
    """A better address that would refuse the link is none: the one in use is kept."""
    async with FakeServer(strict()) as takes, FakeServer(strict(**told)) as refuses:
        assert await ask(Address("mqtt", "127.0.0.1", takes.port), make_config(), node_id="edge-1") is not None
        assert await ask(Address("mqtt", "127.0.0.1", refuses.port), make_config(), node_id="edge-1") is None
