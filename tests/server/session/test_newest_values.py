"""Tests of the newest values that wait for one slow session."""

from __future__ import annotations

import sys

from fanout.server.base.counters import Counters
from fanout.server.messages.encoding import Message
from fanout.server.session.newest_values import DEFERRED_FROM, UNMERGED_MAX, NewestValues
from tests.server.node_in_memory import update


def message(topic: bytes, payload: bytes, *, identifiers: tuple[int, ...] = (), properties: bytes = b"") -> Message:
    """Make a message."""
    return (update(topic, payload, properties=properties), 0, False, identifiers)


def put(values: NewestValues, *messages: Message) -> None:
    """Put messages of different topics."""
    values.put({one[0][0]: one for one in messages}, count=len(messages))


def take(values: NewestValues, *, newest: bool = True, messages_max: int = 1, bytes_max: int = 1000) -> list[bytes]:
    """Take what is sealed, one message unless said otherwise, and return the payloads."""
    taken = values.take(newest=newest, messages_max=messages_max, bytes_max=bytes_max)
    return [one[0][1] for one in taken]


def drain(values: NewestValues, *, newest: bool = True) -> list[bytes]:
    """Take what is sealed, and return the payloads."""
    found: list[bytes] = []
    while values.sealed:
        found += take(values, newest=newest)
    return found


def test_what_changes_while_it_is_taken_goes_as_newest() -> None:
    """A topic that changes again before its turn is taken once, with the newest value."""
    counters = Counters()
    values = NewestValues(counters=counters)
    put(values, message(b"a", b"a1"), message(b"b", b"b1"))
    values.seal(0)
    put(values, message(b"b", b"b2"), message(b"c", b"c1"))
    assert drain(values) == [b"a1", b"b2"]
    values.seal(0)
    assert drain(values) == [b"c1"]
    assert counters.conflated == 1


def test_sealing_again_merges() -> None:
    """What is sealed later follows what is sealed already, one value a topic."""
    counters = Counters()
    values = NewestValues(counters=counters)
    put(values, message(b"a", b"a1"), message(b"b", b"b1"), message(b"c", b"c1"))
    values.seal(0)
    assert take(values) == [b"a1"]
    put(values, message(b"a", b"a2"), message(b"c", b"c2"))
    values.seal(0)
    assert values.sealed == len(values) == 3
    assert drain(values) == [b"b1", b"a2", b"c2"]
    assert counters.conflated == 1


def test_what_is_taken_at_once_is_bounded() -> None:
    """By messages, by the bytes of payloads and properties, and by the part: what was queued between comes between."""
    counters = Counters()
    values = NewestValues(counters=counters)
    put(values, *(message(b"%d" % number, b"%04d" % number, properties=b"pppp") for number in range(8)))
    values.seal(3)
    put(values, message(b"8", b"0008"))
    values.seal(5)
    put(values, message(b"1", b"new1"), message(b"9", b"new9"))
    assert take(values, messages_max=3) == [b"0000", b"0001", b"0002"]  # newer ones are for the last part
    assert counters.conflated == 0
    assert take(values, messages_max=9, bytes_max=9) == [b"0003", b"0004"]
    assert (values.sealed, values.turn) == (4, 3)
    assert take(values, messages_max=9) == [b"0005", b"0006", b"0007"]
    assert (values.sealed, values.turn) == (1, 5)
    assert take(values, messages_max=9) == [b"0008"]
    assert (values.sealed, len(values)) == (0, 2)


def do(values: NewestValues, step: int, batch: dict[bytes, Message], one: Message, position: int) -> object:
    """Take a step and return what comes of it."""
    if step < 5:
        values.put(batch, count=len(batch))
    elif step == 5:
        values.seal(position)
    elif step == 6:
        return values.remove([one])
    elif step == 7:
        values.supersede(one)
    elif step == 8:
        return values.follows(one[0][0])
    elif values.sealed:
        return values.turn, take(values, newest=position % 2 == 0, messages_max=1 + position % 3)
    return None


def test_clients_that_are_slow_together_do_not_grow_together() -> None:
    """As a replica is torn down, few of the clients that do not keep up need larger tables in the same turn."""
    counters = Counters()
    clients = [NewestValues(counters=counters) for _ in range(60)]
    piece, count = 100, 50_000
    grown: list[int] = []
    for start in range(0, count, piece):
        newest = {b"%d" % number: message(b"%d" % number, b"") for number in range(start, start + piece)}
        before = [sys.getsizeof(client._open) for client in clients]
        for client in clients:
            client.put(newest, count=piece)
        if start > DEFERRED_FROM:
            grown.append(sum(sys.getsizeof(client._open) > size for client, size in zip(clients, before, strict=True)))
        assert all(start + piece - client.topics <= UNMERGED_MAX for client in clients)
    assert sum(grown) >= 2 * len(clients)  # all did, more than once
    assert max(grown) <= len(clients) // 3
    assert [client.clear() for client in clients] == [count] * len(clients)
    assert counters.conflated == 0
