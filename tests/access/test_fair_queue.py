"""Tests of `fanout.access.fair_queue`: turns of addresses and users, and pauses of those that fail."""

from __future__ import annotations

from fanout.access.fair_queue import FREE_FAILURES, PAUSE_S_MAX, FairQueue


def filled(*items: tuple[bytes, str, str]) -> FairQueue[str]:
    """Return a queue with items of addresses and users."""
    queue: FairQueue[str] = FairQueue()
    for address, user, item in items:
        queue.add(address, user, item)
    return queue


def taken(queue: FairQueue[str], *, now_s: float = 0.0) -> list[str]:
    """Take everything whose turn it is."""
    items = []
    while (item := queue.take(now_s=now_s)) is not None:
        items.append(item)
    return items


def test_addresses_take_turns_and_so_do_the_users_of_each() -> None:
    """One item of each address; of an address one of each user."""
    queue = filled(
        (b"a", "x", "ax1"),
        (b"a", "x", "ax2"),
        (b"a", "x", "ax3"),
        (b"a", "y", "ay1"),
        (b"b", "x", "bx1"),
        (b"b", "x", "bx2"),
    )
    assert taken(queue) == ["ax1", "bx1", "ay1", "bx2", "ax2", "ax3"]
    assert len(queue) == 0


def test_an_address_that_fails_pauses_longer_and_longer() -> None:
    """A few wrong passwords cost nothing, then the pause doubles up to its limit; others go on, and a match ends it."""
    queue = filled(*((b"a", "x", f"a{number}") for number in range(4)), (b"b", "x", "b"))
    for _ in range(FREE_FAILURES):
        queue.note(b"a", is_right=False, now_s=10.0)
    assert queue.take(now_s=10.0) == "a0"
    queue.note(b"a", is_right=False, now_s=10.0)
    assert taken(queue, now_s=10.0) == ["b"]
    next_s = queue.next_s(now_s=10.0)
    assert next_s is not None
    assert 10.0 < next_s < 10.0 + PAUSE_S_MAX
    assert queue.take(now_s=next_s) == "a1"
    for _ in range(100):
        queue.note(b"a", is_right=False, now_s=20.0)
    assert queue.next_s(now_s=20.0) == 20.0 + PAUSE_S_MAX
    queue.note(b"a", is_right=True, now_s=20.0)
    assert taken(queue, now_s=20.0) == ["a2", "a3"]


def test_failures_are_forgotten() -> None:
    """After a minute without any the address begins anew."""
    queue = filled((b"a", "x", "a"))
    for _ in range(FREE_FAILURES + 1):
        queue.note(b"a", is_right=False, now_s=0.0)
    assert queue.take(now_s=0.0) is None
    for _ in range(FREE_FAILURES):
        queue.note(b"a", is_right=False, now_s=61.0)
    assert queue.take(now_s=61.0) == "a"


def test_the_address_with_the_most_makes_room() -> None:
    """Its newest item goes; an address that would have as many itself gets no room."""
    queue = filled((b"a", "x", "1"), (b"a", "x", "2"), (b"a", "y", "3"), (b"b", "x", "4"))
    assert queue.displace(b"a") is None
    assert queue.displace(b"c") == "3"
    assert queue.displace(b"b") is None
    assert sorted(queue.drain()) == ["1", "2", "4"]
    assert (len(queue), queue.next_s(now_s=0.0)) == (0, None)
