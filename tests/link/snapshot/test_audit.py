"""Audits of a live link: what they find, what they leave alone, when they are made (T13, T14)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fanout.chain.stamp import encode_stamp
from fanout.config import LinkConfig
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import Applied, AuditEnded, HeartbeatsLost, ResumedAtQos0, TearDown
from fanout.link.model.states import LinkState
from fanout.link.snapshot.audit import RETRY_S, LiveAudits
from fanout.mqtt.packets import Connack, Pingresp, Suback, encode
from fanout.replica.update import Phase, Stamp
from fanout.selection import Selector
from tests.link.fake_primary import STAMPING, FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, logging_to, running

VALUES = {b"plant/%d" % number: b"old" for number in range(10)}


def live(config: LinkConfig | None = None, **knobs: object) -> Pair:
    """Return a live link to a primary with ten topics."""
    pair = Pair(config or make_config(), FakePrimary(retained=dict(VALUES), **knobs))  # type: ignore[arg-type]
    pair.go_live()
    return pair


def test_equal_sets_bring_nothing() -> None:
    """Unchanged values are not delivered again, and the link stays live at the QoS of its selector."""
    pair = live()
    pair.audit()
    assert pair.report() == AuditReport(False, checked=10)
    assert pair.dispatched() == []
    assert pair.states() == []
    assert pair.primary.subscriptions[b"plant/#"].qos == 1
    assert not pair.session.lifecycle.auditing


def cut_in_its_audit(config: LinkConfig | None = None) -> Pair:
    """Return a link whose connection was lost in the middle of an audit."""
    pair = live(config)
    pair.audit(pump=False)
    pair.primary.receive(pair.session.take_output())
    assert pair.primary.subscriptions[b"plant/#"].qos == 0
    pair.lose()
    pair.events.clear()
    return pair


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("qos", "told"), [(0, []), (1, [ResumedAtQos0((0,))]), (2, [ResumedAtQos0((0,))])])
def test_a_session_that_was_left_in_an_audit_tells_it_when_it_is_resumed(qos: int, told: list[object]) -> None:
    """Its subscription had QoS 0 meanwhile: what was published without RETAIN is gone, and no comparison shows it."""
    pair = cut_in_its_audit(make_config(Selector("plant/#", qos=qos)))
    pair.connect(pump=False)
    pair.lose()  # an attempt that fails changes nothing at the primary
    pair.connect()
    assert pair.of(ResumedAtQos0) == told
    assert pair.is_in(LinkState.LIVE)
    pair.lose()
    pair.events.clear()
    pair.connect()
    assert pair.of(ResumedAtQos0) == []


@pytest.mark.usefixtures("large")
async def test_what_a_cut_audit_may_have_lost_is_logged_with_its_selector() -> None:
    """Once, when the session is resumed."""
    lines: list[dict[str, object]] = []
    one = FakePrimary(retained=dict(VALUES))
    async with (
        FakeServer(one) as server,
        running(config_for(server.port, heartbeat_s=30.0), logger=logging_to(lines)) as link,
    ):
        await link.wait_state(LinkState.LIVE)
        one.swallow = (Suback,)  # and nothing else: the audit may wait for a PINGRESP before it begins
        audit = asyncio.ensure_future(link.link.audit())
        await link.wait(lambda: one.subscriptions[b"plant/#"].qos == 0)
        one.swallow = ()
        server.cut()
        assert (await audit).failure == "the connection was lost"
        await link.wait(lambda: len(one.connects) == 2 and link.status.state is LinkState.LIVE)
    told = [line for line in lines if "left in an audit" in str(line["event"])]
    assert [line["selectors"] for line in told] == [["plant/#"]]


@pytest.mark.usefixtures("large")
def test_a_node_that_stops_in_an_audit_leaves_its_session_at_its_own_qos() -> None:
    """So that what is published until it is back waits for it."""
    pair = live()
    pair.audit(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.session.close(end_session=False, now=pair.now)
    pair.primary.receive(pair.session.take_output())
    assert pair.primary.subscriptions[b"plant/#"].qos == 1
    assert len(pair.primary.disconnects) == 1


def test_what_was_missed_is_repaired_and_delivered() -> None:
    """Changed, new and vanished without a message: each is put right, delivered once, as copies of an audit."""
    pair = live()
    del pair.primary.retained[b"plant/0"]
    pair.primary.retained |= {b"plant/1": b"new", b"plant/more": b"new"}
    pair.audit()
    assert pair.report() == AuditReport(False, checked=11, changed=2, removed=1)
    assert sorted(pair.dispatched()) == [(b"plant/0", b""), (b"plant/1", b"new"), (b"plant/more", b"new")]
    assert pair.values() == pair.primary.retained
    assert {event.changes.phase for event in pair.of(Applied) if event.changes.updates} == {Phase.AUDIT}
    pair.events.clear()
    pair.audit()
    assert pair.report() == AuditReport(False, checked=10)


def test_removals_have_a_cap() -> None:
    """Three of ten are more than 20 %: they stay until somebody confirms; what changed is repaired all the same."""
    pair = live()
    for number in range(3):
        del pair.primary.retained[b"plant/%d" % number]
    pair.primary.retained[b"plant/9"] = b"new"
    pair.audit()
    assert pair.report() == AuditReport(False, checked=10, changed=1, kept=3)
    assert len(pair.replica) == 10
    pair.events.clear()
    pair.audit(confirmed=3)
    assert pair.report() == AuditReport(True, checked=10, removed=3)
    assert pair.values() == pair.primary.retained


def test_what_comes_live_meanwhile_is_live() -> None:
    """An update is delivered whatever its value; at QoS 0, where it looks like a copy, if the value is another one."""
    config = make_config(Selector("plant/#"), Selector("office/#", qos=0))
    pair = live(config)
    pair.primary.retained[b"office/1"] = b"same"
    pair.primary.publish(b"office/1", b"same")
    pair.pump()
    pair.events.clear()
    pair.audit(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.primary.publish(b"plant/1", b"old")
    pair.primary.publish(b"plant/2", b"new")
    pair.primary.publish(b"office/1", b"new", qos=0)
    pair.pump()
    assert pair.session.lifecycle.auditing
    pair.wait(0.2)
    assert pair.dispatched() == [(b"plant/1", b"old"), (b"plant/2", b"new"), (b"office/1", b"new")]
    assert pair.report() == AuditReport(False, checked=11)


def test_what_came_live_wins_over_a_late_copy() -> None:
    """A primary whose retained store lags: the copy is older than what came live in front of it, and is left out."""
    pair = live(version_text=b"other 1.0")
    pair.audit(pump=False)
    request = pair.session.take_output()
    pair.primary.deliver(b"plant/1", b"live", qos=1, retain=True)
    pair.primary.deliver(b"plant/2", b"live", qos=1, retain=True)
    pair.primary.retained[b"plant/2"] = b"live"
    pair.primary.receive(request)  # the copy of plant/1 is still the old one
    pair.pump()
    assert pair.values()[b"plant/1"] == pair.values()[b"plant/2"] == b"live"
    assert pair.dispatched() == [(b"plant/1", b"live"), (b"plant/2", b"live")]
    assert pair.report() == AuditReport(False, checked=10)


def test_stamps_tell_what_is_live() -> None:
    """A fanout primary leaves out the copy of a topic for which an update waits: its stamp says that it is no copy."""

    def stamp(sequence: int) -> bytes:
        return encode_stamp(Stamp("root", 1, sequence, 1))

    pair = live(connack=Connack(False, 0, STAMPING), properties=stamp(5))
    pair.audit(pump=False)
    request = pair.session.take_output()
    pair.primary.deliver(b"plant/1", b"first", qos=1, retain=True, properties=stamp(6))
    del pair.primary.retained[b"plant/1"]
    pair.primary.receive(request)
    pair.feed(pair.primary.take())
    assert pair.session.lifecycle.auditing or pair.of(AuditEnded)
    pair.primary.deliver(b"plant/1", b"second", retain=True, properties=stamp(7))
    pair.pump()
    assert pair.values()[b"plant/1"] == b"second"
    assert pair.report().kept == pair.report().removed == 0


def test_audits_are_periodic() -> None:
    """One each interval, give or take a tenth; none with an interval of 0."""
    pair = live(make_config(audit_interval_s=100.0))
    pair.wait(89)
    assert not pair.of(AuditEnded)
    pair.wait(22)
    assert len(pair.of(AuditEnded)) == 1
    pair.wait(220)
    assert len(pair.of(AuditEnded)) in (2, 3)
    never = live(make_config(audit_interval_s=0.0))
    never.wait(500)
    assert not never.of(AuditEnded)


def test_nodes_of_a_pool_audit_at_different_times() -> None:
    """By what differs between processes each has its own interval, at most a tenth more or less than the configured."""
    due = []
    for seed in range(1_700_000_000_000_000_000, 1_700_000_000_000_300_000, 100):  # clocks of some machines are coarse
        audits = LiveAudits(make_config(audit_interval_s=1000.0), seed=seed)
        audits.plan(0.0, took_s=1.0)
        due.append(audits.due_s)
    assert (min(due), max(due)) == pytest.approx((900.0, 1100.0))
    assert len(set(due)) > 2000


@pytest.mark.parametrize(("took_s", "interval_s"), [(0.01, 300.0), (2.9, 300.0), (10.0, 1000.0), (60.0, 3600.0)])
def test_audits_take_a_hundredth_of_the_time(took_s: float, interval_s: float) -> None:
    """Every five minutes where that is less; at most an hour apart; and what is configured wins."""
    audits = LiveAudits(make_config(), seed=1000)
    audits.begin(confirmed=None, now=50.0).passed_s = 50.0 + took_s
    audits.end(now=50.0 + took_s, unconfirmed=0)
    assert audits.due_s == pytest.approx(50.0 + took_s + interval_s)
    audits.plan(1000.0, took_s=took_s)
    assert audits.due_s == pytest.approx(1000.0 + interval_s)
    fixed = LiveAudits(make_config(audit_interval_s=20.0), seed=1000)
    fixed.plan(1000.0, took_s=took_s)
    assert fixed.due_s == pytest.approx(1020.0)


@pytest.mark.parametrize("packets", range(13))
def test_an_audit_that_is_cut_short_removes_nothing(packets: int) -> None:
    """Wherever the primary begins to drop: it is told, the replica stays, and the next audit follows soon."""
    pair = live(make_config(heartbeat_s=0.0, audit_interval_s=0.0))
    del pair.primary.retained[b"plant/0"]
    pair.audit(pump=False)
    pair.primary.truncate_after = packets  # SUBACK, nine values, the sentinel, PINGRESP, the marker
    pair.pump()
    pair.primary.truncate_after = 0
    pair.wait(15.5)
    assert pair.report().failure
    assert pair.report().loss, "what was dropped may have been updates, too"
    assert pair.session.counters.truncated_total == 0, "it counts as an audit that failed"
    assert len(pair.replica) == 10
    assert pair.is_in(LinkState.LIVE)
    assert not pair.of(TearDown)
    pair.primary.truncate_after = None
    pair.events.clear()
    pair.feed(encode(Pingresp(), version=5))
    pair.wait(RETRY_S + 1)
    assert pair.report() == AuditReport(False, checked=10, removed=1)
    assert pair.primary.subscriptions[b"plant/#"].qos == 1


def test_a_primary_that_pauses_in_an_audit_has_not_cut_it_short() -> None:
    """A live link takes such a pause for no loss either: the probes in between are answered behind the set."""
    pair = live(make_config(heartbeat_s=0.0, audit_interval_s=0.0))
    del pair.primary.retained[b"plant/0"]
    held: list[bytes] = []
    with pytest.MonkeyPatch.context() as paused:
        paused.setattr(pair.primary, "receive", held.append)
        pair.audit()
        pair.wait(12)
    pair.primary.receive(b"".join(held))
    pair.pump()
    assert pair.report() == AuditReport(False, checked=10, removed=1)


def test_copies_that_come_after_an_audit_was_given_up_are_not_delivered_again() -> None:
    """A primary that was only paused answers at last; from the PINGRESP behind the copies on, all is live again."""
    pair = live(make_config(heartbeat_s=0.0, audit_interval_s=0.0))
    held: list[bytes] = []
    with pytest.MonkeyPatch.context() as paused:
        paused.setattr(pair.primary, "receive", held.append)
        pair.audit()
        pair.wait(15.1)
    assert pair.report().failure
    pair.primary.retained[b"plant/1"] = b"missed"
    pair.primary.receive(b"".join(held))
    pair.feed(pair.primary.take())
    assert pair.dispatched() == [(b"plant/1", b"missed")]
    assert pair.is_in(LinkState.LIVE)
    pair.primary.publish(b"plant/2", b"old", qos=0)
    pair.pump()
    assert pair.dispatched()[1:] == [(b"plant/2", b"old")]


def test_the_qos_after_an_audit_was_given_up() -> None:
    """The selector's until SUBACK: at QoS 0 absent sessions would miss it. Then that of the message."""
    pair = live(make_config(heartbeat_s=0.0, audit_interval_s=0.0))
    held: list[bytes] = []
    with pytest.MonkeyPatch.context() as paused:
        paused.setattr(pair.primary, "receive", held.append)
        pair.audit()
        pair.wait(15.1)
    assert pair.report().failure
    pair.events.clear()
    request, own_qos_pending = b"".join(held).split(b"\xc0\x00", 1)
    pair.primary.receive(request)
    pair.primary.publish(b"plant/1", b"meanwhile")
    pair.pump()
    pair.primary.receive(b"\xc0\x00" + own_qos_pending)
    pair.primary.publish(b"plant/2", b"behind", qos=0)
    pair.pump()
    updates = [update for each in pair.of(Applied) for update in each.changes.dispatch]
    assert [(update[0], update[2]) for update in updates] == [(b"plant/1", 1), (b"plant/2", 0)]


