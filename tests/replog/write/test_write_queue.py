"""The queue between the event loop and the writer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.replog.files.columns import EventRow, LogSource
from fanout.replog.write.write_queue import Loss, PendingRows, WriteQueue
from tests.replog.rows import EPOCH, NOW_NS, make_changes, make_update, make_updates

PLANT = LogSource("plant", ())
OFFICE = LogSource("office", ())
BEAT = EventRow("plant", 7, "heartbeat", NOW_NS)


def empty_queue(*, rows_max: int = 100, bytes_max: int = 10**9, events_max: int = 100) -> WriteQueue:
    """Return an empty queue."""
    return WriteQueue(
        node_epoch=EPOCH, rows_max=rows_max, bytes_max=bytes_max, events_max=events_max, now_ns=lambda: NOW_NS
    )


def put(queue: WriteQueue, count: int, *, source: LogSource = PLANT, flags: list[int] | None = None) -> None:
    """Put a pending of `count` updates."""
    queue.put(make_changes(make_updates(count)), source=source, link_epoch=7, flags=flags)


def taken(queue: WriteQueue, rows_max: int = 10**6) -> PendingRows:
    """Take a pending that is there."""
    pending = queue.take(rows_max)
    assert pending is not None
    return pending


def positions(pending: PendingRows) -> tuple[list[int], list[int]]:
    """Return the positions of a pending's updates and events."""
    return (
        [rows.first_log_pos + index for rows in pending.updates for index in range(len(rows.updates))],
        [event.log_pos for event in pending.events],
    )


def details(pending: PendingRows) -> list[dict[str, Any]]:
    """Return what the gap events of a pending say, with their links."""
    return [{"link": event.link, **json.loads(event.detail)} for event in pending.events if event.event == "gap"]


def test_positions_count_rows_of_both_tables() -> None:
    """Updates and events share one count, from 1, in the order in which they were put."""
    queue = empty_queue()
    assert queue.take(10) is None
    put(queue, 2)
    queue.put_event(BEAT)
    put(queue, 3, source=OFFICE)
    put(queue, 0)
    pending = taken(queue)
    assert positions(pending) == ([1, 2, 4, 5, 6], [3])
    assert (pending.first_log_pos, pending.last_log_pos, pending.update_rows) == (1, 6, 5)
    assert (queue.rows, queue.events, queue.log_pos) == (5, 1, 6)
    queue.done(pending)
    assert (queue.rows, queue.events, queue.bytes) == (0, 0, 0)
    assert queue.take(10) is None


def test_a_batch_is_cut_where_a_frame_is_full() -> None:
    """A large pending is taken in pieces, each with its own flags, and charged once."""
    queue = empty_queue()
    put(queue, 7, flags=[0, 1, 2, 3, 4, 5, 6])
    queue.put_event(BEAT)
    pieces = [taken(queue, 3) for _ in range(3)]
    assert [positions(piece) for piece in pieces] == [([1, 2, 3], []), ([4, 5, 6], []), ([7], [8])]
    assert [list(rows.flags or ()) for piece in pieces for rows in piece.updates] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [len(rows.kinds) for piece in pieces for rows in piece.updates] == [3, 3, 1]
    assert [(piece.first_log_pos, piece.last_log_pos) for piece in pieces] == [(1, 3), (4, 6), (7, 8)]
    for piece in pieces:
        queue.done(piece)
    assert (queue.rows, queue.bytes, queue.events) == (0, 0, 0)


def test_a_full_queue_drops_until_it_has_drained_to_half() -> None:
    """Dropped batches keep their positions; one gap event tells of all of them when there is room again."""
    queue = empty_queue(rows_max=10)
    put(queue, 8)
    put(queue, 3)  # does not fit
    put(queue, 1)  # would fit, but the queue has not drained
    assert (queue.dropping, queue.untold, queue.lost_rows_total) == (True, True, 4)
    first = taken(queue, 2)
    queue.done(first)
    put(queue, 1)
    second = taken(queue, 2)
    assert not details(second)
    queue.done(second)  # 4 of 10 are left
    put(queue, 2)
    pending = taken(queue)
    assert positions(pending) == ([5, 6, 7, 8, 15, 16], [14])
    assert not queue.untold
    [gap] = details(pending)
    assert gap == {
        "link": "plant",
        "reason": "queue",
        "rows": 5,
        "events": 0,
        "node_epoch": EPOCH,
        "first_log_pos": 9,
        "last_log_pos": 13,
        "first_us": NOW_NS // 1000,
        "last_us": NOW_NS // 1000,
    }
    assert queue.lost_rows_total == 5


