"""A link whose primary is a fanout node: it asks how the primary stands, and refuses a cycle."""

from __future__ import annotations

from typing import Final

import pytest

from fanout.chain.readiness_notice import NO_NODE, READINESS_TOPIC, UNTOLD, ReadinessNotice, encode_readiness_notice
from fanout.chain.stamp import as_copy, encode_stamp, with_trailer
from fanout.errors import PrimaryRefused
from fanout.link.model.events import Applied, Failed, StandingTold
from fanout.link.model.states import LinkState
from fanout.mqtt.packets import Connack
from fanout.mqtt.properties import Properties
from fanout.replica.update import Stamp
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config

READY = ReadinessNotice("", (("hub", "root"),))
WAITING = ReadinessNotice("link primary is down", (("root",),))


def node(notice: ReadinessNotice | None = READY) -> FakePrimary:
    """Return a fanout node with one topic."""
    primary = FakePrimary(retained={b"plant/1": b"x"}, connack=Connack(False, 0, STAMPING))
    if notice is not None:
        primary.retained[READINESS_TOPIC] = encode_readiness_notice(notice)
    return primary


def told(pair: Pair) -> list[ReadinessNotice]:
    """Return what the session told, in order."""
    return [event.notice for event in pair.of(StandingTold)]


def test_readiness_is_requested_and_followed() -> None:
    """It is awaited from the connection on, and every later word of the primary counts."""
    pair = Pair(primary=node(WAITING))
    pair.go_live_with_events()
    assert told(pair) == [UNTOLD, WAITING]
    pair.primary.publish(READINESS_TOPIC, encode_readiness_notice(READY))
    pair.pump()
    assert told(pair)[2:] == [READY]
    assert pair.values() == {b"plant/1": b"x"}
    assert pair.session.counters.outside_total == 0


def test_readiness_keeps_its_place_among_the_data() -> None:
    """In one read: what came before the word is applied before it is told, what came behind, after."""
    pair = Pair(primary=node())
    pair.go_live()
    pair.primary.publish(b"plant/1", b"before")
    pair.primary.publish(READINESS_TOPIC, encode_readiness_notice(WAITING))
    pair.primary.publish(b"plant/1", b"behind")
    pair.feed(pair.primary.take())
    order = [
        [update[1] for update in event.changes.updates] if isinstance(event, Applied) else "told"
        for event in pair.events
        if isinstance(event, StandingTold) or (isinstance(event, Applied) and event.changes.updates)
    ]
    assert order == [[b"before"], "told", [b"behind"]]


def test_over_mqtt_3_1_1_it_is_asked_unknown() -> None:
    """A node cannot say there that it is one: the document alone tells, in front of the first set."""
    primary = FakePrimary(version=4, retained={b"plant/1": b"x", READINESS_TOPIC: encode_readiness_notice(WAITING)})
    pair = Pair(make_config(version=4), primary)
    pair.go_live_with_events()
    assert told(pair) == [NO_NODE, WAITING]
    pair.primary.publish(READINESS_TOPIC, encode_readiness_notice(READY))
    pair.pump()
    assert told(pair)[2:] == [READY]
    assert pair.session.counters.outside_total == 0


@pytest.mark.parametrize("document", [None, b"no document"])
@pytest.mark.parametrize("refused", [(), (READINESS_TOPIC,)])
def test_over_mqtt_3_1_1_another_primary_is_not_waited_for(document: bytes | None, refused: tuple[bytes, ...]) -> None:
    """It has no such topic, or another one by that name, or does not let it be read: nothing follows from that."""
    primary = FakePrimary(version=4, retained={b"plant/1": b"x"}, refuse_filters=refused)
    if document is not None:
        primary.retained[READINESS_TOPIC] = document
    pair = Pair(make_config(version=4), primary)
    pair.go_live_with_events()
    assert set(told(pair)) == {NO_NODE}


def test_over_mqtt_3_1_1_a_cycle_is_refused() -> None:
    """As over MQTT 5."""
    notice = encode_readiness_notice(ReadinessNotice("", (("edge-1", "root"),)))
    pair = Pair(make_config(version=4), FakePrimary(version=4, retained={READINESS_TOPIC: notice}))
    pair.connect()
    assert "the links form a cycle: edge-1 > root > edge-1" in pair.failure()


def test_another_kind_of_primary_is_not_asked() -> None:
    """Only a primary that says it is a fanout node has such a document."""
    pair = Pair()
    pair.go_live_with_events()
    assert told(pair) == [NO_NODE]
    assert all(each.subscriptions[0].topic_filter != READINESS_TOPIC for each in pair.primary.subscribes)


@pytest.mark.parametrize("notice", [None, b"nonsense"])
def test_a_node_that_says_nothing_is_awaited(notice: bytes | None) -> None:
    """Without a document that can be read the primary counts as not ready."""
    primary = node(None)
    if notice is not None:
        primary.retained[READINESS_TOPIC] = notice
    pair = Pair(primary=primary)
    pair.go_live_with_events()
    assert told(pair)[-1] == UNTOLD


