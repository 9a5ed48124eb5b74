"""The session machine, joined to a primary without I/O."""

from __future__ import annotations

import pytest

from fanout.chain.stamp import encode_stamp
from fanout.errors import LinkLost, PrimaryRefused, ProtocolError
from fanout.link.model.events import (
    Applied,
    AuditCalled,
    AuditEnded,
    ControlRefused,
    Failed,
    Forwarded,
    QosLowered,
    SelectorComplete,
    SessionSeen,
    TearDown,
    TopicsMissing,
)
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import BUSY, NOT_TAKEN, UNAVAILABLE
from fanout.link.protocol.sender import OutgoingMessage
from fanout.link.snapshot.audit import RETRY_S
from fanout.link.snapshot.capability_check import SERVER_SENTINEL
from fanout.mqtt.packets import Ack, Connack, Disconnect, PacketType, Pingresp, Suback, Unsuback, encode
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.update import ChangeKind, Phase, Stamp
from fanout.selection import Selector
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config

S = LinkState
VALUES = {b"plant/%d" % number: b"%d" % number for number in range(50)}


def filled(**changes: object) -> FakePrimary:
    """Return a primary with retained values."""
    primary = FakePrimary(retained=dict(VALUES))
    for name, value in changes.items():
        setattr(primary, name, value)
    return primary


# --- connecting ---


def test_connect_asks_for_what_the_link_needs() -> None:
    """CONNECT has the identity, a clean start, the session's life, the limits, and asks for stamps."""
    pair = Pair(make_config(username="u", receive_maximum=100, packet_bytes_max=5000))
    pair.connect()
    (connect,) = pair.primary.connects
    assert connect.client_id == "fanout-edge-1-plant"
    assert connect.clean_start
    assert connect.keep_alive == 30
    assert connect.username == "u"
    assert not connect.bridge
    assert connect.properties.session_expiry_interval == 300
    assert connect.properties.receive_maximum == 100
    assert connect.properties.maximum_packet_size is None  # Mosquitto drops what is larger without a word
    assert connect.properties.user_property == (("fanout-stamps", "1"), ("fanout-node", "edge-1"))


@pytest.mark.parametrize(("policy", "bridge"), [("bridge", True), ("keep", False)])
def test_mqtt_3_1_1_connects_as_its_policy_says(policy: str, bridge: bool) -> None:
    """The bridge bit is set for the policy `bridge` only, and every connection is a clean session."""
    pair = Pair(make_config(version=4, retain_policy=policy, client_id="mine"))
    pair.go_live()
    assert pair.primary.connects[0].bridge is bridge
    assert pair.primary.connects[0].client_id == "mine"
    pair.lose()
    pair.connect()
    assert pair.primary.connects[1].clean_start


def test_a_refusing_connack_fails() -> None:
    """The primary's reason becomes the error, and no DISCONNECT follows."""
    primary = FakePrimary(connack=Connack(False, 0x87, Properties(reason_string="go away")))
    pair = Pair(primary=primary)
    pair.connect()
    (failed,) = pair.of(Failed)
    assert isinstance(failed.error, PrimaryRefused)
    assert failed.error.reason_code == 0x87
    assert "go away" in str(failed.error)
    assert primary.disconnects == []
    pair.lose()
    assert pair.states() == [S.CONNECTING, S.DOWN]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (encode(Pingresp(), version=5), "before CONNACK"),
        (encode(Connack(True, 0), version=5), "Session Present"),
        (b"\x00\x00", "reserved"),
        (encode(Connack(False, 0), version=5) + b"\x30\xff\xff\xff\xff", "Remaining Length"),
    ],
)
def test_what_breaks_the_protocol_is_told_with_its_reason_code(data: bytes, text: str) -> None:
    """A primary that breaks MQTT gets a DISCONNECT with a failing Reason Code, once it was connected."""
    pair = Pair()
    pair.connect(pump=False)
    pair.session.take_output()
    pair.feed(data)
    (failed,) = pair.of(Failed)
    assert isinstance(failed.error, ProtocolError)
    assert text in str(failed.error)
    after = pair.session.take_output()
    assert (b"\xe0" in after) == (not pair.is_in(S.CONNECTING))
    pair.feed(b"anything")
    assert len(pair.of(Failed)) == 1
    assert pair.session.deadline(now_ns=pair.now_ns, now=pair.now) == float("inf")


def test_disconnect_from_the_primary_is_the_error() -> None:
    """DISCONNECT's Reason Code and its cure become the error."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.send(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
    pair.pump()
    (failed,) = pair.of(Failed)
    assert isinstance(failed.error, LinkLost)
    assert "Session taken over" in failed.error.message
    assert "Client Identifier" in failed.error.hint


# --- snapshot ---


def test_a_snapshot_becomes_live_with_evidence() -> None:
    """All values are held, then the selector is complete by marker, then the link is live at the selector's QoS."""
    pair = Pair(primary=filled())
    pair.connect()
    assert pair.values() == VALUES
    assert pair.states() == [S.CONNECTING, S.SNAPSHOT, S.PROVING, S.LIVE]
    assert pair.of(SelectorComplete) == [SelectorComplete(0, Evidence.MARKER)]
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]
    assert pair.session.peer.sentinel == b"$SYS/broker/version"
    assert pair.session.lifecycle.snapshot_topics == 50
    assert pair.session.lifecycle.snapshot_seconds is not None
    assert pair.session.lifecycle.epoch == pair.now_ns // 1000
    assert {each.changes.phase for each in pair.of(Applied)} == {Phase.SNAPSHOT}
    final = pair.primary.subscriptions[b"plant/#"]
    assert (final.qos, final.retain_as_published, final.no_local, final.retain_handling) == (1, True, True, 2)


