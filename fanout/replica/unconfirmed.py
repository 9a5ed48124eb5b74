"""Topics whose values are served although the newest comparison with the primary did not bring them (core).

A topic leaves when its next retained message comes, a copy or an update, and when its value is removed or expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fanout.replica.topic_tree import TopicTree

__all__ = ["NAMES_MAX", "UnconfirmedTopics"]

NAMES_MAX = 1_000_000
"""Largest number of topics that are remembered by name; of further ones only the number is known."""


class UnconfirmedTopics:
    """The unconfirmed topics of one replica.

    Attributes:
        count: Number of them.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.count = 0
        self._names = TopicTree()
        self._unnamed: dict[int, int] = {}
        """Position of a selector to the number of its topics that are not remembered by name."""

    def __len__(self) -> int:
        """Return the number of unconfirmed topics."""
        return self.count

    def __contains__(self, topic: bytes) -> bool:
        """Say whether a topic is remembered by name."""
        return topic in self._names

    @property
    def unnamed(self) -> int:
        """Number of topics that are not remembered by name."""
        return sum(self._unnamed.values())

    def begin_pass(self, selector_index: int) -> None:
        """Forget the number of nameless topics of a selector, because the pass that begins finds them again."""
        self.count -= self._unnamed.pop(selector_index, 0)

    def note(self, topics: Iterable[bytes], *, selector_index: int) -> None:
        """Add topics of one selector.

        Args:
            topics: Local topics, distinct; those that are here already are ignored.
            selector_index: Position of their selector.
        """
        fresh = [topic for topic in topics if topic not in self._names]
        room = max(0, NAMES_MAX - (self.count - self.unnamed))
        self._names.add_new(fresh[:room])
        self.count += len(fresh)
        if len(fresh) > room:
            self._unnamed[selector_index] = self._unnamed.get(selector_index, 0) + len(fresh) - room

    def settle(self, topics: Iterable[bytes]) -> None:
        """Remove topics that are confirmed, or have no value any more; others are ignored."""
        for topic in topics:
            if topic in self._names:
                self._names.discard(topic)
                self.count -= 1

    def clear(self) -> None:
        """Remove all."""
        self._names = TopicTree()
        self._unnamed.clear()
        self.count = 0

    def move(self, places: Mapping[int, int]) -> None:
        """Take other positions of the selectors, by the former ones; topics of selectors without one are ignored."""
        self.count -= self.unnamed
        self._unnamed = {places[at]: count for at, count in self._unnamed.items() if at in places}
        self.count += self.unnamed

    def pieces(self, *, after: bytes = b"") -> Iterator[list[bytes]]:
        """Yield the topics that are remembered by name and sort after `after`, in order, in pieces.

        The set may change meanwhile, as with `TopicTree.match`.
        """
        for piece in self._names.beginning_with(b""):
            if not after or piece[-1] > after:
                yield [topic for topic in piece if topic > after] if piece[0] <= after else piece
