"""What a session brought, as far as its primary may send it again."""

from __future__ import annotations

import pytest

from fanout.link.ingest.convert import ConvertedRows
from fanout.link.ingest.redelivery import RedeliveryFilter
from fanout.link.model.counters import LinkCounters
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import content_digest

QOS_1, QOS_1_AGAIN, QOS_2, QOS_2_AGAIN = 3, 11, 5, 13


def row(packet_id: int, payload: bytes = b"1", *, flags: int = QOS_1, topic: bytes = b"plant/1") -> PublishRow:
    """Return a row."""
    return (topic, payload, flags, packet_id, b"", None, 0)


def note(one: RedeliveryFilter, *rows: PublishRow, now_ns: int = 1) -> None:
    """Take rows, of which those below `plant/` are inside the selectors."""
    converted = ConvertedRows()
    for topic, payload, flags, packet_id, *_ in rows:
        if topic.startswith(b"plant/"):
            digest = content_digest(topic, payload)
            converted.updates.append((topic, payload, 1, True, b"", 1, 0, digest, None))
        if flags & 6:
            (converted.to_puback if flags & 2 else converted.to_pubrec).append(packet_id)
    one.note(list(rows), converted, now_ns=now_ns)


def resume(one: RedeliveryFilter, *, counts_up: bool = False) -> RedeliveryFilter:
    """Return it on the next Network Connection of its session."""
    one.begin_connection(resumed=True, counts_up=counts_up)
    return one


def known(one: RedeliveryFilter, *rows: PublishRow) -> list[bool]:
    """Return for each row whether it is known."""
    return [is_known for is_known, part in one.split_known(rows) for _ in part]


def test_the_newest_messages_of_a_session_are_known_when_they_come_again() -> None:
    """A bounded number of them, whatever else came with them; none of another session."""
    one = RedeliveryFilter(may_be_resumed=True, counters=LinkCounters())
    first = row(1, flags=QOS_1_AGAIN)
    note(one, first)
    for packet_id in range(2, 20_002, 2):
        note(one, row(packet_id, b"%d" % packet_id), row(packet_id + 1, topic=b"other"), row(0, flags=1))
    again = [first, row(20_000, b"20000", flags=QOS_1_AGAIN), row(20_001, topic=b"other", flags=QOS_1_AGAIN)]
    assert known(one, *again) == [False, False, False]
    resume(one)
    assert known(one, *again) == [False, True, True]
    one.begin_session()
    resume(one)
    assert known(one, *again) == [False, False, False]


def test_what_is_known_has_the_same_packet_identifier_and_content() -> None:
    """And DUP; unless the primary counts up, and the Packet Identifier is not ahead of the last one."""
    one = RedeliveryFilter(may_be_resumed=True, counters=LinkCounters())
    note(one, row(5), row(6, b"2"), row(7, flags=QOS_2))
    resume(one)
    again = (row(5, flags=QOS_1_AGAIN), row(5), row(6, flags=QOS_1_AGAIN), row(7, flags=QOS_2_AGAIN))
    assert known(one, *again) == [True, False, False, False]
    resume(one, counts_up=True)
    assert known(one, *again) == [True, True, False, False]
    assert known(one, row(8), row(7, b"3")) == [False, False]


def outdated(one: RedeliveryFilter, *rows: PublishRow) -> list[bool]:
    """Return for each row, which comes again on the next connection, whether something newer for its topic had come."""
    before = one.counters.overtaken_total
    found = known(resume(one, counts_up=True), *rows)
    assert one.counters.overtaken_total == before + sum(found)
    return found


def held_since(received_ns: int) -> RedeliveryFilter:
    """Return one beside a replica that has a value of each topic but `plant/none` since then."""
    held = (b"plant/1", b"new", 1, True, b"", received_ns, 0, 1, None)
    return RedeliveryFilter(
        may_be_resumed=True, counters=LinkCounters(), held=lambda topic: None if topic == b"plant/none" else held
    )


