"""Batches of messages, and the bounded queue of one session in which they wait until it can be written to.

Owns the order of the queue, its two bounds (messages and bytes) and the overflow policy; dropped messages are returned
so that they can be counted. Queues refer to batches that all members of an audience share, so a thousand slow members
of one audience cost little more than one.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from fanout.config import QueueOverflow
from fanout.server.messages.encoding import (
    Frame,
    Message,
    SharedMessage,
    WireVariant,
    encode_frame,
    encode_message,
    message_bytes,
)

__all__ = ["Conflatable", "Conflated", "MessageBatch", "MessageQueue", "event_key"]


def event_key(topic: bytes) -> bytes:
    """Return the key of a topic's newest message without RETAIN, apart from its value's; no topic contains U+0000."""
    return b"\0" + topic


class Conflatable(enum.Enum):
    """Messages that a newer one of their topic may replace while their session waits; never those of share groups."""

    RETAINED = "retained"
    """Retained values and removals at QoS 0."""
    QOS_0 = "qos_0"
    """All messages at QoS 0."""
    QOS_1 = "qos_1"
    """All messages at QoS 0 and 1."""


class Conflated(NamedTuple):
    """A batch for a slow session, which gets only the newest of the messages that may be conflated."""

    newest: dict[bytes, Message]
    """Newest message by Topic Name, of those that may be conflated; those without RETAIN by `event_key`."""
    conflatable: int
    """Number of messages that `newest` replaces."""
    rest: MessageBatch | None
    """Messages that are delivered one by one, to be queued before `newest`; None when there are none."""


class MessageBatch:
    """Messages of one dispatch for one audience, shared by all its members."""

    __slots__ = (
        "_bytes",
        "_conflated",
        "_durable",
        "_sums",
        "data",
        "expiring",
        "frames",
        "messages",
        "position",
        "wire",
    )

    def __init__(
        self,
        messages: list[Message],
        *,
        wire: WireVariant,
        frames: list[Frame] | None = None,
        data: bytes | None = None,
        expiring: bool = False,
        position: int = 0,
    ) -> None:
        self.messages = messages
        """In order."""
        self.wire = wire
        """Wire variant for which `frames` were encoded."""
        self.frames = frames
        """One frame for each message; None while nothing is encoded, because no member could be written to."""
        self.data = data
        """All frames joined; None unless every message has QoS 0."""
        self.expiring = expiring
        """True when a message has a Message Expiry Interval, so its frames must be encoded anew."""
        self.position = position
        """Number of the dispatched batch in the history of messages on disk; 0 when it is not there."""
        self._bytes = -1
        # Bytes of the messages before each index, and of all; computed once, when a part is asked for.
        self._sums: list[int] | None = None
        self._durable: MessageBatch | None = None
        self._conflated: dict[Conflatable, Conflated] = {}

    def durable(self) -> MessageBatch:
        """Return the messages at QoS 1 and 2, which a session without a Network Connection keeps."""
        if self._durable is None:
            self._durable = self.part([m for m in self.messages if m[1]])
        return self._durable

    def conflated(self, conflatable: Conflatable = Conflatable.RETAINED) -> Conflated:
        """Return the batch as slow sessions get it, one object for all of them.

        Messages that may not be conflated are delivered one by one. So is one before such a message for the same topic.
        """
        found = self._conflated.get(conflatable)
        if found is None:
            qos_max, all_topics = int(conflatable is Conflatable.QOS_1), conflatable is not Conflatable.RETAINED
            newest: list[tuple[bytes, Message]] = []
            rest: list[Message] = []
            kept: set[bytes] = set()
            followed: set[bytes] = set()
            for message in reversed(self.messages):
                topic, retained = message[0][0], message[0][3]
                if message[1] > qos_max or not retained or isinstance(message, SharedMessage):
                    if all_topics and message[1] <= qos_max and not isinstance(message, SharedMessage):
                        key = event_key(topic)
                        if topic in kept or key in kept:
                            continue
                        kept.add(key)
                        if topic not in followed:
                            newest.append((key, message))
                            continue
                    else:
                        followed.add(topic)
                    rest.append(message)
                elif topic not in kept:
                    kept.add(topic)
                    if topic in followed:
                        rest.append(message)
                    else:
                        newest.append((topic, message))
            newest.reverse()
            rest.reverse()
            others: MessageBatch | None = None
            if len(rest) == len(self.messages):
                others = self  # with its frames
            elif rest:
                others = self.part(rest)
            found = Conflated(dict(newest), len(self.messages) - len(rest), others)
            self._conflated[conflatable] = found
        return found

    def shared_frames(self, wire: WireVariant, *, now_ns: int) -> list[Frame] | None:
        """Return the frames, encoded now if needed; None when they do not fit a receiver with `wire`.

        So a batch is encoded only once, even when all members were slow as it came.
        """
        if self.expiring or wire != self.wire:
            return None
        if self.frames is None and not wire.packet_bytes_max:
            if any(message[1] for message in self.messages):
                self.frames = [encode_frame(message, wire=wire, now_ns=now_ns) for message in self.messages]
            else:
                frames = [encode_message(message, wire=wire, now_ns=now_ns) for message in self.messages]
                self.frames, self.data = list(frames), b"".join(frames)
        return self.frames

    def bytes_between(self, start: int, stop: int) -> int:
        """Return the bytes that the messages from `start` to before `stop` count towards the limit of a queue."""
        if start == 0 and stop == len(self.messages):
            if self._bytes < 0:
                self._bytes = sum(map(message_bytes, self.messages))
            return self._bytes
        sums = self._byte_sums()
        return sums[stop] - sums[start]

    def index_beyond(self, start: int, size: int) -> int:
        """Return the index of the first message after `size` bytes from index `start`, or the number of messages."""
        sums = self._byte_sums()
        return min(bisect_left(sums, sums[start] + size), len(self.messages))

    def part(self, messages: list[Message]) -> MessageBatch:
        """Return a batch of some of its messages."""
        return MessageBatch(messages, wire=self.wire, expiring=self.expiring, position=self.position)

    def _byte_sums(self) -> list[int]:
        if self._sums is None:
            self._sums = list(accumulate(map(message_bytes, self.messages), initial=0))
        return self._sums


class MessageQueue:
    """Bounded FIFO of one session's messages, by reference to their batches."""

    __slots__ = (
        "_drops_durable",
        "_entries",
        "_messages_max",
        "_start",
        "appended_total",
        "bytes",
        "bytes_max",
        "messages",
        "overflowed",
    )

    def __init__(self, *, messages_max: int, bytes_max: int, overflow: QueueOverflow) -> None:
        """Make an empty queue.

        Args:
            messages_max: Limit of messages.
            bytes_max: Limit of bytes, as `message_bytes` counts them.
            overflow: Policy for messages at QoS 1 and 2 above a limit. With `disconnect` none of them is dropped:
                `overflowed` says that the session must end.
        """
        self._messages_max = messages_max
        self.bytes_max = bytes_max
        """Limit of bytes."""
        self._drops_durable = overflow == "drop_oldest"
        self._entries: deque[tuple[MessageBatch, int]] = deque()
        self._start = 0
        self.messages = 0
        """Messages in the queue."""
        self.bytes = 0
        """Bytes in the queue, as `message_bytes` counts them."""
        self.appended_total = 0
        """Messages ever appended; minus `messages` it is the position of the oldest one in the queue."""
        self.overflowed = False
        """True once messages that must not be dropped exceed a limit; then nothing may be appended any more."""

    def another(self) -> MessageQueue:
        """Return an empty queue with the same limits."""
        overflow: QueueOverflow = "drop_oldest" if self._drops_durable else "disconnect"
        return MessageQueue(messages_max=self._messages_max, bytes_max=self.bytes_max, overflow=overflow)

    def __bool__(self) -> bool:
        """Return whether a message is in the queue."""
        return self.messages > 0

    def append(self, batch: MessageBatch, *, start: int = 0) -> list[Message]:
        """Append the messages of `batch` from index `start`.

        Returns:
            The dropped messages: older ones, or those of the batch itself. A message that alone exceeds a limit is
            dropped too.
        """
        if start >= len(batch.messages):
            return []
        self.restore(batch, start=start)
        if not self._full:
            return []
        dropped = self._drop_oldest()
        if self._full:
            dropped += self._drop_qos_0_of_newest()
            self.overflowed = self._full
        return dropped

    def restore(self, batch: MessageBatch, *, start: int = 0) -> None:
        """Append messages from index `start`, at least one, whatever the limits: they were accepted before."""
        if not self._entries:
            self._start = start
        self._entries.append((batch, start))
        self.messages += len(batch.messages) - start
        self.appended_total += len(batch.messages) - start
        self.bytes += batch.bytes_between(start, len(batch.messages))

    def drop_qos_0(self) -> list[Message]:
        """Drop the messages at QoS 0 and return them; positions before the end of the queue are invalid afterwards."""
        dropped: list[Message] = []
        entries, self._entries = self._entries, deque()
        for index, (batch, start) in enumerate(entries):
            start = start if index else self._start
            waiting = batch.messages[start:]
            dropped += [message for message in waiting if not message[1]]
            # Of a whole batch it is one for all sessions.
            durable = batch.durable() if start == 0 else batch.part([message for message in waiting if message[1]])
            if durable.messages:
                self._entries.append((durable, 0))
        self._start = 0
        self.messages -= len(dropped)
        self.bytes -= sum(map(message_bytes, dropped))
        return dropped

    def replace(self, batch: MessageBatch | None) -> None:
        """Put a batch in the place of all messages; positions before the end of the queue are invalid afterwards."""
        self._entries.clear()
        self._start = 0
        self.messages = self.bytes = 0
        if batch is not None:
            self._entries.append((batch, 0))
            self.messages = len(batch.messages)
            self.bytes = batch.bytes_between(0, self.messages)

    def head(self) -> tuple[MessageBatch, int]:
        """Return the oldest batch and the index of its oldest message; the queue must not be empty."""
        return self._entries[0][0], self._start

    def entries(self) -> Iterator[tuple[MessageBatch, int]]:
        """Return the batches in the queue, in order, each with the index of the first message that waits."""
        for index, (batch, start) in enumerate(self._entries):
            yield batch, start if index else self._start

    def waiting(self) -> Iterator[Message]:
        """Return the messages in the queue, in order; the queue must not change meanwhile."""
        for batch, start in self.entries():
            yield from batch.messages[start:]

    def part(self, position: int, count: int) -> list[Message]:
        """Return `count` messages from a position on, in order; fewer where the queue has no more of them."""
        behind = self.appended_total - position
        if behind <= count:
            return self.newest(behind)
        found: list[Message] = []
        at = self.appended_total - self.messages
        for batch, start in self.entries():
            end = at + len(batch.messages) - start
            if end > position:
                found += batch.messages[start + max(0, position - at) :]
                if len(found) >= count:
                    break
            at = end
        return found[:count]

    def newest(self, count: int) -> list[Message]:
        """Return the `count` newest messages in the queue, in order; all when it has fewer."""
        parts: list[list[Message]] = []
        for index in range(len(self._entries) - 1, -1, -1):
            if count <= 0:
                break
            batch, start = self._entries[index]
            part = batch.messages[max(start if index else self._start, len(batch.messages) - count) :]
            parts.append(part)
            count -= len(part)
        return [message for part in reversed(parts) for message in part]

    def advance(self, count: int) -> None:
        """Remove the `count` oldest messages; they must be of the batch that `head` returns."""
        batch, start = self._entries[0][0], self._start
        stop = start + count
        self.messages -= count
        self.bytes -= batch.bytes_between(start, stop)
        if stop < len(batch.messages):
            self._start = stop
            return
        self._entries.popleft()
        self._start = self._entries[0][1] if self._entries else 0

    def free(self, count: int) -> bool:
        """Let go of about this number of the newest messages of an ended session; return whether some are left."""
        while self._entries and count > 0:
            batch, _ = self._entries.pop()
            count -= len(batch.messages)
        return bool(self._entries)

    @property
    def _full(self) -> bool:
        return self.messages > self._messages_max or self.bytes > self.bytes_max

    def _drop_qos_0_of_newest(self) -> list[Message]:
        # Only the newest batch is searched: a search of the whole queue would cost its length for each message.
        batch, start = self._entries.pop()
        if not self._entries:
            start = self._start
        stop = len(batch.messages)
        self.bytes -= batch.bytes_between(start, stop)
        messages = batch.messages[start:stop]
        rest = batch.part([message for message in messages if message[1]])
        dropped = len(messages) - len(rest.messages)
        self.messages -= dropped
        self.appended_total -= dropped
        self.bytes += rest.bytes_between(0, len(rest.messages))
        if rest.messages:
            if not self._entries:
                self._start = 0
            self._entries.append((rest, 0))
        return [message for message in messages if not message[1]]

    def _drop_oldest(self) -> list[Message]:
        # The newest messages matter most. Retained values of slow readers are not in the queue.
        dropped: list[Message] = []
        while self._full:
            batch, start = self.head()
            messages = batch.messages
            stop = min(len(messages), start + max(1, self.messages - self._messages_max))
            if self.bytes > self.bytes_max:
                stop = max(stop, batch.index_beyond(start, self.bytes - self.bytes_max))
            if not self._drops_durable and batch.durable().messages:
                stop = next((index for index in range(start, stop) if messages[index][1]), stop)
            if stop == start:
                break
            dropped += messages[start:stop]
            self.advance(stop - start)
        return dropped
