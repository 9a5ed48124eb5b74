"""Tests of the newest values that wait for one slow session."""

from __future__ import annotations

from fanout.server.conflation import Conflation
from fanout.server.counters import Counters
from fanout.server.wire import Message
from tests.server.node_in_memory import update


def message(topic: bytes, payload: bytes, *, identifiers: tuple[int, ...] = ()) -> Message:
    """Make a message."""
    return (update(topic, payload), 0, False, identifiers)


def put(conflation: Conflation, *messages: Message) -> None:
    """Put messages of different topics."""
    conflation.put({one[0][0]: one for one in messages}, count=len(messages))


def drain(conflation: Conflation, *, newest: bool = True) -> list[bytes]:
    """Take what is sealed, and return the payloads."""
    found: list[bytes] = []
    while conflation.sealed:
        found.append(conflation.take(newest=newest)[0][1])
    return found


def test_newest_message_keeps_the_place_of_the_first() -> None:
    """A topic has its turn by its first change, with its newest value; what it replaced is counted."""
    counters = Counters()
    conflation = Conflation(counters=counters)
    put(conflation, message(b"a", b"a1"), message(b"b", b"b1"))
    put(conflation, message(b"a", b"a2"))
    assert len(conflation) == 2
    conflation.seal(0)
    assert drain(conflation) == [b"a2", b"b1"]
    assert not conflation
    assert counters.conflated == 1


def test_what_changes_while_it_is_taken_goes_as_newest() -> None:
    """A topic that changes again before its turn is taken once, with the newest value."""
    counters = Counters()
    conflation = Conflation(counters=counters)
    put(conflation, message(b"a", b"a1"), message(b"b", b"b1"))
    conflation.seal(0)
    put(conflation, message(b"b", b"b2"), message(b"c", b"c1"))
    assert drain(conflation) == [b"a1", b"b2"]
    conflation.seal(0)
    assert drain(conflation) == [b"c1"]
    assert counters.conflated == 1


def test_older_value_is_taken_where_something_is_queued_between() -> None:
    """When messages stand between an older and a newer value, each of them keeps its place."""
    conflation = Conflation(counters=Counters())
    put(conflation, message(b"a", b"a1"))
    conflation.seal(0)
    put(conflation, message(b"a", b"a2"))
    assert drain(conflation, newest=False) == [b"a1"]
    conflation.seal(0)
    assert drain(conflation) == [b"a2"]


def test_sealing_again_merges() -> None:
    """What is sealed later follows what is sealed already, one value a topic."""
    counters = Counters()
    conflation = Conflation(counters=counters)
    put(conflation, message(b"a", b"a1"), message(b"b", b"b1"), message(b"c", b"c1"))
    conflation.seal(0)
    assert conflation.take(newest=True)[0][1] == b"a1"
    put(conflation, message(b"a", b"a2"), message(b"c", b"c2"))
    conflation.seal(0)
    assert conflation.sealed == len(conflation) == 3
    assert drain(conflation) == [b"b1", b"a2", b"c2"]
    assert counters.conflated == 1


def test_each_part_has_its_turn_in_the_queue() -> None:
    """What is sealed waits for what was queued before, and not for what was queued between two parts."""
    conflation = Conflation(counters=Counters())
    put(conflation, message(b"a", b"a1"), message(b"b", b"b1"))
    conflation.seal(3)
    put(conflation, message(b"b", b"b2"))
    conflation.seal(5)
    assert conflation.turn == 3
    assert conflation.take(newest=True)[0][1] == b"a1"
    assert conflation.turn == 5
    assert drain(conflation) == [b"b2"]


def test_taking_out_gives_what_is_open() -> None:
    """Only what is open is taken out; what is sealed stands before the queue anyway."""
    conflation = Conflation(counters=Counters())
    assert conflation.take_out([message(b"a", b"x")]) == []
    put(conflation, message(b"a", b"a1"))
    conflation.seal(0)
    put(conflation, message(b"b", b"b1"), message(b"c", b"c1"))
    assert conflation.take_out([message(b"a", b"x"), message(b"b", b"x")]) == [message(b"b", b"b1")]
    assert len(conflation) == 2


def test_retained_value_takes_the_place_of_the_same_value() -> None:
    """A value that was just sent as retained does not follow, unless it tells of more Subscription Identifiers."""
    counters = Counters()
    conflation = Conflation(counters=counters)
    put(conflation, message(b"a", b"a1", identifiers=(1,)), message(b"b", b"b1", identifiers=(1, 2)))
    for topic in (b"a", b"b", b"c"):
        conflation.supersede(message(topic, b"", identifiers=(1,)))
    conflation.seal(0)
    assert drain(conflation) == [b"b1"]
    assert counters.conflated == 1


def test_clearing_tells_how_many_waited() -> None:
    """What is forgotten is counted by the caller."""
    conflation = Conflation(counters=Counters())
    put(conflation, message(b"a", b"a1"))
    conflation.seal(0)
    put(conflation, message(b"b", b"b1"))
    assert conflation.clear() == 2
    assert not conflation