def test_an_audit_does_not_wait_for_a_dead_primary() -> None:
    """It begins behind the PINGRESP that is under way; when that does not come, the connection is given up."""
    pair = live(make_config(heartbeat_s=0.0, audit_interval_s=0.0))
    pair.primary.swallow = (Pingresp,)
    pair.wait(24)
    assert pair.session.take_output() == b""
    pair.audit()
    pair.wait(5.1)
    assert "does not answer PINGREQ" in pair.failure()


def test_a_sentinel_of_our_own_is_made_anew() -> None:
    """It expires at the primary after a day, and sessions live longer: each audit begins by publishing it.

    What comes back of that is no sentinel: an audit that is cut short in front of the sentinel is not believed.
    """
    pair = live(system_topics=False)
    sentinel = pair.session.control.sentinel_topic
    assert pair.session.peer.sentinel == sentinel
    del pair.primary.retained[sentinel]
    pair.audit()
    assert pair.report() == AuditReport(False, checked=10)
    pair.events.clear()
    assert pair.session.counters.outside_total == 0

    del pair.primary.retained[sentinel]
    del pair.primary.retained[b"plant/0"]
    pair.audit(pump=False)
    pair.primary.truncate_after = 1 + 1 + 1 + 9  # the sentinel coming back, its PUBACK, SUBACK, nine values
    pair.pump()
    pair.primary.truncate_after = None
    pair.wait(5.1)
    assert pair.report().failure
    assert len(pair.replica) == 10


