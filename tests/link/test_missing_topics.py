"""What waits to be announced as missing, what is announced, and how often."""

from __future__ import annotations

import json

import pytest

from fanout.link.missing_topics import (
    ANNOUNCEMENT_BYTES_MAX,
    BURST_MAX,
    FILTERS_MAX,
    HOPS_MAX,
    PENDING_BYTES_MAX,
    PENDING_MAX,
    PER_SECOND,
    REPEAT_S,
    MissingTopics,
    Waiting,
    read_announcement,
)
from fanout.link.model.counters import LinkCounters

OWN = Waiting(7_000)


def waiting(missing: MissingTopics) -> list[tuple[bytes, Waiting]]:
    """Return everything that waits, which it does not any more."""
    found = []
    while (one := missing.take()) is not None:
        found.append(one)
    return found


def test_an_announcement_names_filter_node_time_and_path() -> None:
    """As JSON, below the control topic; the time is that of the SUBSCRIBE."""
    missing = MissingTopics("fanout/control", node_id="edge-1", counters=LinkCounters())
    assert missing.topic == b"fanout/control/missing"
    assert json.loads(missing.announcement("plant/+", OWN)) == {
        "filter": "plant/+",
        "node": "edge-1",
        "time_us": 7_000,
        "path": ["edge-1"],
    }


def test_an_announcement_of_another_node_keeps_node_and_time() -> None:
    """The node that relays it adds itself to the path; one through which it has come drops it."""
    below, here, above = (MissingTopics("c", node_id=name, counters=LinkCounters()) for name in ("b", "a", "top"))
    payload = below.announcement("plant/+", OWN)
    here.add_relayed(payload)
    ((topic_filter, relayed),) = waiting(here)
    assert (topic_filter, relayed) == (b"plant/+", Waiting(7_000, ("b",)))
    again = here.announcement("at/top/+", relayed)
    assert json.loads(again) == {"filter": "at/top/+", "node": "b", "time_us": 7_000, "path": ["b", "a"]}
    for loop in (below, here):
        loop.add_relayed(again)
        assert (len(loop), loop.counters.missing_dropped_total) == (0, 1)
    above.add_relayed(again)
    assert waiting(above) == [(b"at/top/+", Waiting(7_000, ("b", "a")))]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no json",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"filter": "a"}',
        b'{"filter": "", "node": "b", "time_us": 1}',
        b'{"filter": "a/#/b", "node": "b", "time_us": 1}',
        b'{"filter": "\\ud800", "node": "b", "time_us": 1}',
        b'{"filter": 5, "node": "b", "time_us": 1}',
        b'{"filter": "a", "node": 5, "time_us": 1}',
        b'{"filter": "a", "node": "b", "time_us": true}',
        b'{"filter": "a", "node": "b", "time_us": -1}',
        b'{"filter": "a", "node": "b", "time_us": 253402300800000000}',
        b'{"filter": "a", "node": "\\ud800", "time_us": 1}',
        b'{"filter": "a", "node": "b", "time_us": 1, "path": ["no name"]}',
        b'{"filter": "a", "node": "b", "time_us": 1, "path": "b"}',
        b'{"filter": "a", "node": "b", "time_us": 1, "path": ["b", 1]}',
        json.dumps({"filter": "a", "node": "b", "time_us": 1, "path": ["b"] * (HOPS_MAX + 1)}).encode(),
        b'{"filter": "a", "node": "b", "time_us": 1}' + b" " * ANNOUNCEMENT_BYTES_MAX,
    ],
)
def test_what_is_no_announcement_is_dropped_and_counted(payload: bytes) -> None:
    """Anybody who may publish there can send anything."""
    missing = MissingTopics("c", node_id="n", counters=LinkCounters())
    missing.add_relayed(payload)
    assert (len(missing), missing.counters.missing_dropped_total) == (0, 1)


def test_an_announcement_without_a_path_comes_from_its_node() -> None:
    """As nodes before this version send it."""
    payload = b'{"filter": "plant/x", "node": "b", "time_us": 5}'
    assert read_announcement(payload) == (b"plant/x", Waiting(5, ("b",)))


def test_a_filter_waits_once_and_in_order() -> None:
    """Many clients that ask for the same are one; what another node tells does not end with a client of this one."""
    missing = MissingTopics("c", node_id="n", counters=LinkCounters())
    relayed = Waiting(9, ("b",))
    missing.add(b"a", OWN)
    missing.add(b"b", OWN)
    missing.add(b"a", Waiting(8_000))
    missing.add(b"b", relayed)
    missing.add(b"b", OWN)
    assert waiting(missing) == [(b"a", OWN), (b"b", relayed)]
    assert missing.counters.missing_dropped_total == 0


def test_only_so_many_wait() -> None:
    """By number and by bytes; further ones are dropped and counted, and there is room again when one was taken."""
    many, large = (
        MissingTopics("c", node_id="n", counters=LinkCounters()),
        MissingTopics("c", node_id="n", counters=LinkCounters()),
    )
    for number in range(PENDING_MAX + 5):
        many.add(b"%d" % number, OWN)
    assert (len(many), many.counters.missing_dropped_total) == (PENDING_MAX, 5)
    half = PENDING_BYTES_MAX // 2
    large.add(b"a" * half, OWN)
    large.add(b"b", Waiting(1, ("b" * half,)))
    assert (len(large), large.counters.missing_dropped_total) == (1, 1)
    large.add(b"c" * half, OWN)
    assert (len(large), large.counters.missing_dropped_total) == (2, 1)
    large.take()
    large.add(b"d" * half, OWN)
    assert (len(large), large.counters.missing_dropped_total) == (2, 1)


def test_only_so_many_are_announced_at_a_time() -> None:
    """A burst, and then so many each second; nothing is saved up beyond the burst."""
    missing = MissingTopics("c", node_id="n", counters=LinkCounters())
    for _ in range(BURST_MAX):
        assert missing.wait_s(100.0) == 0
        missing.announcement("plant/x", OWN)
    assert missing.wait_s(100.0) == pytest.approx(1 / PER_SECOND)
    assert missing.wait_s(100.0 + 1 / PER_SECOND) == pytest.approx(0)
    assert missing.wait_s(1000.0) == 0
    for _ in range(BURST_MAX):
        missing.announcement("plant/x", OWN)
    assert missing.wait_s(1000.0) > 0


def test_a_filter_is_announced_once_in_a_while() -> None:
    """Not again until some time has passed since the primary has answered; memory is bounded."""
    missing = MissingTopics("c", node_id="n", counters=LinkCounters())
    assert not missing.is_repeated("plant/1", 0.0)
    missing.note_answer("plant/1", accepted=True, now=0.0)
    assert [missing.is_repeated("plant/1", now) for now in (1.0, REPEAT_S - 1, REPEAT_S)] == [True, True, False]
    assert (
        missing.counters.missing_announced_total,
        missing.counters.missing_suppressed_total,
        missing.counters.missing_dropped_total,
    ) == (1, 2, 0)
    missing.note_answer("plant/1", accepted=False, now=REPEAT_S)
    assert (missing.counters.missing_announced_total, missing.counters.missing_dropped_total) == (1, 1)
    for number in range(FILTERS_MAX):
        missing.note_answer(f"other/{number}", accepted=True, now=REPEAT_S)
    assert not missing.is_repeated("plant/1", REPEAT_S)
    assert missing.is_repeated("other/0", REPEAT_S)
