"""The bytes of copies: what was written is read, and nothing that is damaged passes as something else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.durable.form.session_copy import (
    CopiedMessage,
    SessionCopy,
    decode_copy,
    decode_places,
    encode_copy,
    encode_places,
    read_needs,
)
from fanout.errors import SessionFormInvalid
from fanout.mqtt.delivery import SendState
from fanout.replica.recent import Place
from fanout.server.messages.encoding import WireVariant
from fanout.server.session.exported_session import ExportedInFlight, ExportedSession
from tests.support.examples import examples

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLACES = st.builds(Place, NAMES, NAMES, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1))
BY_LINK = st.dictionaries(NAMES, PLACES, max_size=3)


@st.composite
def copies(draw: st.DrawFn) -> SessionCopy:
    """Return a copy."""
    ids = draw(st.lists(st.integers(1, 0xFFFF), unique=True, max_size=6))
    released = draw(st.integers(0, len(ids)))
    session = ExportedSession(
        client_id="c",
        owner=None,
        wire=WireVariant(5),
        expiry_left_ms=1000,
        in_flight=tuple(ExportedInFlight(one, SendState.AWAIT_PUBCOMP, None) for one in ids[:released]),
    )
    in_flight = tuple(
        CopiedMessage(
            number,
            packet_id,
            draw(st.sampled_from((SendState.AWAIT_PUBACK, SendState.AWAIT_PUBREC))),
            draw(NAMES),
            draw(PLACES)._replace(digest=0),
            draw(st.integers(0, (1 << 64) - 1)),
            draw(st.booleans()),
            tuple(draw(st.lists(st.integers(1, 1 << 20), max_size=2))),
        )
        for number, packet_id in enumerate(ids[released:])
    )
    return SessionCopy(session, draw(st.booleans()), draw(st.booleans()), draw(BY_LINK), in_flight)


@given(copies())
@settings(max_examples=examples(100), deadline=None)
def test_a_copy_is_read_as_written(copy: SessionCopy) -> None:
    """With its places, and the messages in flight of which it has the places only."""
    data = encode_copy(copy)
    assert decode_copy(data, bytes_max=len(data)) == copy
    needs = read_needs(data)
    assert needs[: len(copy.places)] == list(copy.places.items())
    heartbeats = {(link, place.node, place.marker) for link, place in needs[len(copy.places) :]}
    assert heartbeats == {(one.link, one.place.node, one.place.marker) for one in copy.in_flight}


@given(BY_LINK)
def test_places_are_read_as_written(places: dict[str, Place]) -> None:
    """Each under its link."""
    assert decode_places(encode_places(places)) == places


@given(copies(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_damaged_copy_is_refused_or_another_copy(copy: SessionCopy, data: st.DataObject) -> None:
    """One that is cut is refused; one with a changed byte never ends in another error."""
    whole = encode_copy(copy)
    with pytest.raises(SessionFormInvalid):
        decode_copy(whole[: data.draw(st.integers(0, len(whole) - 1))], bytes_max=1 << 20)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for read in (lambda: decode_copy(changed, bytes_max=1 << 20), lambda: read_needs(changed)):
        with contextlib.suppress(SessionFormInvalid):
            read()


def test_a_copy_of_another_version_is_refused() -> None:
    """With both versions, and what to compare; also where nothing but its needs is read, so it is not kept."""
    session = ExportedSession(client_id="c", owner=None, wire=WireVariant(5), expiry_left_ms=1000)
    data = encode_copy(SessionCopy(session, True, False, {}))
    with pytest.raises(SessionFormInvalid, match="it has version 2, and this node reads 1") as refused:
        decode_copy(b"\2" + data[1:], bytes_max=1 << 20)
    assert refused.value.hint == "Compare the versions of the members of the pool"
    with pytest.raises(SessionFormInvalid, match="it has version 2"):
        read_needs(b"\2" + data[1:])


def test_a_packet_identifier_is_there_once() -> None:
    """Neither twice among those that have places, nor there and in the session."""
    flying = ExportedInFlight(7, SendState.AWAIT_PUBCOMP, None)
    session = ExportedSession(client_id="c", owner=None, wire=WireVariant(5), expiry_left_ms=1, in_flight=(flying,))
    message = CopiedMessage(0, 7, SendState.AWAIT_PUBREC, "plant", Place("a", "1 1", 0, 0), 1, False, ())
    with pytest.raises(SessionFormInvalid, match="a Packet Identifier is there twice"):
        decode_copy(encode_copy(SessionCopy(session, True, True, {}, (message,))), bytes_max=1 << 20)