class Stepped(Pair):
    """A pair whose time of day can be set."""

    step_s = 0

    @property
    def now_ns(self) -> int:
        """Unix time in nanoseconds."""
        return super().now_ns + self.step_s * 1_000_000_000


def test_values_expire_again_behind_the_audit_that_a_step_of_the_clock_called_for() -> None:
    """A value that the primary does not bring any more expires by the new time, one that it brings has its own."""
    primary = FakePrimary(retained={b"plant/1": b"x", b"plant/2": b"y"}, properties=b"\x02\x00\x00\x0e\x10")
    pair = Stepped(make_config(), primary)
    pair.go_live()
    pair.step_s = 100_000
    del primary.retained[b"plant/2"]
    pair.wait(6)
    assert not pair.of(AuditEnded)[-1].report.failure
    pair.wait(1)
    assert pair.values() == {b"plant/1": b"x"}
    assert len(pair.replica.unconfirmed) == 0


def removed_topics(pair: Pair) -> list[bytes]:
    """Return the topics that were removed here."""
    return [update[0] for applied in pair.of(Applied) for update in applied.changes.updates if not update[1]]


@pytest.mark.parametrize("step_s", [100_000, -100_000])
@pytest.mark.parametrize("ticks", [False, True], ids=["verified at once", "a tick comes first"])
def test_no_value_expires_when_the_time_of_day_was_set_while_the_link_was_down(step_s: int, ticks: bool) -> None:
    """The session is resumed: the verification corrects the expiries, and finds no losses that are none."""
    primary = FakePrimary(retained={b"plant/1": b"x", b"plant/2": b"y"}, properties=b"\x02\x00\x00\x0e\x10")
    pair = Stepped(make_config(), primary)
    pair.go_live()
    pair.lose()
    pair.now += 1
    pair.step_s = step_s
    pair.connect(pump=not ticks)
    if ticks:
        pair.tick()
    pair.wait(6)
    assert pair.states() == [
        LinkState.DOWN,
        LinkState.CONNECTING,
        LinkState.RESUMING,
        LinkState.VERIFYING,
        LinkState.LIVE,
    ]
    assert removed_topics(pair) == []
    assert pair.values() == primary.retained
    left_s = {round((update[6] - pair.now_ns) / 1e9) for update in pair.replica.values.values()}
    assert left_s <= set(range(3590, 3601))