def test_what_a_failing_disk_leaves_no_room_for_is_its_loss() -> None:
    """Until the queue has drained, also when the disk works again; before and after it the writer was too slow."""
    queue = empty_queue(rows_max=10, events_max=1)
    put(queue, 10)
    put(queue, 1)
    queue.disk_fails = True
    put(queue, 2)
    queue.put_event(BEAT)
    queue.put_event(BEAT)
    queue.disk_fails = False
    put(queue, 4)
    older = Loss("disk", "plant", 7, EPOCH, rows=3, first_log_pos=2, last_log_pos=4)
    queue.lose(older)  # swallowed after it was written: its positions are no part of the others
    queue.done(taken(queue, 10))
    found = details(taken(queue))
    assert [(gap["reason"], gap["rows"], gap["first_log_pos"], gap["last_log_pos"]) for gap in found] == [
        ("queue", 1, 11, 11),
        ("disk", 6, 12, 19),
        ("disk", 3, 2, 4),
    ]
    assert [gap["events"] for gap in found] == [0, 1, 0]
    put(queue, 20)
    put(queue, 3)
    queue.done(taken(queue))
    assert [gap["reason"] for gap in details(taken(queue))] == ["queue"]


def test_the_gap_is_told_even_when_nothing_follows() -> None:
    """The writer itself brings the gap event when it has drained the queue."""
    queue = empty_queue(rows_max=4)
    put(queue, 4)
    put(queue, 1, source=OFFICE)
    put(queue, 2)
    pending = taken(queue)
    assert not pending.events
    assert queue.take(10) is None
    queue.done(pending)
    gaps = details(taken(queue))
    assert [(gap["link"], gap["rows"], gap["first_log_pos"], gap["last_log_pos"]) for gap in gaps] == [
        ("office", 1, 5, 5),
        ("plant", 2, 6, 7),
    ]
    assert queue.take(10) is None


def test_the_bytes_are_bounded_too() -> None:
    """Large payloads fill the queue before the rows do."""
    queue = empty_queue(bytes_max=100_000)
    big = [make_update(b"a", b"x" * 1000) for _ in range(60)]
    queue.put(make_changes(big), source=PLANT, link_epoch=7, flags=None)
    assert queue.bytes == 60 * 1200
    queue.put(make_changes(big), source=PLANT, link_epoch=7, flags=None)
    assert queue.lost_rows_total == 60


def test_an_empty_queue_takes_a_batch_of_any_size() -> None:
    """A pending larger than the queue is logged when nothing else waits."""
    queue = empty_queue(rows_max=10)
    put(queue, 50)
    assert not queue.dropping
    assert taken(queue).update_rows == 50


def test_events_are_logged_through_an_overflow() -> None:
    """Events have room of their own, and their own bound."""
    queue = empty_queue(rows_max=2, events_max=2)
    put(queue, 2)
    put(queue, 1)
    for _ in range(4):
        queue.put_event(BEAT)
    assert (queue.lost_rows_total, queue.lost_events_total) == (1, 2)
    pending = taken(queue)
    assert positions(pending) == ([1, 2], [4, 5])
    queue.done(pending)
    [gap] = details(taken(queue))
    assert (gap["rows"], gap["events"], gap["first_log_pos"], gap["last_log_pos"]) == (1, 2, 3, 7)


