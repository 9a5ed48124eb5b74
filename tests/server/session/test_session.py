"""Tests of a session as a whole: its states, and its place in audience and groups."""

from __future__ import annotations

from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.share_groups import SharedSubscriptions
from fanout.server.routing.subscribers import Collected, SessionState
from fanout.server.session.session import Session
from tests.server.core_pieces import Peer, make_session, options
from tests.server.node_in_memory import update


def batch(payload: bytes, *, qos: int = 0) -> MessageBatch:
    """Make a batch of one message."""
    return MessageBatch([(update(b"t", payload, qos=qos), qos, False, ())], wire=WireVariant(5))


def state_of(session: Session) -> SessionState:
    """Return a session's state, of which a type checker does not conclude that it stays."""
    return session.state


def test_a_session_has_no_dictionary() -> None:
    """Of a session there may be a hundred thousand, and the hot loop looks into its audience: both have slots only."""
    session = make_session()
    AudienceIndex().change(session, added={b"t": options()})
    assert session.audience is not None
    for one in (session, session.audience, Collected(session.audience)):
        assert not hasattr(one, "__dict__")


def test_state_moves_the_session_within_its_groups() -> None:
    """Whose turn it is in a shared subscription follows the state too."""
    index = AudienceIndex()
    shared = SharedSubscriptions(index)
    first, second = Peer(make_session("1")), Peer(make_session("2"))
    for peer in (first, second):
        shared.subscribe(peer.session, (b"g", b"t"), options())
    (group,) = index.routes(b"t")[1]
    first.session.pause()
    assert {group.take_turn()[0] for _ in range(3)} == {second.session}
    first.session.resume()
    assert {group.take_turn()[0] for _ in range(3)} == {first.session, second.session}
