"""What was queued at QoS 1 when a set was asked for: copies and updates at QoS 0 overtake it, and are newer (T13, T14).

A Mosquitto keeps QoS 1 messages beyond Receive Maximum in a queue, and sends what has QoS 0 at once; so what was
published before a SUBSCRIBE at QoS 0 can come behind its copies, and behind what was published after it. With a set of
moderate size only the copies have QoS 0.
"""

from __future__ import annotations

import pytest

from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import Applied, TearDown
from fanout.link.model.states import LinkState
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

VALUES = {b"plant/%d" % number: b"old" for number in range(10)}


def live(*selectors: Selector, **knobs: object) -> Pair:
    """Return a live link to a primary with ten topics."""
    pair = Pair(make_config(*selectors), FakePrimary(retained=dict(VALUES), **knobs))  # type: ignore[arg-type]
    pair.go_live()
    return pair


def begin_comparison(pair: Pair, kind: str) -> bytes:
    """Begin an audit, or the verification of a resumed session; return the request for the retained set."""
    if kind == "audit":
        pair.audit(pump=False)
        return pair.session.take_output()
    pair.lose()
    pair.connect_to(LinkState.VERIFYING)
    return pair.session.take_output()


def send_overtaken(pair: Pair, request: bytes, *queued: tuple[bytes, bytes], after: tuple[bytes, bytes] | None) -> None:
    """Let the primary answer a request in front of what was queued for the link; `after` is published in between."""
    marker_at = request.index(b"\xc0\x00") + 2
    for topic, payload in queued:
        pair.primary.retained[topic] = payload
        if not payload:
            del pair.primary.retained[topic]
    pair.primary.receive(request[:marker_at])
    if after is not None:
        pair.primary.publish(*after)
    for packet_id, (topic, payload) in enumerate(queued, 2000):
        pair.primary.deliver(topic, payload, qos=1, retain=True, packet_id=packet_id)
    pair.primary.receive(request[marker_at:])
    pair.pump()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["audit", "verification"])
def test_what_was_overtaken_by_its_copy_is_left_out(kind: str) -> None:
    """The copy is the newest of what was queued: delivered once, with nothing older behind it; nothing is lost."""
    pair = live()
    request = begin_comparison(pair, kind)
    send_overtaken(pair, request, (b"plant/1", b"v1"), (b"plant/2", b"w1"), (b"plant/1", b"v2"), after=None)
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/1", b"v2"), (b"plant/2", b"w1")]
    assert pair.values() == pair.primary.retained
    assert pair.session.counters.overtaken_total == 3
    acknowledged = b"".join(each.acknowledgement for each in pair.of(Applied))
    assert bytes.fromhex("400207d0 400207d1 400207d2") in acknowledged
    if kind == "audit":
        assert pair.report() == AuditReport(False, checked=10)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["audit", "verification"])
@pytest.mark.parametrize("after", [b"v2", b""])
def test_what_was_overtaken_by_an_update_is_left_out(kind: str, after: bytes) -> None:
    """What was published after the SUBSCRIBE has QoS 0, and stays: a value, or that there is none any more."""
    pair = live()
    request = begin_comparison(pair, kind)
    send_overtaken(pair, request, (b"plant/1", b"v1"), after=(b"plant/1", after))
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/1", b"v1"), (b"plant/1", after)]
    assert pair.values() == pair.primary.retained


@pytest.mark.usefixtures("large")
def test_a_removal_that_was_overtaken_does_not_take_the_newer_value() -> None:
    """The topic was gone when the set was asked for, and is there again."""
    pair = live()
    request = begin_comparison(pair, "audit")
    send_overtaken(pair, request, (b"plant/1", b""), after=(b"plant/1", b"again"))
    assert pair.values()[b"plant/1"] == b"again"
    assert pair.values() == pair.primary.retained


@pytest.mark.usefixtures("large")
def test_a_topic_that_never_was_here_does_not_come_back() -> None:
    """It was made before the SUBSCRIBE and cleared after it; the clear came first."""
    pair = live()
    request = begin_comparison(pair, "audit")
    marker_at = request.index(b"\xc0\x00") + 2
    pair.primary.receive(request[:marker_at])
    pair.primary.deliver(b"plant/new", b"", retain=True)
    pair.primary.deliver(b"plant/new", b"v1", qos=1, retain=True)
    pair.primary.receive(request[marker_at:])
    pair.pump()
    assert pair.values() == pair.primary.retained
    assert pair.dispatched() == [(b"plant/new", b"")]


@pytest.mark.usefixtures("large")
def test_what_was_overtaken_by_a_value_that_has_expired_does_not_come_back() -> None:
    """It is older all the same."""
    pair = live()
    request = begin_comparison(pair, "audit")
    marker_at = request.index(b"\xc0\x00") + 2
    pair.primary.receive(request[:marker_at])
    pair.primary.publish(b"plant/1", b"short", properties=b"\x02\x00\x00\x00\x01")
    pair.feed(pair.primary.take())
    pair.now += 1.5
    del pair.primary.retained[b"plant/1"]
    pair.tick()
    assert pair.dispatched() == [(b"plant/1", b"short"), (b"plant/1", b"")]
    pair.primary.deliver(b"plant/1", b"v1", qos=1, retain=True)
    pair.primary.receive(request[marker_at:])
    pair.pump()
    assert pair.values() == pair.primary.retained
    assert pair.session.counters.overtaken_total == 1


def test_a_copy_behind_what_was_queued_is_newer() -> None:
    """A message between the two was dropped by the primary: the copy tells of it, and an audit finds it missing."""
    pair = live()
    request = begin_comparison(pair, "audit")
    pair.primary.deliver(b"plant/1", b"v1", qos=1, retain=True)
    pair.primary.retained[b"plant/1"] = b"dropped"
    pair.primary.receive(request)
    pair.pump()
    assert pair.values() == pair.primary.retained
    assert pair.dispatched() == [(b"plant/1", b"v1"), (b"plant/1", b"dropped")]
    assert pair.report().changed == 1


