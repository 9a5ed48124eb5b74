"""Tests of the walk through retained messages."""

from __future__ import annotations

from collections.abc import Iterator

from fanout.replica.update import Update
from fanout.server.messages.encoding import WireVariant
from fanout.server.session.retained_delivery import EMPTY_PIECE_COST
from tests.server.core_pieces import Values, options
from tests.server.node_in_memory import update

VALUES = [
    update(b"t/1", b"one", qos=2),
    update(b"t/2", b"two", qos=0),
    update(b"t/3", b"three", qos=1),
]


def values() -> Values:
    """Return a store of the values."""
    return Values({value[0]: value for value in VALUES})


def test_only_whole_pieces_are_shared() -> None:
    """A part of a piece, and a single value, are for one session alone."""
    store = values()
    delivery = store.delivery(b"t/#", options())
    taken = delivery.take(1)
    assert taken is not None
    assert delivery.batch(taken, wire=WireVariant(5)) is not None
    delivery.put_back(taken[1:])
    taken = delivery.take(2)
    assert taken == VALUES[1:]
    assert delivery.batch(taken, wire=WireVariant(5)) is None
    store.piece = 1
    single = store.delivery(b"t/#", options())
    taken = single.take(1)
    assert taken == VALUES[:1]
    assert single.batch(taken, wire=WireVariant(5)) is None


def test_another_delivery_goes_on_with_the_topics_that_are_left() -> None:
    """What was taken is not named, what was put back is; the other one reads the values of its own store."""
    store = values()
    store.piece = 2
    former = store.delivery(b"t/#", options())
    assert former.topics_left(10) is None  # nothing was taken: all that match
    former.take(1)
    former.put_back(VALUES[1:2])
    topics = former.topics_left(2)
    assert topics == (b"t/2", b"t/3")
    del store.values[b"t/2"]
    later = store.delivery(b"t/#", options())
    later.continue_with(topics)
    assert later.take(10) == [VALUES[2]]
    assert later.take(10) is None


def test_more_topics_than_the_limit_are_not_named() -> None:
    """The delivery begins anew then."""
    store = values()
    store.piece = 1
    delivery = store.delivery(b"t/#", options())
    delivery.take(1)
    assert delivery.topics_left(1) is None


def test_a_long_search_for_topics_is_given_up() -> None:
    """Steps that find nothing count too, so that the event loop does not wait for them."""

    class Sparse(Values):
        def match(self, topic_filter: bytes) -> Iterator[list[Update]]:
            yield from ([VALUES[0]], [], [VALUES[1]])

    for limit, expected in ((EMPTY_PIECE_COST, None), (EMPTY_PIECE_COST + 1, (b"t/2",))):
        delivery = Sparse({}).delivery(b"t/#", options())
        delivery.take(1)
        assert delivery.topics_left(limit) == expected
