"""The session that a primary may have."""

from __future__ import annotations

import pytest

from fanout.link.model.evidence import Order
from fanout.link.model.resumption import Resumption, StoredSession
from fanout.link.protocol.remote_session import RemoteSession
from fanout.link.protocol.sender import PacketSender
from tests.link.fake_primary import make_config

NEVER = float("inf")


def remote_session(*, version: int = 5, session_expiry_s: int = 300) -> tuple[RemoteSession, PacketSender]:
    """Return one of a link that never had a session."""
    config = make_config(version=version, session_expiry_s=session_expiry_s)
    sender = PacketSender(config, node_id="edge-1")
    return RemoteSession(config, sender=sender), sender


@pytest.mark.parametrize(
    ("version", "wanted_s", "granted_s", "exists"),
    [(5, 300, 300, True), (5, 300, 0, False), (5, 0, 300, False), (4, 300, 300, False)],
)
def test_a_session_exists_when_it_outlives_its_connection(
    version: int, wanted_s: int, granted_s: int, exists: bool
) -> None:
    """Over MQTT 3.1.1 no session is resumed: no answer tells whose it is."""
    one, _ = remote_session(version=version, session_expiry_s=wanted_s)
    assert not one.exists
    one.grant(granted_s)
    one.begin()
    assert one.exists is exists


def test_a_session_expires_without_a_connection() -> None:
    """After what the primary grants, and never after more than was asked for; or never."""
    one, _ = remote_session()
    one.go_offline(1000.0)
    one.grant(200)
    assert one.expires_at == 1200.0
    one.grant(400)
    assert one.expires_at == 1300.0
    for_ever, _ = remote_session(session_expiry_s=0xFFFFFFFF)
    assert for_ever.expires_at == NEVER


def stored(*stale_filters: str) -> Resumption:
    """Return what an earlier process left at second 1000 of Unix time."""
    session = StoredSession(
        epoch=1,
        evidence=(None,),
        sentinel=None,
        order=Order.NONE,
        why_unordered="",
        control_permitted=True,
        session_expiry_s=60,
        stale_filters=frozenset(stale_filters),
    )
    return Resumption(session, (), seen_ns=1_000_000_000_000)


@pytest.mark.parametrize(("now_s", "expires_at"), [(1010, 550.0), (990, 560.0)])
def test_the_session_of_an_earlier_process_goes_on(now_s: int, expires_at: float) -> None:
    """It is without a connection since that process saw it last; a clock that went back does not make it younger."""
    one, _ = remote_session()
    one.restore(stored(), now_ns=now_s * 1_000_000_000, now=500.0)
    assert one.exists
    assert one.expires_at == expires_at


def test_what_is_not_wanted_any_more_is_unsubscribed() -> None:
    """It is surplus until the primary says that it is gone; a new session has none of it."""
    one, sender = remote_session()
    one.restore(stored("old/#", "older/#"), now_ns=0, now=0.0)
    one.receive_unsuback(1)
    assert one.stale_filters == {"old/#", "older/#"}
    one.unsubscribe_stale(1.0)
    sent = sender.take()
    assert b"old/#" in sent
    assert b"older/#" in sent
    one.receive_unsuback(1)
    assert len(one.stale_filters) == 1
    one.begin()
    assert one.stale_filters == frozenset()