def test_snapshot_requests_leave_in_one_write() -> None:
    """SUBSCRIBE with the sentinel, PINGREQ and marker are one write, so that nothing gets between them."""
    pair = Pair(primary=filled())
    pair.connect(pump=False)
    writes: list[bytes] = []
    while data := pair.session.take_output():
        writes.append(data)
        pair.primary.receive(data)
        pair.feed(pair.primary.take())
    snapshot = next(data for data in writes if b"plant/#" in data)
    sentinel_at, ping_at = snapshot.index(b"$SYS/broker/version"), snapshot.index(b"\xc0\x00")
    marker_at = snapshot.index(b"fanout/control/edge-1/plant")
    assert sentinel_at < ping_at < marker_at
    subscription = next(
        each for one in pair.primary.subscribes for each in one.subscriptions if b"#" in each.topic_filter
    )
    assert (subscription.topic_filter, subscription.qos, subscription.retain_handling) == (b"plant/#", 0, 0)


def test_a_lower_qos_than_the_selectors_is_told() -> None:
    """Once for each, when the set is complete; with MQTT 5 also of a selector that takes no set."""
    selectors = (Selector("plant/#", qos=2), Selector("office/#", qos=1), Selector("yard/#", qos=2, live_only=True))
    pair = Pair(make_config(*selectors, audit_interval_s=100.0), filled(maximum_qos=1))
    pair.go_live_with_events()
    told = [QosLowered(0, 1), QosLowered(2, 1)]
    assert sorted(pair.of(QosLowered), key=lambda event: event.index) == told
    pair.wait(150)
    assert len(pair.of(AuditEnded)) == 1
    assert len(pair.of(QosLowered)) == 2


def test_several_selectors_follow_one_another() -> None:
    """Each selector has a snapshot and evidence of its own."""
    pair = Pair(make_config(Selector("plant/#"), Selector("office/#")), filled())
    pair.primary.retained[b"office/1"] = b"x"
    pair.connect()
    assert pair.states() == [S.CONNECTING, S.SNAPSHOT, S.PROVING, S.SNAPSHOT, S.PROVING, S.LIVE]
    assert [event.index for event in pair.of(SelectorComplete)] == [0, 1]
    assert pair.session.lifecycle.snapshot_topics == 51


def test_a_refused_heartbeat_is_followed_by_the_next() -> None:
    """A quota that is exceeded once makes lag unknown until a heartbeat comes back; then a stall is noticed as ever."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.allow_control, pair.primary.control_code = False, 0x97
    pair.wait(60)
    assert pair.is_in(S.LIVE)
    assert pair.session.control.lag_ns(pair.now) is None
    assert pair.session.control.refusal == "the primary refused the newest heartbeat: Quota exceeded (0x97)"
    assert len(pair.of(ControlRefused)) == 12
    pair.primary.allow_control = True
    pair.wait(5)
    assert pair.session.control.lag_ns(pair.now) is not None
    assert pair.session.control.refusal == ""
    pair.primary.silent_control = True
    pair.wait(21)
    assert pair.is_in(S.STALLED)


def test_after_a_heartbeat_that_is_not_authorized_few_others_are_sent() -> None:
    """It is told why, and an audit follows: other rights may be gone too."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.allow_control = False
    published = len(pair.primary.published)
    pair.wait(60)
    assert len(pair.primary.published) - published == 4  # the one, and those after 5, 10 and 20 s more
    assert {refused.reason for refused in pair.of(ControlRefused)} == {
        "the primary does not let the link publish to its control topic: Not authorized (0x87)"
    }
    assert len(pair.of(AuditCalled)) == len(pair.of(AuditEnded)) == 1


def test_a_stall_does_not_outlast_the_right_to_send_heartbeats() -> None:
    """None could end it, so the connection is, and the resumed session is verified."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.silent_control = True
    pair.wait(21)
    assert pair.is_in(S.STALLED)
    pair.primary.allow_control = False
    pair.wait(5)
    (failed,) = pair.of(Failed)
    assert "the link is stalled, and the primary does not let the link publish" in str(failed.error)


def test_a_control_message_that_is_refused_for_now_costs_the_marker_only() -> None:
    """The snapshot is proved without it, and the heartbeats that follow are tried."""
    pair = Pair(primary=filled(allow_control=False, control_code=0x97))
    pair.connect()
    assert (pair.is_in(S.LIVE), pair.session.lifecycle.evidence) == (True, [Evidence.BARRIER])
    pair.primary.allow_control = True
    pair.wait(5)
    assert pair.session.control.lag_ns(pair.now) is not None


def test_a_comparison_leaves_the_marker_out_while_heartbeats_are_refused() -> None:
    """It would wait for it in vain."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.allow_control, pair.primary.control_code = False, 0x97
    pair.wait(5)
    pair.audit()
    (ended,) = pair.of(AuditEnded)
    assert ended.report.failure == ""


def test_control_messages_that_vanish_are_given_a_second() -> None:
    """Where publishing is denied without a word, the link waits a second and takes the barrier."""
    pair = Pair(primary=filled(silent_control=True))
    pair.connect()
    assert pair.is_in(S.SNAPSHOT)
    pair.wait(0.9)
    assert pair.is_in(S.SNAPSHOT)
    pair.wait(0.2)
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.evidence == [Evidence.BARRIER]


def test_a_control_topic_that_cannot_be_subscribed_is_no_channel() -> None:
    """A SUBACK that refuses the control topic leaves the barrier."""
    pair = Pair(primary=filled(refuse_filters=(b"fanout/control/edge-1/plant",), silent_control=True))
    pair.connect()
    assert pair.session.lifecycle.evidence == [Evidence.BARRIER]


def test_a_primary_that_never_answers_the_capability_check_is_left() -> None:
    """Without any answer after CONNACK the connection is given up."""
    pair = Pair(primary=filled(swallow=(Pingresp,), silent_control=True))
    pair.connect()
    pair.wait(11)
    assert "does not answer" in pair.failure()


def test_without_system_topics_an_own_retained_message_is_the_sentinel() -> None:
    """The own sentinel is published once, used, and cleared when the link closes."""
    pair = Pair(primary=filled(system_topics=False))
    pair.go_live()
    own = b"fanout/control/edge-1/plant/fence"
    assert pair.session.peer.sentinel == own
    assert pair.primary.retained[own] == b"fence"
    assert own not in pair.values()
    pair.session.close(end_session=True, now=pair.now)
    pair.pump()
    assert own not in pair.primary.retained
    assert pair.primary.disconnects[-1].properties.session_expiry_interval == 0


