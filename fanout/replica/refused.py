"""Refused topics: those whose newest value a limit of the replica keeps out (core).

A topic leaves the count with a value that fits, its removal, its expiry, or a complete pass that did not bring it.

The memory is bounded. Beyond the bound only the limit is noted for the selector, until a complete pass stays within the
bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from fanout.replica.update import DIGEST, EXPIRES_NS, TOPIC, Update

__all__ = ["LIMIT_KEYS", "REFUSED_TOPICS_MAX", "LimitKeys", "RefusedTopics"]

REFUSED_TOPICS_MAX: Final = 1024
"""Topics that are remembered by name."""


@dataclass(frozen=True, slots=True)
class LimitKeys:
    """Configuration keys of the limits of a replica."""

    topics: str = "topics_max"
    """Limit of the number of topics."""
    size: str = "bytes_max"
    """Limit of the bytes of topics and payloads."""
    payload: str = "retained.max_payload"
    """Limit of the bytes of one payload."""

    def all(self) -> tuple[str, str, str]:
        """Return every key."""
        return self.topics, self.size, self.payload


LIMIT_KEYS: Final = LimitKeys()
"""Keys of a link."""


class _Refused(NamedTuple):
    limit: str
    digest: int
    expires_ns: int
    selector: int
    """Position of its selector."""
    pass_number: int
    """The newest pass at the time of its arrival."""


class RefusedTopics:
    """The topics of one replica that a limit keeps out."""

    def __init__(self) -> None:
        """Begin with none."""
        self._topics: dict[bytes, _Refused] = {}
        self._beyond: dict[int, tuple[int, str]] = {}
        """For each selector with topics beyond the bound: the pass in which the last one came, and its limit."""
        self._pass_number = 0
        self._settles = False
        """Whether topics that the newest pass did not bring are forgotten once it is complete."""

    def __bool__(self) -> bool:
        """Tell whether there may be any; some may have expired."""
        return bool(self._topics or self._beyond)

    def limits(self, now_ns: int) -> tuple[str, ...]:
        """Return the keys of the limits that keep topics out now, sorted.

        Args:
            now_ns: Unix time in nanoseconds; topics that have expired by then do not count.
        """
        if not self:
            return ()
        gone = [topic for topic, one in list(self._topics.items()) if one.expires_ns and one.expires_ns <= now_ns]
        for topic in gone:
            del self._topics[topic]
        limits = {one.limit for one in self._topics.values()} | {limit for _, limit in self._beyond.values()}
        return tuple(sorted(limits))

    def limit_of(self, topic: bytes, *, index: int) -> str | None:
        """Return the key of the limit that keeps a topic out, or may do so; None for none.

        Args:
            topic: The topic.
            index: Position of its selector: beyond the bound of names only the limit is known for each selector.
        """
        one = self._topics.get(topic)
        if one is not None:
            return one.limit
        return self._beyond[index][1] if index in self._beyond else None

    def knows(self, update: Update) -> bool:
        """Tell whether exactly this content is kept out of its topic."""
        one = self._topics.get(update[TOPIC])
        return one is not None and one.digest == update[DIGEST]

    def add(self, update: Update, *, limit: str, index: int) -> None:
        """Note that a limit keeps an update out.

        Args:
            update: The update.
            limit: The key of the limit.
            index: Position of the topic's selector.
        """
        topic = update[TOPIC]
        if topic in self._topics or len(self._topics) < REFUSED_TOPICS_MAX:
            self._topics[topic] = _Refused(limit, update[DIGEST], update[EXPIRES_NS], index, self._pass_number)
        else:
            self._beyond[index] = (self._pass_number, limit)

    def discard(self, topic: bytes) -> None:
        """Note that the newest value of a topic is held, or that it has none."""
        self._topics.pop(topic, None)

    def begin_pass(self, *, goes_on: bool) -> None:
        """Note that a pass over a selector's retained set begins.

        Args:
            goes_on: Whether it continues earlier passes; then topics that those refused may still exist.
        """
        self._pass_number += 1
        self._settles = not goes_on

    def end_pass(self, index: int) -> None:
        """Forget topics that the newest pass did not bring, once it is complete.

        Args:
            index: Position of the selector of the pass.
        """
        if not self._settles:
            return
        number = self._pass_number
        gone = [topic for topic, one in self._topics.items() if one.selector == index and one.pass_number < number]
        for topic in gone:
            del self._topics[topic]
        if index in self._beyond and self._beyond[index][0] < number:
            del self._beyond[index]

    def clear(self) -> None:
        """Forget all topics."""
        self._topics.clear()
        self._beyond.clear()
