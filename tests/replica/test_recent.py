"""Recent updates: places that members have in common, and what is found of one that another member has named."""

from __future__ import annotations

import random

import pytest

from fanout.replica.recent import Place, RecentUpdates, message_digest
from fanout.replica.update import Update, content_digest


def update(number: int, *, qos: int = 1, received_ns: int = 1) -> Update:
    """Return an update of its own topic."""
    topic = b"t/%d" % number
    return (topic, b"x" * 10, qos, False, b"", received_ns, 0, content_digest(topic, b"x" * 10), None)


def updates(first: int, last: int, *, received_ns: int = 1) -> list[Update]:
    """Return some updates; another member has others of the same content."""
    return [update(number, received_ns=received_ns) for number in range(first, last)]


def history(*links: str, bytes_max: int = 1 << 30) -> RecentUpdates:
    """Return one without updates."""
    return RecentUpdates(links or ("plant",), bytes_max=bytes_max)


def behind(recent: RecentUpdates, place: Place, *, exactly: bool = True, link: str = "plant") -> list[int] | None:
    """Return the numbers of the updates of a link behind a place; None when that is not found."""
    start = recent.start(link, place, exactly=exactly)
    if start is None:
        return None
    found: list[int] = []
    for batch in recent.batches_from(start.number):
        if batch.link == link:
            found += [int(one[0][2:]) for one in batch.updates[start.offset if batch.number == start.number else 0 :]]
    return found


def test_a_place_of_one_member_is_found_at_another() -> None:
    """Though batches are cut elsewhere, and updates are other objects there."""
    a, b = history(), history()
    for recent, pieces in ((a, [(0, 3), (3, 10)]), (b, [(0, 1), (1, 9), (9, 10)])):
        recent.mark("plant", "edge-1", "7 1")
        for first, last in pieces:
            recent.note("plant", updates(first, last), now_ns=1)
    at_a = [one for batch in a.batches_from(1) for one in batch.updates]
    for number, one in enumerate(at_a):
        found = a.find(one)
        assert found is not None
        assert behind(b, found.place) == list(range(number, 10))
        assert b.get("plant", found.place, digest=one[7]) == one
    end = a.ends(exactly=True)["plant"]
    assert end is not None
    assert behind(b, end) == []
    b.note("plant", updates(10, 12), now_ns=1)
    assert behind(b, end) == [10, 11]


def test_updates_without_a_place_are_told_of() -> None:
    """All that is dispatched in later batches has one."""
    recent = history()
    recent.mark("plant", "edge-1", "7 1")

    def bring(first: int, last: int, *, qos: int = 1) -> None:
        batch = [update(number, qos=qos) for number in range(first, last)]
        recent.note("plant", batch, now_ns=1)
        recent.note_dispatched(batch)

    bring(0, 2)
    bring(2, 3)
    bring(3, 4, qos=0)
    assert recent.stray_number == 0
    recent.note_dispatched([update(4, qos=0)])
    assert recent.stray_number == 0
    recent.note_dispatched([update(5, qos=0), update(6)])  # of no link, or found by an audit
    assert recent.stray_number == recent.next_number - 1
    bring(7, 8)
    assert recent.stray_number == recent.next_number - 2
    recent.note_connection("plant", epoch=1)
    bring(8, 9)
    bring(9, 10)
    assert recent.stray_number == recent.next_number - 1
    recent.mark("plant", "edge-1", "7 2")
    bring(10, 12)
    later = [one for batch in recent.batches_from(recent.stray_number + 1) for one in batch.updates]
    assert len(later) == 2
    assert all(recent.find(one) for one in later)


@pytest.mark.parametrize("lacks", ["one at QoS 0", "one that an audit found", "nothing"])
def test_updates_that_are_not_held_are_told_of(lacks: str) -> None:
    """Who follows a place in front of one does not get it."""
    recent = history()
    recent.mark("plant", "edge-1", "7 1")
    recent.note("plant", updates(0, 2), now_ns=1)
    place = recent.ends(exactly=True)["plant"]
    if lacks == "one at QoS 0":
        recent.note("plant", [update(2, qos=0)], now_ns=1)
    elif lacks == "one that an audit found":
        recent.note_found()
    assert place is not None
    start = recent.start("plant", place, exactly=True)
    assert start is not None
    assert (recent.incomplete_number >= start.number) is (lacks != "nothing")


