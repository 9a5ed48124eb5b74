"""The bytes of an exported session: what is written is read again, and nothing else is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.access.identity import Identity, Means
from fanout.durable.form.session_format import (
    MAGIC,
    VERSION,
    decode_session,
    encode_session,
    read_owner,
)
from fanout.errors import SessionFormInvalid
from fanout.mqtt.delivery import SendState
from fanout.mqtt.packets import Will
from fanout.mqtt.properties import Properties
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.exported_session import (
    ExportedInFlight,
    ExportedMessage,
    ExportedRetained,
    ExportedSession,
    ExportedSubscription,
)
from fanout.server.session.wills import will_of
from tests.support.examples import examples

BYTES_MAX = 1 << 20

names = st.sampled_from([b"a", b"a/b", "käse/ä".encode(), b"/", b"x" * 300])
plain_filters = st.sampled_from([b"a", b"a/#", b"+/b", b"#", b"/"])
packet_ids = st.integers(1, 0xFFFF)
identifiers = st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple)
milliseconds = st.integers(1, 0xFFFFFFFF * 1000)
properties = st.sampled_from([b"", b"\x26\0\x01k\0\x01v", b"\x01\x01\x26\0\x01k\0\x01v", b"\x03\0\x01t"])
shares = st.none() | st.just((b"group", b"a/#"))


@st.composite
def messages(draw: st.DrawFn, *, qos: int | None = None, is_queued: bool = False) -> ExportedMessage:
    """Draw a message that is queued or in flight."""
    level = draw(st.integers(1, 2)) if qos is None else qos
    return ExportedMessage(
        topic=draw(names),
        payload=draw(st.binary(max_size=40)),
        properties=draw(properties),
        update_qos=draw(st.integers(level, 2)),
        retained=draw(st.booleans()),
        expiry_left_ns=draw(st.none() | st.integers(0, 1 << 62)),
        digest=draw(st.integers(0, (1 << 64) - 1)),
        qos=level,
        retain=draw(st.booleans()),
        identifiers=draw(identifiers),
        share=draw(shares),
        replaces_retained=is_queued and draw(st.booleans()),
    )


@st.composite
def in_flight(draw: st.DrawFn) -> ExportedInFlight:
    """Draw a message in flight."""
    state = draw(st.sampled_from(SendState))
    if state is SendState.AWAIT_PUBCOMP:
        return ExportedInFlight(draw(packet_ids), state, None)
    qos = 1 if state is SendState.AWAIT_PUBACK else 2
    return ExportedInFlight(draw(packet_ids), state, draw(messages(qos=qos)))


options = st.builds(
    SubscriptionOptions,
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    identifier=st.integers(0, 268_435_455),
)
wills = st.builds(
    will_of,
    st.builds(
        Will,
        names,
        st.binary(max_size=20),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        properties=st.builds(
            Properties,
            will_delay_interval=st.none() | st.integers(0, 0xFFFFFFFF),
            message_expiry_interval=st.none() | st.integers(0, 0xFFFFFFFF),
            user_property=st.sampled_from([(), (("k", "v"),), (("k", "v"), ("l", "w"))]),
        ),
    ),
)


@st.composite
def sessions(draw: st.DrawFn) -> ExportedSession:
    """Draw a session."""
    filters = draw(st.lists(plain_filters | st.just(b"$share/group/a/#"), unique=True, max_size=4))
    pending = draw(st.lists(st.sampled_from(filters), unique=True)) if filters else []
    will = draw(st.none() | wills)
    client_id = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30))
    owner = Identity(
        client_id=client_id,
        user=draw(st.sampled_from(["", "alice", "käthe"])),
        address=draw(st.sampled_from(["", "127.0.0.1", "::1"])),
        local=draw(st.booleans()),
        means=draw(st.sampled_from(Means)),
        superuser=draw(st.booleans()),
    )
    return ExportedSession(
        owner_since=draw(st.integers(0, 1 << 62)),
        client_id=client_id,
        owner=draw(st.none() | st.just(owner)),
        wire=WireVariant(draw(st.sampled_from([4, 5])), draw(st.booleans()), draw(st.integers(0, 0xFFFFFFFF))),
        expiry_left_ms=draw(milliseconds),
        subscriptions=tuple(ExportedSubscription(one, draw(options)) for one in filters),
        in_flight=tuple(draw(st.lists(in_flight(), max_size=4, unique_by=lambda one: one.packet_id))),
        last_packet_id=draw(st.integers(0, 0xFFFF)),
        queue=tuple(draw(st.lists(messages(is_queued=True), max_size=4))),
        retained=tuple(
            ExportedRetained(one, draw(st.none() | st.lists(names, max_size=3).map(tuple))) for one in pending
        ),
        unreleased=draw(st.frozensets(packet_ids, max_size=4)),
        will=will,
        will_left_ms=None if will is None else draw(st.none() | milliseconds),
    )


FULL = ExportedSession(
    client_id="sensor",
    owner=Identity(client_id="sensor", user="alice", means=Means.PASSWORD),
    wire=WireVariant(5),
    expiry_left_ms=60_000,
    subscriptions=(ExportedSubscription(b"a/#", SubscriptionOptions(2)),),
    queue=(
        ExportedMessage(
            topic=b"a/b",
            payload=b"x",
            properties=b"",
            update_qos=2,
            retained=True,
            expiry_left_ns=None,
            digest=1,
            qos=2,
            retain=False,
        ),
    ),
    retained=(ExportedRetained(b"a/#", (b"a/c",)),),
    unreleased=frozenset({7}),
    will=will_of(Will(b"gone", b"sensor")),
    will_left_ms=5_000,
)


@given(sessions())
@settings(max_examples=examples(200), deadline=None)
def test_what_is_written_is_read_again(session: ExportedSession) -> None:
    """Every field comes through, and the same session has the same bytes."""
    data = encode_session(session)
    assert decode_session(data, bytes_max=len(data)) == session
    assert encode_session(decode_session(data, bytes_max=len(data))) == data


@given(sessions(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_damaged_bytes_are_refused_or_are_another_whole_session(session: ExportedSession, data: Any) -> None:
    """Cut, extended or changed bytes raise one error; what is read all the same is written as it was read."""
    whole = encode_session(session)
    at = data.draw(st.integers(0, len(whole) - 1))
    for broken in (whole[:at], whole + b"\0"):
        with pytest.raises(SessionFormInvalid):
            decode_session(broken, bytes_max=BYTES_MAX)
    changed = whole[:at] + bytes((whole[at] ^ data.draw(st.integers(1, 255)),)) + whole[at + 1 :]
    try:
        read = decode_session(changed, bytes_max=BYTES_MAX)
    except SessionFormInvalid:
        return
    assert encode_session(read) == changed


@given(st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_garbage_is_refused(garbage: bytes) -> None:
    """Neither bytes of any kind nor such bytes behind a true beginning are taken for a session."""
    for data in (garbage, MAGIC + bytes((VERSION,)) + garbage):
        with pytest.raises(SessionFormInvalid, match="The bytes are not a session"):
            decode_session(data, bytes_max=BYTES_MAX)


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_a_version_that_is_not_read_is_named(version: int) -> None:
    """The error says which version came and which are read, and where to look."""
    data = MAGIC + bytes((version,)) + encode_session(FULL)[len(MAGIC) + 1 :]
    with pytest.raises(SessionFormInvalid, match=rf"version {version} of the form, .* reads 1. .*versions of the mem"):
        decode_session(data, bytes_max=BYTES_MAX)


def test_too_many_bytes_are_refused_before_they_are_read() -> None:
    """The limit is the caller's."""
    data = encode_session(FULL)
    assert decode_session(data, bytes_max=len(data)) == FULL
    with pytest.raises(SessionFormInvalid, match=rf"it has {len(data)} bytes, and the limit is {len(data) - 1}"):
        decode_session(data, bytes_max=len(data) - 1)