def test_a_false_barrier_is_caught_by_the_sentinel() -> None:
    """PINGRESP and marker behind a set that came short, as Mosquitto may send them, prove nothing."""
    primary = filled()
    pair = Pair(primary=primary)
    data = pair.connect_until(b"plant/#")
    subscribe_end = data.index(b"\xc0\x00")
    primary.truncate_after = 31
    primary.receive(data[:subscribe_end])
    primary.truncate_after = None  # the reader has caught up
    primary.receive(data[subscribe_end:])
    pair.pump()
    assert len(pair.values()) == 30
    pair.wait(4)
    assert pair.is_in(S.SNAPSHOT)
    pair.wait(30)
    assert pair.states()[-1] is S.TEARING_DOWN
    assert "without the sentinel" in pair.reason()
    assert "PINGRESP" not in pair.reason()


def test_a_selector_refused_at_its_own_qos_fails() -> None:
    """The second SUBSCRIBE may be refused, too."""
    pair = Pair(primary=filled())
    pair.connect_until_complete()
    pair.primary.refuse_filters = (b"plant/#",)
    pair.pump()
    assert "refused the subscription plant/#" in pair.failure()


def test_a_suback_that_never_comes_is_not_live() -> None:
    """Without the answer to the SUBSCRIBE at its own QoS the link does not become live."""
    pair = Pair(primary=filled())
    pair.connect_until_complete()
    pair.primary.swallow = (Suback,)
    pair.pump()
    pair.wait(6)
    assert S.LIVE not in pair.states()
    assert "does not answer SUBSCRIBE" in pair.reason()


# --- live ---


def test_live_updates_are_acknowledged_in_one_piece_after_they_were_applied() -> None:
    """A batch of QoS 1 is one event with one acknowledgement; the machine itself writes nothing for it."""
    pair = Pair(primary=filled())
    pair.go_live()
    for number in range(100):
        pair.primary.publish(b"plant/%d" % number, b"new")
    pair.feed(pair.primary.take())
    (applied,) = pair.of(Applied)
    assert len(applied.changes.updates) == 100
    assert applied.changes.phase is Phase.LIVE
    assert len(applied.acknowledgement) == 400
    assert applied.epoch == pair.session.lifecycle.epoch
    assert pair.session.take_output() == b""


def test_messages_outside_are_acknowledged_and_counted() -> None:
    """What no selector covers is dropped, but not left unacknowledged."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.deliver(b"office/1", b"x", qos=1)
    pair.primary.deliver(b"fanout/control/other/plant", b"x", qos=1)
    pair.feed(pair.primary.take())
    (applied,) = pair.of(Applied)
    assert applied.changes.updates == []
    assert len(applied.acknowledgement) == 8
    assert pair.session.counters.outside_total == 2


def test_qos_2_is_applied_once() -> None:
    """A repeated QoS 2 message is acknowledged again and not applied again [MQTT-4.3.3-10]."""
    pair = Pair(make_config(Selector("plant/#", qos=2)), filled())
    pair.go_live()
    pair.primary.deliver(b"plant/0", b"once", qos=2, retain=True, packet_id=5)
    pair.primary.deliver(b"plant/0", b"once", qos=2, retain=True, dup=True, packet_id=5)
    pair.feed(pair.primary.take())
    (applied,) = pair.of(Applied)
    assert [update[1] for update in applied.changes.updates] == [b"once"]
    assert applied.acknowledgement == encode(Ack(PacketType.PUBREC, 5), version=5) * 2
    pair.feed(encode(Ack(PacketType.PUBREL, 5), version=5))
    pair.feed(encode(Ack(PacketType.PUBREL, 5), version=5))
    assert pair.session.take_output() == (
        encode(Ack(PacketType.PUBCOMP, 5), version=5) + encode(Ack(PacketType.PUBCOMP, 5, 0x92), version=5)
    )


def test_a_mosquitto_may_send_more_than_the_receive_maximum() -> None:
    """It does when messages wait: in a new session, too, all are taken."""
    pair = Pair(make_config(receive_maximum=10), filled())
    pair.go_live()
    for number in range(11):
        pair.primary.publish(b"plant/%d" % number, b"x")
    pair.pump()
    assert not pair.of(Failed)
    assert len(pair.dispatched()) == 11


def test_expired_values_are_removed_in_time() -> None:
    """A value is removed when its Message Expiry Interval has passed, without a packet."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.publish(b"plant/0", b"x", properties=b"\x02\x00\x00\x00\x03")
    pair.pump()
    pair.wait(2.9)
    assert b"plant/0" in pair.values()
    pair.wait(0.2)
    assert b"plant/0" not in pair.values()
    assert pair.dispatched()[-1] == (b"plant/0", b"")


# --- heartbeats and keep alive ---


def test_missing_heartbeats_stall_the_link_and_a_return_verifies_it() -> None:
    """After three intervals the link is stalled and the lag has grown; when heartbeats return it is verified."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.silent_control = True
    pair.wait(19)
    assert pair.is_in(S.LIVE)
    pair.wait(3)
    assert pair.is_in(S.STALLED)
    lag_ns = pair.session.control.lag_ns(pair.now)
    assert lag_ns is not None
    assert lag_ns == pytest.approx(17e9)
    pair.primary.silent_control = False
    pair.wait(5)
    assert pair.states() == [S.STALLED, S.VERIFYING, S.LIVE]
    assert pair.session.counters.epochs_total == 1


def test_a_long_stall_ends_the_connection() -> None:
    """After twice the time the link gives the connection up, but not the session."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.silent_control = True
    pair.wait(40)
    assert "heartbeats do not come back" in pair.failure()
    assert pair.primary.disconnects[-1].properties.session_expiry_interval is None


def test_heartbeats_wait_for_room_in_flight() -> None:
    """With the primary's Receive Maximum used up, heartbeats are left out rather than sent against it."""
    pair = Pair(primary=filled(connack=Connack(False, 0, Properties(receive_maximum=2))))
    pair.go_live()
    pair.primary.swallow = (Ack,)
    published = len(pair.primary.published)
    pair.wait(17)
    assert len(pair.primary.published) == published + 2


