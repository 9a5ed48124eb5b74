"""Tests of pieces of retained values that deliveries share."""

from __future__ import annotations

from fanout.replica.update import Update
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.session.retained_cache import RetainedPieces
from tests.server.node_in_memory import update

V4, V5 = WireVariant(4), WireVariant(5)


class User:
    """Somebody who is being given retained messages."""


def values(count: int = 3, *, payload: bytes = b"v", prefix: bytes = b"t") -> list[Update]:
    """Make values."""
    return [update(b"%b/%d" % (prefix, number), payload, qos=number % 3) for number in range(count)]


def batch(pieces: RetainedPieces, of: list[Update], *, wire: WireVariant = V5, qos_max: int = 0) -> MessageBatch | None:
    """Ask for a batch."""
    return pieces.batch(of, wire=wire, qos_max=qos_max, identifiers=())


def test_single_user_leaves_nothing_behind() -> None:
    """With one delivery, or none any more, no piece is kept, however the others ended."""
    pieces = RetainedPieces()
    first, second = User(), User()
    pieces.add_user(first)
    assert batch(pieces, values()) is not None
    assert pieces.bytes == 0
    pieces.add_user(second)
    batch(pieces, values())
    assert pieces.bytes > 0
    del first, second
    assert pieces.bytes == 0


def test_memory_of_pieces_is_bounded() -> None:
    """The oldest pieces go when there are too many; who needs one again makes it again."""
    pieces, users = RetainedPieces(bytes_max=10_000), [User(), User()]
    for user in users:
        pieces.add_user(user)
    all_values = [values(10, prefix=b"%d" % number) for number in range(20)]
    made = [batch(pieces, of) for of in all_values]
    assert 5_000 < pieces.bytes <= 10_000
    assert batch(pieces, all_values[-1]) is made[-1]
    assert batch(pieces, all_values[0]) is not made[0]
    assert batch(pieces, [update(b"t", b"v", properties=b"p" * 5_000)]) is not None  # twice its size is too much
    assert pieces.bytes == 0
