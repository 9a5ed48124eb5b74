"""Tests of audiences, their index and the route cache."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from fanout.mqtt.topics import matches
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.audiences import AudienceIndex
from fanout.server.routing.subscribers import ShareGroup, SubscriptionOptions
from fanout.server.session.session import Session
from tests.server.core_pieces import Peer, make_session, options

V4, V5 = WireVariant(4), WireVariant(5)


def subscribed(index: AudienceIndex, *filters: bytes, wire: WireVariant = V5, qos: int = 0) -> Session:
    """Make a session with subscriptions."""
    session = make_session(wire=wire)
    index.change(session, added=dict.fromkeys(filters, options(qos)))
    return session


def test_index_knows_who_is_subscribed_to_a_very_filter() -> None:
    """Not to one that matches it, nor by a shared subscription; and not any more when the last one has left."""
    index = AudienceIndex()
    first, second = subscribed(index, b"a/+"), subscribed(index, b"a/+", b"#", qos=1)
    index.add_group(ShareGroup((b"g", b"a/b")))
    assert [index.has(topic_filter) for topic_filter in (b"a/+", b"#", b"a/b", b"a", b"a/+/c")] == [
        *(True, True, False, False, False)
    ]
    index.leave(first)
    assert index.has(b"a/+")
    index.change(second, added={}, removed=[b"a/+"])
    assert not index.has(b"a/+")
    assert index.has(b"#")


def test_equal_fingerprints_do_not_join_different_subscriptions() -> None:
    """A hash that two sets of subscriptions share does not make them one audience, nor confuse their end."""
    index = AudienceIndex()
    first, second = subscribed(index, b"a"), make_session()
    second.fingerprint = hash((b"a", options())) - hash((b"b", options()))
    index.change(second, added={b"b": options()})
    assert first.fingerprint == second.fingerprint
    assert first.audience is not second.audience
    index.leave(first)
    assert [route.audience for route in index.routes(b"b")[0]] == [second.audience]
    index.leave(second)
    assert not index._audiences


def test_new_wire_variant_moves_the_session() -> None:
    """A session that is resumed over another version joins the audience of that version."""
    index = AudienceIndex()
    moves, stays = subscribed(index, b"a", wire=V4), subscribed(index, b"a", wire=V5)
    index.join(moves, wire=V5)
    assert moves.audience is stays.audience
    index.join(moves, wire=V5)
    assert index.count == 1
    empty = make_session(wire=V4)
    index.join(empty, wire=V5)
    assert (empty.wire, empty.audience) == (V5, None)


def test_member_is_placed_by_what_can_be_written() -> None:
    """A session with a connection is written to directly, one without is held."""
    index = AudienceIndex()
    present, absent = subscribed(index, b"a"), subscribed(index, b"a")
    peer = Peer(present)
    audience = present.audience
    assert audience is not None
    assert (list(audience.direct), list(audience.queued)) == ([present], [absent])
    audience.direct[present](b"\xd0\0")
    assert peer.read() == b"\xd0\0"
    present.disconnect()
    assert (list(audience.direct), list(audience.queued)) == ([], [absent, present])


def test_route_cache_is_bounded_and_dropped_on_change() -> None:
    """The cache never holds more topics than its bound, and a new audience empties it; a new member does not."""
    index = AudienceIndex(topics_max=10)
    subscribed(index, b"#")
    for number in range(25):
        index.routes(b"t/%d" % number)
        assert len(index.cached) <= 10
    assert index.cached
    subscribed(index, b"#")
    assert index.cached
    subscribed(index, b"other")
    assert not index.cached


LEVELS = st.sampled_from([b"a", b"b", b"+"])
FILTERS = st.builds(
    lambda levels, hash_: b"/".join([*levels, b"#"] if hash_ else levels),
    st.lists(LEVELS, min_size=1, max_size=3),
    st.booleans(),
)
OPTIONS = st.builds(SubscriptionOptions, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2))
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.dictionaries(FILTERS, OPTIONS, max_size=3),
        st.booleans(),
        st.sampled_from([V4, V5]),
    ),
    max_size=25,
)


@given(STEPS)
def test_index_agrees_with_a_plain_model(
    steps: list[tuple[int, dict[bytes, SubscriptionOptions], bool, WireVariant]],
) -> None:
    """After any changes the routes of a topic are those that matching every subscription gives."""
    index = AudienceIndex(topics_max=5)
    sessions = [make_session(str(number)) for number in range(4)]
    model: list[dict[bytes, SubscriptionOptions]] = [{} for _ in sessions]
    for number, added, removes, wire in steps:
        removed = [one for one in model[number] if one not in added][:2] if removes else []
        index.join(sessions[number], wire=wire)
        if added or removed:
            index.change(sessions[number], added=added, removed=removed)
        for one in removed:
            del model[number][one]
        model[number].update(added)
        for topic in (b"a", b"a/b", b"b/a/b", b"c"):
            expected = {}
            for session, subscriptions in zip(sessions, model, strict=True):
                hits = [o for f, o in subscriptions.items() if matches(f, topic)]
                if hits:
                    expected[session.client_id] = (session.wire, index.encoding(session.wire, hits))
            found = {
                member.client_id: (route.audience.wire, route.encoding)
                for route in index.routes(topic)[0]
                for member in route.audience.queued
            }
            assert found == expected
    for session, subscriptions in zip(sessions, model, strict=True):
        assert session.subscriptions == subscriptions
    assert index.count == len({(s.wire, tuple(sorted(m.items()))) for s, m in zip(sessions, model, strict=True) if m})


def count_calls(action: Callable[[], object]) -> int:
    """Return how many functions, C functions included, an action calls: its work, whatever the machine does beside."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    gc.disable()  # its callbacks would count
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def many_filters(index: AudienceIndex, count: int) -> list[Session]:
    """Make sessions with different filters, most with wildcards."""
    shapes = (b"plant/+/cell%d/#", b"plant/line%d/#", b"+/line1/cell%d/temp", b"plant/line1/cell%d/temp")
    return [subscribed(index, shapes[number % 4] % number) for number in range(count)]


def test_work_of_a_change_does_not_depend_on_topics_or_filters() -> None:
    """A subscription that begins or ends costs the same with many topics in the cache and many filters beside."""
    work: list[tuple[int, int, int]] = []
    for filters, topics in ((4, 10), (2000, 20_000)):
        index = AudienceIndex()
        sessions = many_filters(index, filters)
        moving, added = make_session(), {b"plant/+/cell9/new": options()}

        def fill(index: AudienceIndex = index, topics: int = topics) -> None:
            for number in range(topics):
                index.routes(b"plant/line1/cell%d/temp" % number)

        fill()
        assert len(index.cached) == topics
        begin = count_calls(partial(index.change, moving, added=added))
        fill()
        end = count_calls(partial(index.change, moving, added={}, removed=list(added)))
        fill()
        work.append((begin, end, count_calls(partial(index.leave, sessions[0]))))
    assert work[0] == work[1]


def test_work_of_finding_a_route_does_not_depend_on_the_filters() -> None:
    """With ten thousand filters a topic's route is found by its levels, without looking at other filters."""
    work: list[int] = []
    for filters in (20, 10_000):
        index = AudienceIndex()
        many_filters(index, filters)
        work.append(count_calls(partial(index.routes, b"plant/line5/cell8/temp")))
    assert work[0] == work[1]
    assert work[0] < 100