def test_keep_alive_pings_and_notices_silence() -> None:
    """Without heartbeats PINGREQ leaves after three quarters of the Keep Alive, and must be answered."""
    pair = Pair(make_config(heartbeat_s=0.0), filled())
    pair.go_live()
    pings = pair.primary.pings
    pair.wait(23)
    assert pair.primary.pings == pings + 1
    pair.primary.swallow = (Pingresp,)
    pair.wait(50)
    assert "does not answer PINGREQ" in pair.failure()


def test_the_primarys_keep_alive_wins() -> None:
    """Server Keep Alive replaces ours [MQTT-3.2.2-21]; 0 turns it off."""
    pair = Pair(make_config(heartbeat_s=0.0), filled(connack=Connack(False, 0, Properties(server_keep_alive=4))))
    pair.go_live()
    pings = pair.primary.pings
    pair.wait(3.5)
    assert pair.primary.pings == pings + 1
    off = Pair(
        make_config(heartbeat_s=0.0, audit_interval_s=0.0),
        filled(connack=Connack(False, 0, Properties(server_keep_alive=0))),
    )
    off.go_live()
    pings = off.primary.pings
    off.wait(1000)
    assert off.primary.pings == pings


@pytest.mark.parametrize(("seconds", "suspicious"), [(19.9, False), (20.0, True)])
def test_a_node_that_did_not_run_verifies_what_it_holds(seconds: float, suspicious: bool) -> None:
    """Stopped for three intervals beyond the next heartbeat, it cannot know what the primary dropped meanwhile."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.wait(10)
    pair.primary.retained[b"plant/0"] = b"dropped on the way"
    pair.now += seconds
    pair.tick()
    if suspicious:
        assert pair.states() == [S.STALLED, S.VERIFYING, S.TEARING_DOWN]
        assert "messages were lost" in pair.reason()
    else:
        assert pair.is_in(S.LIVE)


def test_a_long_snapshot_or_audit_is_no_sleep() -> None:
    """Neither leaves the link stalled, although no heartbeat is sent meanwhile."""
    pair = Pair(primary=filled())
    pair.connect(pump=False)
    while b"plant/#" not in pair.primary.subscriptions:
        pair.feed(pair.primary.take())
        pair.primary.receive(pair.session.take_output())
    pair.now += 40
    pair.pump()
    assert pair.is_in(S.LIVE)
    pair.tick()
    assert pair.is_in(S.LIVE)
    pair.audit(pump=False)
    pair.now += 40
    pair.pump()
    pair.tick()
    assert pair.is_in(S.LIVE)
    assert S.STALLED not in pair.states()


def test_a_verification_after_a_stall_waits_for_the_pingresp_under_way() -> None:
    """Only one PINGREQ is under way at a time, so that none can be mistaken for the barrier."""
    pair = Pair(make_config(keep_alive_s=20), filled())
    pair.go_live()
    pair.primary.silent_control = True
    pair.primary.swallow = (Pingresp, Ack)
    pair.wait(21)
    assert pair.is_in(S.STALLED)
    pair.primary.swallow = ()
    pair.primary.silent_control = False
    subscribes = len(pair.primary.subscribes)
    pair.wait(5)
    assert pair.is_in(S.VERIFYING)
    assert len(pair.primary.subscribes) == subscribes
    pair.primary.send(Pingresp())
    pair.pump()
    assert pair.is_in(S.LIVE)


# --- resumption ---


def resume(pair: Pair) -> None:
    """Lose the connection and connect again."""
    pair.lose()
    pair.connect()


def test_pending_messages_are_applied_while_resuming() -> None:
    """What was queued comes first; what comes again, equal to what is held, is not dispatched twice."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.primary.deliver(b"plant/0", b"0", qos=1, retain=True, dup=True)
    pair.primary.deliver(b"plant/1", b"new", qos=1, retain=True)
    pair.primary.retained[b"plant/1"] = b"new"
    pair.pump()
    assert pair.is_in(S.LIVE)
    assert pair.dispatched() == [(b"plant/1", b"new")]
    first, second = pair.of(Applied)[:2]
    assert list(first.changes.kinds) == [ChangeKind.UNCHANGED]
    assert second.changes.phase is Phase.LIVE


def test_copies_for_the_former_connection_are_not_dispatched_while_resuming() -> None:
    """A primary that answers a SUBSCRIBE of the lost connection late keeps the copies in the session."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.primary.deliver(b"plant/0", b"0", retain=True)
    pair.primary.deliver(b"plant/1", b"new", retain=True)
    pair.primary.deliver(b"plant/message", b"0")
    pair.primary.retained[b"plant/1"] = b"new"
    pair.pump()
    assert pair.is_in(S.LIVE)
    assert pair.dispatched() == [(b"plant/1", b"new"), (b"plant/message", b"0")]


@pytest.mark.parametrize(("topic", "payload"), [(b"plant/0", b"changed"), (b"plant/new", b"x")])
def test_a_difference_is_a_loss_and_ends_the_session(topic: bytes, payload: bytes) -> None:
    """What changed without a message means loss: tear-down, and a clean start next time."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.primary.retained[topic] = payload
    pair.connect()
    assert pair.is_in(S.TEARING_DOWN)
    assert "messages were lost" in pair.reason()
    assert pair.primary.disconnects[-1].properties.session_expiry_interval == 0
    pair.lose()
    pair.tear_down()
    assert pair.is_in(S.DOWN)
    assert pair.session.lifecycle.evidence == [None]
    epoch = pair.session.lifecycle.epoch
    pair.events.clear()
    pair.now += 1
    pair.connect()
    assert pair.primary.connects[-1].clean_start
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.epoch > epoch
    assert pair.values() == pair.primary.retained


