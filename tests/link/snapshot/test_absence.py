"""Topics that a comparison does not bring: kept without evidence that they are deleted, removed with it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from fanout.link.model.audit_report import AuditReport
from fanout.link.model.events import AbsenceAsked, AuditCalled, AuditEnded, TopicsMissing
from fanout.link.model.states import LinkState
from fanout.link.snapshot.absence import EVIDENCE_WAIT_S, find_whole_branch
from fanout.link.snapshot.audit import RETRY_S
from fanout.link.snapshot.sys_count import UPTIME
from fanout.replica.store import Replica
from fanout.replica.update import Phase
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.support.updates import update

VALUES = {b"plant/%d" % number: b"old" for number in range(500)}


def live(primary: FakePrimary | None = None, *selectors: Selector, **changes: Any) -> Pair:
    """Return a live link to a primary with five hundred topics that counts them."""
    pair = Pair(make_config(*selectors, **changes), primary or FakePrimary(retained=dict(VALUES)))
    pair.go_live()
    return pair


def audit(pair: Pair, *, confirmed: int | None = None, seconds: float = 0.0) -> AuditReport:
    """Make an audit, and return its report without its duration."""
    pair.events.clear()
    pair.audit(confirmed=confirmed)
    pair.wait(seconds)
    reports = [replace(each.report, seconds=0) for each in pair.of(AuditEnded)]
    return reports[0]


def unconfirmed(pair: Pair) -> int:
    """Return the number of unconfirmed topics."""
    return len(pair.replica.unconfirmed)


def test_hidden_topics_are_kept() -> None:
    """The primary counts what it counted before, so they are there: no value leaves, and no client is told a thing."""
    pair = live()
    pair.primary.hidden = set(list(VALUES)[:40])
    assert audit(pair) == AuditReport(False, checked=500, kept=40)
    assert pair.dispatched() == []
    assert (unconfirmed(pair), pair.values()) == (40, VALUES)
    assert pair.of(TopicsMissing) == [TopicsMissing(0, 40, b"", "")]


def test_deleted_topics_are_removed_with_the_primarys_count() -> None:
    """It fell by exactly as many as are missing."""
    pair = live()
    for topic in list(VALUES)[:40]:
        del pair.primary.retained[topic]
    assert audit(pair) == AuditReport(False, checked=500, removed=40)
    assert (unconfirmed(pair), pair.values()) == (0, pair.primary.retained)


def test_deletions_that_the_primary_dropped_show_in_its_count() -> None:
    """As of a reader with a full queue, between two heartbeats: it has fewer values than are here, again and again."""
    pair = live(FakePrimary(retained=dict(VALUES), counts=False))
    for topic in list(VALUES)[:60]:
        del pair.primary.retained[topic]
    pair.primary.deliver(UPTIME, b"1 seconds", retain=True)
    for figures in range(6):
        assert pair.of(AuditCalled) == [], figures
        pair.primary.tell_count()
        pair.pump()
    told = "the primary has 10 retained messages fewer than there are topics here"
    assert pair.of(AuditCalled) == [AuditCalled(told)]
    pair.wait(EVIDENCE_WAIT_S + 1)
    assert [each.report.kept for each in pair.of(AuditEnded)] == [60], "the audit that was called for"


def test_the_count_is_waited_for_and_done_without_when_it_stays_away() -> None:
    """The values are kept meanwhile; a primary that does not count at all is not waited for."""
    pair = live(heartbeat_s=0.0)
    del pair.primary.retained[b"plant/0"]
    pair.primary.counts = False
    pair.audit()
    pair.wait(EVIDENCE_WAIT_S - 1)
    assert pair.of(AuditEnded) == []
    assert unconfirmed(pair) == 1
    assert pair.session.audit(confirmed=1, now_ns=pair.now_ns, now=pair.now) == "an audit is under way"
    pair.wait(1)
    assert [each.report.kept for each in pair.of(AuditEnded)] == [1]
    other = live(FakePrimary(retained=dict(VALUES), counts=False))
    del other.primary.retained[b"plant/0"]
    assert audit(other).kept == 1


@pytest.mark.parametrize("comes", ["copy", "update", "removal"])
def test_a_topic_is_confirmed_by_its_next_message(comes: str) -> None:
    """A later audit brings it, or the primary publishes it; a removal that is published removes it."""
    pair = live()
    pair.primary.hidden = {b"plant/0", b"plant/1"}
    audit(pair)
    pair.primary.hidden = {b"plant/1"}
    if comes == "copy":
        pair.wait(RETRY_S)
    else:
        pair.primary.publish(b"plant/0", b"new" if comes == "update" else b"")
        pair.pump()
    assert [topic for piece in pair.replica.unconfirmed.pieces() for topic in piece] == [b"plant/1"]
    assert (b"plant/0" in pair.values()) is (comes != "removal")


def test_confirming_wants_the_number() -> None:
    """Another number is refused with the present one; of more than was confirmed nothing is removed."""
    pair = live()
    pair.primary.hidden = {b"plant/0", b"plant/1"}
    audit(pair)
    wrong = pair.session.audit(confirmed=3, now_ns=pair.now_ns, now=pair.now)
    assert wrong == "2 topics are unconfirmed now, not 3"
    pair.primary.hidden |= {b"plant/2"}
    assert audit(pair, confirmed=2) == AuditReport(True, checked=500, kept=3)
    assert audit(pair, confirmed=3) == AuditReport(True, checked=500, removed=3)
    assert len(pair.values()) == 497


def test_a_whole_branch_is_kept_whatever_the_primary_counts() -> None:
    """Access rules are written by branch, and the count may have fallen for another reason."""
    values = {b"plant/%d/%d" % divmod(number, 5): b"old" for number in range(500)}
    pair = live(FakePrimary(retained=dict(values)))
    for number in range(5):
        del pair.primary.retained[b"plant/7/%d" % number]
    assert audit(pair).kept == 5
    assert pair.of(TopicsMissing) == [TopicsMissing(0, 5, b"plant/7", "")]
    assert pair.values() == values


def test_a_resumed_session_keeps_what_is_missing_and_asks_for_evidence_at_once() -> None:
    """Hidden topics stay, unconfirmed; of deleted ones the removals were missed, and they go."""
    pair = live()
    pair.lose()
    pair.primary.hidden = {b"plant/0"}
    pair.connect()
    assert pair.is_in(LinkState.LIVE)
    assert (unconfirmed(pair), pair.values()) == (1, VALUES)
    pair.primary.hidden = set()
    pair.wait(RETRY_S)
    assert unconfirmed(pair) == 0
    pair.lose()
    del pair.primary.retained[b"plant/3"]
    pair.connect()
    assert pair.is_in(LinkState.LIVE)
    assert (unconfirmed(pair), pair.values()) == (0, pair.primary.retained)
    assert pair.session.counters.epochs_total == 1


def test_a_lost_connection_and_a_stall_end_the_wait_for_evidence() -> None:
    """The comparison that follows finds the same again."""
    pair = live(heartbeat_s=0.0)
    pair.primary.hidden = {b"plant/0"}
    pair.primary.counts = False
    pair.audit()
    pair.lose()
    assert [each.report.failure for each in pair.of(AuditEnded)] == ["the connection was lost"]
    assert pair.session.lifecycle.absent.check_due_s == float("inf")
    pair.connect()
    pair.wait(EVIDENCE_WAIT_S)
    assert unconfirmed(pair) == 1


def test_exact_evidence_removes_single_topics() -> None:
    """Also of a branch; but nothing of too many topics, and nothing when nobody asked."""
    pair = live(count_url="http://127.0.0.1:1/", heartbeat_s=0.0)
    pair.primary.hidden = {b"plant/0", b"plant/1", b"plant/2"}
    pair.audit()
    assert pair.of(AbsenceAsked) == [AbsenceAsked()]
    assert pair.of(AuditEnded) == []
    pair.events += pair.session.run(
        pair.session.lifecycle.take_absent, [b"plant/0", b"plant/5"], now_ns=pair.now_ns, now=pair.now
    )
    pair.events += pair.session.run(pair.session.lifecycle.end_absent, now_ns=pair.now_ns, now=pair.now)
    (ended,) = pair.of(AuditEnded)
    assert (ended.report.removed, ended.report.kept) == (1, 2)
    assert pair.values().keys() == VALUES.keys() - {b"plant/0"}
    pair.events.clear()
    pair.session.run(pair.session.lifecycle.take_absent, [b"plant/1"], now_ns=pair.now_ns, now=pair.now)
    assert b"plant/1" in pair.values()
    pair.primary.hidden = set(list(VALUES)[:200])
    assert audit(pair).kept == 199
    assert pair.of(AbsenceAsked) == []


def test_a_step_of_the_clock_during_an_audit_calls_for_another_one_behind_it() -> None:
    """The audit under way may have compared before the step; the second one does not rest half a minute."""
    pair = live(FakePrimary(retained=dict(VALUES), properties=b"\x02\x00\x00\x00\x78"), heartbeat_s=0.0)

    def step() -> None:
        pair.events += pair.session.tick(now_ns=pair.now_ns - 3_600_000_000_000, now=pair.now)
        pair.events += pair.session.tick(now_ns=pair.now_ns, now=pair.now)
        pair.pump()

    step()
    assert pair.of(AuditCalled)[0].reason.startswith("the time of day was set")
    pair.tick()
    assert len(pair.of(AuditEnded)) == 1
    pair.now += 3
    step()
    pair.wait(1)
    assert len(pair.of(AuditEnded)) == 2
    pair.events.clear()
    pair.audit(pump=False)
    pair.events += pair.session.tick(now_ns=pair.now_ns + 3_600_000_000_000, now=pair.now)
    pair.pump()
    assert [bool(each.called) for each in pair.of(AuditEnded)] == [True]
    pair.wait(10)
    assert [bool(each.called) for each in pair.of(AuditEnded)][:2] == [True, False]


def test_branches_are_examined_in_steps() -> None:
    """A hundred thousand missing topics do not stop the event loop."""
    held = [b"plant/%d/%d/%d" % (number, number, part) for number in range(500) for part in range(3)]
    replica = Replica(selectors=(Selector("plant/#"),))
    replica.apply([update(topic) for topic in held], phase=Phase.SNAPSHOT)
    steps: Generator[None, None, bytes] = find_whole_branch(
        replica, [topic for topic in held if not topic.endswith(b"2")]
    )
    assert sum(1 for _ in steps) > 5
