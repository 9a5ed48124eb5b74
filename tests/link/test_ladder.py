"""The rungs of the evidence ladder, each with a primary that defeats it: then the node is not ready, and says why.

`manifest` is in `test_manifest`, `count` in `test_counting`.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fanout.errors import SnapshotUnproved
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import Applied, AuditEnded, Failed, SelectorComplete, TearDown
from fanout.link.model.evidence import Evidence, Order
from fanout.link.model.states import LinkState
from fanout.link.protocol.forwarding import NOT_TAKEN
from fanout.link.protocol.sys_support import CLOSED_MAX
from fanout.link.snapshot.capability_check import SERVER_SENTINEL
from fanout.link.snapshot.set_proof import PROBES_MAX
from fanout.link.snapshot.two_pass import PASSES_MAX
from fanout.mqtt.packets import Pingresp, Subscribe
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import Running, config_for, logging_to, running

S = LinkState
VALUES = {b"plant/%d" % number: b"old" for number in range(40)}


def primary(**knobs: Any) -> FakePrimary:
    """Return a primary with forty topics."""
    return FakePrimary(retained=dict(VALUES), **knobs)


def foreign(**knobs: Any) -> FakePrimary:
    """Return one whose order is not known: it has no version topic, and takes a sentinel of ours."""
    return primary(system_topics=False, **knobs)


def without_sentinel(**knobs: Any) -> FakePrimary:
    """Return one that neither has a version topic nor takes a sentinel."""
    return primary(system_topics=False, allow_control=False, **knobs)


def request_own_qos(pair: Pair, seconds: float = 60.0) -> None:
    """Connect, and let time pass until the link is live, or was torn down, or the time is over."""
    pair.connect()
    end = pair.now + seconds
    while pair.now < end and not pair.is_in(S.LIVE) and not pair.of(TearDown):
        pair.wait(0.5)


@asynccontextmanager
async def linked(
    one: FakePrimary, *, lines: list[dict[str, object]] | None = None, **settings: Any
) -> AsyncIterator[tuple[Running, Callable[[Callable[[Running], bool]], Any]]]:
    """Run a link to a primary whose late messages leave as time goes by; give it, and a way to wait."""
    config_settings = {"snapshot_quiet_s": 0.2, **settings}
    async with FakeServer(one) as server:
        config = config_for(server.port, **config_settings)
        async with running(config, logger=logging_to([] if lines is None else lines)) as link:

            def tried(condition: Callable[[Running], bool]) -> bool:
                if server.is_connected:
                    server.push()
                return condition(link)

            async def wait_for(condition: Callable[[Running], bool]) -> None:
                await link.wait(lambda: tried(condition))

            yield link, wait_for


# --- which rung is taken ---


@pytest.mark.parametrize(
    ("one", "evidence"),
    [
        (primary(), Evidence.MARKER),
        (primary(allow_control=False), Evidence.BARRIER),
        (foreign(), Evidence.MARKER),
        (primary(version_text=b"other 1.0", allow_control=False), Evidence.BARRIER),
        (without_sentinel(), Evidence.TWO_PASS),
        (without_sentinel(asynchronous=True), Evidence.TWO_PASS),
        (foreign(asynchronous=True), Evidence.TWO_PASS),
        (primary(asynchronous=True, version_text=b"other 1.0"), Evidence.TWO_PASS),
        (without_sentinel(sends_again=False), Evidence.QUIET),
        (without_sentinel(sends_again=False, asynchronous=True), Evidence.QUIET),
    ],
)
def test_the_strongest_evidence_that_is_sound_is_taken(one: FakePrimary, evidence: Evidence) -> None:
    """By what the capability check and the sets show of the primary; and everything is there."""
    pair = Pair(primary=one)
    request_own_qos(pair)
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.evidence == [evidence]
    assert pair.of(SelectorComplete) == [SelectorComplete(0, evidence)]
    assert pair.values() == VALUES
    ordered = evidence.is_at_least(Evidence.BARRIER)
    assert (pair.session.peer.order is Order.KNOWN) == ordered
    assert bool(pair.session.peer.why_unordered) is not ordered
    assert pair.primary.subscriptions[b"plant/#"].qos == 1


def test_each_rung_is_as_strong_as_those_below_it() -> None:
    """From manifest down to quiet."""
    rungs = list(Evidence)
    assert [rung.value for rung in rungs] == ["manifest", "count", "marker", "barrier", "two-pass", "quiet"]
    for number, rung in enumerate(rungs):
        assert [rung.is_at_least(other) for other in rungs] == [False] * number + [True] * (len(rungs) - number)


@dataclass
class ScansLater(FakePrimary):
    """Looks a name up at once, and scans for a filter with wildcards 1.5 s later, without malice."""

    def _on_subscribe(self, packet: Subscribe) -> None:
        before = len(self._out)
        super()._on_subscribe(packet)
        if any(b"#" in each.topic_filter for each in packet.subscriptions):
            sent = self._out[before:]
            late = [packet for packet in sent if b"plant/" in packet and b"/fence" not in packet]
            self._late += late
            self._out[before:] = [packet for packet in sent if packet not in late]


def test_an_empty_set_in_likely_order_is_not_proved_before_silence() -> None:
    """Sentinel, PINGRESP and marker come at once, and the set 1.5 s later: it is late, and is not taken for empty."""
    pair = Pair(primary=ScansLater(system_topics=False, retained=dict(VALUES), burst=0))
    pair.connect()
    pair.wait(1.5)
    assert not pair.is_in(S.LIVE)
    while pair.now < 1060.0 and not pair.is_in(S.LIVE):
        pair.primary.release(1000)
        pair.pump()
        pair.wait(1.5)
    assert pair.is_in(S.LIVE)
    assert pair.values() == VALUES
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert pair.session.peer.why_unordered == "topics of a retained set came after the answers that should follow it"


def test_an_empty_set_in_likely_order_is_proved_by_answers_and_silence() -> None:
    """As long as snapshot_quiet_s; a topic that is created meanwhile costs one more pass, by answers."""
    pair = Pair(primary=foreign())
    pair.primary.retained.clear()
    pair.connect()
    pair.wait(4.9)
    assert not pair.is_in(S.LIVE)
    pair.wait(0.2)
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]
    busy = Pair(primary=foreign())
    busy.primary.retained.clear()
    busy.connect()
    for number in range(40):
        busy.primary.publish(b"plant/%d" % number, b"new")
        busy.pump()
        busy.wait(2.0)
    assert busy.is_in(S.LIVE)
    assert busy.session.lifecycle.evidence == [Evidence.MARKER]


@pytest.mark.parametrize(("left", "waits"), [(32, False), (31, True)])
def test_a_set_much_smaller_than_before_needs_silence_in_likely_order(left: int, waits: bool) -> None:
    """By more than max_removed_percent of what the lost session had; what is smaller by less may be so."""
    pair = Pair(primary=foreign())
    pair.connect()
    assert pair.is_in(S.LIVE)
    pair.lose()
    pair.primary.has_session = False
    pair.primary.retained = dict(list(VALUES.items())[:left])
    pair.connect()
    pair.tear_down()
    assert pair.is_in(S.LIVE) is not waits
    pair.wait(5.1)
    assert pair.is_in(S.LIVE)
    assert len(pair.values()) == left


def test_a_primary_of_unknown_order_is_asked_twice_once() -> None:
    """The second pass confirms the order for the epoch: a resumed session and an audit take one."""
    pair = Pair(primary=foreign())
    pair.go_live()

    def passes() -> int:
        asked = [each.subscriptions[0] for each in pair.primary.subscribes]
        return sum(1 for each in asked if each.topic_filter == b"plant/#" and not each.retain_handling)

    assert passes() == 2
    pair.lose()
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert passes() == 3


# --- marker and barrier ---


@pytest.mark.parametrize("allow_control", [True, False])
@pytest.mark.parametrize("packets", range(8, 46))
def test_evidence_with_a_sentinel_is_defeated_by_a_cut(packets: int, allow_control: bool) -> None:
    """Wherever the primary begins to drop: the link is not live, and says what is missing."""
    pair = Pair(primary=primary(allow_control=allow_control))
    pair.connect(pump=False)
    while not any(each.subscriptions[0].topic_filter == b"plant/#" for each in pair.primary.subscribes):
        pair.primary.receive(pair.session.take_output())
        if pair.primary.subscribes and pair.primary.subscribes[-1].subscriptions[0].topic_filter == b"plant/#":
            break
        pair.feed(pair.primary.take())
    packets_of_the_set = pair.primary.take_packets()
    pair.feed(b"".join(packets_of_the_set[: packets - 8 + 1]))
    whole = len(packets_of_the_set) <= packets - 8 + 1
    pair.primary.truncate_after = 0
    pair.wait(5 * (PROBES_MAX + 2))
    assert not whole
    assert not pair.of(SelectorComplete)
    assert S.LIVE not in pair.states()
    assert "without" in pair.reason()


async def test_an_asynchronous_primary_defeats_marker_and_barrier() -> None:
    """All that was asked for behind the set comes in front of it: the link is live by two passes, and not ready."""
    lines: list[dict[str, object]] = []
    async with linked(foreign(asynchronous=True), lines=lines) as (link, wait_for):
        await wait_for(lambda link: link.status.state is S.LIVE)
        status = link.status
        assert not status.ready
        assert status.evidence is Evidence.TWO_PASS
        assert status.not_ready_reason == (
            "the evidence for plant/# is two-pass, weaker than min_evidence = barrier:"
            " the primary's answers overtake its retained messages"
        )
        assert len(link.replica) == len(VALUES)
        (complete,) = link.sink.named("complete")
        assert (complete["evidence"], complete["detail"]) == (
            "two-pass",
            "the primary's answers overtake its retained messages",
        )
        told = next(line for line in lines if line["event"] == "snapshot complete")
        assert "overtake" in str(told["detail"])


@pytest.mark.parametrize(("wanted", "ready"), [("two-pass", True), ("barrier", False)])
async def test_two_passes_are_enough_where_the_configuration_says_so(wanted: str, ready: bool) -> None:
    """At a primary whose retained messages come by themselves, some at a time."""
    one = without_sentinel(asynchronous=True, burst=3)
    async with linked(one, min_evidence=wanted) as (link, wait_for):

        def complete(link: Running) -> bool:
            one.release(3)
            return link.status.state is S.LIVE

        await wait_for(complete)
        assert link.status.ready is ready
        assert len(link.replica) == len(VALUES)


def test_sets_that_overtake_show_it_although_the_sentinel_did_not() -> None:
    """A sentinel of one message came in time, each time; the set itself does not: the second pass shows it."""
    one = primary(version_text=b"other 1.0")
    pair = Pair(primary=one)
    pair.connect(pump=False)
    while one.asked(b"plant/#") == 0:
        pair.primary.receive(pair.session.take_output())
        if one.asked(b"plant/#"):
            break
        pair.feed(pair.primary.take())
    packets = one.take_packets()
    copies = [packet for packet in packets if b"plant/" in packet]
    pair.feed(b"".join(packet for packet in packets if packet not in copies))
    assert not pair.of(SelectorComplete)
    pair.feed(b"".join(copies))
    pair.pump()
    assert pair.session.lifecycle.evidence == [None]
    for seconds in (11, 200):  # nor is it asked again whether a sentinel comes in time
        pair.wait(seconds)
        assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert "after the answers" in pair.session.peer.why_unordered
    assert pair.session.peer.sentinel is None
    assert pair.values() == VALUES


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("text", [b"other 1.0", b"mosquitto version 2.0.11"])
def test_no_local_that_hides_the_control_topic_is_left_out(text: bytes, is_ordered: bool) -> None:
    """At mochi-mqtt the marker does not come back behind `#`: the set is taken again, and heartbeats come."""
    one = primary(version_text=text, merges_no_local=True, asynchronous=not is_ordered)
    pair = Pair(make_config(Selector("#")), one)
    pair.connect()
    pair.wait(30)
    assert pair.session.lifecycle.evidence == [Evidence.MARKER if is_ordered else Evidence.TWO_PASS]
    assert pair.session.control.lag_ns(pair.now) is not None
    assert pair.states()[-1] is S.LIVE
    assert S.STALLED not in pair.states()
    assert pair.session.counters.epochs_total == 1
    assert not one.subscriptions[b"#"].no_local


def test_a_marker_that_stays_away_without_no_local_is_no_proof() -> None:
    """The set is taken once more without No Local, and is not proved then."""
    one = primary()
    pair = Pair(make_config(Selector("#")), one)
    pair.connect(pump=False)
    while not one.asked(b"#"):
        one.receive(pair.session.take_output())
        if one.asked(b"#"):
            break
        pair.feed(one.take())
    one.silent_control = True
    packets = one.take_packets()
    pair.feed(b"".join(packet for packet in packets if not (b"fanout/control" in packet and packet[0] >> 4 == 3)))
    pair.pump()
    pair.wait(20)
    assert one.asked(b"#") == 2
    assert "without the marker" in pair.failure()


# --- retained messages for wildcards ---


@pytest.mark.parametrize("version", [4, 5])
async def test_a_primary_without_retained_messages_for_wildcards_is_found_out(version: int) -> None:
    """Its sentinel came, and marker and PINGRESP would: the link is never live, and names selector and remedy."""
    one = foreign(version=version, wildcards=False)
    async with linked(one, version=version, retain_policy="keep", min_evidence="quiet") as (link, wait_for):
        await wait_for(lambda link: "wildcards" in (link.status.last_error or ""))
        assert "as plant/# is one" in (link.status.last_error or "")
        assert "live_only = true" in (link.status.last_error_hint or "")
        assert not link.status.ready
        assert "live" not in link.sink.states()
        assert one.asked(b"plant/#") == 0


@pytest.mark.parametrize("selector", [Selector("plant/7"), Selector("plant/#", live_only=True)])
def test_selectors_that_need_no_retained_messages_for_wildcards_are_served(selector: Selector) -> None:
    """One topic, or none that is retained."""
    pair = Pair(make_config(selector), primary=foreign(wildcards=False))
    pair.go_live_with_events()
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]
    assert pair.values() == ({} if selector.live_only else {b"plant/7": b"old"})


def test_the_wildcard_is_unsubscribed_again() -> None:
    """Otherwise a sentinel made anew would come twice."""
    pair = Pair(primary=foreign())
    pair.go_live()
    assert pair.primary.unsubscribes[0].topic_filters == (b"fanout/control/edge-1/plant/+",)
    assert b"fanout/control/edge-1/plant/+" not in pair.primary.subscriptions


def test_a_sentinel_that_comes_late_by_wildcard_shows_that_answers_overtake() -> None:
    """Then retained messages do come for wildcards, and only the order is not known. A later check may find it."""
    one = foreign()
    pair = Pair(primary=one)
    pair.connect(pump=False)
    while one.asked(b"fanout/control/edge-1/plant/+") == 0:
        pair.feed(one.take())
        one.receive(pair.session.take_output())
    packets = one.take_packets()
    sentinels = [packet for packet in packets if b"fence" in packet]
    pair.feed(b"".join([packet for packet in packets if packet not in sentinels] + sentinels))
    pair.pump()
    for _ in range(20):
        if not pair.is_in(S.LIVE):
            pair.wait(1)
    assert pair.is_in(S.LIVE)
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert "overtake" in pair.session.peer.why_unordered
    pair.wait(20)
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]


# --- primaries that close at $SYS ---


@pytest.mark.parametrize("version", [4, 5])
async def test_a_primary_that_closes_at_system_topics_is_not_asked_for_them(version: int) -> None:
    """From the third connection on, for as long as the process lives; with a sentinel of its own the link is ready."""
    lines: list[dict[str, object]] = []
    one = primary(version=version, closes_at_system=True)
    async with FakeServer(one) as server:
        config = config_for(server.port, version=version, retain_policy="keep")
        async with running(config, logger=logging_to(lines)) as link:
            await link.wait(lambda: link.status.ready)
            assert link.status.evidence is Evidence.MARKER
            assert len(one.connects) == CLOSED_MAX + 1
            less = [line["without"] for line in lines if "tried with less" in str(line["event"])]
            assert less == ["requests below $SYS"]
            server.cut()
            await link.wait(lambda: len(one.connects) == CLOSED_MAX + 2 and link.status.ready)
            closed = [each for each in one.subscribes if each.subscriptions[0].topic_filter.startswith(b"$SYS/")]
            assert len(closed) == CLOSED_MAX


@pytest.mark.parametrize("version", [4, 5])
async def test_a_primary_of_mqtt_3_1_1_that_closes_at_messages_gets_none(version: int) -> None:
    """It cannot tell its Maximum QoS; one of MQTT 5 can, and has another reason."""
    one = primary(version=version, closes_at=lambda topic, payload: True)
    async with FakeServer(one) as server:
        config = config_for(server.port, version=version, min_evidence="barrier")
        async with running(config) as link:
            await link.wait(lambda: len(one.connects) > 3 * CLOSED_MAX or link.status.ready)
            assert link.status.ready is (version == 4)
            if version == 4:
                assert link.status.heartbeat_refusal == "the primary closes the connection at a message at QoS 1"
                assert len(one.connects) == 2 * CLOSED_MAX + 1
                assert link.link.forward((b"plant/0", b"x", 0, 0, b"", None, 0), prefix=b"") is NOT_TAKEN


def test_a_primary_that_closes_now_and_then_is_still_asked() -> None:
    """An answer in between makes it begin anew."""
    one = primary(closes_at_system=True)
    pair = Pair(primary=one)
    for closes in (True, False) * 2:
        one.closes_at_system = closes
        pair.connect()
        assert pair.is_in(S.LIVE) is not closes
        pair.lose()
    pair.connect()
    assert pair.session.peer.sentinel == SERVER_SENTINEL


# --- two-pass ---


def test_two_pass_is_defeated_by_a_primary_that_drops_at_random() -> None:
    """No two passes agree: the link is not live, says so, and tries again."""
    one = without_sentinel(lose=lambda number, topic: zlib.crc32(topic, number) % 10 == 0)
    pair = Pair(primary=one)
    request_own_qos(pair, 120)
    assert not pair.of(SelectorComplete)
    assert S.LIVE not in pair.states()
    assert f"was taken {PASSES_MAX} times and never twice the same" in pair.reason()
    assert one.asked(b"plant/#") == PASSES_MAX


def test_two_pass_is_defeated_by_a_primary_that_begins_to_drop() -> None:
    """What the first pass brought is not swept because later ones are cut short alike: it is not live, and says so."""
    pair = Pair(primary=without_sentinel(lose=lambda number, topic: number > 1 and topic > b"plant/2"))
    request_own_qos(pair, 120)
    assert not pair.of(SelectorComplete)
    assert f"was taken {PASSES_MAX} times" in pair.reason()


def test_a_primary_that_goes_silent_behind_its_answers_takes_nothing_away() -> None:
    """Its sentinel came in time, its set once, then nothing: the weakest evidence, with what the first pass brought."""
    pair = Pair(primary=foreign(lose=lambda number, topic: number > 1 and topic.startswith(b"plant/")))
    request_own_qos(pair, 120)
    assert pair.session.lifecycle.evidence == [Evidence.QUIET]
    assert pair.values() == VALUES


def test_two_pass_is_defeated_by_a_reader_that_falls_behind_once() -> None:
    """One pass that is cut short is not enough: there are two more, which agree."""
    one = without_sentinel(lose=lambda number, topic: number == 1 and topic > b"plant/2")
    pair = Pair(primary=one)
    request_own_qos(pair)
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert one.asked(b"plant/#") == 3
    assert pair.values() == VALUES


def test_a_topic_created_between_two_passes_needs_a_third() -> None:
    """Live or late cannot be told: another pass brings it again, or not."""
    pair = Pair(primary=without_sentinel())
    pair.connect()
    pair.wait(7)
    assert pair.is_in(S.PROVING)
    pair.primary.publish(b"plant/new", b"x")
    pair.primary.publish(b"plant/1", b"")
    pair.primary.publish(b"plant/2", b"live")
    pair.pump()
    own_qos_at = pair.now
    while not pair.is_in(S.LIVE) and pair.now < own_qos_at + 30:
        pair.wait(0.5)
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert pair.primary.asked(b"plant/#") == 3
    assert pair.values() == pair.primary.retained


def test_live_traffic_does_not_keep_a_pass_from_ending() -> None:
    """Bytes never cease, but no topic is new."""
    pair = Pair(primary=without_sentinel())
    pair.connect()
    for _ in range(200):
        pair.wait(0.1)
        pair.primary.publish(b"plant/1", b"%f" % pair.now)
        pair.pump()
        if pair.is_in(S.LIVE):
            break
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]


def test_an_old_copy_behind_a_newer_update_is_put_right_soon() -> None:
    """In a first snapshot the last one wins, and passes compare topics only: an audit follows once the link is live."""
    one = without_sentinel(asynchronous=True, burst=1)
    pair = Pair(make_config(audit_interval_s=0.0), one)
    pair.connect()
    while not pair.is_in(S.LIVE):
        if one.asked(b"plant/#") == 2 and one.retained[b"plant/7"] == b"old":
            one.publish(b"plant/7", b"new", qos=0)  # in front of the copies of the second pass, which are made already
            pair.pump()
        one.release(1000)
        pair.pump()
        pair.wait(1)
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert pair.values()[b"plant/7"] == b"old"
    for _ in range(30):
        one.release(1000)
        pair.pump()
        pair.wait(1)
    assert pair.values() == one.retained
    (ended,) = pair.of(AuditEnded)
    assert (ended.report.changed, ended.report.failure) == (1, "")


def churn(pair: Pair, seconds: int) -> None:
    """Create a topic every four seconds, so that no pass is ever silent for five, until one ends or is given up."""
    end = pair.now + seconds
    while pair.now < end and not pair.of(TearDown) and not pair.of(AuditEnded):
        pair.wait(4)
        pair.primary.publish(b"plant/new/%d" % pair.now, b"x", qos=0)
        pair.pump()


def test_topics_that_are_created_all_the_time_do_not_keep_a_pass_for_ever() -> None:
    """Whether they are copies cannot be told: it is given up, and says what keeps it from ending and what to do."""
    pair = Pair(primary=without_sentinel())
    pair.connect()
    churn(pair, 300)
    assert "no visible end: new topics, " in pair.reason()
    failed = pair.of(Failed)[0].error
    assert isinstance(failed, SnapshotUnproved)
    assert "live_only = true" in failed.hint
    assert S.LIVE not in pair.states()


@pytest.mark.parametrize(("gone", "kept"), [(0, 0), (1, 1), (16, 16)])
def test_an_audit_ends_although_topics_are_created_all_the_time(gone: int, kept: int) -> None:
    """Everything held has come, or what did not is asked for by name: nothing is left to wait for."""
    pair = Pair(make_config(audit_interval_s=0.0), without_sentinel())
    request_own_qos(pair)
    pair.wait(60)
    pair.events.clear()
    for number in range(gone):
        del pair.primary.retained[b"plant/%d" % number]
    pair.audit()
    churn(pair, 300)
    (ended,) = pair.of(AuditEnded)
    assert not ended.report.failure
    assert ended.report.kept == kept
    assert pair.primary.subscriptions[b"plant/#"].qos == 1


def test_an_audit_that_lacks_much_while_topics_are_created_is_given_up() -> None:
    """Nothing tells whether the rest is still to come: it fails with that reason, and the link goes on."""
    pair = Pair(make_config(audit_interval_s=0.0), without_sentinel())
    request_own_qos(pair)
    pair.wait(60)
    pair.events.clear()
    for number in range(17):
        del pair.primary.retained[b"plant/%d" % number]
    pair.audit(confirmed=0)
    churn(pair, 300)
    (ended,) = pair.of(AuditEnded)
    assert "no visible end" in ended.report.failure
    assert not ended.report.loss, "everything was answered: nothing shows that an update was dropped"
    assert ended.report.removed == 0
    assert pair.is_in(S.LIVE)
    assert pair.primary.subscriptions[b"plant/#"].qos == 1


# --- quiet ---


def test_quiet_is_defeated_by_a_primary_that_pauses() -> None:
    """More comes during the second pass, so the silence in front of it was none."""
    one = without_sentinel(asynchronous=True, burst=10, sends_again=False)
    pair = Pair(primary=one)
    pair.connect()
    one.release(20)
    pair.pump()
    pair.wait(8)
    assert pair.is_in(S.PROVING)
    one.release(20)
    pair.pump()
    pair.wait(7)
    assert not pair.of(SelectorComplete)
    assert not pair.is_in(S.LIVE)


def test_what_a_lost_session_left_is_swept_with_quiet_too() -> None:
    """The first pass says what is there; that the second brought nothing takes nothing away."""
    one = without_sentinel(sends_again=False)
    pair = Pair(make_config(on_session_loss="serve_stale", grace_s=600.0, audit_interval_s=0.0), one)
    request_own_qos(pair)
    pair.lose()
    pair.primary = without_sentinel(sends_again=False)
    del pair.primary.retained[b"plant/0"]
    pair.connect()
    pair.wait(30)
    assert pair.session.lifecycle.evidence == [Evidence.QUIET]
    assert pair.values() == pair.primary.retained


def test_a_primary_that_does_not_even_answer_is_not_quiet() -> None:
    """Silence without SUBACK and PINGRESP is no end of a set."""
    pair = Pair(primary=without_sentinel())
    pair.connect(pump=False)
    while pair.primary.asked(b"plant/#") == 0:
        pair.primary.receive(pair.session.take_output())
        if pair.primary.asked(b"plant/#"):
            break
        pair.feed(pair.primary.take())
        pair.wait(0)
        pair.now += 1
        pair.events += pair.session.tick(now_ns=pair.now_ns, now=pair.now)
    pair.primary.take()
    pair.primary.swallow = (Pingresp,)
    pair.wait(6)
    assert "without SUBACK and PINGRESP" in pair.reason()


# --- what follows ---


def test_audits_of_an_unordered_primary_remove_nothing_unasked() -> None:
    """What did not come before the silence may still be there."""
    pair = Pair(primary=foreign(asynchronous=True))
    request_own_qos(pair)
    pair.events.clear()
    del pair.primary.retained[b"plant/0"]
    pair.primary.retained[b"plant/1"] = b"new"
    pair.audit()
    pair.wait(12)
    (ended,) = pair.of(AuditEnded)
    assert ended.report == AuditReport(False, checked=40, changed=1, kept=1, seconds=ended.report.seconds)


@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_session_of_an_unordered_primary_is_verified_by_silence(lost: bool) -> None:
    """One pass, compared with the replica; what it lacks is asked for by name, and is unconfirmed then."""
    pair = Pair(primary=foreign(asynchronous=True))
    request_own_qos(pair)
    pair.lose()
    if lost:
        del pair.primary.retained[b"plant/0"]
    pair.connect()
    pair.wait(12)
    assert pair.is_in(S.LIVE)
    assert len(pair.replica.unconfirmed) == lost


def test_nothing_retained_is_transferred_for_live_only() -> None:
    """Retain Handling 2, at the selector's own QoS at once; what is published meanwhile is delivered."""
    pair = Pair(make_config(Selector("plant/#", live_only=True)), primary())
    pair.connect(pump=False)
    while pair.primary.asked(b"plant/#", retain_handling=2) == 0:
        pair.primary.receive(pair.session.take_output())
        pair.primary.publish(b"plant/7", b"now")
        pair.feed(pair.primary.take())
    pair.pump()
    assert pair.is_in(S.LIVE)
    assert pair.values() == {}
    assert pair.primary.asked(b"plant/#") == 0
    assert pair.primary.subscriptions[b"plant/#"].qos == 1
    assert set(pair.dispatched()) == {(b"plant/7", b"now")}
    assert all(not update[3] for each in pair.of(Applied) for update in each.changes.dispatch)
    assert pair.session.pipeline.content is not None
    assert pair.session.pipeline.content.rejected == [{}]


async def test_live_only_needs_no_evidence() -> None:
    """There is no retained set to prove: the other selectors decide."""
    one = without_sentinel()
    async with linked(one, selectors=(Selector("plant/#", live_only=True),), min_evidence="marker") as (link, wait_for):
        await wait_for(lambda link: link.status.state is S.LIVE)
        assert link.status.ready
