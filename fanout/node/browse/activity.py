"""Messages by topic and branch, counted only while somebody looks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final, TypeAlias

from fanout.replica.update import PAYLOAD, TOPIC, Update

__all__ = ["LOOKED_S", "SAMPLES_MAX", "Observe", "TopicActivity"]

Observe: TypeAlias = Callable[[bytes | None, Callable[[list[Update]], None]], Callable[[], None]]
"""Calls a function with the updates that a Topic Filter matches, or with all (None), until the returned function is
called."""

LOOKED_S: Final = 30.0
"""Time in seconds that a look lasts."""
_INTERVAL_S: Final = 5.0
"""Length of an interval."""
SAMPLES_MAX: Final = 10_000
"""Messages of an interval that are counted one by one; of more, one of two, of four and so on."""
BRANCHES_MAX: Final = 100
"""Busiest branches that are listed."""
_LEVELS_MAX: Final = 16
"""Levels of a topic that count as branches."""
_SHARE_OF_ONE: Final = 0.75
"""A branch is left out if one branch below it has this share of its messages, and says more."""
_STEP: Final = 200
"""Topics whose branches are added at once."""
_WATCHED_MAX: Final = 200
"""Topics whose messages are remembered; the one looked at longest ago is forgotten."""
_REMEMBERED: Final = 20
"""Messages remembered of each of them."""
_REMEMBERED_BYTES: Final = 16 * 1024
"""Size of the largest payload that is remembered."""

_topic = itemgetter(TOPIC)


class _Watched:
    """A topic that somebody looks at: its messages are counted one by one."""

    __slots__ = ("interval", "last", "messages", "remembered")

    def __init__(self) -> None:
        self.remembered: deque[Update] = deque(maxlen=_REMEMBERED)
        self.messages = 0
        self.interval: int | None = None
        """Messages of the interval; None during the one in which the first look came."""
        self.last: int | None = None
        """Those of the last interval."""


class TopicActivity:
    """Messages by topic, in intervals of some seconds; nothing is counted while nobody looks.

    A busy node counts a sample of its messages, so that looking costs little, and a million topics no more than a few.
    """

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
        self._sample: list[bytes] = []
        """Topics of the messages that are counted, one of `_one_of` messages of this interval."""
        self._one_of = 1
        self._last: Counter[bytes] = Counter()
        """Those of the last interval, by topic."""
        self._last_one_of = 1
        self._branches: list[tuple[bytes, float]] | None = None
        """Busiest branches of the last interval, once they were asked for."""
        self._messages = self._last_messages = 0
        self._began_s = self._monotonic()
        self._last_s = 0.0
        self._watched: dict[bytes, _Watched] = {}

    def look(self) -> None:
        """Count from now on for `LOOKED_S` seconds."""
        self._until_s = self._monotonic() + LOOKED_S
        if self._end is None and self._observe is not None:
            self._forget()
            self._end = self._observe(None, self._take)
            self._end_later(LOOKED_S)

    def close(self) -> None:
        """Stop counting."""
        if self._end is not None:
            self._end()
            self._end = None
            self._forget()

    def watch(self, topic: bytes) -> Sequence[Update]:
        """Remember messages of a topic from now on; return those remembered, the newest first."""
        watched = self._watched.pop(topic, None) or _Watched()
        self._watched[topic] = watched
        if len(self._watched) > _WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        return tuple(reversed(watched.remembered))

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

    def messages(self, topic: bytes) -> int | None:
        """Return the messages of a topic since somebody looks at it; None if nobody does."""
        watched = self._watched.get(topic)
        return None if watched is None else watched.messages

    def rate(self, topic: bytes) -> float | None:
        """Return messages a second of a topic, an estimate unless somebody looks at it; None while not known."""
        self._roll()
        if not self._last_s:
            return None
        watched = self._watched.get(topic)
        if watched is not None and watched.last is not None:
            return watched.last / self._last_s
        return self._per_second(self._last[topic])

    def busiest(self, count: int) -> list[tuple[bytes, float]]:
        """Return the topics with most messages, with messages a second."""
        self._roll()
        found = nlargest(count, self._last.items(), key=itemgetter(1))
        return [(topic, self._per_second(messages)) for topic, messages in found]

    def busiest_branches(self, count: int) -> Generator[None, None, list[tuple[bytes, float]]]:
        """Return the branches with most messages, with messages a second, in steps.

        A branch is left out if most of its messages are of one branch below.
        """
        self._roll()
        if not self._last_s:
            return []
        found = self._branches
        if found is None:
            last, scale, sums = self._last, self._per_second(1), Counter[bytes]()
            for number, (topic, messages) in enumerate(last.items()):
                if number % _STEP == 0:
                    yield
                end = topic.find(b"/")
                for _ in range(_LEVELS_MAX):
                    if end < 0:
                        break
                    sums[topic[:end]] += messages
                    end = topic.find(b"/", end + 1)
            parents: set[bytes] = set()
            for number, (branch, messages) in enumerate(sums.items()):
                if number % _STEP == 0:
                    yield
                above, slash, _ = branch.rpartition(b"/")
                if slash and messages >= _SHARE_OF_ONE * sums[above]:
                    parents.add(above)
            most = nlargest(
                BRANCHES_MAX, ((name, n) for name, n in sums.items() if name not in parents), key=itemgetter(1)
            )
            found = [(branch, messages * scale) for branch, messages in most]
            if last is self._last:  # else the interval ended meanwhile
                self._branches = found
        return found[:count]

    def by_level(self, root: bytes) -> dict[bytes, float] | None:
        """Return messages a second by the name of the level after `root`; None while they are not known."""
        self._roll()
        if not self._last_s:
            return None
        sums: Counter[bytes] = Counter()
        for topic, messages in self._last.items():
            if topic.startswith(root):
                sums[topic[len(root) :].partition(b"/")[0]] += messages
        return {name: self._per_second(messages) for name, messages in sums.items()}

    def _per_second(self, samples: int) -> float:
        return samples * self._last_one_of / self._last_s

    def _take(self, updates: list[Update]) -> None:
        self._roll()
        self._messages += len(updates)
        one_of = self._one_of
        self._sample += map(_topic, updates if one_of == 1 else updates[random.randrange(one_of) :: one_of])
        while len(self._sample) > SAMPLES_MAX:
            self._sample = self._sample[random.randrange(2) :: 2]
            self._one_of *= 2
        watched = self._watched
        if watched and not watched.keys().isdisjoint(map(_topic, updates)):
            for update in updates:
                one = watched.get(update[TOPIC])
                if one is not None:
                    one.messages += 1
                    if one.interval is not None:
                        one.interval += 1
                    if len(update[PAYLOAD]) <= _REMEMBERED_BYTES:
                        one.remembered.append(update)

    def _roll(self) -> None:
        """End the interval if it is long enough."""
        passed_s = self._monotonic() - self._began_s
        if passed_s < _INTERVAL_S or self._end is None:
            return
        self._last = Counter(topic for topic in self._sample if not topic.startswith(b"$"))  # [MQTT-4.7.2-1]
        self._sample = []
        self._last_one_of, self._branches = self._one_of, None
        while self._one_of > 1 and self._messages < SAMPLES_MAX // 2 * self._one_of:
            self._one_of //= 2
        self._last_messages, self._messages = self._messages, 0
        self._last_s, self._began_s = passed_s, self._began_s + passed_s
        for one in self._watched.values():
            one.last, one.interval = one.interval, 0

    def _end_later(self, seconds: float) -> None:
        def check() -> None:
            left_s = self._until_s - self._monotonic()
            if left_s > 0 and self._end is not None:
                self._end_later(left_s)
            else:
                self.close()

        asyncio.get_running_loop().call_later(seconds, check)