def test_no_value_expires_when_the_time_of_day_was_set_during_a_comparison() -> None:
    """The audit under way ends before the next tick could notice that; another one follows it."""
    primary = FakePrimary(retained={b"plant/1": b"x", b"plant/2": b"y"}, properties=b"\x02\x00\x00\x0e\x10")
    pair = Stepped(make_config(), primary)
    pair.go_live()
    pair.audit(pump=False)
    pair.now += 0.1
    pair.step_s = 100_000
    pair.pump()
    assert len(pair.of(AuditEnded)) == 1
    assert pair.of(AuditEnded)[0].called, "values may still be wrong"
    pair.wait(6)
    assert [bool(ended.called) for ended in pair.of(AuditEnded)] == [True, False]
    assert removed_topics(pair) == []
    assert pair.values() == primary.retained
    left_s = {round((update[6] - pair.now_ns) / 1e9) for update in pair.replica.values.values()}
    assert left_s <= set(range(3590, 3601))


def test_no_audit_follows_when_nothing_expires_or_clocks_drift() -> None:
    """Without expiries the time of day means nothing to a replica, and no two clocks run alike."""
    pair = Stepped(make_config(audit_interval_s=0.0), FakePrimary(retained={b"plant/1": b"x"}))
    pair.go_live()
    pair.step_s = 100_000
    pair.wait(6)
    pair.primary.publish(b"plant/1", b"y", properties=b"\x02\x00\x00\x0e\x10")
    pair.pump()
    for _ in range(5):
        pair.step_s += 1
        pair.wait(6)
    assert pair.of(AuditEnded) == []


