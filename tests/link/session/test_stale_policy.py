"""`on_session_loss = "serve_stale"`: what a session machine keeps, replaces and gives up when its session is lost."""

from __future__ import annotations

from typing import Any

import pytest

from fanout.link.model.events import Failed, TearDown, WentStale
from fanout.link.model.states import LinkState as S
from fanout.link.session.stale_policy import StalePolicy
from fanout.mqtt.packets import Connack
from fanout.mqtt.properties import Properties
from tests.link.fake_primary import FakePrimary, Pair, make_config

VALUES = {b"plant/%d" % number: b"v%d" % number for number in range(10)}


def stale_pair(*, loses: bool = True, **changes: Any) -> Pair:
    """Return a live pair whose primary then loses the session, the connection being lost."""
    config = make_config(on_session_loss="serve_stale", **{"grace_s": 60.0} | changes)
    pair = Pair(config, FakePrimary(retained=dict(VALUES)))
    pair.go_live()
    pair.lose()
    pair.primary.has_session = not loses
    return pair


def test_grace_counts_from_the_first_loss() -> None:
    """Losing the next session too does not prolong it, nor is the first reason forgotten."""
    stale_policy = StalePolicy(make_config(on_session_loss="serve_stale", grace_s=60.0))
    assert stale_policy.begin("first", complete=True, now=1000.0)
    assert stale_policy.begin("second", complete=False, now=1050.0)
    assert (stale_policy.reason, stale_policy.deadline, stale_policy.left_s(1050.0)) == ("first", 1060.0, 10.0)
    stale_policy.end()
    assert stale_policy.left_s(1050.0) is None


def test_only_differences_are_dispatched_after_the_resync() -> None:
    """What is unchanged is not sent again, what changed is, what vanished is removed, what is new comes."""
    pair = stale_pair()
    pair.primary.retained[b"plant/1"] = b"changed"
    del pair.primary.retained[b"plant/2"]
    pair.primary.retained[b"plant/new"] = b"n"
    epoch = pair.session.lifecycle.epoch
    pair.connect()
    assert pair.of(WentStale) == [WentStale("the primary has no session for this link any more")]
    assert pair.of(TearDown) == []
    assert pair.states() == [S.DOWN, S.CONNECTING, S.SNAPSHOT, S.PROVING, S.LIVE]
    assert sorted(pair.dispatched()) == [(b"plant/1", b"changed"), (b"plant/2", b""), (b"plant/new", b"n")]
    assert pair.values() == pair.primary.retained
    assert pair.session.lifecycle.epoch > epoch
    assert pair.session.lifecycle.stale_policy.reason is None


def test_grace_ends_while_the_primary_is_away() -> None:
    """Then the replica is torn down, once, without a connection."""
    pair = stale_pair(connect_timeout_s=5.0)
    pair.connect(pump=False)
    pair.primary.receive(pair.session.take_output())
    pair.feed(pair.primary.take())
    pair.lose()
    assert pair.is_in(S.DOWN)
    pair.wait(59)
    assert pair.values() == VALUES
    pair.wait(2)
    assert pair.is_in(S.TEARING_DOWN)
    assert pair.reason() == "the primary has no session for this link any more; the grace of 60 s is over"
    pair.tear_down()
    assert pair.is_in(S.DOWN)
    assert pair.session.lifecycle.stale_policy.reason is None
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert pair.values() == VALUES


def test_session_that_expires_offline_begins_the_grace() -> None:
    """`session_expiry_s` without a connection, then `grace_s` more; nothing is due in a loop meanwhile."""
    primary = FakePrimary(retained=dict(VALUES), connack=Connack(False, 0, Properties(session_expiry_interval=30)))
    pair = Pair(make_config(on_session_loss="serve_stale", grace_s=60.0), primary)
    pair.go_live()
    pair.lose()
    pair.wait(31)
    assert pair.of(WentStale) == [WentStale("the session at the primary has expired")]
    assert pair.is_in(S.DOWN)
    assert pair.values() == VALUES
    pair.wait(60)
    assert pair.is_in(S.TEARING_DOWN)
    assert "has expired; the grace of 60 s is over" in pair.reason()


def test_lost_messages_make_it_stale() -> None:
    """A resumed session that lost messages is closed; its replica is served on until the next one is proved."""
    pair = stale_pair(loses=False)
    pair.primary.retained[b"plant/1"] = b"missed"
    pair.connect()
    assert "messages were lost" in pair.of(WentStale)[0].reason
    assert len(pair.of(Failed)) == 1
    assert pair.primary.disconnects[-1].properties.session_expiry_interval == 0
    pair.lose()
    assert (pair.states()[-1], pair.values()[b"plant/1"]) == (S.DOWN, b"missed")
    pair.events.clear()
    pair.now += 1
    pair.connect()
    assert pair.primary.connects[-1].clean_start
    assert pair.is_in(S.LIVE)
    assert pair.dispatched() == []
    assert pair.session.lifecycle.stale_policy.reason is None


def test_grace_ends_in_the_middle_of_the_snapshot() -> None:
    """A snapshot that does not come to its end in time is given up with what it was to replace."""
    pair = stale_pair(grace_s=3.0)
    pair.primary.truncate_after = 3
    pair.connect()
    assert pair.session.lifecycle.state in (S.SNAPSHOT, S.PROVING)
    pair.wait(3.1)
    assert pair.is_in(S.TEARING_DOWN)
    assert "the grace of 3 s is over" in pair.failure()
    pair.lose()
    pair.tear_down()
    assert pair.is_in(S.DOWN)


def test_snapshot_that_is_cut_short_stays_stale() -> None:
    """The attempt fails, the values stay for the rest of the grace, and the next attempt may prove them."""
    pair = stale_pair()
    pair.primary.truncate_after = 3
    pair.connect()
    pair.wait(30)
    assert len(pair.of(Failed)) == 1
    assert pair.of(TearDown) == []
    pair.lose()
    assert pair.values() == VALUES
    pair.primary.truncate_after = None
    pair.connect()
    assert pair.is_in(S.LIVE)
    assert len(pair.of(WentStale)) == 1


@pytest.mark.parametrize(("clients", "topics"), [(50, 1_000), (250, 200), (1_000, 120), (10_000, 20)])
def test_pieces_of_a_tear_down_are_worth_a_write_to_everybody(clients: int, topics: int) -> None:
    """They get smaller with the number of clients, but not where that would only make more writes of them."""
    from fanout.link.session.teardown import piece_topics

    assert piece_topics(clients) == topics


@pytest.mark.parametrize(("on_stall", "offered"), [("not_ready", (False, False)), ("serve_stale", (True, False))])
def test_stale_values_are_offered_up_to_an_age(on_stall: str, offered: tuple[bool, bool]) -> None:
    """`on_stall` and `stall_grace_s`."""
    stale_policy = StalePolicy(make_config(on_stall=on_stall, stall_grace_s=60.0))
    assert (stale_policy.offers(59.9), stale_policy.offers(60.0)) == offered
