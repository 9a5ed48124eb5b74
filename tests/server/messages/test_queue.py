"""Tests of batches and of the bounded queue."""

from __future__ import annotations

import random

from fanout.server.messages.encoding import Message, SharedMessage, WireVariant, message_bytes
from fanout.server.messages.queue import MessageBatch, MessageQueue
from tests.server.node_in_memory import update

WIRE = WireVariant(4)


def messages(*numbers: int, qos: int = 0, expires_ns: int = 0) -> list[Message]:
    """Make messages whose payloads are numbers of one length."""
    return [(update(b"t", b"%04d" % number, expires_ns=expires_ns), qos, False, ()) for number in numbers]


def batch(*numbers: int, qos: int = 0, expires_ns: int = 0) -> MessageBatch:
    """Make a batch of such messages."""
    return MessageBatch(messages(*numbers, qos=qos, expires_ns=expires_ns), wire=WIRE, expiring=expires_ns > 0)


def drain(queue: MessageQueue, piece: int = 1) -> list[int]:
    """Take everything from a queue, `piece` messages at a time, and return the numbers."""
    found: list[int] = []
    while queue:
        one, start = queue.head()
        count = min(piece, len(one.messages) - start)
        found += [int(message[0][1]) for message in one.messages[start : start + count]]
        queue.advance(count)
    return found


def test_queue_starts_where_a_batch_starts() -> None:
    """The first batch of an empty queue may start in its middle; a batch without a rest changes nothing."""
    queue = MessageQueue(messages_max=100, bytes_max=10_000, overflow="drop_oldest")
    assert queue.append(batch(1, 2), start=2) == []
    assert not queue
    queue.append(batch(1, 2, 3), start=2)
    assert drain(queue) == [3]


def test_queue_full_in_bytes_drops_the_fewest_messages() -> None:
    """Whatever their sizes, over the ends of batches: as many go as must, and none more."""
    chance = random.Random(1)
    queue = MessageQueue(messages_max=1000, bytes_max=1000, overflow="disconnect")
    model: list[int] = []
    for _ in range(200):
        sizes = [chance.randrange(1, 300) for _ in range(chance.randrange(1, 9))]
        queued = MessageBatch([(update(b"t", b"x" * size), 0, False, ()) for size in sizes], wire=WIRE)
        model += map(message_bytes, queued.messages)
        gone = 0
        while sum(model) > 1000:
            model.pop(0)
            gone += 1
        assert len(queue.append(queued)) == gone
        assert (queue.messages, queue.bytes) == (len(model), sum(model))
        if queue and chance.random() < 0.3:
            queue.advance(1)
            model.pop(0)


def one(number: int, *, topic: bytes = b"t", qos: int = 0, retain: bool = True) -> Message:
    """Make a message."""
    return (update(topic, b"%d" % number, retain=retain), qos, False, ())


def test_slow_session_gets_the_newest_retained_values_of_a_batch() -> None:
    """Of retained values at QoS 0 the newest of each topic is left; removals are values too."""
    removal: Message = (update(b"u", b""), 0, False, ())
    whole = MessageBatch([one(1), one(2, topic=b"u"), one(3), removal], wire=WIRE)
    newest, count, rest = whole.conflated()
    assert (newest, count, rest) == ({b"t": one(3), b"u": removal}, 4, None)
    assert list(newest) == [b"t", b"u"]
    assert whole.conflated() is whole.conflated()


def test_slow_session_gets_everything_else_message_by_message() -> None:
    """What is not retained, has QoS 1 or came through a shared subscription stays, as does a value before it."""
    shared = SharedMessage(one(7, topic=b"s"))
    whole = MessageBatch(
        [
            one(0),
            one(1),
            one(2, retain=False),
            one(3, topic=b"u", qos=1),
            one(4, topic=b"u"),
            shared,
            one(5, topic=b"v"),
        ],
        wire=WIRE,
    )
    newest, count, rest = whole.conflated()
    assert rest is not None
    assert rest.messages == [one(1), one(2, retain=False), one(3, topic=b"u", qos=1), shared]
    assert (newest, count) == ({b"u": one(4, topic=b"u"), b"v": one(5, topic=b"v")}, 3)


def overflowing(*, messages_max: int = 3, bytes_max: int = 10_000) -> MessageQueue:
    """Make a queue that drops nothing at QoS 1 and 2."""
    return MessageQueue(messages_max=messages_max, bytes_max=bytes_max, overflow="disconnect")


def test_queue_overflows_in_bytes() -> None:
    """So it does with more bytes than may wait."""
    queue = overflowing(messages_max=100, bytes_max=2 * message_bytes(messages(1)[0]))
    assert (queue.append(batch(1, 2, qos=1)), queue.overflowed) == ([], False)
    assert (queue.append(batch(3, qos=1)), queue.overflowed) == ([], True)


def test_newest_messages_at_qos_0_go_behind_those_that_must_stay() -> None:
    """When the oldest may not go, a message at QoS 0 goes itself; one at QoS 1 beside it is kept."""
    size = message_bytes(messages(1)[0])
    for first in (0, 1):
        queue = overflowing()
        queue.append(batch(1, 2, qos=1), start=first)
        whole = MessageBatch(messages(9) + messages(3) + messages(4, qos=1) + messages(5, 6), wire=WIRE)
        dropped = queue.append(whole, start=1)
        assert [int(message[0][1]) for message in dropped] == [3, 5, 6]
        assert not queue.overflowed
        assert (queue.messages, queue.bytes) == (3 - first, (3 - first) * size)
        assert queue.appended_total == queue.messages
        assert drain(queue) == [1, 2, 4][first:]


def test_batch_that_alone_is_too_much_keeps_what_must_stay() -> None:
    """In an empty queue too: what of it has QoS 0 goes, and with the rest it overflows or not."""
    queue = overflowing(messages_max=1)
    dropped = queue.append(MessageBatch(messages(1, qos=1) + messages(2), wire=WIRE))
    assert ([int(message[0][1]) for message in dropped], queue.overflowed) == ([2], False)
    assert drain(queue) == [1]
    dropped = queue.append(MessageBatch(messages(3) + messages(4, 5, qos=1), wire=WIRE))
    assert ([int(message[0][1]) for message in dropped], queue.overflowed) == ([3], True)
    assert drain(queue) == [4, 5]


def test_the_newest_messages_are_those_at_the_end() -> None:
    """Over batches, of one that is begun, and of all when there are fewer."""
    queue = MessageQueue(messages_max=100, bytes_max=10_000, overflow="drop_oldest")
    for first in (0, 3, 6):
        queue.append(batch(*range(first, first + 3)))
    queue.advance(2)
    for count in range(10):
        assert [int(message[0][1]) for message in queue.newest(count)] == list(range(max(2, 9 - count), 9))
    assert queue.newest(-1) == []
