"""Rows as Arrow columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.replica.update import ChangeKind, Phase, Stamp, Update, content_digest
from fanout.replog.files import columns
from fanout.replog.files.columns import EventRow, LogSource, RowEncoder, StampTotals, UpdateRows, signed
from fanout.replog.files.schema import EVENTS, FLAG_DUP, FLAG_DUPLICATE, FLAG_OVERTAKEN, UPDATES
from tests.replog.rows import EPOCH, NOW_NS, PlainSelector, make_rows, make_update, make_updates


def encoder() -> RowEncoder:
    """Return an encoder of a fixed node."""
    return RowEncoder(node="edge-1", role="secondary", node_epoch=EPOCH)


def encoded(*rows: UpdateRows) -> list[dict[str, Any]]:
    """Return what rows become, in the order of the log."""
    batches = encoder().updates(rows)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == UPDATES
    found = pa.Table.from_batches(batches, schema=UPDATES).to_pylist()
    return sorted(found, key=lambda row: row["log_pos"])


def expected_row(update: Update, log_pos: int, **changed: object) -> dict[str, Any]:
    """Return the row of an update of the link "plant", worked out one column at a time."""
    topic, payload, qos, retain, _, received_ns, _, digest, stamp = update
    return {
        "node": "edge-1",
        "role": "secondary",
        "link": "plant",
        "selector": "",
        "link_epoch": 7,
        "log_pos": log_pos,
        "node_epoch": EPOCH,
        "topic": topic.decode(),
        "digest": signed(digest),
        "payload_bytes": len(payload),
        "qos": qos,
        "retain": retain,
        "change": ChangeKind.NEW,
        "phase": Phase.LIVE,
        "flags": 0,
        "stamp_primary": stamp.primary if stamp else None,
        "stamp_epoch": stamp.epoch if stamp else None,
        "sequence": stamp.sequence if stamp else None,
        "origin": stamp.origin_us if stamp else None,
        "applied": received_ns // 1000,
    } | changed


def with_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their times as microseconds."""
    for row in rows:
        for name in ("origin", "applied"):
            if row[name] is not None:
                row[name] = round(row[name].timestamp() * 1_000_000)
    return rows


STAMPS = st.builds(
    Stamp, st.sampled_from(["p", "q"]), st.sampled_from([EPOCH, EPOCH + 1]), st.integers(1, 50), st.just(EPOCH + 2)
)
UPDATES_OF_ANY_KIND = st.builds(
    lambda topic, payload, qos, retain, read, stamp: make_update(
        topic.encode(), payload, qos=qos, retain=retain, received_ns=NOW_NS + read, stamp=stamp
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=6),
    st.binary(max_size=20),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([0, 0, 5_000_000]),
    st.none() | STAMPS,
)


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.tuples(st.lists(UPDATES_OF_ANY_KIND, min_size=1, max_size=5), st.integers(0, 3)), max_size=6),
    node_itself=st.booleans(),
)
def test_rows_say_what_the_updates_say(parts: list[tuple[list[Update], int]], node_itself: bool) -> None:
    """Every column of every row is the value worked out by itself, whatever else is in the frame."""
    source = LogSource("" if node_itself else "plant", ())
    rows, expected, log_pos = [], [], 1
    for updates, skipped in parts:
        log_pos += skipped
        ordered = sorted(updates, key=lambda update: update[5])
        rows.append(make_rows(ordered, source=source, first_log_pos=log_pos))
        expected += [expected_row(update, log_pos + index, link=source.link) for index, update in enumerate(ordered)]
        log_pos += len(updates)
    found = with_numbers(encoded(*rows))
    for row in found:
        row["flags"] = 0  # the flags have tests of their own
    assert found == expected


def test_a_frame_keeps_sources_epochs_and_phases_apart() -> None:
    """Rows of several links, sessions and phases get their own values, and lie together by them."""
    plant, office = LogSource("plant", ()), LogSource("office", ())
    one, two, three, four = make_updates(4)
    batches = encoder().updates(
        [
            make_rows([one], source=plant, first_log_pos=1),
            make_rows([two], source=office, first_log_pos=2),
            make_rows([three], source=plant, first_log_pos=3),
            make_rows([four], source=plant, first_log_pos=4, link_epoch=8, phase=Phase.SNAPSHOT),
        ]
    )
    assert [batch.num_rows for batch in batches] == [2, 1, 1]
    found = with_numbers(pa.Table.from_batches(batches).to_pylist())
    assert found == [
        expected_row(one, 1),
        expected_row(three, 3),
        expected_row(two, 2, link="office"),
        expected_row(four, 4, link_epoch=8, phase=Phase.SNAPSHOT),
    ]


