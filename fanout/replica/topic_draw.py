"""Draw of some topics out of a set, so that every topic and every branch has its turn (core).

Chance alone would leave out a small branch, or one topic, for any length of time. So most topics are drawn at equal
distances in the order of their bytes, shifted a little each time: what is missing as a stretch of a share f is met by
about 1/f topics. Some are drawn from one branch after another, small or large, at the upper levels. The rest follow
each other in order. Nothing is copied from the set.
"""

from __future__ import annotations

from fanout.replica.topic_tree import TopicSearch

__all__ = ["BRANCH_DEPTHS", "TopicDraw"]

BRANCH_DEPTHS = 3
"""Number of levels below the common root whose branches take turns."""
_ROUND = 16
_IN_ORDER = (0,)
_BY_BRANCH = (5, 10)
"""Draws of a round at these positions are in order and by branch; the others are at equal distances."""
_ABOVE_ALL = b"\xff"
_PLACES = 1 << 32


class TopicDraw:
    """Draw below one root, again and again.

    It remembers one topic for each depth, and two numbers.
    """

    def __init__(self, root: bytes, *, seed: int) -> None:
        """Begin anywhere.

        Args:
            root: The beginning of all topics to be drawn; empty for all of the set.
            seed: A number that differs between processes, so that the nodes of a pool draw different topics.
        """
        self._root = root
        self._end = root + _ABOVE_ALL
        self._levels_of_root = root.count(b"/") + 1 if root else 0
        self._shifts = seed % _PLACES
        """Number of draws so far, with which the equal distances are shifted."""
        self._draws = 0
        self._branches: list[bytes] = [root] * BRANCH_DEPTHS
        """For each depth the lower bound of the next branch."""
        self._in_order = root
        """Lower bound of the next topic in order."""

    def draw(self, topics: TopicSearch, count: int) -> set[bytes]:
        """Return up to `count` topics.

        Args:
            topics: The set, which may have changed since the last draw.
            count: Number of draws; some may come to the same topic.
        """
        first = self._draws
        self._draws += count
        turns = [number % _ROUND for number in range(first, first + count)]
        by_branch = sum(turn in _BY_BRANCH for turn in turns)
        in_order = sum(turn in _IN_ORDER for turn in turns)
        drawn = set(topics.spread(self._root, self._places(count - by_branch - in_order)))
        drawn.update(filter(None, (self._next_in_order(topics) for _ in range(in_order))))
        for number in range(by_branch):
            branch = self._next_branch(topics, (first // _ROUND + number) % BRANCH_DEPTHS)
            if branch is not None:
                drawn.update(topics.spread(branch, (self._shift(self._shifts + number),)))
        return drawn

    def _places(self, count: int) -> list[float]:
        shift = self._shift(self._shifts)
        self._shifts += 1
        return [(number + shift) / count for number in range(count)]

    @staticmethod
    def _shift(number: int) -> float:
        """Return a number from 0 to below 1, each half of which has its turn, then each quarter, each eighth."""
        return int(f"{number % _PLACES:032b}"[::-1], 2) / _PLACES

    def _next_in_order(self, topics: TopicSearch) -> bytes | None:
        topic = topics.first(self._in_order, self._end) or topics.first(self._root, self._end)
        self._in_order = self._root if topic is None else topic + b"\0"
        return topic

    def _next_branch(self, topics: TopicSearch, depth: int) -> bytes | None:
        """Return the beginning of the next branch at a depth below the root, or a topic that ends above it."""
        topic = topics.first(self._branches[depth], self._end) or topics.first(self._root, self._end)
        if topic is None:
            return None
        levels = topic.split(b"/")
        wanted = self._levels_of_root + depth + 1
        if len(levels) <= wanted:
            self._branches[depth] = topic + b"\0"
            return topic
        branch = b"/".join(levels[:wanted])
        self._branches[depth] = branch + b"0"  # "0" follows "/"
        return branch + b"/"