@pytest.mark.parametrize(
    ("received_ns", "expected"),
    [(100, [False] * 5), (200, [True, True, False, False, False]), (301, [True, True, True, True, False])],
)
def test_what_was_missing_is_older_than_what_came_behind_it(received_ns: int, expected: list[bool]) -> None:
    """In one read with it, where the gap is in front; later, where it is among what one read brought."""
    one = held_since(received_ns)
    note(one, row(65_530), now_ns=100)
    note(one, row(65_533), row(65_534), row(0, flags=1), now_ns=200)
    note(one, row(65_535), row(3, flags=QOS_2), now_ns=300)
    note(one, row(4), now_ns=400)
    again = [row(packet_id, b"old", flags=QOS_1_AGAIN) for packet_id in (65_531, 65_532, 1, 2, 5)]
    assert outdated(one, *again) == expected
    assert outdated(one, *again) == expected, "on each connection"
    one.begin_session()
    note(one, row(65_533), now_ns=500)
    assert outdated(one, *again) == [False] * 5


def test_only_what_was_missing_is_older() -> None:
    """Not what has no value, was not retained, comes without DUP, or from a primary that counts otherwise."""
    one = held_since(200)
    note(one, row(5), now_ns=100)
    note(one, row(0, flags=1), row(8), now_ns=199)
    assert outdated(one, row(6, b"old", flags=QOS_1_AGAIN), row(6, b"old", flags=QOS_2_AGAIN)) == [True, True]
    none = row(6, b"old", flags=QOS_1_AGAIN, topic=b"plant/none")
    assert outdated(one, none, row(6, b"old"), row(6, b"old", flags=QOS_1_AGAIN & ~1)) == [False] * 3
    assert known(resume(one), row(6, b"old", flags=QOS_1_AGAIN)) == [False]


def test_what_comes_again_shows_no_gap_behind_it() -> None:
    """The places of what comes later are right all the same, and a bounded number of gaps is remembered."""
    one = held_since(1_000)
    note(one, row(10), now_ns=1)
    note(one, row(20), now_ns=1_000)
    note(one, row(11, flags=QOS_1_AGAIN), now_ns=1_001)
    note(one, row(13, flags=QOS_1_AGAIN), now_ns=1_002)
    note(one, row(21), now_ns=1_003)
    assert outdated(one, row(12, b"old", flags=QOS_1_AGAIN)) == [True]
    for number in range(2_000):
        note(one, row(23 + 2 * number), now_ns=2_000)
    assert outdated(one, row(12, b"old", flags=QOS_1_AGAIN)) == [False]


def test_a_session_that_ends_with_its_connection_remembers_nothing() -> None:
    """There is no use for it."""
    one = RedeliveryFilter(may_be_resumed=False, counters=LinkCounters())
    note(one, row(5))
    resume(one)
    assert known(one, row(5, flags=QOS_1_AGAIN)) == [False]


@pytest.mark.parametrize(
    ("last", "came", "expected"),
    [
        (5, [row(6), row(7, flags=QOS_2), row(0, flags=1), row(8)], True),
        (65_535, [row(65_534, flags=QOS_2_AGAIN), row(1, flags=QOS_1_AGAIN), row(2)], True),
        (0, [row(900)], True),
        (5, [row(900), row(6)], False),
        (5, [row(3), row(4)], False),
    ],
    ids=["the next ones", "again, and the next ones", "nothing came before", "others", "earlier ones"],
)
def test_a_session_goes_on_with_the_next_packet_identifiers(last: int, came: list[PublishRow], expected: bool) -> None:
    """What is sent again says nothing."""
    one = RedeliveryFilter(may_be_resumed=True, counters=LinkCounters())
    if last:
        note(one, row(last))
    assert all(map(resume(one).continues, came)), "nothing tells without Packet Identifiers that count up"
    resume(one, counts_up=True)
    assert [one.continues(each) for each in came][-1] is expected


def test_what_an_earlier_process_took_is_not_known_until_all_that_was_pending_has_come() -> None:
    """Over a lost connection too; in a session of its own there is nothing that it took."""
    one = RedeliveryFilter(may_be_resumed=True, counters=LinkCounters())
    one.restore()
    assert [resume(one).continues(row(6)) for _ in range(2)] == [False, False]
    one.note_pending_applied()
    assert resume(one).continues(row(6))
    one.restore()
    one.begin_session()
    assert resume(one).continues(row(6))