def test_a_live_update_during_the_verification_is_no_loss() -> None:
    """A topic that comes as itself and as a copy was not lost, in whatever order the two come."""
    for order in ("before", "after"):
        pair = Pair(primary=filled())
        pair.go_live()
        pair.lose()
        pair.connect_to(S.VERIFYING)
        data = pair.session.take_output()
        if order == "before":
            pair.primary.deliver(b"plant/0", b"busy", retain=True)
            pair.primary.retained[b"plant/0"] = b"busy"
        else:
            pair.primary.retained[b"plant/0"] = b"0"
        pair.primary.receive(data)
        if order == "after":
            pair.primary.publish(b"plant/0", b"busy", qos=0)
        pair.pump()
        assert pair.is_in(S.LIVE), order
        assert pair.dispatched() == [(b"plant/0", b"busy")]


def test_a_creation_behind_the_last_copy_is_no_loss() -> None:
    """When every topic has come and the barrier is passed, the rest is live."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.connect_to(S.VERIFYING)
    data = pair.session.take_output()
    marker_at = data.index(b"\xc0\x00") + 2
    pair.primary.receive(data[:marker_at])
    pair.feed(pair.primary.take())
    pair.primary.publish(b"plant/created", b"x", qos=0)
    pair.feed(pair.primary.take())
    pair.primary.receive(data[marker_at:])
    pair.pump()
    assert pair.is_in(S.LIVE)
    assert pair.dispatched() == [(b"plant/created", b"x")]


def test_an_expired_value_is_no_loss() -> None:
    """A value that expires about now may be gone at the primary already, and is swept."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.publish(b"plant/0", b"x", properties=b"\x02\x00\x00\x00\x03")
    pair.pump()
    pair.lose()
    pair.now += 1.5
    del pair.primary.retained[b"plant/0"]
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert b"plant/0" not in pair.values()
    assert pair.dispatched()[-1] == (b"plant/0", b"")


def test_a_missed_value_that_expires_before_the_comparison_ends_is_gone() -> None:
    """A copy that differs, and whose Message Expiry Interval ends before the evidence comes, is no value to judge."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.primary.retained[b"plant/0"] = b"missed"
    pair.primary.properties = b"\x02\x00\x00\x00\x01"
    pair.connect_to(S.VERIFYING)
    pair.primary.swallow = (Pingresp,)
    pair.pump()
    pair.wait(2)
    pair.feed(encode(Pingresp(), version=5))
    pair.pump()
    assert b"plant/0" not in pair.values()
    of_topic = [each for each in pair.dispatched() if each[0] == b"plant/0"]
    assert of_topic == [(b"plant/0", b"missed"), (b"plant/0", b"")]
    assert pair.is_in(S.LIVE)


def test_a_selector_refused_in_a_comparison_is_unconfirmed() -> None:
    """The values are kept, whatever the primary counts; they are confirmed once the primary grants it again."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.refuse_filters = (b"plant/#",)
    resume(pair)
    assert pair.is_in(S.LIVE)
    values = pair.values()
    assert len(pair.replica.unconfirmed) == len(values) == len(pair.primary.retained)
    (missing,) = pair.of(TopicsMissing)
    assert "refused the subscription plant/#" in missing.refusal
    pair.primary.refuse_filters = ()
    pair.wait(RETRY_S)
    assert len(pair.replica.unconfirmed) == 0
    assert pair.values() == values
    assert pair.primary.subscriptions[b"plant/#"].qos == 1


def test_stamps_tell_an_update_during_the_verification_from_a_loss() -> None:
    """A stamping primary leaves out a copy for which a live update waits: the sequence decides."""
    for sequence, expected in ((11, S.LIVE), (10, S.TEARING_DOWN), (9, S.TEARING_DOWN)):
        primary = filled(connack=Connack(False, 0, STAMPING))
        pair = Pair(primary=primary)
        pair.go_live()
        pair.lose()
        primary.properties = encode_stamp(Stamp("root", 1, 10, 0))  # of the marker that comes back while resuming
        pair.connect(pump=False)
        while not pair.is_in(S.VERIFYING):
            primary.receive(pair.session.take_output())
            pair.feed(primary.take())
        del primary.retained[b"plant/0"]  # its copy is left out
        primary.deliver(b"plant/0", b"busy", retain=True, properties=encode_stamp(Stamp("root", 1, sequence, 0)))
        pair.pump()
        assert pair.is_in(expected), sequence


def test_an_unfinished_snapshot_is_taken_again_in_the_same_session() -> None:
    """A connection cut in the middle of the snapshot: the session goes on, the snapshot begins again."""
    primary = filled()
    pair = Pair(primary=primary)
    data = pair.connect_until(b"plant/#")
    primary.truncate_after = 20
    primary.receive(data)
    pair.feed(primary.take())
    primary.truncate_after = None
    pair.lose()
    assert len(pair.values()) == 19
    del primary.retained[b"plant/0"]
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert pair.states() == [S.CONNECTING, S.SNAPSHOT, S.DOWN, S.CONNECTING, S.SNAPSHOT, S.PROVING, S.LIVE]
    assert pair.values() == primary.retained
    assert pair.dispatched()[-1] == (b"plant/0", b"")
    assert len(pair.dispatched()) == 51
    assert pair.session.counters.epochs_total == 1


def cut_in_its_snapshot(primary: FakePrimary) -> Pair:
    """Return a link that lost its connection behind twenty packets of its first snapshot."""
    pair = Pair(primary=primary)
    data = pair.connect_until(b"plant/#")
    primary.truncate_after = 20
    primary.receive(data)
    pair.feed(primary.take())
    primary.truncate_after = None
    pair.lose()
    assert not all(pair.session.lifecycle.evidence)
    return pair


def resume_with_leftovers(pair: Pair) -> None:
    """Resume the session, in which the primary kept a copy and the sentinel that its former connection did not take."""
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.primary.deliver(b"plant/0", b"old", retain=True)
    pair.primary.deliver(SERVER_SENTINEL, b"mosquitto version 2.0.11", retain=True)
    pair.feed(pair.primary.take())
    pair.pump()