def test_messages_that_are_not_retained_are_delivered_all_the_same() -> None:
    """No copy stands for them."""
    pair = live()
    request = begin_comparison(pair, "audit")
    marker_at = request.index(b"\xc0\x00") + 2
    pair.primary.receive(request[:marker_at])
    pair.primary.deliver(b"plant/1", b"event", qos=1)
    pair.primary.receive(request[marker_at:])
    pair.pump()
    assert pair.dispatched() == [(b"plant/1", b"event")]
    assert pair.session.counters.overtaken_total == 0


def test_a_primary_whose_order_is_not_known_may_send_old_copies() -> None:
    """There what has QoS 1 is applied, whenever it comes."""
    pair = live(version_text=b"other 1.0")
    request = begin_comparison(pair, "audit")
    send_overtaken(pair, request, (b"plant/1", b"v1"), after=None)
    assert pair.dispatched()[-1] == (b"plant/1", b"v1")
    assert pair.session.counters.overtaken_total == 0


@pytest.mark.parametrize("kind", ["audit", "verification"])
def test_what_was_overtaken_by_its_copy_is_delivered_whole_where_only_copies_have_qos_0(kind: str) -> None:
    """Each message once and in order, as sessions at QoS 2 need it; the copy, which is the newest of them, never."""
    pair = live()
    request = begin_comparison(pair, kind)
    send_overtaken(pair, request, (b"plant/1", b"v1"), (b"plant/2", b"w1"), (b"plant/1", b"v2"), after=None)
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [(b"plant/1", b"v1"), (b"plant/2", b"w1"), (b"plant/1", b"v2")]
    assert pair.values() == pair.primary.retained
    assert pair.of(TearDown) == []
    if kind == "audit":
        assert pair.report() == AuditReport(False, checked=10)


@pytest.mark.parametrize("kind", ["audit", "verification"])
def test_what_is_published_during_a_comparison_has_its_qos(kind: str) -> None:
    """New topics, changed and cleared ones, and messages without RETAIN: each comes once, and none counts as missed."""
    pair = live()
    request = begin_comparison(pair, kind)
    marker_at = request.index(b"\xc0\x00") + 2
    pair.primary.receive(request[:marker_at])
    published = [(b"plant/1", b"x"), (b"plant/new", b"y"), (b"plant/2", b""), (b"plant/1", b"z")]
    for topic, payload in published:
        pair.primary.publish(topic, payload)
    pair.primary.publish(b"plant/event", b"e", retain=False)
    pair.primary.receive(request[marker_at:])
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    assert pair.dispatched() == [*published, (b"plant/event", b"e")]
    assert [update[2] for applied in pair.of(Applied) for update in applied.changes.dispatch] == [1] * 5
    assert pair.values() == pair.primary.retained
    if kind == "audit":
        assert pair.report().changed == 0


def test_a_copy_that_no_message_explains_is_a_loss_though_a_message_came_in_front_of_it() -> None:
    """That one is older: what the primary dropped behind it shows in the copy."""
    pair = live()
    request = begin_comparison(pair, "verification")
    pair.primary.deliver(b"plant/1", b"v1", qos=1, retain=True)
    pair.primary.retained[b"plant/1"] = b"dropped"
    pair.primary.receive(request)
    pair.pump()
    assert "1 of 1 topics that changed without a message" in pair.reason()


def test_an_update_at_qos_0_behind_one_that_explained_a_copy_is_delivered() -> None:
    """The copy of its topic has come: it is none."""
    pair = live()
    request = begin_comparison(pair, "audit")
    marker_at = request.index(b"\xc0\x00") + 2
    pair.primary.receive(request[:marker_at])
    pair.primary.deliver(b"plant/1", b"old", retain=True)
    pair.primary.publish(b"plant/3", b"v1")
    pair.primary.publish(b"plant/3", b"v2", qos=0)
    pair.primary.publish(b"plant/1", b"v3", qos=0)
    pair.primary.publish(b"plant/1", b"v4", qos=0)
    pair.primary.receive(request[marker_at:])
    pair.pump()
    assert pair.values() == pair.primary.retained
    delivered = pair.dispatched()
    assert [each for each in delivered if each[0] == b"plant/3"] == [(b"plant/3", b"v1"), (b"plant/3", b"v2")]
    assert [each for each in delivered if each[0] == b"plant/1"] == [(b"plant/1", b"v3"), (b"plant/1", b"v4")]
    assert pair.report().changed == 0


@pytest.mark.parametrize("kind", ["audit", "verification"])
def test_a_session_that_is_left_in_a_comparison_collects_at_its_own_qos(kind: str) -> None:
    """Whatever ends the process: no packet is needed for it."""
    pair = live()
    pair.primary.receive(begin_comparison(pair, kind))
    assert pair.primary.subscriptions[b"plant/#"].qos == 1
    assert pair.stored().at_qos_0 == frozenset()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["audit", "verification"])
def test_a_session_that_is_left_at_qos_0_says_so_on_disk_until_its_qos_is_back(kind: str) -> None:
    """The next process must know that what was published meanwhile is lost."""
    pair = live()
    request = begin_comparison(pair, kind)
    assert pair.stored().at_qos_0 == {"plant/#"}
    pair.primary.receive(request)
    pair.lose()
    assert pair.stored().at_qos_0 == {"plant/#"}
    pair.connect()
    assert pair.is_in(LinkState.LIVE)
    assert pair.stored().at_qos_0 == frozenset()
