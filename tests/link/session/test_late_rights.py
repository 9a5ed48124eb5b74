"""Rights that the primary grants while the link is live: its evidence becomes better without a new epoch."""

from __future__ import annotations

import pytest

from fanout.link.model.events import AuditEnded, SelectorComplete
from fanout.link.model.evidence import Evidence
from fanout.link.session.evidence_retry import PAUSE_MAX_S, PAUSE_MIN_S
from fanout.link.snapshot.capability_check import SERVER_SENTINEL
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config

VALUES = {b"plant/%d" % number: b"%d" % number for number in range(50)}


def without_rights(**changes: object) -> FakePrimary:
    """Return a primary at which the link may read its selector, and nothing else."""
    primary = FakePrimary(retained=dict(VALUES), system_topics=False, allow_control=False)
    for name, value in changes.items():
        setattr(primary, name, value)
    return primary


def grant(primary: FakePrimary) -> None:
    """Let the link read the version, and use its control topic."""
    primary.system_topics = primary.allow_control = True


def evidence_of(pair: Pair) -> Evidence | None:
    """Return the evidence of the only selector."""
    return pair.session.lifecycle.evidence[0]


def live(primary: FakePrimary, **changes: object) -> Pair:
    """Return a link that is live with the evidence of two passes."""
    pair = Pair(make_config(**changes), primary)
    pair.connect()
    pair.wait(40)
    assert evidence_of(pair) is Evidence.TWO_PASS
    return pair


def test_rights_granted_while_live_give_better_evidence_within_a_minute() -> None:
    """The link asks again by itself; epoch, values and state stay, and an audit reports why it was made."""
    primary = without_rights()
    pair = live(primary, audit_interval_s=0.0)
    epoch = pair.session.lifecycle.epoch
    pair.wait(300)
    assert evidence_of(pair) is Evidence.TWO_PASS
    pair.events.clear()
    grant(primary)
    pair.wait(PAUSE_MAX_S + 1)
    assert evidence_of(pair) is Evidence.MARKER
    assert pair.of(SelectorComplete) == [SelectorComplete(0, Evidence.MARKER)]
    assert [event.report.reason for event in pair.of(AuditEnded)] == ["evidence"]
    assert pair.session.lifecycle.epoch == epoch
    assert dict(pair.replica.view.items()).keys() == VALUES.keys()
    assert pair.states() == []
    asked = primary.asked(SERVER_SENTINEL)
    pair.wait(300)
    assert primary.asked(SERVER_SENTINEL) == asked, "a link with enough evidence does not ask again"
    assert pair.session.control.lag_ns(pair.now) is not None


def test_attempts_become_rare() -> None:
    """Without a right they come after 5, 10, 20, 40 and then each 60 s, and no pass is made for them."""
    primary = without_rights()
    pair = live(primary, audit_interval_s=0.0)
    sets, asked = primary.asked(b"plant/#"), primary.asked(SERVER_SENTINEL)
    pair.wait(600)
    attempts = primary.asked(SERVER_SENTINEL) - asked
    assert 10 <= attempts <= 4 + 600 / PAUSE_MAX_S
    assert primary.asked(b"plant/#") - sets <= 1, "but for the audit that settles late copies"
    assert PAUSE_MIN_S < PAUSE_MAX_S


@pytest.mark.parametrize("how", ["audit", "recheck"])
def test_an_operator_makes_it_ask_at_once(how: str) -> None:
    """`fanout audit` and SIGHUP do not wait for the next attempt."""
    primary = without_rights()
    pair = live(primary)
    pair.wait(300)
    grant(primary)
    if how == "audit":
        begun = pair.session.audit(confirmed=None, recheck=True, now_ns=pair.now_ns, now=pair.now)
        assert not isinstance(begun, str)
    else:
        pair.session.run(pair.session.lifecycle.recheck, now_ns=pair.now_ns, now=pair.now)
    pair.pump()
    assert evidence_of(pair) is Evidence.MARKER


def test_heartbeats_begin_at_a_link_whose_evidence_was_enough() -> None:
    """With the sentinel alone the evidence is a barrier; the right to publish gives a lag in a minute."""
    primary = FakePrimary(retained=dict(VALUES), allow_control=False)
    pair = Pair(make_config(), primary)
    pair.go_live()
    assert evidence_of(pair) is Evidence.BARRIER
    pair.wait(300)
    primary.allow_control = True
    pair.wait(PAUSE_MAX_S + 10)
    assert pair.session.control.lag_ns(pair.now) is not None
    pair.audit()
    assert evidence_of(pair) is Evidence.MARKER


def test_an_unknown_kind_of_primary_proves_its_order_again() -> None:
    """A sentinel of the link's own shows an order that is likely, so two passes have to agree."""
    primary = without_rights(version_text=b"other 1.0")
    pair = live(primary)
    primary.allow_control = True
    sets = primary.asked(b"plant/#")
    pair.wait(PAUSE_MAX_S + 20)
    assert evidence_of(pair) is Evidence.MARKER
    assert primary.asked(b"plant/#") - sets >= 2


def test_a_set_that_has_no_typical_size_any_more_is_proved() -> None:
    """Exactly 1,000 topics may be a limit; with one more, the link is ready within a minute or so."""
    values = {b"plant/%d" % number: b"x" for number in range(1_000)}
    primary = FakePrimary(retained=values, version_text=b"other 1.0")
    pair = Pair(make_config(), primary)
    pair.connect()
    pair.wait(200)
    assert evidence_of(pair) is Evidence.TWO_PASS
    primary.publish(b"plant/more", b"x")
    pair.pump()
    pair.wait(PAUSE_MAX_S + 20)
    assert evidence_of(pair) is Evidence.MARKER


def test_an_audit_that_is_asked_for_during_an_attempt_follows_it() -> None:
    """The attempt's pass is the audit's."""
    primary = without_rights(swallow=())
    pair = live(primary)
    pair.hold()
    pair.session.run(pair.session.lifecycle.recheck, now_ns=pair.now_ns, now=pair.now)
    begun = pair.session.audit(confirmed=None, recheck=True, now_ns=pair.now_ns, now=pair.now)
    assert begun == []
    pair.release()
    pair.wait(30)
    assert [event.report.failure for event in pair.of(AuditEnded)][-1:] == [""]


def test_missing_topics_are_kept_in_the_audit_for_evidence() -> None:
    """What the better evidence does not show is unconfirmed, not removed."""
    primary = without_rights()
    pair = live(primary)
    grant(primary)
    primary.hidden = {b"plant/7"}
    pair.wait(PAUSE_MAX_S + 1)
    assert evidence_of(pair) is Evidence.MARKER
    assert len(pair.replica.unconfirmed) == 1
    assert b"plant/7" in pair.replica.view


def test_a_count_is_tried_again_when_its_topics_become_readable() -> None:
    """With `min_evidence = "count"` the figure is asked for until it comes."""
    primary = FakePrimary(retained=dict(VALUES), counts=False)
    pair = Pair(make_config(Selector("#"), min_evidence="count"), primary)
    pair.go_live()
    pair.wait(120)
    assert evidence_of(pair) is Evidence.MARKER
    asked = primary.asked(b"$SYS/#")
    pair.wait(120)
    assert primary.asked(b"$SYS/#") - asked == 2