def test_a_copy_left_over_from_a_snapshot_that_was_cut_is_none_of_the_next_one() -> None:
    """Its topic was cleared while the link was away, at QoS 0, so that no clear is queued: it is not served."""
    pair = cut_in_its_snapshot(filled())
    del pair.primary.retained[b"plant/0"]
    resume_with_leftovers(pair)
    assert pair.is_in(S.LIVE)
    assert pair.values() == pair.primary.retained
    assert pair.session.counters.epochs_total == 1


def test_a_sentinel_left_over_from_a_snapshot_that_was_cut_proves_nothing_of_the_next_one() -> None:
    """Of that one the end is dropped, with the sentinel, and PINGRESP and marker come all the same."""
    pair = cut_in_its_snapshot(filled(lose=lambda number, topic: number > 1 and topic > b"plant/3"))
    pair.primary.system_topics = False
    resume_with_leftovers(pair)
    pair.wait(60)
    assert S.LIVE not in pair.states()
    assert "without the sentinel" in pair.reason()


def test_a_session_without_heartbeats_is_seen_with_each_answer_and_at_its_end() -> None:
    """What is left of it on disk would look older and older otherwise; an attempt to connect shows nothing."""
    pair = Pair(make_config(heartbeat_s=0.0, keep_alive_s=30), filled())
    pair.go_live()
    for _ in range(3):
        pair.events.clear()
        pair.wait(30)
        assert SessionSeen() in pair.events
    pair.events.clear()
    pair.lose()
    assert SessionSeen() in pair.events
    pair.events.clear()
    pair.connect(pump=False)
    pair.lose()
    assert SessionSeen() not in pair.events


def test_a_marker_that_does_not_come_back_does_not_keep_resuming() -> None:
    """What was pending has come as far as can be told; whether it was all is for the comparison to say."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.silent_control = True
    resume(pair)
    pair.wait(5)
    assert pair.states()[-1] is S.VERIFYING


def test_a_connection_is_kept_alive_while_a_marker_is_awaited() -> None:
    """Live updates at QoS 0 need no answer and the marker does not come, yet the primary hears of the link."""
    pair = Pair(make_config(keep_alive_s=4, heartbeat_s=0.0, audit_interval_s=0.0), filled())
    pair.go_live()
    pair.primary.silent_control = True
    pair.lose()
    pair.connect()
    assert pair.is_in(S.RESUMING)
    for _ in range(6):
        heard = len(pair.primary.unsubscribes)
        for _ in range(4):
            pair.wait(1)
            pair.primary.publish(b"plant/message", b"live", qos=0, retain=False)
            pair.pump()
        assert pair.is_in(S.RESUMING)
        assert len(pair.primary.unsubscribes) > heard


def test_resuming_probes_while_bytes_come() -> None:
    """While pending messages come without PINGRESP, a probe is sent; its answer without PINGRESP ends the wait."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.swallow = (Pingresp,)
    pair.primary.silent_control = True
    pair.primary.unsubscribes.clear()
    resume(pair)
    for _ in range(5):
        pair.primary.publish(b"plant/0", b"x")
        pair.pump()
        pair.wait(1.5)
    probes = [
        each for each in pair.primary.unsubscribes if each.topic_filters == (b"fanout/control/edge-1/plant/probe",)
    ]
    assert len(probes) == 1
    assert pair.is_in(S.RESUMING)
    pair.wait(10)
    assert "does not answer" in pair.failure()


def test_messages_in_flight_are_published_again_with_dup() -> None:
    """Unacknowledged heartbeats are sent again after the session was resumed [MQTT-4.4.0-1]."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.swallow = (Ack,)
    pair.wait(6)
    heartbeat = pair.primary.published[-1]
    pair.primary.swallow = ()
    resume(pair)
    topic, payload, flags = next(each for each in pair.primary.published if each[2] & 8)
    assert (topic, payload) == heartbeat[:2]
    assert flags == 0b1010
    assert pair.is_in(S.LIVE)


def test_a_smaller_receive_maximum_holds_for_what_is_published_again() -> None:
    """What was in flight is sent again in order, no more of it at a time than the primary allows now."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.swallow = (Ack,)
    for number in range(10):
        pair.session.forward(
            OutgoingMessage(b"plant/0", b"%d" % number, qos=1 + number % 2), now_ns=pair.now_ns, now=pair.now
        )
    pair.pump()
    pair.primary.swallow = ()
    pair.lose()
    pair.primary.connack = Connack(False, 0, Properties(receive_maximum=3))
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.feed(pair.primary.take())
    published = len(pair.primary.published)
    pair.primary.receive(pair.session.take_output())
    assert len(pair.primary.published) == published + 3
    pair.feed(pair.primary.take())
    pair.pump()
    assert pair.is_in(S.LIVE)
    again = [payload for _, payload, flags in pair.primary.published if flags & 8]
    assert again == [b"%d" % number for number in range(10)]
    assert len(pair.of(Forwarded)) == 10


# --- session loss ---


def test_a_lost_session_is_torn_down_before_the_next_snapshot() -> None:
    """Session Present 0 with values: tear-down first, then a new epoch with a new snapshot."""
    pair = Pair(primary=filled())
    pair.go_live()
    epoch = pair.session.lifecycle.epoch
    pair.lose()
    pair.primary.has_session = False
    pair.primary.retained.clear()
    pair.connect()
    assert pair.states() == [S.DOWN, S.CONNECTING, S.TEARING_DOWN]
    assert pair.of(TearDown) == [TearDown("the primary has no session for this link any more")]
    assert pair.session.lifecycle.epoch == epoch, "the tear-down belongs to the old epoch"
    pair.primary.deliver(b"plant/0", b"early")
    pair.pump()
    assert pair.of(Applied) == []
    pair.now += 1
    pair.tear_down()
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.epoch > epoch
    assert pair.values() == {}
    assert pair.session.counters.epochs_total == 2


