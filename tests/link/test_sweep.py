"""What a proved set did not bring goes piece by piece: what holds between two pieces, and when it is called proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.link.model.events import Applied, AuditEnded, SelectorComplete, TearDown
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState as S
from fanout.link.session.teardown import DELIVERIES_MAX, TOPICS_MAX
from fanout.replica.update import Phase
from fanout.selection import Selector
from tests.link.fake_primary import FakePrimary, Pair, make_config
from tests.link.fake_server import FakeServer
from tests.link.harness import config_for, removals_by_turn, running
from tests.storage.replicas import STORAGES, Make, replicas

COUNT = 3000
PIECE = 100
VALUES = {b"plant/%04d" % number: b"v%d" % number for number in range(COUNT)}


@pytest.fixture(params=STORAGES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return what makes an empty replica of each kind."""
    with replicas(request.param, tmp_path) as make:
        yield make


def live_pair(make: Make, *selectors: Selector, primary: FakePrimary | None = None, **changes: Any) -> Pair:
    """Return a live pair of many topics that sweeps some at a time."""
    config = make_config(*(selectors or (Selector("plant/#", qos=1),)), **changes)
    replica = make(selectors=config.selectors)
    pair = Pair(config, primary or FakePrimary(retained=dict(VALUES)), replica=replica, piece_topics=PIECE)
    pair.go_live()
    return pair


def sweeping_pair(make: Make, *selectors: Selector, left: int = 0, **changes: Any) -> Pair:
    """Return a pair whose primary came back with few of its topics; the first piece of the others is removed."""
    settings: dict[str, Any] = {"on_session_loss": "serve_stale", "grace_s": 60.0} | changes
    pair = live_pair(make, *selectors, **settings)
    pair.lose()
    pair.primary.has_session = False
    pair.primary.retained = dict(list(VALUES.items())[:left])
    pair.events.clear()
    pair.connect()
    assert pair.session.lifecycle.is_sweeping
    return pair


def pieces(pair: Pair) -> list[int]:
    """Return how many topics were removed at a time."""
    sizes = [sum(not update[1] for update in each.changes.updates) for each in pair.of(Applied)]
    return [size for size in sizes if size]


def finish(pair: Pair) -> int:
    """Do what is due at once until nothing is, and return how many turns that took."""
    turns = 0
    while pair.session.deadline(now_ns=pair.now_ns, now=pair.now) <= pair.now:
        turns += 1
        pair.tick()
    return turns


def test_a_stale_set_goes_in_pieces(make: Make) -> None:
    """Each is due at once, and nothing is told as complete before the last one."""
    pair = sweeping_pair(make)
    assert pair.is_in(S.PROVING)
    assert pieces(pair) == [PIECE]
    assert pair.session.lifecycle.evidence == [None]
    assert pair.session.lifecycle.stale_policy.reason is not None
    assert pair.of(SelectorComplete) == []
    assert finish(pair) >= COUNT // PIECE - 1
    assert pair.is_in(S.LIVE)
    assert pair.values() == {}
    assert sum(pieces(pair)) == COUNT
    assert max(pieces(pair)) == PIECE
    kinds = [type(event) for event in pair.events]
    assert kinds.index(SelectorComplete) > max(at for at, kind in enumerate(kinds) if kind is Applied)
    assert pair.session.lifecycle.evidence == [Evidence.MARKER]
    assert pair.session.lifecycle.stale_policy.reason is None


@pytest.mark.parametrize("qos", [0, 1])
def test_what_comes_between_two_pieces_stays(make: Make, qos: int) -> None:
    """Be it a new value or the very one that was to be swept; what is removed meanwhile is removed once."""
    pair = sweeping_pair(make, left=10)
    pair.primary.publish(b"plant/2998", b"new", qos=qos)
    pair.primary.publish(b"plant/2999", VALUES[b"plant/2999"], qos=qos)
    pair.primary.publish(b"plant/3001", b"created", qos=qos)
    pair.primary.publish(b"plant/0001", b"changed", qos=qos)
    pair.primary.retained[b"plant/2997"] = b""
    pair.primary.publish(b"plant/2997", b"", qos=qos)
    pair.pump()
    assert pair.session.lifecycle.is_sweeping
    finish(pair)
    assert pair.is_in(S.LIVE)
    assert pair.values() == pair.primary.retained
    assert len(pair.primary.retained) == 13
    told = pair.dispatched()
    assert told.count((b"plant/2997", b"")) == 1
    assert (b"plant/2998", b"") not in told
    assert (b"plant/2999", b"") not in told


def test_the_subscription_has_its_qos_before_the_last_piece(make: Make) -> None:
    """What is published while many topics go is received at the selector's QoS, not at that of the snapshot."""
    pair = sweeping_pair(make)
    assert pair.primary.asked(b"plant/#", retain_handling=2) == 2
    finish(pair)
    assert pair.primary.asked(b"plant/#", retain_handling=2) == 2


def test_the_next_selector_waits_for_the_last_piece(make: Make) -> None:
    """One set is proved and swept after the other; each loses only what is its own."""
    pair = sweeping_pair(make, Selector("plant/+", qos=1), Selector("hall/#"), left=5)
    assert pair.primary.asked(b"hall/#") == 1
    finish(pair)
    assert pair.primary.asked(b"hall/#") == 2
    assert pair.is_in(S.LIVE)
    assert pair.values() == dict(list(VALUES.items())[:5])
    assert pair.session.lifecycle.evidence == [Evidence.MARKER, Evidence.MARKER]


