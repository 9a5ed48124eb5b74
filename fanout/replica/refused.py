"""Refused topics: those whose newest value a limit of the replica keeps out, or cannot be replicated (core).

The first make the replica incomplete. The second, of skipped messages, are known to exist at the primary and are not
held. A topic leaves the count with a value that fits, its removal, its expiry, or a complete pass that did not bring
it.

The memory is bounded. Beyond the bound only the limit is noted for the selector, until a complete pass stays within the
bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from fanout.replica.update import DIGEST, EXPIRES_NS, TOPIC, Update

__all__ = ["LIMIT_KEYS", "REFUSED_TOPICS_MAX", "LimitKeys", "RefusedTopics"]

REFUSED_TOPICS_MAX: Final = 1024
"""Topics that are remembered by name."""
_NAME_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the names that are remembered."""


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
    is_skipped: bool
    """True if the message cannot be replicated; otherwise a limit of the replica keeps it out."""


class RefusedTopics:
    """The topics of one replica whose newest value is kept out.

    Some that both attributes have may have expired.

    Attributes:
        topics: Topics remembered by name.
        beyond: For each selector and limit of topics beyond the bound: the pass in which the last one came, and whether
            the limit is a reason to skip.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.topics: dict[bytes, _Refused] = {}
        self._name_bytes = 0
        self.beyond: dict[tuple[int, str], tuple[int, bool]] = {}
        self._pass_number = 0
        self._settles = False
        """True if topics that the newest pass did not bring are forgotten once it is complete."""

    def __len__(self) -> int:
        """Return the number of topics remembered by name."""
        return len(self.topics)

    def limits(self, now_ns: int) -> tuple[str, ...]:
        """Return the keys of the limits of the replica that keep topics out now, sorted.

        Args:
            now_ns: Unix time in nanoseconds; topics that have expired by then do not count.
        """
        self._expire(now_ns)
        limits = {one.limit for one in self.topics.values() if not one.is_skipped}
        limits |= {limit for (_, limit), (_, is_skipped) in self.beyond.items() if not is_skipped}
        return tuple(sorted(limits))

    def skipped(self, now_ns: int) -> dict[str, tuple[int, bool]]:
        """Return how many topics are not held because their newest message was skipped.

        Args:
            now_ns: Unix time in nanoseconds; topics that have expired by then do not count.

        Returns:
            For each reason the number of topics known by name, and whether there are more.
        """
        self._expire(now_ns)
        more = {limit for (_, limit), (_, is_skipped) in self.beyond.items() if is_skipped}
        counts = dict.fromkeys(more, 0)
        for one in self.topics.values():
            if one.is_skipped:
                counts[one.limit] = counts.get(one.limit, 0) + 1
        return {limit: (max(1, count), limit in more) for limit, count in sorted(counts.items())}

    def skip_reason(self, topic: bytes) -> str | None:
        """Return why the newest retained message of a topic is skipped; None when that is not known."""
        one = self.topics.get(topic)
        return one.limit if one is not None and one.is_skipped else None

    def skipped_count(self, index: int) -> int:
        """Return the number of topics of a selector, known by name, whose newest retained message is skipped."""
        return sum(1 for one in self.topics.values() if one.is_skipped and one.selector == index)

    def limit_of(self, topic: bytes, *, index: int) -> str | None:
        """Return the key of the limit that keeps a topic out, or the reason to skip it, or may do so; None for none.

        Args:
            topic: The topic.
            index: Position of its selector: beyond the bound of names only the limit is known for each selector.
        """
        one = self.topics.get(topic)
        if one is not None:
            return one.limit
        return next((limit for at, limit in self.beyond if at == index), None)

    def knows(self, update: Update) -> bool:
        """Tell whether exactly this content is kept out of its topic."""
        one = self.topics.get(update[TOPIC])
        return one is not None and one.digest == update[DIGEST]

    def add(self, update: Update, *, limit: str, index: int) -> None:
        """Note that a limit keeps an update out.

        Args:
            update: The update.
            limit: The key of the limit.
            index: Position of the topic's selector.
        """
        one = _Refused(limit, update[DIGEST], update[EXPIRES_NS], index, self._pass_number, False)
        self._add(update[TOPIC], one)

    def skip(self, topic: bytes, *, reason: str, index: int) -> None:
        """Note that the newest retained message of a topic is skipped.

        Args:
            topic: The local name, maybe longer than a Topic Name may be.
            reason: Why it is skipped.
            index: Position of the topic's selector.
        """
        self._add(topic, _Refused(reason, 0, 0, index, self._pass_number, True))

    def discard(self, topic: bytes) -> None:
        """Note that the newest value of a topic is held, or that it has none."""
        if self.topics.pop(topic, None) is not None:
            self._name_bytes -= len(topic)

    def begin_pass(self, *, goes_on: bool) -> None:
        """Note that a pass over a selector's retained set begins.

        Args:
            goes_on: True if it continues earlier passes; then topics that those refused may still exist.
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
        for topic in [name for name, one in self.topics.items() if one.selector == index and one.pass_number < number]:
            self.discard(topic)
        for beyond in [one for one, (last, _) in self.beyond.items() if one[0] == index and last < number]:
            del self.beyond[beyond]

    def clear(self) -> None:
        """Forget all topics."""
        self.topics.clear()
        self._name_bytes = 0
        self.beyond.clear()

    def move(self, places: Mapping[int, int]) -> None:
        """Take other positions of the selectors, by the former ones; topics of selectors without one are forgotten."""
        for topic in [name for name, one in self.topics.items() if one.selector not in places]:
            self.discard(topic)
        self.topics = {name: one._replace(selector=places[one.selector]) for name, one in self.topics.items()}
        self.beyond = {(places[at], limit): last for (at, limit), last in self.beyond.items() if at in places}

    def _add(self, topic: bytes, one: _Refused) -> None:
        if topic not in self.topics:
            if len(self.topics) >= REFUSED_TOPICS_MAX or self._name_bytes + len(topic) > _NAME_BYTES_MAX:
                self.beyond[one.selector, one.limit] = one.pass_number, one.is_skipped
                return
            self._name_bytes += len(topic)
        self.topics[topic] = one

    def _expire(self, now_ns: int) -> None:
        for topic in [name for name, one in self.topics.items() if one.expires_ns and one.expires_ns <= now_ns]:
            self.discard(topic)
