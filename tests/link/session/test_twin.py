"""Two processes with one `node.id`: each sign of the other one is an alarm, and the session counts as lost."""

from __future__ import annotations

import pytest

from fanout.link.model.events import Failed, TwinAlarmEnded, TwinAlarmRaised
from fanout.link.model.states import LinkState
from fanout.link.session.twin import FOREIGN_HEARTBEAT, TAKEN_OVER, UNMARKED
from fanout.mqtt.packets import Disconnect
from fanout.mqtt.reason_codes import ReasonCode
from tests.link.fake_primary import FakePrimary, Pair, make_config

S = LinkState
CONTROL = b"fanout/control/edge-1/plant"
VALUES = {b"plant/%d" % number: b"%d" % number for number in range(50)}


def live(*, tells_existed: bool = True) -> Pair:
    """Return a live link; its process has the number 7."""
    pair = Pair(make_config(), FakePrimary(retained=dict(VALUES), tells_existed=tells_existed))
    pair.go_live()
    return pair


def hear(pair: Pair, number: int, *, process: int = 9, dup: bool = False) -> None:
    """Receive a heartbeat of another process."""
    pair.primary.deliver(CONTROL, b"%d %d" % (process, number), qos=1, dup=dup)
    pair.pump()


def signs(pair: Pair) -> list[str]:
    """Return the signs that raised an alarm, in order."""
    return [event.reason.partition(": ")[2] for event in pair.of(TwinAlarmRaised)]


def begin_anew(pair: Pair) -> None:
    """Go on after a lost session, until the link is live again."""
    assert pair.is_in(S.TEARING_DOWN)
    pair.lose()
    pair.tear_down()
    pair.connect()
    assert pair.primary.connects[-1].clean_start, "the session that the other process has is not resumed"
    assert pair.is_in(S.LIVE)


# --- heartbeats ---


def test_the_session_is_lost_once_and_the_alarm_goes_on() -> None:
    """A twin with another Client Identifier goes on as well: one tear-down, and no more."""
    pair = live()
    hear(pair, 1)
    pair.wait(5)
    hear(pair, 2)
    begin_anew(pair)
    pair.events.clear()
    for number in range(3, 40):
        pair.wait(5)
        hear(pair, number)
    assert pair.is_in(S.LIVE)
    assert not pair.states()
    assert not signs(pair), "the same alarm is told once"
    assert pair.session.lifecycle.twin.reason
    pair.wait(59)
    assert not pair.of(TwinAlarmEnded)
    pair.wait(2)
    assert pair.of(TwinAlarmEnded) == [TwinAlarmEnded()]
    assert not pair.session.lifecycle.twin.reason
    assert pair.is_in(S.LIVE)


@pytest.mark.parametrize("dup", [False, True])
def test_heartbeats_of_a_former_process_are_no_twin(dup: bool) -> None:
    """They waited in the session, however many they are, and come before ours does."""
    pair = live()
    pair.wait(11)
    pair.lose()
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    for number in range(10, 18):
        pair.primary.deliver(CONTROL, b"3 %d" % number, qos=1, dup=dup)
    pair.pump()
    pair.wait(60)
    for number in range(10, 18):  # sent again, as by a primary that came back from its store
        hear(pair, number, process=3, dup=dup)
    assert pair.is_in(S.LIVE)
    assert not signs(pair)


def test_own_late_heartbeats_and_other_messages_are_no_twin() -> None:
    """What this process sent may come late or twice; a pool's messages and nonsense have another form."""
    pair = live()
    for number in range(1, 30):
        pair.wait(5)
        hear(pair, number % 7, process=7)
        for payload in (b"alone 0123456789abcdef", b"", b"9", b"9 x", b"9 " + b"1" * 50):
            pair.primary.deliver(CONTROL, payload, qos=1)
        pair.pump()
    assert pair.is_in(S.LIVE)
    assert not signs(pair)


def test_one_of_many_processes_is_recognised() -> None:
    """The memory is bounded, and has the newest."""
    pair = live()
    for process in range(100, 200):
        hear(pair, 1, process=process)
    pair.wait(5)
    hear(pair, 2, process=100)
    assert not signs(pair), "forgotten"
    hear(pair, 2, process=199)
    assert signs(pair) == [FOREIGN_HEARTBEAT]


