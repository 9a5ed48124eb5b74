"""Cuts at the heartbeats of a pool's members: a session machine joined to a primary without I/O."""

from __future__ import annotations

import pytest

from fanout.chain.cut import RetainedSet
from fanout.link.liveness.member_cuts import OWN_CUTS_MAX, alone_payload
from fanout.link.model.events import MarkerPassed, MemberUnheard
from fanout.link.model.states import LinkState
from fanout.replica.update import content_digest
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

OTHER = b"fanout/control/edge-2/plant"
MARKER = b"123 4"


def cut(pair: Pair, *nodes: str) -> None:
    """Let the link send a heartbeat, and listen to those of some members."""
    pair.events += pair.session.run(pair.session.cut, nodes, now_ns=pair.now_ns, now=pair.now)
    if pair.session.lifecycle.connected:
        pair.pump()


def held(values: dict[bytes, bytes]) -> RetainedSet:
    """Return what a replica with these values holds."""
    return RetainedSet(len(values), sum(content_digest(*one) for one in values.items()) % 2**64)


def test_each_selector_has_its_own_sum() -> None:
    """Except those that take live messages only: members have them for different times."""
    selectors = (Selector("plant/a/#"), Selector("plant/b/#", live_only=True), Selector("plant/c/#"))
    pair = Pair(make_config(selectors=selectors))
    pair.go_live()
    cut(pair, "edge-2")
    for topic in (b"plant/a/1", b"plant/b/1", b"plant/c/1", b"plant/c/2"):
        pair.primary.publish(topic, b"v")
    pair.primary.publish(OTHER, MARKER, retain=False)
    pair.pump()
    found = pair.session.cuts.newest("edge-2")
    assert found is not None
    both = {b"plant/c/1": b"v", b"plant/c/2": b"v"}
    assert found.sets == (held({b"plant/a/1": b"v"}), None, held(both))


@pytest.mark.parametrize(("policy", "known"), [("bridge", True), ("keep", False)])
def test_over_mqtt_3_1_1_a_link_compares_as_a_bridge_only(policy: str, known: bool) -> None:
    """Otherwise it keeps messages that were never retained, from when it came."""
    pair = Pair(make_config(version=4, retain_policy=policy))
    pair.go_live()
    cut(pair, "edge-2")
    pair.primary.publish(OTHER, MARKER, retain=False)
    pair.pump()
    found = pair.session.cuts.newest("edge-2")
    assert found is not None
    assert (found.sets != (None,)) is known


def test_nothing_is_compared_while_values_expire() -> None:
    """One member has removed them, and another has not yet."""
    pair = Pair()
    pair.go_live()
    cut(pair, "edge-2")
    pair.primary.publish(b"plant/a", b"1", properties=b"\x02\x00\x00\x00\x05")
    known = []
    for number in range(10):
        pair.primary.publish(OTHER, b"123 %d" % number, retain=False)
        pair.pump()
        found = pair.session.cuts.newest("edge-2")
        assert found is not None
        assert found.marker == f"123 {number}"
        known.append(found.sets != (None,))
        pair.wait(1)
    assert pair.values() == {}
    assert known == [True] * 4 + [False] * 3 + [True] * 3


def test_what_is_no_new_heartbeat_is_no_cut() -> None:
    """A message that is sent again may have had another place; a stranger's text is nothing."""
    pair = Pair()
    pair.go_live()
    cut(pair, "edge-2")
    own = pair.session.cuts.own
    before = dict(own)
    pair.primary.deliver(OTHER, MARKER, qos=1, dup=True)
    for payload in (b"", b"hello", b"1 2 3", b"1" * 21 + b" 1", b"\xff 1"):
        pair.primary.publish(OTHER, payload, retain=False)
    pair.pump()
    assert pair.session.cuts.newest("edge-2") is None
    [marker] = before
    pair.primary.publish(b"plant/a", b"1")
    pair.primary.publish(b"fanout/control/edge-1/plant", marker.encode(), retain=False)
    pair.pump()
    assert dict(own) == before


def places(pair: Pair) -> list[MarkerPassed]:
    """Return the places that the link told, those of its own heartbeats left out."""
    return [each for each in pair.of(MarkerPassed) if each.node != "edge-1"]


def test_a_process_that_goes_on_alone_is_heard() -> None:
    """By its own word, which is no heartbeat and no place, whoever sends it again; what is none is not taken for it."""
    pair = Pair()
    pair.go_live()
    cut(pair, "edge-2")
    process, said_s = "0123456789abcdef", pair.session.cuts.said_alone_s
    for payload in (b"alone", b"alone 1", b"alone " + b"g" * 16, b"alone " + b"0" * 33, b"123 4"):
        pair.primary.publish(OTHER, payload, retain=False)
    pair.pump()
    assert said_s(process) is None
    pair.wait(1)
    before = list(places(pair))
    pair.primary.publish(OTHER, alone_payload(process), retain=False)
    pair.pump()
    assert said_s(process) == pair.now == pair.session.cuts.heard_s("edge-2")
    assert places(pair) == before


def test_what_this_node_says_of_itself_comes_back() -> None:
    """So that it knows that all members hear it; only while the link is live."""
    pair = Pair()
    process = "0123456789abcdef"
    assert not pair.session.tell_alone(process, now=pair.now)
    pair.go_live()
    cut(pair, "edge-2")
    assert pair.session.tell_alone(process, now=pair.now)
    assert pair.session.cuts.said_alone_s(process) is None
    pair.pump()
    assert pair.session.cuts.said_alone_s(process) == pair.now