def test_losses_elsewhere_are_told_behind_the_queue() -> None:
    """What a disk or a crash lost comes as a gap event, added up by link and reason."""
    queue = empty_queue()
    put(queue, 2)
    queue.put_event(BEAT)
    pending = taken(queue)
    queue.lose_rows(pending, "disk")
    assert (queue.rows, queue.events) == (0, 0)
    assert (queue.lost_rows_total, queue.lost_events_total) == (2, 1)
    for rows in (None, 4):
        queue.lose(Loss("crash", "", EPOCH, EPOCH - 1, rows=rows, first_log_pos=9))
    disk, crash = details(taken(queue))
    assert (disk["link"], disk["reason"], disk["rows"], disk["events"]) == ("plant", "disk", 2, 1)
    assert (disk["first_log_pos"], disk["last_log_pos"]) == (1, 3)
    assert (crash["rows"], crash["node_epoch"], crash["first_log_pos"]) == (None, EPOCH - 1, 9)
    assert (crash["last_log_pos"], crash["first_us"], crash["last_us"]) == (None, None, None)


def test_a_lost_gap_event_does_not_bring_forth_another() -> None:
    """A gap event that cannot be logged is counted, and that is the end of it."""
    queue = empty_queue()
    queue.lose(Loss("disk", "plant", 7, EPOCH, rows=1))
    queue.lose_rows(taken(queue), "encoding")
    assert (queue.take(10), queue.untold, queue.lost_events_total) == (None, False, 1)


def test_rows_without_their_kinds_are_refused() -> None:
    """A pending whose columns differ in length is a bug of the caller, and shows there."""
    changes = make_changes(make_updates(2))
    with pytest.raises(AssertionError):
        empty_queue().put(changes, source=PLANT, link_epoch=7, flags=[0])
    changes.kinds.pop()
    with pytest.raises(AssertionError):
        empty_queue().put(changes, source=PLANT, link_epoch=7, flags=None)


def test_what_is_abandoned_is_counted() -> None:
    """At the end of a log with a dead disk everything that is not done is lost, taken or not."""
    queue = empty_queue()
    put(queue, 5)
    queue.put_event(BEAT)
    taken(queue, 2)
    queue.abandon()
    assert (queue.lost_rows_total, queue.lost_events_total) == (5, 1)
    assert (queue.rows, queue.bytes, queue.events, queue.take(10)) == (0, 0, 0, None)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 1000])
def test_the_charge_of_equal_payloads_is_exact(count: int) -> None:
    """A sample measures equal payloads, and their properties, exactly, whatever the size of the pending."""
    queue = empty_queue(rows_max=10**6)
    update = (*make_update(b"a", b"x" * 20)[:4], b"p" * 10, *make_update(b"a", b"")[5:])
    queue.put(make_changes([update] * count), source=PLANT, link_epoch=7, flags=None)
    assert queue.bytes == count * 230


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.just("put"), st.integers(1, 9))
        | st.tuples(st.just("event"), st.just(1))
        | st.tuples(st.just("take"), st.integers(1, 12)),
        max_size=60,
    )
)
def test_every_position_is_taken_or_told_as_lost(steps: list[tuple[str, int]]) -> None:
    """Whatever happens, each position comes out once, in order, or lies in the range of a gap event."""
    queue = empty_queue(rows_max=20, events_max=3)
    seen: list[int] = []
    told: list[dict[str, Any]] = []

    def take(rows_max: int) -> bool:
        pending = queue.take(rows_max)
        if pending is None:
            return False
        updates, events = positions(pending)
        here = sorted(updates + events)
        assert (pending.first_log_pos, pending.last_log_pos) == (here[0], here[-1])
        assert not seen or here[0] > seen[-1]
        assert pending.update_rows == len(updates) <= rows_max
        seen.extend(here)
        told.extend(details(pending))
        queue.done(pending)
        return True

    for step, number in steps:
        if step == "put":
            put(queue, number)
        elif step == "event":
            queue.put_event(BEAT)
        else:
            take(number)
        assert queue.rows <= 20
    while take(5):
        pass
    missing = set(range(1, queue.log_pos + 1)) - set(seen)
    assert len(seen) == len(set(seen))
    assert sum(gap["rows"] + gap["events"] for gap in told) == len(missing)
    assert all(any(gap["first_log_pos"] <= one <= gap["last_log_pos"] for gap in told) for one in missing)
    assert (queue.rows, queue.bytes, queue.events) == (0, 0, 0)