# --- sessions that are taken over ---


def test_a_session_that_is_taken_over_is_lost() -> None:
    """DISCONNECT says so: what the other one acknowledged is gone, so the session is not resumed."""
    pair = live()
    pair.primary.send(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
    pair.pump()
    assert signs(pair) == [TAKEN_OVER]
    assert "Session taken over" in pair.failure()
    begin_anew(pair)


@pytest.mark.parametrize("state", [S.CONNECTING, S.SNAPSHOT, S.RESUMING, S.VERIFYING, S.STALLED, S.TEARING_DOWN])
def test_a_session_may_be_taken_over_at_any_time(state: LinkState) -> None:
    """The link ends its connection in each state, and has no session any more."""
    pair = Pair(make_config(), FakePrimary(retained=dict(VALUES)))
    if state is S.TEARING_DOWN:
        pair.go_live()
        pair.lose()
        pair.primary.has_session = False
    elif state in (S.RESUMING, S.VERIFYING, S.STALLED):
        pair.go_live()
        if state is not S.STALLED:
            pair.lose()
    if state is S.STALLED:
        pair.primary.silent_control = True
        pair.wait(21)
    else:
        pair.connect(pump=False)
        while not pair.is_in(state):
            pair.primary.receive(pair.session.take_output())
            for packet in pair.primary.take_packets():
                if not pair.is_in(state):
                    pair.feed(packet)
    assert pair.is_in(state)
    pair.events.clear()
    pair.primary.send(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
    pair.feed(pair.primary.take())
    assert len(pair.of(Failed)) == 1
    assert signs(pair) == [TAKEN_OVER]
    assert not pair.session.lifecycle.remote_session.exists or state is S.CONNECTING


def test_a_session_of_another_process_is_not_resumed() -> None:
    """The primary only closed the connection, and has a session again: not the one that was left."""
    pair = live()
    for _ in range(2):
        pair.lose()
        pair.primary.subscriptions = {b"plant/#": pair.primary.subscriptions[b"plant/#"]}  # the other process made it
        pair.connect()
        assert UNMARKED in pair.reason()
        begin_anew(pair)
        pair.events.clear()
    assert pair.session.lifecycle.twin.reason, "the second time as well"


def test_a_session_that_was_left_is_resumed() -> None:
    """As often as the connection is lost, also while the mark is renewed."""
    pair = live()
    for _ in range(3):
        pair.lose()
        pair.connect()
        assert pair.is_in(S.LIVE)
        pair.lose()
        pair.connect(pump=False)  # CONNECT is on its way
        pair.lose()
        pair.connect(pump=False)
        pair.primary.receive(pair.session.take_output())
        pair.feed(pair.primary.take())
        pair.primary.receive(pair.session.take_output())  # the mark is renewed, and nobody hears the answer
        pair.lose()
        pair.connect()
        assert pair.is_in(S.LIVE)
    assert not signs(pair)


def test_a_primary_that_does_not_tell_what_existed_is_not_believed() -> None:
    """It answers every UNSUBSCRIBE that no subscription existed."""
    pair = live(tells_existed=False)
    pair.lose()
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert not signs(pair)


@pytest.mark.parametrize("case", ["refused", "3.1.1", "no control topic"])
def test_links_that_cannot_mark_a_session_go_on_without(case: str) -> None:
    """A SUBSCRIBE that is refused, MQTT 3.1.1, and no right to the control topic."""
    primary = FakePrimary(retained=dict(VALUES), version=4 if case == "3.1.1" else 5)
    pair = Pair(make_config(version=primary.version), primary)
    if case == "refused":
        primary.refuse_filters = tuple(CONTROL + b"/session/%d" % number for number in range(8))
    if case == "no control topic":
        primary.allow_control = False
    pair.go_live()
    marks = [one for one in primary.subscribes if b"/session/" in one.subscriptions[0].topic_filter]
    assert len(marks) == (2 if case == "refused" else 0)
    pair.lose()
    pair.connect()
    assert not signs(pair)
