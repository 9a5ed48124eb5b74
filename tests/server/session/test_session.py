"""Tests of a session as a whole: its states, and its place in audience and groups."""

from __future__ import annotations

from fanout.mqtt.decoder import AckRun
from fanout.mqtt.packets import PacketType
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


def test_states_follow_connection_and_backlog() -> None:
    """Absent without a connection, direct with nothing waiting, queued while something waits or is slow."""
    session = make_session()
    assert state_of(session) is SessionState.ABSENT
    peer = Peer(session)
    assert state_of(session) is SessionState.DIRECT
    session.pause()
    assert state_of(session) is SessionState.QUEUED
    session.enqueue(batch(b"1"))
    session.resume()
    assert state_of(session) is SessionState.QUEUED
    peer.take()
    assert state_of(session) is SessionState.DIRECT
    session.disconnect()
    assert state_of(session) is SessionState.ABSENT


def test_state_moves_the_session_within_its_audience() -> None:
    """Its audience writes to it exactly while it is direct."""
    index = AudienceIndex()
    session = make_session()
    index.change(session, added={b"t": options()})
    audience = session.audience
    assert audience is not None
    assert not audience.direct
    Peer(session)
    assert list(audience.direct) == [session]
    session.pause()
    assert list(audience.queued) == [session]


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


def test_session_that_fills_its_window_is_queued_until_it_is_acknowledged() -> None:
    """Sending into a full window takes the session out of the direct ones; taking the rest brings it back."""
    peer = Peer(make_session(), window=1)
    session = peer.session
    session.send(batch(b"1", qos=1), now_ns=0)
    assert state_of(session) is SessionState.DIRECT
    session.send(batch(b"2", qos=1), now_ns=0)
    assert state_of(session) is SessionState.QUEUED
    session.acknowledge(AckRun(PacketType.PUBACK, [1], None))
    peer.take()
    assert state_of(session) is SessionState.DIRECT


def test_acknowledgements_go_to_the_side_that_waits_for_them() -> None:
    """PUBREL belongs to what was received, the others to what was sent."""
    peer = Peer(make_session())
    assert peer.session.acknowledge(AckRun(PacketType.PUBREL, [5], None)) == b"\x70\x03\x00\x05\x92"
    assert peer.session.acknowledge(AckRun(PacketType.PUBREC, [5], None)) == b"\x62\x03\x00\x05\x92"