def test_a_primary_that_refuses_to_say_is_refused() -> None:
    """Without the right to read the topic the link could never be ready: the error names it."""
    primary = node()
    primary.refuse_filters = (READINESS_TOPIC,)
    pair = Pair(primary=primary)
    pair.connect()
    assert "$SYS/fanout/standing" in pair.failure()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_cycle_is_refused(at_once: bool) -> None:
    """A primary that gets what it has from this node is left, at once or when it turns out, with the path."""
    cycle = ReadinessNotice("", (("hub", "x"), ("edge-1", "root")))
    pair = Pair(primary=node(cycle if at_once else READY))
    pair.connect()
    if not at_once:
        assert pair.is_in(LinkState.LIVE)
        pair.primary.publish(READINESS_TOPIC, encode_readiness_notice(cycle))
        pair.pump()
    (failed,) = pair.of(Failed)
    assert isinstance(failed.error, PrimaryRefused)
    assert failed.error.message == "the links form a cycle: edge-1 > root > edge-1"
    assert UNTOLD in told(pair)
    assert cycle not in told(pair)


def test_readiness_is_read_during_a_tear_down() -> None:
    """A primary that lost the session says how it stands before the replica is gone; and gets its PUBACK."""
    pair = Pair(primary=node())
    pair.go_live()
    pair.lose()
    pair.primary.has_session = False
    pair.connect()
    assert pair.is_in(LinkState.TEARING_DOWN)
    assert told(pair) == [UNTOLD, READY]
    assert pair.session.counters.outside_total == 0
    assert any(event.acknowledgement for event in pair.of(Applied))


EXPIRES_IN_60_S = b"\x02\x00\x00\x00\x3c"
VALUE: Final = (b"plant/1", b"x", 1, True, b"", 0, 0, 0, None)
ROOT_STAMP = Stamp("root", 1, 2, 3)
COPY = with_trailer(b"", as_copy(VALUE)[8])


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("before", ["nothing", "another value"])
def test_a_marked_copy_changes_the_expiry_alone(qos: int, before: str) -> None:
    """A node above learnt that a value expires at another time: clients of this one have the value."""
    pair = Pair(primary=node())
    pair.go_live()
    pair.primary.publish(b"plant/1", b"x", properties=EXPIRES_IN_60_S)
    pair.primary.publish(b"plant/2", b"y")
    pair.pump()
    assert pair.replica.view[b"plant/1"][6] == pair.now_ns + 60 * 10**9
    pair.events.clear()
    if before == "another value":
        pair.primary.publish(b"plant/2", b"z")
    pair.primary.publish(b"plant/1", b"x", qos=qos, properties=COPY)
    pair.pump()
    assert pair.dispatched() == ([(b"plant/2", b"z")] if before == "another value" else [])
    assert pair.replica.view[b"plant/1"][6] == 0
    corrected = [value for event in pair.of(Applied) for value in event.changes.corrected]
    assert [(value[0], value[4], value[6]) for value in corrected] == [(b"plant/1", b"", 0)]
    acknowledged = sum(len(event.acknowledgement) // 4 for event in pair.of(Applied))
    assert acknowledged == qos + (before == "another value")


def test_a_marked_copy_that_is_new_here_is_delivered() -> None:
    """It may have taken the place of the live message that waited, where only the newest value of a topic is kept."""
    pair = Pair(primary=node())
    pair.go_live()
    pair.primary.publish(b"plant/1", b"new", properties=COPY)
    pair.pump()
    assert pair.dispatched() == [(b"plant/1", b"new")]
    assert pair.replica.view[b"plant/1"][4] == b""


def test_a_marked_copy_may_lengthen_an_expiry() -> None:
    """By as much as was left at first, which with another primary would be one that does not count down."""
    pair = Pair(primary=node())
    pair.go_live()
    pair.primary.publish(b"plant/1", b"x", properties=EXPIRES_IN_60_S)
    pair.pump()
    pair.wait(20)
    pair.primary.publish(b"plant/1", b"x", properties=EXPIRES_IN_60_S + COPY)
    pair.pump()
    assert pair.replica.view[b"plant/1"][6] == pair.now_ns + 60 * 10**9


def test_a_node_that_promised_no_trailer_is_not_asked_for_one() -> None:
    """What stands last is then what the publisher put there."""
    named = Properties(user_property=(("fanout-node", "root"),))
    pair = Pair(primary=FakePrimary(retained={b"plant/1": b"x"}, connack=Connack(False, 0, named)))
    pair.primary.retained[READINESS_TOPIC] = encode_readiness_notice(READY)
    pair.go_live()
    pair.primary.publish(b"plant/1", b"x", properties=COPY)
    pair.pump()
    assert pair.dispatched() == [(b"plant/1", b"x")]
    assert pair.replica.view[b"plant/1"][4] == COPY


@pytest.mark.parametrize("trailer", [b"", encode_stamp(ROOT_STAMP), COPY, with_trailer(COPY, None)[len(COPY) :]])
@pytest.mark.parametrize("inside", [COPY, encode_stamp(ROOT_STAMP)])
def test_one_trailer_is_taken_off_and_nothing_else(inside: bytes, trailer: bytes) -> None:
    """Correlation Data holds what it held, though it ends with what looks like one, and the primary sends none."""
    pair = Pair(primary=node())
    pair.go_live()
    data = b"\x09" + (len(inside) + 3).to_bytes(2, "big") + b"abc" + inside
    pair.primary.publish(b"plant/1", b"new", properties=data + trailer)
    pair.pump()
    assert pair.dispatched() == [(b"plant/1", b"new")]
    held = pair.replica.view[b"plant/1"]
    assert (held[4], held[8]) == (data, ROOT_STAMP if trailer == encode_stamp(ROOT_STAMP) else None)
