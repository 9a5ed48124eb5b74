"""Tests of shared subscriptions."""

from __future__ import annotations

from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.share_groups import SharedSubscriptions
from tests.server.core_pieces import Peer, make_session, options

KEY = (b"group", b"a/+")


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