def drop_heartbeats(pair: Pair, count: int = 1) -> None:
    """Let time pass in which the primary drops heartbeats, after their PUBACK, and then the next one come back."""
    pair.primary.silent_control = True
    pair.wait(5 * count)
    pair.primary.silent_control = False
    pair.wait(5)


@pytest.mark.parametrize("interval_s", [0.0, 3600.0])
def test_an_audit_follows_when_heartbeats_were_dropped(interval_s: float) -> None:
    """A later one came back: the primary drops what is for this link, maybe updates, which are looked for at once."""
    pair = live(make_config(audit_interval_s=interval_s))
    pair.primary.retained[b"plant/0"] = b"new"
    drop_heartbeats(pair, 2)
    assert pair.of(HeartbeatsLost) == [HeartbeatsLost(2)]
    assert pair.session.counters.heartbeats_lost_total == 2
    assert pair.report() == AuditReport(False, checked=10, changed=1)
    assert pair.values() == pair.primary.retained
    assert pair.states() == [], "live all the time"
    pair.wait(60)
    assert len(pair.of(AuditEnded)) == 1


def test_audits_that_dropped_heartbeats_call_for_have_a_pause_between() -> None:
    """A primary that drops heartbeats all the time does not have the link audit all the time."""
    pair = live(make_config(audit_interval_s=0.0))
    began = pair.now
    for _ in range(30):
        drop_heartbeats(pair)
    assert pair.session.counters.heartbeats_lost_total > 15
    assert 5 <= len(pair.of(AuditEnded)) <= 5 + (pair.now - began) / RETRY_S