QUEUED = FULL.queue[0]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (replace(FULL, client_id=""), "Client Identifier"),
        (replace(FULL, client_id="a\0b"), "Client Identifier"),
        (replace(FULL, wire=WireVariant(3)), "neither 4 nor 5"),
        (replace(FULL, expiry_left_ms=0), "Session Expiry Interval has passed"),
        (replace(FULL, subscriptions=FULL.subscriptions * 2), "subscription is there twice"),
        (replace(FULL, subscriptions=()), "without a subscription"),
        (replace(FULL, subscriptions=(ExportedSubscription(b"a#", SubscriptionOptions(0)),)), "misplaced wildcard"),
        (replace(FULL, subscriptions=(ExportedSubscription(b"$share//a", SubscriptionOptions(0)),)), "ShareName"),
        (replace(FULL, queue=(replace(QUEUED, topic=b"a/+"),)), "wildcard"),
        (replace(FULL, queue=(replace(QUEUED, topic=b"\xff"),)), "UTF-8"),
        (replace(FULL, queue=(replace(QUEUED, qos=0),)), "QoS 0"),
        (replace(FULL, queue=(replace(QUEUED, update_qos=1),)), "QoS is not legal"),
        (replace(FULL, queue=(replace(QUEUED, identifiers=(0,)),)), "Subscription Identifier"),
        (replace(FULL, queue=(replace(QUEUED, properties=b"\x02\0\0\0\x01"),)), "does not belong"),
        (replace(FULL, queue=(replace(QUEUED, properties=b"\xff"),)), "propert"),
        (replace(FULL, in_flight=(ExportedInFlight(0, SendState.AWAIT_PUBCOMP, None),)), "Packet Identifier is 0"),
        (replace(FULL, in_flight=(ExportedInFlight(1, SendState.AWAIT_PUBCOMP, None),) * 2), "twice"),
        (replace(FULL, in_flight=(ExportedInFlight(1, SendState.AWAIT_PUBACK, QUEUED),)), "another QoS"),
        (replace(FULL, unreleased=frozenset({0})), "Packet Identifier is 0"),
        (replace(FULL, will=None), "no Will"),
    ],
)
def test_values_that_no_session_has_are_refused(bad: ExportedSession, problem: str) -> None:
    """A member that writes them is broken, or not a member."""
    with pytest.raises(SessionFormInvalid, match=problem):
        decode_session(encode_session(bad), bytes_max=BYTES_MAX)


def test_the_former_version_is_read() -> None:
    """A member of the release before writes no time since when an owner has its Client Identifier."""
    former = bytes.fromhex(
        "66616e6f75742073657373696f6e00010001630100017500093132372e302e302e31010105000000000000000000000003e8"
        "000000000000000000000000000000000000000000000000"
    )
    read = decode_session(former, bytes_max=BYTES_MAX)
    assert (read.client_id, read.owner_since, read.expiry_left_ms) == ("c", 0, 1000)
    assert read.owner is not None
    assert read.owner.user == "u"
    assert read_owner(former) == (read.owner, 0)
    assert read_owner(encode_session(replace(read, owner_since=7))) == (read.owner, 7)
