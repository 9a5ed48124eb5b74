"""Counts of messages by topic, kept only while somebody looks."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final, TypeAlias

from fanout.replica.update import TOPIC, Update

__all__ = ["LOOKED_S", "Observe", "TopicActivity"]

Observe: TypeAlias = Callable[[bytes, Callable[[list[Update]], None]], Callable[[], None]]
"""Calls a function with the updates that a Topic Filter matches, until the returned function is called."""

LOOKED_S: Final = 30.0
"""Time in seconds that a look lasts."""
_INTERVAL_S: Final = 5.0
"""Length of an interval."""
_TOPICS_MAX: Final = 50_000
"""Topics counted one by one; further ones count in the total only."""
_WATCHED_MAX: Final = 200
"""Topics whose messages are remembered; the one looked at longest ago is forgotten."""
_REMEMBERED: Final = 20
"""Messages remembered of each of them."""
_REMEMBERED_BYTES: Final = 16 * 1024
"""Size of the largest payload that is remembered."""

_topic = itemgetter(TOPIC)


class TopicActivity:
    """Messages by topic, in intervals of some seconds; nothing is counted while nobody looks."""

    def __init__(self, observe: Observe | None, *, monotonic: Callable[[], float]) -> None:
        """Count nothing yet.

        Args:
            observe: Observes the node's messages; None on a node that delivers none.
            monotonic: Tells seconds of a clock that never goes back.
        """
        self._observe = observe
        self._monotonic = monotonic
        self._end: Callable[[], None] | None = None
        self._until_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._total: Counter[bytes] = Counter()
        self._interval: Counter[bytes] = Counter()
        self._last: Counter[bytes] = Counter()
        self._messages = self._last_messages = 0
        self._began_s = self._monotonic()
        self._last_s = 0.0
        self._watched: dict[bytes, deque[Update]] = {}

    def look(self) -> None:
        """Count from now on for `LOOKED_S` seconds."""
        self._until_s = self._monotonic() + LOOKED_S
        if self._end is None and self._observe is not None:
            self._forget()
            self._end = self._observe(b"#", self._take)
            self._end_later(LOOKED_S)

    def close(self) -> None:
        """Stop counting."""
        if self._end is not None:
            self._end()
            self._end = None
            self._forget()

    def watch(self, topic: bytes) -> Sequence[Update]:
        """Remember messages of a topic from now on; return those remembered, the newest first."""
        remembered = self._watched.pop(topic, None)
        if remembered is None:
            remembered = deque[Update](maxlen=_REMEMBERED)
        self._watched[topic] = remembered
        if len(self._watched) > _WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        return tuple(reversed(remembered))

    @property
    def interval_s(self) -> float | None:
        """Length in seconds of the interval that figures are of; None before the first one has ended."""
        self._roll()
        return self._last_s or None

    @property
    def per_second(self) -> float:
        """Messages a second of all topics."""
        self._roll()
        return self._last_messages / self._last_s if self._last_s else 0.0

    def of(self, topic: bytes) -> tuple[int, float] | None:
        """Return the messages of a topic since the first look, and a second; None while they are not known."""
        self._roll()
        if not self._last_s:
            return None
        return self._total[topic], self._last[topic] / self._last_s

    def busiest(self, count: int) -> list[tuple[bytes, float]]:
        """Return the topics with most messages, with messages a second."""
        self._roll()
        found = nlargest(count, self._last.items(), key=itemgetter(1))
        return [(topic, messages / self._last_s) for topic, messages in found]

    def by_level(self, root: bytes) -> dict[bytes, float] | None:
        """Return messages a second by the name of the level after `root`; None while they are not known."""
        self._roll()
        if not self._last_s:
            return None
        sums: Counter[bytes] = Counter()
        for topic, messages in self._last.items():
            if topic.startswith(root):
                sums[topic[len(root) :].partition(b"/")[0]] += messages
        return {name: messages / self._last_s for name, messages in sums.items()}

    def _take(self, updates: list[Update]) -> None:
        self._roll()
        self._messages += len(updates)
        if len(self._total) < _TOPICS_MAX:
            topics = list(map(_topic, updates))
        else:
            topics = [update[0] for update in updates if update[0] in self._total]
        self._interval.update(topics)
        self._total.update(topics)
        if self._watched:
            for update in updates:
                remembered = self._watched.get(update[0])
                if remembered is not None and len(update[1]) <= _REMEMBERED_BYTES:
                    remembered.append(update)

    def _roll(self) -> None:
        """End the interval if it is long enough."""
        passed_s = self._monotonic() - self._began_s
        if passed_s >= _INTERVAL_S and self._end is not None:
            self._last, self._interval = self._interval, Counter()
            self._last_messages, self._messages = self._messages, 0
            self._last_s, self._began_s = passed_s, self._began_s + passed_s

    def _end_later(self, seconds: float) -> None:
        def check() -> None:
            left_s = self._until_s - self._monotonic()
            if left_s > 0 and self._end is not None:
                self._end_later(left_s)
            else:
                self.close()

        asyncio.get_running_loop().call_later(seconds, check)