def test_a_connection_lost_between_two_pieces(make: Make) -> None:
    """The set is not proved then; the next connection takes it again, and sweeps the rest."""
    pair = sweeping_pair(make, left=10)
    pair.tick()
    held = len(pair.replica)
    pair.lose()
    assert not pair.session.lifecycle.is_sweeping
    assert pair.session.deadline(now_ns=pair.now_ns, now=pair.now) > pair.now
    pair.events.clear()
    pair.connect()
    finish(pair)
    assert pair.is_in(S.LIVE)
    assert pair.of(TearDown) == []
    assert sum(pieces(pair)) == held - 10
    assert pair.values() == pair.primary.retained


def test_the_grace_ends_between_two_pieces(make: Make) -> None:
    """It is the limit for what is stale, whatever becomes of it."""
    pair = sweeping_pair(make)
    pair.now += 61
    pair.tick()
    assert pair.is_in(S.TEARING_DOWN)
    pair.lose()
    pair.tear_down()
    assert pair.is_in(S.DOWN)
    assert pair.values() == {}


def test_nothing_is_swept_while_nothing_is_read(make: Make) -> None:
    """Who takes the batches has too many of them then; it goes on behind that."""
    pair = sweeping_pair(make)
    pair.hold()
    held = len(pair.replica)
    assert pair.session.deadline(now_ns=pair.now_ns, now=pair.now) > pair.now
    pair.tick()
    assert len(pair.replica) == held
    pair.release()
    finish(pair)
    assert pair.is_in(S.LIVE)
    assert pair.values() == {}


def confirm(pair: Pair) -> None:
    """Let an audit find what is missing, and begin another one that an operator confirms."""
    for confirmed in (False, True):
        number = len(pair.replica.unconfirmed)
        begun = pair.session.audit(confirmed=number if confirmed else None, now_ns=pair.now_ns, now=pair.now)
        assert not isinstance(begun, str), begun
        pair.pump()
        if not confirmed:
            finish(pair)
            assert len(pair.values()) == COUNT
            pair.events.clear()


def test_a_confirmed_audit_removes_in_pieces(make: Make) -> None:
    """It ends behind the last one; what comes in between is live, and stays."""
    pair = live_pair(make)
    pair.primary.retained = dict(list(VALUES.items())[:10])
    confirm(pair)
    while not pieces(pair):
        pair.tick()
    assert pair.of(AuditEnded) == []
    assert pair.is_in(S.LIVE)
    for _ in range(2):
        pair.primary.deliver(b"plant/2999", b"same", qos=0, retain=True)
    pair.pump()
    assert [each.changes.phase for each in pair.of(Applied)[-1:]] == [Phase.LIVE]
    assert pair.dispatched()[-2:] == [(b"plant/2999", b"same")] * 2
    finish(pair)
    (ended,) = pair.of(AuditEnded)
    assert (ended.report.failure, ended.report.checked, ended.report.kept) == ("", COUNT, 0)
    assert ended.report.removed == COUNT - 11, "one fewer than was confirmed: it came back meanwhile"
    assert max(pieces(pair)) == PIECE
    assert pair.values() == {**pair.primary.retained, b"plant/2999": b"same"}


def test_an_audit_cut_off_between_two_pieces_tells_what_it_removed(make: Make) -> None:
    """Not what it was about to remove."""
    pair = live_pair(make)
    pair.primary.retained.clear()
    confirm(pair)
    while not pieces(pair):
        pair.tick()
    pair.lose()
    (ended,) = pair.of(AuditEnded)
    assert ended.report.failure
    assert ended.report.removed == sum(pieces(pair)) < COUNT


def test_very_many_missing_topics_are_found_in_steps(make: Make) -> None:
    """A resumed session in which the whole set is missing keeps it, unconfirmed."""
    pair = live_pair(make)
    pair.lose()
    pair.primary.retained.clear()
    pair.connect()
    assert pair.is_in(S.VERIFYING)
    assert pair.session.lifecycle.is_sweeping
    assert finish(pair) >= COUNT // 512
    assert pair.is_in(S.LIVE)
    assert len(pair.replica.unconfirmed) == len(pair.values()) == COUNT


def test_one_common_expiry_is_cut_into_pieces(make: Make) -> None:
    """Values that expire together go some at a time, each piece due at once."""
    primary = FakePrimary(retained=dict(VALUES), properties=b"\x02\x00\x00\x00\x0a")
    pair = live_pair(make, primary=primary)
    assert len(pair.values()) == COUNT
    pair.now += 10
    assert finish(pair) >= COUNT // PIECE
    assert set(pieces(pair)) == {PIECE}
    assert sum(pieces(pair)) == COUNT
    assert pair.values() == {}


async def test_a_sweep_gives_turns_to_others() -> None:
    """Between two turns of the event loop no more is removed than clients can be told of in a few milliseconds."""
    clients = 1000
    primary = FakePrimary(retained=dict(VALUES))
    async with FakeServer(primary) as server:
        config = config_for(server.port, Selector("plant/#", qos=0), on_session_loss="serve_stale", grace_s=600.0)
        async with running(config) as link:
            await link.wait_state(S.LIVE)
            link.sink.clear()
            link.sink.clients = clients
            primary.has_session = False
            primary.retained.clear()
            server.cut()
            removed = await removals_by_turn(link, until="live")
            assert sum(removed) == COUNT
            assert max(removed) <= TOPICS_MAX
            assert max(removed) * clients <= DELIVERIES_MAX
            assert link.sink.named("tear_down") == []
            assert len(link.sink.recorded()) == COUNT
