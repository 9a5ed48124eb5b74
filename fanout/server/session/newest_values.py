"""The newest value of each topic, for a client that reads more slowly than topics change.

Owns which retained topics changed while a session's socket was full, and the newest message of each, a removal
included: so what waits is bounded by the number of topics, not of messages. It must not know sockets or queues;
`SessionSender` says when something is conflated, and when it is sent.

Messages wait in parts. `put` fills the open one. `seal` closes it, and only what is sealed is taken: that is sent
behind what was queued until then, before anything that is queued later, and before retained messages of a later
SUBSCRIBE. A topic is in one sealed part at most. Nothing is deleted from the front of a dictionary, which would take
time by the number of what was deleted before.

Clients of one audience that are slow together get the same all the time. If each looked at it at once, a thousand
dictionaries would outgrow their tables at the same moment: 0.8 s in one turn of the event loop, measured with 300
clients and 60,000 topics. So once much waits, `put` only keeps what it is given, which all of them share, and each
session merges some thousand messages at a time, at other moments than the others.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import Message

__all__ = ["DEFERRED_FROM", "UNMERGED_MAX", "NewestValues"]

DEFERRED_FROM: Final = 1024
"""From so many topics on, what is put is merged later."""
UNMERGED_MAX: Final = 32_768
"""So many messages at most wait to be merged."""
_UNMERGED_MIN: Final = 12_288


class NewestValues:
    """What waits for one session as the newest values of topics, each QoS 0."""

    __slots__ = ("_cleared", "_counters", "_limit", "_open", "_sealed", "_unmerged", "_unmerged_count", "sealed")

    def __init__(self, *, counters: Counters) -> None:
        self._counters = counters
        self._open: dict[bytes, Message] = {}
        # What was put and is not in `_open` yet, in order, with how many messages it stands for.
        self._unmerged: list[tuple[Mapping[bytes, Message], int]] = []
        self._unmerged_count = 0  # messages
        self._limit = _limit(0)
        self._sealed: deque[_Part] = deque()  # none of them empty
        self._cleared: list[dict[bytes, Message]] = []  # what was cleared
        self.sealed = 0
        """How many topics are sealed and not taken."""

    def __len__(self) -> int:
        """Return how many messages wait; while much is not merged, those count too that newer ones will replace."""
        return self.sealed + len(self._open) + self._unmerged_count

    @property
    def topics(self) -> int:
        """For how many topics messages wait, as far as they are merged: at most `UNMERGED_MAX` are not."""
        return self.sealed + len(self._open)

    def put(self, newest: Mapping[bytes, Message], *, count: int) -> None:
        """Keep the newest messages of some topics, in place of older ones.

        Args:
            newest: By Topic Name.
            count: How many messages they stand for; the others were older ones for the same topics.
        """
        self._unmerged.append((newest, count))
        self._unmerged_count += len(newest)
        if len(self._open) < DEFERRED_FROM or self._unmerged_count >= self._limit:
            self._merge()

    def _merge(self) -> None:
        if not self._unmerged:
            return
        opened = self._open
        before = len(opened)
        for newest, count in self._unmerged:
            opened.update(newest)
            before += count
        self._counters.conflated += before - len(opened)
        self._unmerged.clear()
        self._unmerged_count = 0
        self._limit = _limit(len(opened))

    def remove(self, messages: Iterable[Message]) -> list[Message]:
        """Remove and return what is open for the topics of `messages`, which are to be queued behind it."""
        self._merge()
        if not self._open:
            return []
        found = (self._open.pop(message[0][0], None) for message in messages)
        return [message for message in found if message is not None]

    def follows(self, topic: bytes) -> bool:
        """Return whether a message for `topic` comes behind all that is queued."""
        self._merge()
        return topic in self._open

    def supersede(self, message: Message) -> None:
        """Note that `message`, a retained value just read, is sent: the same value need not follow.

        Unless it would tell of Subscription Identifiers that `message` does not have.
        """
        self._merge()
        topic = message[0][0]
        waiting = self._open.get(topic)
        if waiting is not None and set(waiting[3]) <= set(message[3]):
            del self._open[topic]
            self._counters.conflated += 1

    @property
    def turn(self) -> int:
        """Position in the queue before which messages precede the next one; only while `sealed` is not 0."""
        return self._sealed[0].position

    def seal(self, position: int) -> None:
        """Close what is open; it follows what is sealed already, but for older messages of the same topics.

        Args:
            position: Of the next message to be queued: all before it precede.
        """
        self._merge()
        opened, self._open = self._open, {}
        parts = [_Part(part.position, _without(part.messages, opened)) for part in self._sealed]
        parts.append(_Part(position, opened))
        before, self.sealed = self.sealed, sum(part.left for part in parts)
        self._counters.conflated += before + len(opened) - self.sealed
        self._sealed = deque(part for part in parts if part.left)

    def take(self, *, newest: bool, messages_max: int, bytes_max: int) -> list[Message]:
        """Take the next messages, all with the same `turn`; only while `sealed` is not 0.

        Args:
            newest: Whether a newer message for its topic goes in the place of one; so a topic that changes all the
                time has its turn too. Not when something is queued, which may be for that topic and older.
            messages_max: How many at most; above 0.
            bytes_max: After how many bytes of payloads and properties to stop.
        """
        part = self._sealed[0]
        if newest:
            self._merge()
        newer = self._open if newest else {}
        newer_before = len(newer)
        taken: list[Message] = []
        size = 0
        for topic, message in islice(part.messages, messages_max):
            message = newer.pop(topic, message)
            taken.append(message)
            update = message[0]
            size += len(update[1]) + len(update[4])
            if size >= bytes_max:
                break
        self._counters.conflated += newer_before - len(newer)
        self.sealed -= len(taken)
        part.left -= len(taken)
        if not part.left:
            self._sealed.popleft()
        return taken

    def clear(self) -> int:
        """Forget everything and return how many messages that were."""
        self._merge()
        count = len(self)
        self._cleared += (self._open, *(part.all for part in self._sealed))
        self._open = {}
        self._sealed.clear()
        self.sealed = 0
        return count

    def take_cleared(self) -> list[dict[bytes, Message]]:
        """Return what was cleared, for who frees it bit by bit: half a million messages at once take 0.1 s."""
        remains, self._cleared = self._cleared, []
        return remains


class _Part:
    """What is sealed at one time."""

    __slots__ = ("all", "left", "messages", "position")

    def __init__(self, position: int, messages: dict[bytes, Message]) -> None:
        self.position = position
        self.all = messages
        self.messages = iter(messages.items())
        self.left = len(messages)


def _limit(topics: int) -> int:
    """Return at how many messages a session with so many topics merges: a different number each time."""
    most = min(max(topics // 2, _UNMERGED_MIN), UNMERGED_MAX)
    return random.randrange(most // 3, most)


def _without(messages: Iterable[tuple[bytes, Message]], newer: Mapping[bytes, Message]) -> dict[bytes, Message]:
    return {topic: message for topic, message in messages if topic not in newer}
