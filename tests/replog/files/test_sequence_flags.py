"""The flags that follow from stamps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.replog.files import sequence_flags
from fanout.replog.files.schema import FLAG_DUPLICATE, FLAG_OVERTAKEN
from fanout.replog.files.sequence_flags import SequenceFlags


def observe(
    memory: SequenceFlags,
    pairs: list[tuple[bytes, int]],
    *,
    live: bool = True,
    stream: tuple[str, int] = ("p", 1),
) -> list[int] | None:
    """Give a batch of one stamping epoch to `memory`."""
    topics, sequences = zip(*pairs, strict=True)
    count = len(pairs)
    return memory.observe(topics, [stream[0]] * count, [stream[1]] * count, sequences, live=live)


class Oracle:
    """The same question answered slowly and with unbounded memory."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int, int]] = set()
        self.highest: dict[tuple[str, int, bytes], int] = {}

    def observe(self, topic: bytes, primary: str, epoch: int, sequence: int, *, live: bool) -> int:
        flag = 0
        known = self.highest.get((primary, epoch, topic), -1)
        if live and sequence < known:
            flag |= FLAG_OVERTAKEN
        if live and (primary, epoch, sequence) in self.seen:
            flag |= FLAG_DUPLICATE
        if live:
            self.seen.add((primary, epoch, sequence))
        self.highest[primary, epoch, topic] = max(known, sequence)
        return flag


BATCHES = st.lists(
    st.tuples(
        st.booleans() | st.just(True),
        st.lists(
            st.tuples(
                st.sampled_from([b"a", b"b", b"c"]),
                st.sampled_from(["p", "q"]) | st.just("p"),
                st.just(1) | st.integers(1, 2),
                st.integers(0, 60),
            ),
            min_size=1,
            max_size=12,
        ),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(batches=BATCHES, run=st.sampled_from([1, 2, 3, 65_536]))
def test_flags_equal_those_of_an_unbounded_memory(
    batches: list[tuple[bool, list[tuple[bytes, str, int, int]], bool]], run: int
) -> None:
    """Inside the windows every flag is exact, in any order, for any mix of stamping nodes and phases."""
    memory, oracle = SequenceFlags(), Oracle()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence_flags, "_RUN", run)
        for live, batch, ordered in batches:
            rows = sorted(batch, key=lambda row: row[3]) if ordered else batch
            topics, primaries, epochs, sequences = zip(*rows, strict=True)
            expected = [
                oracle.observe(topic, primary, epoch, sequence, live=live) for topic, primary, epoch, sequence in rows
            ]
            got = memory.observe(topics, primaries, epochs, sequences, live=live)
            assert (got or [0] * len(rows)) == expected
            assert (got is None) == (not any(expected))


def test_rising_sequences_have_no_flags() -> None:
    """Sequences that rise, with or without gaps, are nothing unusual."""
    memory = SequenceFlags()
    assert observe(memory, [(b"a", 1), (b"a", 2), (b"b", 9)]) is None
    assert observe(memory, [(b"a", 10), (b"b", 1000)]) is None


def test_a_copy_is_not_an_update() -> None:
    """A snapshot row is never flagged and makes no duplicate, yet an older live update after it is stale."""
    memory = SequenceFlags()
    assert observe(memory, [(b"a", 9), (b"b", 3), (b"b", 3)], live=False) is None
    assert observe(memory, [(b"a", 9)]) is None
    assert observe(memory, [(b"a", 8)]) == [FLAG_OVERTAKEN]


def test_a_duplicate_outside_the_window_is_not_found() -> None:
    """The window forgets the oldest sequences first, and only those."""
    memory = SequenceFlags(window=10)
    observe(memory, [(b"a", sequence) for sequence in range(1, 9)])
    observe(memory, [(b"a", sequence) for sequence in range(9, 15)])
    assert observe(memory, [(b"x", 4), (b"x", 5)]) == [0, FLAG_DUPLICATE]


def test_the_window_forgets_whole_runs_and_parts_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of any size are dropped until the window fits."""
    monkeypatch.setattr(sequence_flags, "_RUN", 2)
    memory = SequenceFlags(window=5)
    for sequence in range(1, 8):
        observe(memory, [(b"a", sequence)])
    assert observe(memory, [(b"x", 2), (b"x", 3)]) == [0, FLAG_DUPLICATE]


def test_an_update_later_than_the_recent_ones_is_not_found_to_be_stale() -> None:
    """How late an update may be and still be judged is bounded by the topics remembered."""
    memory = SequenceFlags(recent_max=4)
    observe(memory, [(b"old", 10)])
    observe(memory, [(b"new", sequence) for sequence in range(11, 15)])
    assert observe(memory, [(b"old", 5), (b"new", 6)]) == [0, FLAG_OVERTAKEN]


def test_topics_are_remembered_through_one_change_of_generation() -> None:
    """A topic's highest sequence is kept until as many other topics again were updated."""
    memory = SequenceFlags(topics_max=2)
    observe(memory, [(b"a", 10), (b"b", 11)], live=False)
    assert observe(memory, [(b"a", 9)]) == [FLAG_OVERTAKEN]
    observe(memory, [(b"c", 12), (b"d", 13)], live=False)
    observe(memory, [(b"e", 14), (b"f", 15)], live=False)
    assert observe(memory, [(b"b", 8)]) is None


def test_the_stamping_epoch_used_least_recently_is_forgotten() -> None:
    """Stamping epochs are bounded, too."""
    memory = SequenceFlags(streams_max=2)
    for epoch in (1, 2, 1, 3):
        observe(memory, [(b"a", epoch + 10)], stream=("p", epoch))
    assert observe(memory, [(b"a", 11)], stream=("p", 1)) == [FLAG_DUPLICATE]
    assert observe(memory, [(b"a", 12)], stream=("p", 2)) is None


def test_many_stamping_epochs_share_what_is_remembered() -> None:
    """Publishers in turn are all remembered; the more there are the less of each, and what is held stays bounded."""
    memory = SequenceFlags(window=64, recent_max=64, topics_max=64, whole_max=2, streams_max=16)
    streams = [(f"p{number}", 1) for number in range(16)]
    for first in range(1, 200, 10):
        for stream in streams:
            assert observe(memory, [(b"a", first + more) for more in range(10)], stream=stream) is None
    for stream in streams:
        assert observe(memory, [(b"a", 200), (b"b", 195), (b"a", 196)], stream=stream) == [
            FLAG_DUPLICATE,
            FLAG_DUPLICATE,
            FLAG_DUPLICATE | FLAG_OVERTAKEN,
        ]
        assert observe(memory, [(b"b", 100)], stream=stream) == [FLAG_OVERTAKEN], "too old to be known as a duplicate"


def test_a_stream_that_others_join_forgets_its_oldest() -> None:
    """What was held before there were more than may have it whole is cut at once, sequences, updates and topics."""
    memory = SequenceFlags(window=8, recent_max=8, topics_max=8, whole_max=1, streams_max=4)
    observe(memory, [(b"%d" % number, number) for number in range(1, 9)], stream=("p", 1), live=False)
    observe(memory, [(b"%d" % number, number) for number in range(11, 19)], stream=("p", 1))
    observe(memory, [(b"x", 1)], stream=("q", 1))
    assert observe(memory, [(b"x", 14), (b"x", 15)], stream=("p", 1)) == [0, FLAG_DUPLICATE]
    assert observe(memory, [(b"4", 3), (b"5", 4)], stream=("p", 1)) == [0, FLAG_OVERTAKEN]
