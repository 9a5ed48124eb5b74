"""Limits on retained messages that cut each pass alike: what shows them, and that nothing is taken away for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fanout.link.model.events import AuditEnded, SelectorComplete, TearDown
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.snapshot.narrowing import is_likely_limit, narrower_filters
from fanout.link.snapshot.two_pass import PASSES_MAX
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, running

S = LinkState


def foreign(topics: list[bytes], *, limit: int | None) -> FakePrimary:
    """Return a primary that answers in order, has no version topic, and may have a limit."""
    return FakePrimary(retained=dict.fromkeys(topics, b"old"), system_topics=False, limit=limit)


def flat(count: int) -> list[bytes]:
    """Return topics of which no Topic Filter with wildcards matches some only."""
    return [b"plant/%d/t" % number for number in range(count)]


def branched(count: int) -> list[bytes]:
    """Return topics of seven branches, one branch after another."""
    return sorted(b"plant/%d/%d" % (number % 7, number) for number in range(count))


@pytest.mark.parametrize("count", [100, 127, 128, 200, 250, 500, 1000, 1023, 1024, 2500, 5000, 20_000, 65_535, 65_536])
def test_counts_that_limits_are_set_to_are_suspicious(count: int) -> None:
    """And none beside them is."""
    assert is_likely_limit(count)
    assert not is_likely_limit(count + 2)


@pytest.mark.parametrize("count", [0, 1, 10, 50, 64, 99, 300, 999, 1020, 1040, 3000])
def test_other_counts_are_not(count: int) -> None:
    """Small ones least of all: many sets have so few topics."""
    assert not is_likely_limit(count)


@pytest.mark.parametrize(
    ("topic_filter", "topics", "wanted"),
    [
        ("plant/#", [b"plant/a/x/1", b"plant/b/x/2"], [b"plant/a/#", b"plant/a/x/#", b"plant/b/x/#"]),
        ("plant/#", [b"plant/a/x/1", b"plant/a/y/2"], [b"plant/a/x/#", b"plant/a/y/#"]),
        ("+/b/+", [b"a/b/c", b"d/b/e"], [b"a/b/+", b"d/b/+"]),
        ("#", [b"a/b", b"c"], [b"a/#"]),
        ("plant/+", [b"plant/1", b"plant/2"], []),
        ("plant/+/t", [b"plant/1/t", b"plant/2/t"], []),
        ("plant/t", [b"plant/t"], []),
        ("plant/#", [b"plant/a/1", b"plant/a/2"], []),
        ("plant/#", [], []),
    ],
)
def test_narrower_filters_are_of_branches_that_the_set_has_shown(
    topic_filter: str, topics: list[bytes], wanted: list[bytes]
) -> None:
    """All of the newest topic, the smallest of others; none that brings the same as the selector, or one topic only."""
    assert narrower_filters(Selector(topic_filter), topics) == wanted


def test_narrower_filters_are_few() -> None:
    """However many branches there are."""
    assert 8 <= len(narrower_filters(Selector("#"), [b"a/%d/%d" % (n, n) for n in range(2000)])) <= 12


def test_a_limit_is_found_out_by_a_branch() -> None:
    """Each pass brings the same, with all evidence; a branch brings more: never live, and the setting is named."""
    pair = Pair(primary=foreign(branched(80), limit=50))
    pair.connect()
    pair.wait(60)
    assert not pair.of(SelectorComplete)
    assert S.LIVE not in pair.states()
    assert f"was taken {PASSES_MAX} times" in pair.reason()
    assert "match_retained_limit" in pair.failure()


def test_without_a_limit_the_branches_show_nothing() -> None:
    """Two passes, and the subscriptions to the branches are gone."""
    pair = Pair(primary=foreign(branched(80), limit=None))
    pair.go_live()
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]
    assert pair.primary.asked(b"plant/#") == 2
    asked = {each.topic_filter for one in pair.primary.subscribes for each in one.subscriptions}
    branches = {each for each in asked if each.startswith(b"plant/") and each != b"plant/#"}
    assert branches
    assert branches <= {each for one in pair.primary.unsubscribes for each in one.topic_filters}


async def test_a_count_that_may_be_a_limit_is_not_enough_to_be_ready() -> None:
    """Where no branch can show it: as many topics as limits are set to."""
    async with FakeServer(foreign(flat(150), limit=100)) as server, running(config_for(server.port)) as link:
        await link.wait_state(S.LIVE)
        assert not link.status.ready
        assert link.status.evidence is Evidence.TWO_PASS
        assert "exactly 100 retained messages for plant/#" in (link.status.not_ready_reason or "")


@pytest.mark.parametrize(
    "selector",
    [Selector("plant/#", exclude=("plant/7/#", "plant/8/#")), Selector("#"), Selector("plant/#", max_payload=2)],
)
def test_what_is_not_replicated_counts_for_a_limit(selector: Selector) -> None:
    """Excluded topics, a sentinel that the selector covers, and messages that the selector does not take."""
    one = foreign([], limit=100)
    one.retained[b"fanout/control/edge-1/plant/fence"] = b"fence"
    one.retained |= dict.fromkeys(flat(150), b"ab") | {b"plant/9/t": b"long"}
    pair = Pair(make_config(selector), primary=one)
    pair.go_live()
    assert len(pair.values()) < 100
    assert pair.session.lifecycle.evidence == [Evidence.TWO_PASS]
    assert "exactly 100" in pair.session.peer.why_unordered


def test_other_counts_are_proved() -> None:
    """One topic more."""
    pair = Pair(primary=foreign(flat(101), limit=None))
    pair.go_live()
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]


def grown(*, asynchronous: bool = False) -> Pair:
    """Return a live link to a primary whose set has outgrown its limit since."""
    pair = Pair(primary=replace(foreign(flat(40), limit=45), asynchronous=asynchronous))
    pair.connect()
    pair.wait(15)
    assert pair.is_in(S.LIVE)
    for topic in flat(60)[40:]:
        pair.primary.publish(topic, b"new")
    pair.pump()
    assert len(pair.values()) == 60
    pair.events.clear()
    return pair


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_audit_removes_nothing_that_a_limit_cut_off(asynchronous: bool) -> None:
    """What the set did not bring is asked for by name, and is there: the audit fails and says so."""
    pair = grown(asynchronous=asynchronous)
    pair.audit(confirmed=0)
    pair.wait(15)
    (ended,) = pair.of(AuditEnded)
    assert "lacks topics that the primary sends when asked by name" in ended.report.failure
    assert "match_retained_limit" in ended.report.failure
    assert len(pair.values()) == 60
    assert pair.is_in(S.LIVE)


@pytest.mark.parametrize("refused", [(), tuple(flat(3))])
def test_an_audit_keeps_what_does_not_come_by_name_either(refused: tuple[bytes, ...]) -> None:
    """Nor where that is not allowed: the primary may hide it from this user, until an operator knows better."""
    pair = Pair(primary=replace(foreign(flat(40), limit=None), refuse_filters=refused))
    pair.go_live()
    for topic in flat(3):
        del pair.primary.retained[topic]
    pair.audit()
    pair.wait(1)
    assert pair.values().keys() == set(flat(40))
    assert len(pair.replica.unconfirmed) == 3
    pair.audit(confirmed=3)
    pair.wait(1)
    assert pair.values().keys() == set(flat(40)[3:])


def test_a_resumed_session_is_given_up_instead() -> None:
    """A comparison that is cut off proves nothing, neither loss nor that there was none."""
    pair = grown()
    pair.lose()
    pair.connect()
    pair.wait(1)
    assert "lacks topics" in pair.of(TearDown)[0].reason
    assert S.LIVE not in pair.states()
