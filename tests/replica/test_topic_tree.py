"""The index over topics, checked against a plain set and the codec's own matching."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.mqtt.topics import matches
from fanout.replica.topic_tree import TopicTree

# Few names, so that branches are shared; bytes below and above "/", so that bytes and levels sort apart.
LEVELS = st.sampled_from([b"", b"a", b"b", b"a b", b"a!", b"a0", b"ab", b"$a", b"$", b"\xc3\xa9"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map(b"/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, rest: b"/".join(levels + rest) or b"#",
    st.lists(st.one_of(LEVELS, st.just(b"+")), max_size=4),
    st.sampled_from([[], [b"#"]]),
)


def tree_of(topics: Iterable[bytes]) -> TopicTree:
    """Return a tree of `topics`."""
    tree = TopicTree()
    tree.add_new(list(topics))
    return tree


def matched(tree: TopicTree, topic_filter: bytes) -> Iterator[bytes]:
    """Yield what a filter matches, whatever the pieces."""
    return chain.from_iterable(tree.match(topic_filter))


def expected(topics: Iterable[bytes], topic_filter: bytes) -> list[bytes]:
    """Return what a filter matches, found by trying every topic."""
    return sorted(topic for topic in topics if matches(topic_filter, topic))


@given(st.sets(TOPICS, max_size=40), FILTERS)
@settings(max_examples=600)
def test_match_agrees_with_trying_every_topic(topics: set[bytes], topic_filter: bytes) -> None:
    """A search finds exactly the topics that match, each once."""
    assert sorted(matched(tree_of(topics), topic_filter)) == expected(topics, topic_filter)


@given(st.sets(TOPICS, max_size=40), FILTERS, st.one_of(st.just(b""), TOPICS), st.one_of(st.none(), TOPICS))
@settings(max_examples=400)
def test_bounds_cut_a_match(topics: set[bytes], topic_filter: bytes, low: bytes, high: bytes | None) -> None:
    """A search between bounds finds the topics between them, in order."""
    found = list(chain.from_iterable(tree_of(topics).match(topic_filter, low=low, high=high)))
    assert found == [one for one in expected(topics, topic_filter) if low <= one and (high is None or one < high)]


@given(st.sets(TOPICS, max_size=40), TOPICS, TOPICS)
def test_topics_between_bounds_are_counted(topics: set[bytes], low: bytes, high: bytes) -> None:
    """The count of a stretch is that of its topics."""
    assert tree_of(topics).count_between(low, high, most=9) == sum(low <= one < high for one in topics)


@pytest.mark.parametrize("batch_size", [1, 3, 40, 700, 5000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_large_trees_split_and_shrink(batch_size: int, shuffled: bool) -> None:
    """Thousands of topics added in batches of any size and order are all found, and all removed again."""
    topics = [b"plant/line%d/cell%d/temp" % (number % 7, number) for number in range(5000)]
    if shuffled:
        random.Random(4).shuffle(topics)
    tree = TopicTree()
    for start in range(0, len(topics), batch_size):
        tree.add_new(topics[start : start + batch_size])
    assert list(matched(tree, b"plant/#")) == sorted(topics)
    assert list(matched(tree, b"plant/+/cell77/temp")) == [b"plant/line0/cell77/temp"]
    assert sorted(matched(tree, b"plant/line3/+/temp")) == expected(topics, b"plant/line3/+/temp")
    for topic in topics:
        tree.discard(topic)
    assert len(tree) == 0
    assert list(matched(tree, b"#")) == []


def test_match_yields_the_stored_object() -> None:
    """The topic that comes out is the object that went in, so that no copies pile up."""
    topic = b"plant/" + b"line1"
    assert next(matched(tree_of([topic]), b"plant/line1")) is topic


def test_take_empties_the_tree_in_pieces() -> None:
    """Taking returns every topic once, never more than asked for."""
    topics = {b"t/%d" % number for number in range(2000)}
    tree = tree_of(topics)
    taken: list[bytes] = []
    while piece := tree.take(300):
        assert len(piece) <= 300
        taken += piece
    assert len(taken) == 2000
    assert set(taken) == topics
    assert len(tree) == 0


@pytest.mark.parametrize("topic_filter", [b"#", b"t/#", b"+/+", b"t/+/#"])
def test_match_survives_changes_while_it_runs(topic_filter: bytes) -> None:
    """Topics that stay are yielded once, whatever comes and goes between two steps."""
    stay = [b"t/%06d" % (number * 10) for number in range(3000)]
    tree = tree_of([*stay, *(topic + b"x" for topic in stay)])
    chooser = random.Random(9)
    found = []
    for number, topic in enumerate(matched(tree, topic_filter)):
        found.append(topic)
        tree.discard(chooser.choice(stay) + b"x")
        tree.add(b"t/%06dy" % chooser.randrange(30000))
        if number % 100 == 0:
            tree.add_new([b"t/%06dz%d-%d" % (chooser.randrange(30000), number, each) for each in range(30)])
    kept = [topic for topic in found if topic in set(stay)]
    assert kept == stay
    assert len(found) == len(set(found))


def test_long_search_comes_in_pieces() -> None:
    """A search that finds nothing among many topics gives empty pieces meanwhile, of a bounded number of topics."""
    tree = tree_of(b"t/%04d/a" % number for number in range(5000))
    pieces = list(tree.match(b"t/+/b"))
    assert pieces == [[]] * len(pieces)
    assert len(pieces) >= 5000 / 512


def test_pieces_end_at_the_same_places() -> None:
    """Whoever searches, and whenever, gets the same pieces while no topic comes or goes."""
    tree = tree_of(b"t/%04d" % number for number in range(5000))
    first = list(tree.match(b"#"))
    assert list(tree.match(b"#")) == first
    assert max(map(len, first)) <= 512