def test_one_selector_without_prefix_is_a_constant() -> None:
    """All updates of a link with one selector belong to it."""
    source = LogSource("plant", (PlainSelector("plant/#"),))
    updates = make_updates(2)
    assert with_numbers(encoded(make_rows(updates, source=source))) == [
        expected_row(update, index, selector="plant/#") for index, update in enumerate(updates, 1)
    ]


def test_a_prefix_is_taken_off_the_topic() -> None:
    """The log has the topic at the primary; the digest is that of the update, which is the primary's too."""
    source = LogSource("plant", (PlainSelector("plant/#", prefix="site-ü/"),))
    update = (*make_update("site-ü/plant/a".encode(), b"x")[:7], content_digest(b"plant/a", b"x"), None)
    [row] = encoded(make_rows([update], source=source))
    assert row["topic"] == "plant/a"
    assert row["digest"] == signed(content_digest(b"plant/a", b"x"))


def test_the_selector_is_found_by_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several selectors are told apart by the local topic, with a memory of bounded size."""
    monkeypatch.setattr(columns, "_TOPICS_CACHED_MAX", 2)
    asked: list[bytes] = []

    class Asked(PlainSelector):
        def covers_local(self, topic: bytes) -> bool:
            asked.append(topic)
            return PlainSelector.covers_local(self, topic)

    source = LogSource("plant", (Asked("a/#"), Asked("b/#", prefix="p/")))
    updates = [make_update(topic) for topic in (b"p/b/1", b"a/1", b"other", b"a/1")]
    for _ in range(2):
        rows = encoded(make_rows(updates, source=source))
        assert [(row["selector"], row["topic"]) for row in rows] == [
            ("b/#", "b/1"),
            ("a/#", "a/1"),
            ("", "other"),
            ("a/#", "a/1"),
        ]
    assert len(asked) == 5
    encoded(make_rows([make_update(b"a/2")], source=source))
    assert len(asked) == 6
    for _ in range(2):
        encoded(make_rows([make_update(b"a/3")], source=source))
    assert len(asked) == 7


def test_flags_of_the_caller_and_of_the_stamps_are_joined() -> None:
    """FLAG_DUP comes from the caller, the others from the sequences; a new session starts without memory."""
    source = LogSource("plant", ())
    stamps = [Stamp("p", EPOCH, sequence, EPOCH) for sequence in (2, 1, 2)]
    updates = [make_update(b"a", stamp=stamp) for stamp in stamps]
    rows = encoded(
        make_rows(updates, source=source, flags=[0, FLAG_DUP, FLAG_DUP]),
        make_rows([make_update(b"a"), updates[0]], source=source, first_log_pos=4),
        make_rows(updates[:1], source=source, first_log_pos=6, link_epoch=8),
    )
    assert [row["flags"] for row in rows] == [
        0,
        FLAG_DUP | FLAG_OVERTAKEN,
        FLAG_DUP | FLAG_DUPLICATE,
        0,
        FLAG_DUPLICATE,
        0,
    ]
    assert (source.totals.duplicates, source.totals.overtaken) == (2, 1)


def test_source_of_a_changed_link_remembers_stamps_and_names_removals_as_before() -> None:
    """What was applied before is a duplicate behind the change, and a removed topic has the name that its value had."""
    totals = StampTotals()
    kept, gone = PlainSelector("a/#"), PlainSelector("b/#", prefix="site/")
    before = LogSource("plant", (gone, kept), totals=totals)
    stamped = make_update(b"a/1", stamp=Stamp("p", EPOCH, 2, EPOCH))
    first = encoded(make_rows([stamped, make_update(b"site/b/1")], source=before))
    after = LogSource("plant", (kept, gone), totals=totals, former=before)
    then = encoded(make_rows([stamped, make_update(b"site/b/1", b"")], source=after, first_log_pos=3))
    assert [row["flags"] for row in first + then] == [0, 0, FLAG_DUPLICATE, 0]
    assert [(row["topic"], row["selector"]) for row in then] == [("a/1", "a/#"), ("b/1", "b/#")]
    assert totals.duplicates == 1


def test_stamps_are_looked_at_in_the_order_of_the_log_whatever_the_phase() -> None:
    """A copy makes what came behind it stale, and nothing in front of it, also where both phases come again."""
    source = LogSource("plant", ())

    def rows(position: int, phase: Phase, sequence: int | None) -> UpdateRows:
        stamp = None if sequence is None else Stamp("p", EPOCH, sequence, EPOCH)
        return make_rows([make_update(b"a", stamp=stamp)], source=source, first_log_pos=position, phase=phase)

    frame = (
        rows(1, Phase.AUDIT, None),  # a value that expired
        rows(2, Phase.LIVE, 5),
        rows(3, Phase.AUDIT, 7),
        rows(4, Phase.LIVE, 6),
        rows(5, Phase.AUDIT, 7),
        rows(6, Phase.LIVE, 8),
    )
    assert [row["flags"] for row in encoded(*frame)] == [0, 0, 0, FLAG_OVERTAKEN, 0, 0]
    assert source.totals.overtaken == 1


def test_what_the_node_stamped_itself_has_no_flags() -> None:
    """A node's own sequence is not examined."""
    updates = [make_update(b"a", stamp=Stamp("edge-1", EPOCH, 1, EPOCH))] * 2
    assert [row["flags"] for row in encoded(make_rows(updates, source=LogSource("", ())))] == [0, 0]