@pytest.mark.parametrize("first_dup", [False, True])
def test_a_heartbeat_has_one_place(first_dup: bool) -> None:
    """Its member, or the primary, may send it twice; where it came as a copy first, nobody knows its place."""
    pair = Pair()
    pair.go_live()
    cut(pair, "edge-2")
    if first_dup:
        pair.primary.deliver(OTHER, MARKER, qos=1, dup=True)
    for payload in (MARKER, MARKER, b"123 5", MARKER, b"123 5"):
        pair.primary.publish(OTHER, payload, retain=False)
        pair.primary.publish(b"plant/a", b"1")
    pair.pump()
    wanted = ["123 5"] if first_dup else ["123 4", "123 5"]
    assert [each.marker for each in places(pair)] == wanted
    assert pair.session.cuts.captured_total == 1 + len(wanted)
    pair.primary.publish(OTHER, b"124 1", retain=False)
    pair.pump()
    assert places(pair)[-1].marker == "124 1", "its member has started again, and counts from 1"


def test_a_heartbeat_that_comes_during_an_audit_has_a_place_and_no_cut() -> None:
    """Its place is where it was first, though it comes twice; the replica is not compared there."""
    pair = Pair()
    pair.go_live()
    cut(pair, "edge-2")
    pair.session.audit(confirmed=None, now_ns=pair.now_ns, now=pair.now, reason="test")
    pair.primary.publish(OTHER, MARKER, retain=False)
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    pair.primary.publish(OTHER, MARKER, retain=False)
    pair.pump()
    assert places(pair) == [MarkerPassed("edge-2", "123 4")]
    assert pair.session.cuts.newest("edge-2") is None


def test_own_cuts_are_bounded() -> None:
    """The oldest are forgotten."""
    pair = Pair()
    pair.go_live()
    for _ in range(OWN_CUTS_MAX + 10):
        cut(pair, "edge-2")
    own = list(pair.session.cuts.own)
    assert len(own) == OWN_CUTS_MAX
    assert [int(marker.split()[1]) for marker in own] == sorted(int(marker.split()[1]) for marker in own)


def test_members_are_subscribed_as_they_come_and_go() -> None:
    """Once on each connection, without their retained messages; one that has left is unsubscribed and forgotten."""
    pair = Pair()
    pair.go_live()
    primary = pair.primary
    cut(pair, "edge-2", "edge-3")
    cut(pair, "edge-2", "edge-3")
    assert primary.asked(OTHER, retain_handling=2) == 1
    primary.publish(OTHER, MARKER, retain=False)
    pair.pump()
    cut(pair, "edge-3")
    assert primary.unsubscribes[-1].topic_filters == (OTHER,)
    assert pair.session.cuts.newest("edge-2") is None
    pair.lose()
    pair.connect()
    pair.pump()
    assert pair.is_in(LinkState.LIVE)
    cut(pair, "edge-3", "edge-2")
    assert primary.asked(OTHER, retain_handling=2) == 2
    assert primary.asked(b"fanout/control/edge-3/plant", retain_handling=2) == 2


def test_markers_that_the_primary_dropped_do_not_hide_that() -> None:
    """Room is left for the regular heartbeat, which comes back and shows what was lost."""
    pair = Pair()
    pair.go_live()
    cut(pair, "edge-2")
    pair.primary.silent_control = True
    pair.now += 0.1
    sent = [pair.session.send_heartbeat(now=pair.now) is not None for _ in range(10)]
    pair.pump()
    assert sent == [True] * 7 + [False] * 3
    pair.primary.silent_control = False
    pair.wait(6)
    assert pair.session.counters.heartbeats_lost_total == 7
    assert pair.session.send_heartbeat(now=pair.now) is not None


def test_no_marker_is_sent_while_it_would_not_come_back() -> None:
    """Before the link is live, while it is compared with the primary, and where the primary refuses heartbeats."""
    pair = Pair()
    assert pair.session.send_heartbeat(now=pair.now) is None
    pair.go_live()
    assert pair.session.send_heartbeat(now=pair.now) is not None
    pair.session.audit(confirmed=None, now_ns=pair.now_ns, now=pair.now, reason="test")
    assert pair.session.send_heartbeat(now=pair.now) is None
    pair = Pair(primary=FakePrimary(allow_control=False))
    pair.go_live()
    assert pair.session.send_heartbeat(now=pair.now) is None


def test_nothing_is_done_while_the_link_is_not_live() -> None:
    """A replica that is not complete is compared with nobody."""
    pair = Pair()
    cut(pair, "edge-2")
    assert pair.session.take_output() == b""
    assert pair.session.cuts.topics == frozenset()


def test_heartbeats_that_the_primary_refuses_are_told() -> None:
    """With the topic; they are not asked for again on the connection."""
    pair = Pair(primary=FakePrimary(refuse_filters=(OTHER,)))
    pair.go_live()
    for _ in range(3):
        cut(pair, "edge-2")
    [unheard] = pair.of(MemberUnheard)
    assert unheard.topic == OTHER.decode()
    assert "Not authorized" in unheard.reason
    assert pair.primary.asked(OTHER, retain_handling=2) == 1
