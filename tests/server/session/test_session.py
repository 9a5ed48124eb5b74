"""A session as a whole."""

from __future__ import annotations

from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.subscribers import Collected
from tests.server.core_pieces import make_session, options


def test_a_session_has_no_dictionary() -> None:
    """Of a session there may be a hundred thousand, and the hot loop looks into its audience: both have slots only."""
    session = make_session()
    AudienceIndex().change(session, added={b"t": options()})
    assert session.audience is not None
    for one in (session, session.audience, Collected(session.audience)):
        assert not hasattr(one, "__dict__")
