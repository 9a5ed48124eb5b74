"""Tests of pieces of retained values that deliveries share."""

from __future__ import annotations

from fanout.replica.update import Update
from fanout.server.messages.encoding import WireVariant
from fanout.server.messages.queue import MessageBatch
from fanout.server.session.retained_cache import PIECE_BYTES_MAX, RetainedPieces
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


def test_other_values_are_encoded_anew() -> None:
    """When a value was replaced, came or went, nobody gets the former piece."""
    pieces, users = RetainedPieces(), [User(), User()]
    for user in users:
        pieces.add_user(user)
    of = values()
    for changed in ([*of[:2], update(b"t/2", b"new")], of[:2], [*of, update(b"t/9", b"v")]):
        before = batch(pieces, of)
        after = batch(pieces, changed)
        assert after is not None
        assert after is not before
        assert [message[0] for message in after.messages] == changed
        assert batch(pieces, of) is not before


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


def test_what_cannot_be_shared_is_not() -> None:
    """Values that expire, a Maximum Packet Size, and more bytes than fit a turn."""
    pieces = RetainedPieces()
    assert batch(pieces, [update(b"t", b"v", expires_ns=5)]) is None
    assert batch(pieces, values(), wire=WireVariant(5, packet_bytes_max=100)) is None
    assert batch(pieces, values(2, payload=b"x" * PIECE_BYTES_MAX)) is None
    assert batch(pieces, [update(b"t", b"v", properties=b"p" * (PIECE_BYTES_MAX + 1))]) is None
