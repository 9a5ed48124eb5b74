"""The draw of topics: each topic and each branch has its turn, and nothing depends on how many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.replica.topic_draw import TopicDraw
from fanout.replica.topic_tree import TopicTree

COUNT = 16


def tree_of(topics: list[bytes]) -> TopicTree:
    """Return a tree of topics."""
    tree = TopicTree()
    tree.add_new(topics)
    return tree


def plant(lines: int, sensors: int) -> list[bytes]:
    """Return the topics of a plant."""
    return [b"plant/%03d/%04d" % (line, sensor) for line in range(lines) for sensor in range(sensors)]


def rounds_until(draw: TopicDraw, tree: TopicTree, wanted: set[bytes], most: int = 10_000) -> int:
    """Return the number of draws until one of some topics is drawn."""
    return next(number for number in range(1, most) if draw.draw(tree, COUNT) & wanted)


@given(st.sets(st.binary(min_size=1, max_size=3), max_size=30), st.binary(max_size=1), st.integers(0, 2**40))
def test_only_topics_of_the_set_below_the_root_are_drawn(topics: set[bytes], root: bytes, seed: int) -> None:
    """However small the set is; each of a small one has its turn."""
    draw, tree = TopicDraw(root, seed=seed), tree_of(sorted(topics))
    wanted = {topic for topic in topics if topic.startswith(root)} - {topic for topic in topics if b"\xff" in topic}
    seen: set[bytes] = set()
    for _ in range(60):
        drawn = draw.draw(tree, COUNT)
        assert drawn <= topics
        assert len(drawn) <= COUNT
        seen |= drawn
    assert wanted <= seen


def test_every_topic_has_its_turn() -> None:
    """Within a number of draws that the number of topics limits, while others come and go."""
    topics = plant(20, 50)
    tree, draw, left = tree_of(topics), TopicDraw(b"plant", seed=5), set(topics)
    for number in range(2 * len(topics)):
        passing = b"plant/%03d/new%d" % (number % 20, number)
        tree.add(passing)
        left -= draw.draw(tree, COUNT)
        tree.discard(passing)
    assert left == set()


@pytest.mark.parametrize("seed", range(5))
def test_a_hidden_share_is_met_within_its_due(seed: int) -> None:
    """A stretch of a share f by about 1/f topics; half of all at once."""
    topics = plant(100, 20)
    tree = tree_of(topics)
    for branch in range(0, 100, 3):
        hidden = {topic for topic in topics if topic.startswith(b"plant/%03d/" % branch)}
        assert rounds_until(TopicDraw(b"plant", seed=seed * 7919), tree, hidden) <= 16
    assert rounds_until(TopicDraw(b"plant", seed=seed), tree, set(topics[:1000])) == 1
    assert rounds_until(TopicDraw(b"plant", seed=seed), tree, set(topics[1::2])) == 1


@pytest.mark.parametrize("small", [b"plant/050", b"plant/050/a", b"plant/050/a/b"])
def test_a_small_branch_beside_large_ones_has_its_turn(small: bytes) -> None:
    """A few topics among a hundred thousand, at each of the upper levels, each of them in the end."""
    few = [small + b"/%d" % number for number in range(3)]
    tree = tree_of([topic for topic in plant(10, 10_000) if not topic.startswith(b"plant/050/")] + few)
    draw = TopicDraw(b"plant", seed=1)
    assert rounds_until(draw, tree, set(few)) <= 80

    def drawn() -> Iterator[bytes]:
        for _ in range(4_000):
            yield from draw.draw(tree, COUNT)

    assert set(few) <= set(drawn())


def test_a_draw_copies_nothing_of_a_large_set() -> None:
    """Its memory is that of some lists' lengths and of the topics drawn."""
    tree, draw = tree_of(plant(100, 1_000)), TopicDraw(b"plant", seed=1)
    draw.draw(tree, COUNT)
    tracemalloc.start()
    draw.draw(tree, COUNT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024