def test_heartbeats_that_a_resumed_session_or_an_audit_lost_call_for_no_audit() -> None:
    """Both compare what is held themselves; so does the way back from a stall."""
    pair = live(make_config(audit_interval_s=0.0))
    pair.primary.silent_control = True
    pair.wait(6)
    pair.lose()
    pair.primary.silent_control = False
    pair.connect()
    assert pair.is_in(LinkState.LIVE)
    pair.primary.silent_control = True
    pair.wait(6)
    pair.primary.silent_control = False
    pair.audit()
    assert len(pair.of(AuditEnded)) == 1
    pair.wait(60)
    assert pair.session.counters.heartbeats_lost_total == 0
    pair.primary.silent_control = True
    pair.wait(20.1)
    assert pair.is_in(LinkState.STALLED)
    pair.primary.silent_control = False
    pair.wait(5)
    assert pair.is_in(LinkState.LIVE)
    assert pair.session.counters.heartbeats_lost_total > 2
    pair.wait(60)
    assert len(pair.of(AuditEnded)) == 1


def test_a_refused_heartbeat_is_not_dropped() -> None:
    """The primary has said that it did not take it."""
    pair = live(make_config(audit_interval_s=0.0), control_code=0x97)
    pair.primary.allow_control = False
    pair.wait(6)
    pair.primary.allow_control = True
    pair.wait(60)
    assert pair.session.control.refusal == ""
    assert (pair.session.counters.heartbeats_lost_total, pair.of(AuditEnded)) == (0, [])


@pytest.mark.parametrize(("qos", "lost"), [(0, 1), (1, 0), (2, 0)])
def test_heartbeats_at_qos_0_say_nothing_of_updates_above(qos: int, lost: int) -> None:
    """A primary that grants the control topic QoS 0 may drop them alone."""
    pair = live(make_config(Selector("plant/#", qos=qos), audit_interval_s=0.0))
    topic = pair.session.control.topic
    pair.primary.subscriptions[topic] = replace(pair.primary.subscriptions[topic], qos=0)
    drop_heartbeats(pair)
    pair.wait(60)
    assert pair.session.counters.heartbeats_lost_total == lost
    assert len(pair.of(AuditEnded)) == lost