def test_short_batches_are_joined() -> None:
    """As long as nothing of another link comes between; each update is found in its own place all the same."""
    recent, other = history("plant", "site"), history("plant", "site")
    for member in (recent, other):
        for link in ("plant", "site"):
            member.mark(link, "edge-1", "7 1")
    brought: list[tuple[str, Update]] = []
    for number in range(1_000):
        link = "site" if number % 100 == 50 else "plant"
        one = update(number, received_ns=1 + number // 7)
        recent.note(link, [one], now_ns=1)
        brought.append((link, one))
        if number % 37 == 0:
            assert all(recent.find(each) for _, each in brought[-3:])
            # By its content, as behind an interruption.
            assert recent.get(link, Place("edge-1", "7 1", number + 7, 0), digest=message_digest(one)) == one
    assert recent.next_number < 60
    for link in ("plant", "site"):
        other.note(link, [update(int(one[0][2:])) for of, one in brought if of == link], now_ns=1)
    counts = {"plant": 0, "site": 0}
    for link, one in brought:
        found = recent.find(one)
        assert found is not None
        assert (found.link, found.place.updates) == (link, counts[link])
        assert other.get(link, found.place, digest=one[7]) is not None
        in_front = recent.in_front_of(found)
        assert {name: None if place is None else place.updates for name, place in in_front.items()} == counts
        counts[link] += 1


def test_updates_at_qos_0_have_no_place() -> None:
    """A primary may drop them at one member and not at another."""
    a, b = history(), history()
    for recent in (a, b):
        recent.mark("plant", "edge-1", "7 1")
    dropped = update(0, qos=0)
    a.note("plant", [dropped, update(1), update(2, qos=0), update(3)], now_ns=1)
    b.note("plant", [update(1), update(3)], now_ns=1)
    a.note("plant", [update(4, qos=0)], now_ns=1)
    assert a.find(dropped) is None
    assert [sum(len(batch.updates) for batch in recent.batches_from(1)) for recent in (a, b)] == [2, 2]
    end = a.ends(exactly=True)["plant"]
    assert end is not None
    assert behind(b, end) == []


def test_an_interruption_takes_names_until_the_next_heartbeat() -> None:
    """What comes in a resumed session may come twice; the last place before it keeps its name."""
    recent = history()
    recent.mark("plant", "edge-1", "7 1")
    recent.note_connection("plant", epoch=1)
    recent.note("plant", updates(0, 2), now_ns=1)
    assert recent.ends(exactly=True) == {"plant": None}
    assert recent.ends(exactly=False) == {"plant": Place("edge-1", "7 1", 0, 0)}
    (batch,) = recent.batches_from(1)
    assert recent.find(batch.updates[1]) is None
    recent.mark("plant", "edge-1", "7 2")
    recent.note("plant", updates(2, 3), now_ns=1)
    end = recent.ends(exactly=True)["plant"]
    assert end == Place("edge-1", "7 2", 1, update(2)[7])


def test_a_place_in_an_interruption_is_not_found_exactly() -> None:
    """Otherwise it begins at the heartbeat, so that nothing is lost; messages are found by their digest."""
    a, b = history(), history()
    for recent in (a, b):
        recent.mark("plant", "edge-1", "7 1")
    a.note("plant", updates(0, 6), now_ns=1)
    b.note("plant", updates(0, 2), now_ns=1)
    b.note_connection("plant", epoch=1)
    b.note("plant", [*updates(1, 2), *updates(2, 6)], now_ns=1)
    (batch,) = a.batches_from(1)
    found = a.find(batch.updates[4])
    assert found is not None
    assert behind(b, found.place) is None
    assert behind(b, found.place, exactly=False) == [0, 1, 1, 2, 3, 4, 5]
    assert b.get("plant", found.place, digest=update(4)[7]) == update(4)
    assert b.get("plant", found.place, digest=1) is None


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_an_update_with_other_properties_is_another_one(is_interrupted: bool) -> None:
    """Topic and payload may be the same, as of a report that comes again; a client gets the properties too."""
    plain = update(1)
    first, second = (*plain[:4], b"\x03\x00\x01a", *plain[5:]), (*plain[:4], b"\x03\x00\x01b", *plain[5:])
    a, b = history(), history()
    for recent in (a, b):
        recent.mark("plant", "edge-1", "7 1")
    a.note("plant", [update(0), first, update(2), second, plain], now_ns=1)
    found = [a.find(one) for one in (first, second, plain)]
    assert None not in found
    if is_interrupted:
        b.note("plant", [update(0), second, *updates(2, 9), first], now_ns=1)
    else:
        b.note("plant", [update(0), second, update(2), plain, first], now_ns=1)
    places = [(one.place, message_digest(each)) for one, each in zip(found, (first, second, plain), strict=True) if one]
    expected = [first, second, None if is_interrupted else plain]
    assert [b.get("plant", place, digest=digest) for place, digest in places] == expected


def test_a_new_epoch_is_connected_with_nothing_before() -> None:
    """The link has lost updates."""
    recent = history()
    recent.note_connection("plant", epoch=1)
    recent.mark("plant", "edge-1", "7 1")
    place = recent.ends(exactly=True)["plant"]
    assert place is not None
    assert behind(recent, place) == []
    recent.note_connection("plant", epoch=2)
    assert behind(recent, place, exactly=False) is None
    recent.mark("plant", "edge-1", "7 2")
    assert recent.is_gone("plant", place)


def test_the_oldest_go_when_there_are_too_many_bytes() -> None:
    """With the places behind which something is missing; what is held is found as before."""
    recent = history(bytes_max=10_000)
    places = []
    for number in range(20):
        recent.mark("plant", "edge-1", f"7 {number}")
        places.append(recent.ends(exactly=True)["plant"])
        recent.note("plant", updates(10 * number, 10 * number + 10), now_ns=number)
        assert recent.bytes <= 10_000
    assert sum(len(batch.updates) for batch in recent.batches_from(1)) < 40
    assert recent.grown > 50_000
    for number, place in enumerate(places):
        assert place is not None
        held = behind(recent, place, exactly=False)
        assert recent.is_gone("plant", place) == (held is None)
        assert held in (None, list(range(10 * number, 200)))
    assert behind(recent, places[0] or Place("", "", 0, 0)) is None
    assert behind(recent, places[-1] or Place("", "", 0, 0)) == list(range(190, 200))


def test_a_batch_is_held_until_so_many_bytes_have_come_since() -> None:
    """Whoever needs it can tell how near that is; of one that is gone no more is known than that it is."""
    recent = history(bytes_max=10_000)
    for number in range(20):
        assert recent.grown_at(recent.next_number) == recent.grown
        recent.note("plant", updates(10 * number, 10 * number + 10), now_ns=number)
    held = list(recent.batches_from(1))
    assert [recent.grown_at(batch.number) for batch in held] == [
        recent.grown - sum(each.size for each in held[index:]) for index in range(len(held))
    ]
    assert recent.grown - recent.grown_at(held[0].number) <= recent.bytes_max
    assert recent.grown_at(held[0].number - 1) == recent.grown_at(0) == recent.grown - recent.bytes_max


def test_heartbeats_of_a_link_without_traffic_leave_room_for_the_others() -> None:
    """They go with what is as old at other links."""
    recent = history("plant", "quiet", bytes_max=100_000)
    for number in range(2_000):
        recent.mark("quiet", "edge-1", f"7 {number}")
        recent.note("plant", updates(number, number + 1), now_ns=number)
        if not number % 10:
            recent.mark("plant", "edge-1", f"7 {number}")
    held = sum(len(batch.updates) for batch in recent.batches_from(1))
    assert held > 100


def test_a_place_over_several_links() -> None:
    """Each stream has its own; in front of an update of one link is what was dispatched before it of the others."""
    recent = history("one", "two")
    recent.mark("one", "edge-1", "7 1")
    recent.mark("two", "edge-1", "9 1")
    recent.note("one", updates(0, 2), now_ns=1)
    recent.note("two", updates(10, 13), now_ns=1)
    recent.note("one", updates(2, 4), now_ns=1)
    recent.note("two", updates(13, 14), now_ns=1)
    batches = list(recent.batches_from(1))
    found = recent.find(batches[2].updates[1])
    assert found is not None
    places = recent.in_front_of(found)
    assert places == {
        "one": Place("edge-1", "7 1", 3, update(2)[7]),
        "two": Place("edge-1", "9 1", 3, update(12)[7]),
    }
    first = recent.find(batches[0].updates[0])
    assert first is not None
    assert recent.in_front_of(first) == {"one": Place("edge-1", "7 1", 0, 0), "two": Place("edge-1", "9 1", 0, 0)}
    last = recent.find(batches[3].updates[0])
    assert last is not None
    assert recent.in_front_of(last)["one"] == Place("edge-1", "7 1", 4, update(3)[7])


def test_an_update_is_recognized_by_its_identity() -> None:
    """Another one with the same content has another place, however the clock was set."""
    recent = history()
    recent.mark("plant", "edge-1", "7 1")
    same = [update(1, received_ns=ns) for ns in (5, 9, 2, 7, 7)]
    for one in same:
        recent.note("plant", [one], now_ns=1)
    found = [recent.find(one) for one in same]
    assert [None if one is None else one.place.updates for one in found] == [0, 1, 2, 3, 4]
    assert recent.find(update(1, received_ns=7)) is None


@pytest.mark.parametrize("seed", range(20))
def test_random_streams_against_lists(seed: int) -> None:
    """Every place that a member names leads another one to the same updates, or to none, never to others."""
    draw = random.Random(seed)
    stream: list[tuple[str, int]] = []
    number = marker = 0
    for _ in range(draw.randint(20, 120)):
        if draw.random() < 0.3:
            marker += 1
            stream.append(("mark", marker))
        else:
            stream.append(("update", number := number + 1))
    members = [history(bytes_max=draw.choice((3_000, 20_000, 1 << 20))) for _ in range(2)]
    for recent in members:
        waiting: list[Update] = []

        def flush(recent: RecentUpdates = recent, waiting: list[Update] = waiting) -> None:
            if waiting:
                recent.note("plant", list(waiting), now_ns=1)
                waiting.clear()

        for kind, value in stream:
            if kind == "mark":
                flush()
                recent.mark("plant", "edge-1", f"7 {value}")
            else:
                waiting.append(update(value))
                if draw.random() < 0.4:
                    flush()
        flush()
    a, b = members
    for batch in a.batches_from(1):
        for one in batch.updates:
            found = a.find(one)
            if found is None:
                continue
            expected = list(range(int(one[0][2:]), number + 1))
            assert behind(a, found.place) == expected
            assert behind(b, found.place) in (None, expected)
            held = {each[0] for other in b.batches_from(1) for each in other.updates}
            if one[0] in held:
                assert b.get("plant", found.place, digest=one[7]) in (None, one)


def test_heartbeats_alone_are_bounded_too() -> None:
    """In a link without traffic, for days."""
    recent = history(bytes_max=100_000)
    for number in range(1_000):
        recent.mark("plant", "edge-1", f"7 {number}")
    assert recent.bytes <= 100_000
    assert recent.is_gone("plant", Place("edge-1", "7 0", 0, 0))
    assert not recent.is_gone("plant", Place("edge-1", "7 999", 0, 0))


@pytest.mark.parametrize(
    ("marker", "is_gone"),
    [("6 9", True), ("7 1", True), ("7 3", False), ("8 1", False), ("² 1", True), ("9" * 5000, True), ("x", True)],
)
def test_what_follows_a_heartbeat_of_an_earlier_process_never_comes(marker: str, is_gone: bool) -> None:
    """A member that was restarted cannot keep sessions whose places its former process named."""
    recent = history()
    recent.mark("plant", "edge-1", "7 2")
    place = Place("edge-1", marker, 0, 0)
    assert recent.is_gone("plant", place) is is_gone
    assert recent.is_ahead("plant", place) is not is_gone


def test_a_place_is_ahead_until_its_stream_has_come_to_it() -> None:
    """Not once it has, when a later heartbeat has come without it, or when an interruption makes numbers others."""
    recent = history()
    assert not recent.is_ahead("plant", Place("edge-1", "7 1", 0, 0)), "of a member that was never heard"
    recent.mark("plant", "edge-1", "7 1")
    place = Place("edge-1", "7 1", 2, 0)
    assert recent.is_ahead("plant", place)
    recent.note("plant", updates(0, 2), now_ns=1)
    assert not recent.is_ahead("plant", place)
    later = Place("edge-1", "7 1", 3, 0)
    assert recent.is_ahead("plant", later)
    recent.mark("plant", "edge-1", "7 2")
    assert not recent.is_ahead("plant", later)
    recent.note_connection("plant", epoch=1)
    assert not recent.is_ahead("plant", Place("edge-1", "7 2", 1, 0))
