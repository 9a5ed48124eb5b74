"""The newest value of each topic, for a client that reads more slowly than topics change.

Owns the newest message, which may be a removal, of each topic that changed while a session's socket was full.
So the memory is bounded by the number of topics, not of messages. `SessionSender` decides when messages are conflated,
and when they are sent.

Messages are in parts. `put` adds to the open part. `seal` closes it, and only sealed parts are taken. A sealed part is
sent after the messages queued until then, before messages queued later, and before the retained messages of a later
SUBSCRIBE. A topic is in one sealed part at most. Entries are not deleted from the front of a dictionary: finding the
first entry would take time by the number of deleted ones.

Slow clients of one audience get the same messages. If each merged them at once, a thousand dictionaries would be
resized at the same moment: 0.8 s in one turn of the event loop, measured with 300 clients and 60,000 topics. So once
there are many, `put` only keeps a reference to the messages, which all sessions share, and each session merges some
thousand messages at a time, each at a different moment.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Final

from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import Message
from fanout.server.messages.queue import event_key

__all__ = ["DEFERRED_FROM", "UNMERGED_MAX", "NewestValues"]

DEFERRED_FROM: Final = 1024
"""Number of topics from which messages are merged later."""
UNMERGED_MAX: Final = 32_768
"""Limit of messages that are not merged yet."""
_UNMERGED_MIN: Final = 12_288


class NewestValues:
    """Newest values of topics that wait for one session; all at QoS 0, but for a session that asked for QoS 1 too."""

    __slots__ = (
        "_cleared",
        "_counters",
        "_limit",
        "_open",
        "_sealed",
        "_unmerged",
        "_unmerged_count",
        "has_events",
        "sealed",
    )

    def __init__(self, *, counters: Counters) -> None:
        self._counters = counters
        self._open: dict[bytes, Message] = {}
        # Messages that are not in `_open` yet, in order, with the number of messages that they replace.
        self._unmerged: list[tuple[Mapping[bytes, Message], int]] = []
        self._unmerged_count = 0  # messages
        self._limit = _limit(0)
        self.has_events = False
        """True if messages without RETAIN may wait here too. A newer value replaces them; they replace no value."""
        self._sealed: deque[_Part] = deque()  # none of them empty
        self._cleared: list[dict[bytes, Message]] = []
        self.sealed = 0
        """Number of topics that are sealed and not taken."""

    def __len__(self) -> int:
        """Return the number of messages; before a merge this includes messages that newer ones will replace."""
        return self.sealed + len(self._open) + self._unmerged_count

    @property
    def topics(self) -> int:
        """Number of topics with messages, as far as they are merged: at most `UNMERGED_MAX` messages are not."""
        return self.sealed + len(self._open)

    def put(self, newest: Mapping[bytes, Message], *, count: int) -> None:
        """Add the newest messages of some topics, which replace older ones.

        Args:
            newest: Messages by Topic Name.
            count: Number of messages that they stand for, older ones of the same topics included.
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
            opened.update(self._without_events(newest) if self.has_events else newest)
            before += count
        self._counters.conflated += before - len(opened)
        self._unmerged.clear()
        self._unmerged_count = 0
        self._limit = _limit(len(opened))

    def _without_events(self, newest: Mapping[bytes, Message]) -> dict[bytes, Message]:
        """Return the messages without events of topics with a waiting value; drop events that these values replace."""
        opened = self._open
        values = {key: message for key, message in newest.items() if not key.startswith(b"\0")}
        for topic in values:
            opened.pop(event_key(topic), None)
        events = (key for key in newest if key not in values and key[1:] not in values and key[1:] not in opened)
        return values | {key: newest[key] for key in events}

    def remove(self, messages: Iterable[Message]) -> list[Message]:
        """Remove and return the open messages for the topics of `messages`, which are to be queued after them."""
        self._merge()
        if not self._open:
            return []
        topics = [message[0][0] for message in messages]
        found = [self._open.pop(topic, None) for topic in topics]
        if self.has_events:
            found += [self._open.pop(event_key(topic), None) for topic in topics]
        return [message for message in found if message is not None]

    def follows(self, topic: bytes) -> bool:
        """Return whether a message for `topic` will be sent after the whole queue."""
        self._merge()
        return topic in self._open

    def supersede(self, message: Message) -> None:
        """Drop the open message for the topic of `message`, a retained value that was just read and is sent.

        It stays when it has Subscription Identifiers that `message` does not have, or a higher QoS.
        """
        self._merge()
        topic = message[0][0]
        waiting = self._open.get(topic)
        if waiting is not None and waiting[1] <= message[1] and set(waiting[3]) <= set(message[3]):
            del self._open[topic]
            self._counters.conflated += 1

    @property
    def turn(self) -> int:
        """Position in the queue up to which messages are sent first; only while `sealed` is not 0."""
        return self._sealed[0].position

    def seal(self, position: int) -> None:
        """Seal the open part after the other sealed ones, from which messages of the same topics are removed.

        Args:
            position: Position of the next message to be queued; all before it are sent first.
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
            newest: True when a newer open message of a topic replaces the sealed one, so that a topic that changes all
                the time is sent too. False while the queue is not empty: it may have an older message of the topic.
                So may a later sealed part, with a value between two events: only the last part takes newer messages.
            messages_max: Limit of messages; above 0.
            bytes_max: Bytes of payloads and properties at which to stop.
        """
        part = self._sealed[0]
        newest = newest and len(self._sealed) == 1
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

    def put_back(self, messages: list[Message]) -> None:
        """Put back the last of the taken messages, which were not sent; the next `take` begins with them."""
        keyed = {message[0][0] if message[0][3] else event_key(message[0][0]): message for message in messages}
        self._sealed.appendleft(_Part(0, keyed))
        self.sealed += len(messages)

    def clear(self, *, all_qos: bool = True) -> int:
        """Remove all messages, or only those at QoS 0, and return their number."""
        self._merge()
        count = len(self)
        durable: dict[bytes, Message] = {}
        if not all_qos:
            waiting = chain.from_iterable(part.messages for part in self._sealed)
            durable = {topic: message for topic, message in chain(waiting, self._open.items()) if message[1]}
        self._cleared += (self._open, *(part.all for part in self._sealed))
        self._open = durable
        self._sealed.clear()
        self.sealed = 0
        return count - len(durable)

    def take_cleared(self) -> list[dict[bytes, Message]]:
        """Return the cleared messages, to be freed in pieces: freeing half a million at once takes 0.1 s."""
        cleared, self._cleared = self._cleared, []
        return cleared


class _Part:
    """Messages that were sealed at one time."""

    __slots__ = ("all", "left", "messages", "position")

    def __init__(self, position: int, messages: dict[bytes, Message]) -> None:
        self.position = position
        self.all = messages
        self.messages = iter(messages.items())
        self.left = len(messages)


def _limit(topics: int) -> int:
    """Return the number of messages at which a session with `topics` topics merges: random, so that sessions differ."""
    most = min(max(topics // 2, _UNMERGED_MIN), UNMERGED_MAX)
    return random.randrange(most // 3, most)


def _without(messages: Iterable[tuple[bytes, Message]], newer: Mapping[bytes, Message]) -> dict[bytes, Message]:
    return {topic: message for topic, message in messages if topic not in newer}