def test_what_a_publisher_stamped_is_looked_at_like_what_a_link_brought() -> None:
    """At the ingress too a publisher may send an update twice; the node's own beside it are no matter."""
    source = LogSource("", ())
    own = [Stamp("edge-1", EPOCH, sequence, EPOCH) for sequence in (1, 2)]
    theirs = Stamp("machine-7", 3, 5, EPOCH)
    updates = [make_update(b"a", stamp=stamp) for stamp in (own[0], theirs, own[1], theirs)]
    assert [row["flags"] for row in encoded(make_rows(updates, source=source))] == [0, 0, 0, FLAG_DUPLICATE]
    assert source.totals.duplicates == 1


@pytest.mark.parametrize("unstamped_too", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        Stamp("p", 2**63, 1, EPOCH),
        Stamp("p", EPOCH, 2**63, EPOCH),
        Stamp("p", EPOCH, 1, 2**63),
        Stamp("p", EPOCH, 10**30, EPOCH),
    ],
)
def test_a_stamp_that_no_column_can_hold_counts_as_none(bad: Stamp, unstamped_too: bool) -> None:
    """A peer that sends absurd numbers costs its own identity, and not the rows beside it."""
    source = LogSource("plant", ())
    good = Stamp("p", EPOCH, 5, EPOCH)
    stamps = [good, bad, bad, *([None] if unstamped_too else []), good]
    rows = encoded(make_rows([make_update(b"a", stamp=stamp) for stamp in stamps], source=source))
    assert [row["sequence"] for row in rows] == [5, None, None, *([None] if unstamped_too else []), 5]
    assert [row["stamp_primary"] for row in rows][:2] == ["p", None]
    assert [row["flags"] for row in rows] == [0] * (len(rows) - 1) + [FLAG_DUPLICATE]


def test_only_stamps_that_no_column_can_hold() -> None:
    """With no usable stamp at all the rows are rows without stamps."""
    bad = make_update(b"a", stamp=Stamp("p", EPOCH, 2**63, EPOCH))
    [row] = encoded(make_rows([bad], source=LogSource("plant", ())))
    assert (row["sequence"], row["origin"], row["flags"]) == (None, None, 0)


def test_constants_are_kept_for_a_bounded_number_of_values() -> None:
    """Epochs come and go without end; the columns kept for them do not pile up."""
    rows = encoder()
    for epoch in range(1000):
        source = LogSource("plant", ())
        [batch] = rows.updates([make_rows(make_updates(1), source=source, link_epoch=epoch)])
        assert batch["link_epoch"].to_pylist() == [epoch]
    assert len(rows._constants) < 300


def test_a_long_frame_follows_a_short_one() -> None:
    """A constant that was kept for few rows is made anew for more."""
    rows, source = encoder(), LogSource("plant", ())
    for count in (1, 3000, 2):
        [batch] = rows.updates([make_rows(make_updates(count), source=source)])
        assert batch.num_rows == count
        assert batch["node"].to_pylist() == ["edge-1"] * count


def test_events_have_all_columns() -> None:
    """An event's columns are what it was given, with the digest as Spark can hold it."""
    rows = [
        EventRow("plant", 7, "complete", NOW_NS, "a/#", "", "barrier", 5, 2**64 - 1, None, "", 3),
        EventRow("", EPOCH, "heartbeat", NOW_NS + 999, lag_us=12, detail="ö", log_pos=4),
    ]
    batch = encoder().events(rows)
    batch.validate(full=True)
    assert batch.schema == EVENTS
    first, second = batch.to_pylist()
    assert (first["digest"], first["evidence"], first["topics"], first["lag_us"]) == (-1, "barrier", 5, None)
    assert (second["lag_us"], second["detail"], second["log_pos"], second["node"]) == (12, "ö", 4, "edge-1")
    assert first["at"] == second["at"]


@pytest.mark.parametrize(("digest", "expected"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_signed_keeps_the_bits(digest: int, expected: int) -> None:
    """A digest is the same 64 bits, read as signed."""
    assert signed(digest) == expected
