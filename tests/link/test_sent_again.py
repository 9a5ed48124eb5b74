"""What a primary sends again in a resumed session, because an acknowledgement was lost with the connection (T6)."""

from __future__ import annotations

from fanout.link.model.events import Applied
from fanout.link.model.states import LinkState
from tests.link.fake_primary import FakePrimary, Pair

VALUES = {b"plant/%d" % number: b"old" for number in range(10)}


def live() -> Pair:
    """Return a live link to a primary with ten topics."""
    pair = Pair(primary=FakePrimary(retained=dict(VALUES)))
    pair.go_live()
    return pair


def send(pair: Pair, *messages: tuple[int, bytes, bytes], dup: bool = False, retain: bool = True) -> None:
    """Send messages at QoS 1: Packet Identifier, topic, payload."""
    for packet_id, topic, payload in messages:
        if retain:
            pair.primary.retained[topic] = payload
        pair.primary.deliver(topic, payload, qos=1, retain=retain, dup=dup, packet_id=packet_id)


def reconnect(pair: Pair) -> None:
    """Lose the connection, and take CONNACK on the next one."""
    pair.lose()
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())


def test_values_that_come_again_are_not_applied_again() -> None:
    """Not even for a moment: the older of two would replace the newer, and clients would get both once more."""
    pair = live()
    both = ((201, b"plant/0", b"v1"), (202, b"plant/0", b"v2"))
    send(pair, *both)
    pair.pump()
    assert pair.dispatched() == [(b"plant/0", b"v1"), (b"plant/0", b"v2")]
    reconnect(pair)
    pair.events.clear()
    send(pair, *both, dup=True)
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == []
    assert bytes.fromhex("400200c9 400200ca") in b"".join(each.acknowledgement for each in pair.of(Applied))
    assert pair.values()[b"plant/0"] == b"v2"


def test_messages_that_come_again_are_delivered_once() -> None:
    """Nothing retained shows that they were here, but their Packet Identifier and content do."""
    pair = live()
    send(pair, (201, b"plant/0", b"event"), (202, b"outside", b"event"), retain=False)
    pair.pump()
    reconnect(pair)
    pair.events.clear()
    send(pair, (201, b"plant/0", b"event"), (202, b"outside", b"event"), dup=True, retain=False)
    pair.pump()
    assert pair.dispatched() == []
    assert pair.session.counters.outside_total == 1


def test_what_was_lost_with_the_connection_is_applied() -> None:
    """DUP alone says nothing: the first attempt may not have come, under a Packet Identifier that was used before."""
    pair = live()
    send(pair, (201, b"plant/0", b"v1"), (202, b"plant/1", b"v1"))
    pair.pump()
    reconnect(pair)
    pair.events.clear()
    send(pair, (201, b"plant/0", b"v2"), (203, b"plant/1", b"v2"), dup=True)
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/0", b"v2"), (b"plant/1", b"v2")]


def test_what_was_dropped_while_live_does_not_replace_what_came_since() -> None:
    """A Mosquitto sends it again in the resumed session: it is acknowledged, and no loss shows for it."""
    pair = live()
    send(pair, (201, b"plant/0", b"v1"))
    pair.pump()
    pair.now += 1
    send(pair, (204, b"plant/0", b"v4"))
    pair.pump()
    reconnect(pair)
    pair.events.clear()
    pair.primary.retained[b"plant/1"] = b"v3"
    pair.primary.deliver(b"plant/0", b"v2", qos=1, retain=True, dup=True, packet_id=202)
    pair.primary.deliver(b"plant/1", b"v3", qos=1, retain=True, dup=True, packet_id=203)
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/1", b"v3")]
    assert bytes.fromhex("400200ca") in b"".join(each.acknowledgement for each in pair.of(Applied))
    assert pair.session.counters.overtaken_total == 1


def test_another_session_has_other_messages() -> None:
    """What came in the former one under the same Packet Identifier is not meant."""
    pair = live()
    send(pair, (201, b"plant/0", b"event"), retain=False)
    pair.pump()
    pair.primary.has_session = False
    pair.lose()
    pair.connect()
    pair.tear_down()
    pair.lose()
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.events.clear()
    send(pair, (201, b"plant/0", b"event"), dup=True, retain=False)
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/0", b"event")]


def test_a_primary_that_forgot_what_it_had_sent_sends_known_values() -> None:
    """A killed Mosquitto begins with what it saved last: what waits there, without DUP, was taken long since."""
    pair = live()
    both = ((201, b"plant/0", b"v1"), (202, b"plant/0", b"v2"))
    send(pair, *both, (203, b"plant/1", b"v1"))
    pair.pump()
    reconnect(pair)
    pair.events.clear()
    send(pair, *both)
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == []


def test_a_primary_that_began_with_an_older_session_sends_nothing_that_is_held() -> None:
    """Its Packet Identifiers do not go on behind those of the session that was left; what differs is applied."""
    pair = live()
    send(pair, (201, b"plant/0", b"v1"), (202, b"plant/1", b"v1"))
    pair.pump()
    reconnect(pair)
    pair.events.clear()
    send(pair, (900, b"plant/0", b"v1"), (901, b"plant/2", b"missed"), (902, b"plant/1", b"v1"))
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/2", b"missed")]


def test_a_value_that_was_published_again_meanwhile_is_delivered_again() -> None:
    """It is a new message of the session that was left: its Packet Identifier is the next one."""
    pair = live()
    send(pair, (65535, b"plant/0", b"v1"))
    pair.pump()
    reconnect(pair)
    pair.events.clear()
    send(pair, (1, b"plant/0", b"lost"), dup=True)
    send(pair, (2, b"plant/0", b"v1"), (3, b"plant/0", b"v1"))
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/0", b"lost"), (b"plant/0", b"v1"), (b"plant/0", b"v1")]
