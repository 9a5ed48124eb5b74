"""The newest value of each topic, for a client that reads more slowly than topics change.

Owns which retained topics changed while a session's socket was full, and the newest message of each, a removal
included: so what waits is bounded by the number of topics, not of messages. It must not know sockets or queues;
`Sending` says when something is conflated, and when it is sent.

Messages wait in two parts. `put` fills the open one. `seal` closes it, and only what is sealed is taken: that is
sent before anything that is queued later, and before retained messages of a later SUBSCRIBE. Nothing is deleted
from the front of a dictionary, which would take time by the number of what was deleted before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fanout.server.counters import Counters
from fanout.server.wire import Message

__all__ = ["Conflation"]


class Conflation:
    """What waits for one session as the newest values of topics, each QoS 0."""

    __slots__ = ("_counters", "_open", "_sealed", "sealed")

    def __init__(self, *, counters: Counters) -> None:
        self._counters = counters
        self._open: dict[bytes, Message] = {}
        self._sealed: Iterator[tuple[bytes, Message]] = iter(())
        self.sealed = 0
        """How many topics are sealed and not taken."""

    def __len__(self) -> int:
        """Return how many messages wait."""
        return self.sealed + len(self._open)

    def put(self, newest: Mapping[bytes, Message], *, count: int) -> None:
        """Keep the newest messages of some topics, in place of older ones.

        Args:
            newest: By Topic Name.
            count: How many messages they stand for; the others were older ones for the same topics.
        """
        before = len(self._open)
        self._open.update(newest)
        self._counters.conflated += before + count - len(self._open)

    def take_out(self, messages: Iterable[Message]) -> list[Message]:
        """Remove and return what is open for the topics of `messages`, which are to be queued behind it."""
        if not self._open:
            return []
        found = (self._open.pop(message[0][0], None) for message in messages)
        return [message for message in found if message is not None]

    def supersede(self, message: Message) -> None:
        """Note that `message`, a retained value just read, is sent: the same value need not follow.

        Unless it would tell of Subscription Identifiers that `message` does not have.
        """
        topic = message[0][0]
        waiting = self._open.get(topic)
        if waiting is not None and set(waiting[3]) <= set(message[3]):
            del self._open[topic]
            self._counters.conflated += 1

    def seal(self) -> None:
        """Close what is open; it follows what is sealed already."""
        opened, self._open = self._open, {}
        if self.sealed:
            rest = dict(self._sealed)
            self._counters.conflated += len(rest) + len(opened)
            rest.update(opened)
            self._counters.conflated -= len(rest)
            opened = rest
        self.sealed = len(opened)
        self._sealed = iter(opened.items())

    def take(self, *, newest: bool) -> Message:
        """Take the next message; only while `sealed` is not 0.

        Args:
            newest: Whether a newer message for its topic goes in its place; so a topic that changes all the time
                has its turn too. Not when something is queued, which may be for that topic and older.
        """
        topic, message = next(self._sealed)
        self.sealed -= 1
        if newest:
            newer = self._open.pop(topic, None)
            if newer is not None:
                self._counters.conflated += 1
                return newer
        return message

    def clear(self) -> int:
        """Forget everything and return how many messages that were."""
        count = len(self)
        self._open = {}
        self._sealed = iter(())
        self.sealed = 0
        return count