def test_a_long_tear_down_is_followed_by_a_snapshot_whatever_the_keep_alive_asked() -> None:
    """No PINGREQ is under way when it ends, for the answer to the next one means something."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.primary.has_session = False
    pair.connect()
    pair.primary.swallow = (Pingresp, Unsuback)
    pair.wait(30)
    assert pair.is_in(S.TEARING_DOWN)
    assert pair.primary.unsubscribes, "the primary hears of the link"
    pair.primary.swallow = ()
    pair.tear_down()
    assert pair.is_in(S.LIVE)


def test_no_packet_identifier_is_used_twice_when_an_epoch_begins() -> None:
    """What was asked of a fanout node in front of the new session's snapshot has its own [MQTT-2.2.1-3]."""
    pair = Pair(primary=filled(connack=Connack(False, 0, STAMPING)))
    pair.connect(pump=False)
    for _ in range(2):
        pair.primary.receive(pair.session.take_output())
        pair.feed(pair.primary.take() if not pair.primary.subscribes else b"")
    packet_ids = [packet.packet_id for packet in pair.primary.subscribes]
    assert len(packet_ids) == 2
    assert len(set(packet_ids)) == 2


def test_a_session_that_has_expired_is_given_up_offline() -> None:
    """Values are kept as long as the primary keeps the session, and not longer."""
    pair = Pair(primary=filled(connack=Connack(False, 0, Properties(session_expiry_interval=60))))
    pair.go_live()
    pair.lose()
    pair.wait(59)
    assert pair.is_in(S.DOWN)
    assert pair.values() == VALUES
    pair.wait(2)
    assert pair.is_in(S.TEARING_DOWN)
    assert "expired" in pair.reason()
    pair.tear_down()
    pair.connect()
    assert pair.primary.connects[-1].clean_start


def test_an_epoch_is_never_repeated() -> None:
    """Epochs grow even when the clock stands still."""
    pair = Pair(make_config(session_expiry_s=0), FakePrimary())
    pair.go_live()
    first = pair.session.lifecycle.epoch
    pair.lose()
    pair.connect()
    assert pair.session.lifecycle.epoch == first + 1


def test_losing_a_connection_that_is_down_changes_nothing() -> None:
    """`lost` may be called at any time."""
    pair = Pair()
    pair.lose()
    assert pair.events == []
    pair.tick()
    assert pair.is_in(S.DOWN)
    pair.session.close(end_session=True, now=pair.now)
    assert pair.session.take_output() == b""


def test_close_in_mqtt_3_1_1() -> None:
    """DISCONNECT without Reason Code."""
    pair = Pair(make_config(version=4), filled(version=4))
    pair.go_live()
    pair.session.close(end_session=True, now=pair.now)
    assert pair.session.take_output() == b"\xe0\x00"


# --- holding ---


@pytest.mark.parametrize("after", range(6))
def test_silence_while_nothing_is_read_is_not_the_primarys_fault(after: int) -> None:
    """Wherever the hold begins, from CONNECT to the last SUBACK, the link becomes live on the same connection."""
    pair = Pair(primary=filled())
    pair.connect(pump=False)
    for _ in range(after):
        pair.primary.receive(pair.session.take_output())
        pair.feed(pair.primary.take())
    pair.hold()
    pair.pump()
    pair.wait(100)
    pair.release()
    assert pair.is_in(S.LIVE)
    assert pair.of(Failed) == []
    assert len(pair.primary.connects) == 1


def test_a_primary_that_is_silent_after_a_hold_is_left() -> None:
    """It has the time that it had left, and that for reading what has come."""
    pair = Pair(primary=filled(swallow=(Connack,)))
    pair.connect()
    pair.wait(6)
    pair.hold()
    pair.wait(20)
    pair.release()
    pair.wait(8)
    assert pair.of(Failed) == []
    pair.wait(2)
    assert "does not answer CONNECT" in pair.failure()


