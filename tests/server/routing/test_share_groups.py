"""Tests of shared subscriptions."""

from __future__ import annotations

from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.share_groups import SharedSubscriptions
from tests.server.core_pieces import Peer, make_session, options

KEY = (b"group", b"a/+")


def test_members_take_turns() -> None:
    """Messages go round all members that can be written to."""
    shared = SharedSubscriptions(AudienceIndex())
    index = shared._index
    peers = [Peer(make_session(str(number))) for number in range(3)]
    for peer in peers:
        shared.subscribe(peer.session, KEY, options())
    ((), (group,)) = index.routes(b"a/b")
    assert len(group) == 3
    assert group.key[1] == b"a/+"
    order = [group.take_turn()[0].client_id for _ in range(6)]
    assert order == ["0", "1", "2", "0", "1", "2"]


def test_member_that_cannot_take_a_message_is_passed_over() -> None:
    """First whoever can be written to, then the connected, then those who are away."""
    shared = SharedSubscriptions(AudienceIndex())
    away, slow, ready = make_session("away"), Peer(make_session("slow")), Peer(make_session("ready"))
    for session in (away, slow.session, ready.session):
        shared.subscribe(session, KEY, options())
    slow.session.pause()
    (group,) = shared._index.routes(b"a/b")[1]
    assert {group.take_turn()[0].client_id for _ in range(4)} == {"ready"}
    shared.unsubscribe(ready.session, KEY)
    assert {group.take_turn()[0].client_id for _ in range(4)} == {"slow"}
    slow.session.disconnect()
    assert {group.take_turn()[0].client_id for _ in range(4)} == {"slow", "away"}


def test_options_of_a_member_may_change() -> None:
    """Subscribing again replaces the options and does not add a member."""
    shared = SharedSubscriptions(AudienceIndex())
    session = make_session()
    shared.subscribe(session, KEY, options(0))
    shared.subscribe(session, KEY, options(2))
    (group,) = shared._index.routes(b"a/b")[1]
    assert len(group) == 1
    assert group.take_turn() == (session, options(2))
    assert session.shared == {KEY: group}


def test_empty_groups_are_gone() -> None:
    """When the last member leaves, nothing of the group is left."""
    shared = SharedSubscriptions(AudienceIndex())
    session, other = make_session(), make_session("other")
    shared.subscribe(session, KEY, options())
    shared.subscribe(session, (b"group", b"b"), options())
    shared.subscribe(other, KEY, options())
    shared.leave(session)
    assert not session.shared
    assert shared._index.routes(b"b") == ((), ())
    assert shared.unsubscribe(other, KEY)
    assert not shared.unsubscribe(other, KEY)
    assert shared._index.routes(b"a/b") == ((), ())
