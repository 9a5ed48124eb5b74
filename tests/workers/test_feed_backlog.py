"""How much of what came from the hub a worker takes in one turn of the event loop."""

from __future__ import annotations

from fanout.replica.update import Update
from fanout.workers.feed_backlog import FeedBacklog, removals_per_turn
from fanout.workers.messages import ChannelMessage, Complete, FeedBatch


def update(number: int, payload: bytes = b"x", *, retain: bool = True) -> Update:
    """Return an update."""
    return b"a/%d" % number, payload, 0, retain, b"", 5, 0, number, None


def taken(*messages: ChannelMessage, removals: int = 100) -> list[list[ChannelMessage]]:
    """Return what each turn takes of some messages."""
    backlog = FeedBacklog()
    backlog.add(messages)
    turns = []
    while backlog:
        turns.append(backlog.take(removals=removals))
    return turns


def test_batches_that_follow_each_other_become_one() -> None:
    """Not across another message, nor with one that a client published: that is not sent to its publisher."""
    first, second = FeedBatch([update(1)]), FeedBatch([update(2)])
    own = FeedBatch([update(3)], "client")
    assert taken(first, second, own, first, Complete(), second) == [
        [FeedBatch([update(1), update(2)]), own, first, Complete(), second]
    ]


def test_very_many_removals_get_several_turns() -> None:
    """A turn ends behind the batch that reaches the limit; values, and messages without a payload, do not count."""
    pieces = [FeedBatch([update(number, b""), update(number + 1, b"")]) for number in range(0, 10, 2)]
    others = [FeedBatch([update(20)] * 50), FeedBatch([update(21, b"", retain=False)] * 50)]
    turns = taken(*others, *pieces, Complete(), removals=4)
    assert [sum(len(one.updates) for one in turn if isinstance(one, FeedBatch)) for turn in turns] == [104, 4, 2]
    assert turns[-1][-1] == Complete()
    came = [each for turn in turns for one in turn if isinstance(one, FeedBatch) for each in one.updates]
    assert came == [each for one in (*others, *pieces) for each in one.updates]


def test_the_limit_follows_the_clients() -> None:
    """Removals times clients are bounded, and so are removals that nobody hears of; one goes always."""
    assert [removals_per_turn(clients) for clients in (0, 100, 500, 1_000_000)] == [2000, 2000, 400, 1]