def test_a_live_link_that_reads_nothing_is_stalled_and_keeps_its_connection() -> None:
    """It is behind, so it is not ready; the primary hears of it, and is verified when it is heard again."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.hold()
    pair.wait(200)
    assert pair.states() == [S.STALLED]
    assert pair.primary.unsubscribes, "the Keep Alive goes on"
    assert (pair.session.control.lag_ns(pair.now) or 0) > 100e9
    pair.release()
    assert pair.states() == [S.STALLED, S.VERIFYING, S.LIVE]
    assert pair.of(Failed) == []


@pytest.mark.parametrize("connected", [True, False])
def test_nothing_expires_during_a_hold(connected: bool) -> None:
    """Its removals would be more for who has too much; they are due at once behind the hold, and nothing is before."""
    pair = Pair(make_config(heartbeat_s=0.0), primary=filled())
    pair.go_live()
    pair.primary.publish(b"plant/0", b"x", properties=b"\x02\x00\x00\x00\x03")
    pair.pump()
    if not connected:
        pair.lose()
    pair.hold()
    pair.now += 5
    pair.events.clear()
    pair.tick()
    assert b"plant/0" in pair.values()
    assert pair.of(Applied) == []
    assert pair.session.deadline(now_ns=pair.now_ns, now=pair.now) > pair.now
    pair.session.hold(False, now=pair.now)
    assert pair.session.deadline(now_ns=pair.now_ns, now=pair.now) == pair.now
    pair.tick()
    assert pair.dispatched() == [(b"plant/0", b"")]


@pytest.mark.parametrize("after", range(1, 4))
def test_a_node_that_did_not_run_reads_what_has_come_before_it_judges(after: int) -> None:
    """Stopped for longer than the primary may take: its answers are there, and wait to be read."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.lose()
    pair.connect(pump=False)
    answers = b""
    for _ in range(after):
        pair.feed(answers)
        pair.primary.receive(pair.session.take_output())
        answers = pair.primary.take()
    pair.feed(answers[: len(answers) // 2])
    assert not pair.is_in(S.LIVE)
    pair.held = [answers[len(answers) // 2 :]]  # in the socket
    pair.now += 60
    pair.tick()
    unread, pair.held = pair.held, None
    for data in unread:
        pair.feed(data)
    pair.pump()
    assert pair.is_in(S.LIVE)
    assert pair.of(TearDown) == []
    assert pair.of(Failed) == []


# --- forwarding ---


def test_forwarded_messages_get_the_primarys_verdict() -> None:
    """A forwarded message is published with its flags and properties, and the primary's answer is told."""
    pair = Pair(make_config(Selector("plant/#", qos=2, writes="forward")), filled())
    pair.go_live()
    tokens = [
        pair.session.forward(
            OutgoingMessage(b"plant/0", b"one", retain=True, properties=b"\x01\x01", expiry_s=5),
            now_ns=pair.now_ns,
            now=pair.now,
        ),
        pair.session.forward(OutgoingMessage(b"plant/1", b"two", qos=2), now_ns=pair.now_ns, now=pair.now),
    ]
    pair.pump()
    assert pair.of(Forwarded) == [Forwarded(token, ReasonCode.SUCCESS) for token in tokens]
    assert pair.primary.published[-2:] == [(b"plant/0", b"one", 0b0011), (b"plant/1", b"two", 0b0100)]
    assert pair.values()[b"plant/0"] == b"one"
    assert (b"plant/1", b"two") in pair.dispatched()


def test_forwarding_respects_the_receive_maximum_and_keeps_room_for_heartbeats() -> None:
    """What exceeds the primary's Receive Maximum waits; beyond a bound it is refused."""
    pair = Pair(primary=filled(connack=Connack(False, 0, Properties(receive_maximum=20))))
    pair.go_live()
    pair.primary.swallow = (Ack,)
    published = len(pair.primary.published)
    for _ in range(10_016):
        assert isinstance(
            pair.session.forward(OutgoingMessage(b"plant/0", b"x"), now_ns=pair.now_ns, now=pair.now), int
        )
    assert pair.session.forward(OutgoingMessage(b"plant/0", b"x"), now_ns=pair.now_ns, now=pair.now) is BUSY
    pair.pump()
    assert len(pair.primary.published) == published + 16
    pair.wait(6)
    assert pair.primary.published[-1][0] == pair.session.control.topic
    pair.lose()
    given_up = [event for event in pair.of(Forwarded) if event.reason_code is UNAVAILABLE]
    assert len(given_up) == 10_000
    pair.primary.swallow = ()
    pair.connect()
    assert len(pair.of(Forwarded)) == 10_016


def test_a_message_that_the_primary_does_not_take_is_refused() -> None:
    """The primary would close the connection at it, and at each attempt to send it again: it never leaves."""
    limits = Properties(maximum_packet_size=1000, retain_available=0, maximum_qos=1)
    pair = Pair(primary=filled(connack=Connack(False, 0, limits)))
    pair.go_live()

    def forward(message: OutgoingMessage) -> int | ReasonCode:
        return pair.session.forward(message, now_ns=pair.now_ns, now=pair.now)

    assert forward(OutgoingMessage(b"plant/0", b"x" * 1000)) is NOT_TAKEN
    assert forward(OutgoingMessage(b"plant/0", b"x", retain=True)) is NOT_TAKEN
    largest = 1000 - len(OutgoingMessage(b"plant/0", b"").encode(1, version=5)) - 1  # one more byte says how long it is
    assert forward(OutgoingMessage(b"plant/0", b"x" * (largest + 1))) is NOT_TAKEN
    published = len(pair.primary.published)
    forward(OutgoingMessage(b"plant/0", b"x" * largest, qos=2))
    pair.pump()
    ((_, payload, flags),) = pair.primary.published[published:]
    assert (len(payload), flags >> 1) == (largest, 1), "at the primary's Maximum QoS"
    assert [event.reason_code for event in pair.of(Forwarded)] == [ReasonCode.SUCCESS]


def test_a_primary_without_retained_messages_gets_no_sentinel() -> None:
    """It would close the connection at one [MQTT-3.2.2-14]; the sets are taken by silence."""
    pair = Pair(
        primary=filled(retained={}, system_topics=False, connack=Connack(False, 0, Properties(retain_available=0)))
    )
    pair.connect()
    pair.wait(12)
    assert pair.is_in(S.LIVE)
    assert not any(flags & 1 for _, _, flags in pair.primary.published)


def test_forwarded_messages_of_a_lost_session_are_given_up() -> None:
    """When the session is gone, nobody will say what became of them."""
    pair = Pair(primary=filled())
    pair.go_live()
    pair.primary.swallow = (Ack,)
    token = pair.session.forward(OutgoingMessage(b"plant/0", b"x"), now_ns=pair.now_ns, now=pair.now)
    pair.pump()
    pair.lose()
    pair.primary.has_session = False
    pair.primary.swallow = ()
    pair.connect()
    pair.tear_down()
    assert pair.of(Forwarded) == [Forwarded(int(token), UNAVAILABLE)]


# --- corners ---


def test_evidence_of_an_attempt_that_was_cut_off_does_not_count() -> None:
    """When the snapshots are taken again, every selector is proved again."""
    pair = Pair(make_config(Selector("plant/#"), Selector("office/#")), filled())
    pair.connect_until_complete()
    pair.lose()
    assert pair.session.lifecycle.evidence == [Evidence.MARKER, None]
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.feed(pair.primary.take())
    assert pair.session.lifecycle.evidence == [None, None]
    pair.pump()
    assert pair.session.lifecycle.evidence == [Evidence.MARKER, Evidence.MARKER]
    assert pair.is_in(S.LIVE)


@pytest.mark.parametrize(
    ("count", "told"),
    [(b"12500", "got 0 of 12500 retained messages that the primary says it has in all"), (b"many", ""), (b"0", "")],
)
def test_a_shortfall_has_a_measure(count: bytes, told: str) -> None:
    """What the primary says it has in all stands beside what came; what is no number, or not more, is left out."""
    pair = Pair(primary=filled(retained={b"$SYS/broker/retained messages/count": count, b"plant/1": b"x"}))
    pair.primary.swallow = (Pingresp,)
    pair.connect()
    pair.primary.swallow = ()
    pair.feed(encode(Pingresp(), version=5))
    assert pair.is_in(S.SNAPSHOT)
    pair.session.take_output()
    pair.wait(120)
    assert "the retained set of plant/# ended after 0 topics" in pair.reason()
    assert pair.reason().endswith(told)
    assert pair.session.counters.outside_total == 0
