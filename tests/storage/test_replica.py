"""A replica whose values are in a file only: it does what the one in memory does, and finds again what it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout.replica.store import Replica
from fanout.replica.topic_draw import TopicDraw
from fanout.replica.update import Changes, Phase, Stamp, Update, content_digest
from fanout.selection import Selector
from fanout.storage.direct import DirectStore
from fanout.storage.file import RetainedFile
from fanout.storage.replica import DiscReplica
from tests.replica.passes import end_pass
from tests.storage.pieces import contents
from tests.storage.replicas import direct_store
from tests.support.updates import update as value

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
SELECTORS = (Selector("plant/+/a"), Selector("plant/#", exclude=("plant/+/a",)))
NAMES = (b"plant/1/a", b"plant/2/a", b"plant/1/b", b"plant", b"plant/1/b/c", b"plant//a")
TOPICS = st.sampled_from(NAMES)
STAMPS = st.none() | st.builds(Stamp, st.just("node"), st.just(7), st.integers(1, 3), st.just(1))
UPDATES = st.builds(
    lambda topic, payload, retain, properties, expires_ns, stamp: (
        (topic, payload, 1, retain, properties, NOW, expires_ns, content_digest(topic, payload), stamp)
    ),
    TOPICS,
    st.sampled_from([b"", b"1", b"22", b"333", b"4444"]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([b"", b"p"]),
    st.sampled_from([0, 0, NOW + SECOND, NOW + 9 * SECOND]),
    STAMPS,
)
BATCHES = st.lists(UPDATES, max_size=8)
STEPS = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(list(Phase)), BATCHES),
    st.tuples(st.just("split"), BATCHES),
    st.tuples(st.just("begin"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("end")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("expire"), st.sampled_from([NOW, NOW + SECOND, NOW + 9 * SECOND])),
    st.tuples(st.just("sweep"), st.lists(TOPICS)),
    st.tuples(st.just("tear down"), st.integers(1, 3)),
)


@contextmanager
def opened(path: Path) -> Iterator[DirectStore]:
    """Give a store in a file, without an event loop."""
    store = direct_store(path)
    store.open(now_ns=1)
    try:
        yield store
    finally:
        assert store.close(timeout_s=30)


def told(changes: Changes) -> tuple[Any, ...]:
    """Return what a batch did, to be compared."""
    return changes.updates, bytes(changes.kinds), changes.dispatch, changes.phase


def take(replica: Replica, step: tuple[Any, ...]) -> Any:
    """Do one step and return what it told."""
    match step:
        case ("apply", phase, batch):
            return told(replica.apply(batch, phase=phase))
        case ("split", batch):
            return [told(replica.apply(part, phase=phase)) for phase, part in replica.split_pass(batch)]
        case ("begin", index, some):
            seen = [topic for topic in replica.view if SELECTORS[index].matches(topic)] if some else []
            return replica.begin_pass(index, seen=sorted(seen)[:2])
        case ("end",):
            result = end_pass(replica)
            return sorted(result.unseen), sorted(result.changed)
        case ("drop",):
            return replica.drop_pass()
        case ("expire", at):
            return sorted(replica.remove_expired(at).updates)
        case ("sweep", topics):
            return told(replica.sweep(dict.fromkeys(topics), now_ns=NOW))
        case ("tear down", piece):
            return sorted(each for changes in replica.tear_down(piece, now_ns=NOW) for each in changes.updates)
    raise AssertionError(step)


def shown(replica: Replica) -> dict[str, Any]:
    """Return everything that can be asked of a replica."""
    return {
        "view": dict(replica.view),
        "pieces": {each[0]: each for piece in replica.pieces(2) for each in piece},
        "count": [len(replica), replica.count(), replica.count(0), replica.count(1)],
        "digest": [replica.digest(), replica.digest(0), replica.digest(1)],
        "bytes": (replica.payload_bytes, replica.topic_bytes, replica.refused_total),
        "refused": (replica.refused.limits(NOW), [replica.refused.knows(value(topic, b"4444")) for topic in NAMES]),
        "pass": (replica.seen_count, replica.unseen_count, set(replica.seen_topics)),
        "unseen": sorted(replica.some_unseen(9)),
        "newest": set(replica.newest_seen(9)),
        "found": [
            sorted(each for piece in replica.match(topic_filter) for each in piece)
            for topic_filter in (b"#", b"plant/+/a", b"plant/1/#", b"+/1/b", b"plant", b"none")
        ],
        "topics": [
            sorted(each for piece in replica.match_topics(topic_filter) for each in piece)
            for topic_filter in (b"#", b"plant/+/a", b"plant", b"none")
        ],
        "get": replica.get_many((b"plant/1/a", b"none", b"plant")),
    }


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[DirectStore]:
    """Return a store for many replicas."""
    with opened(tmp_path / "retained.sqlite") as store:
        yield store


@given(
    steps=st.lists(STEPS, max_size=12),
    limits=st.sampled_from([{}, {"topics_max": 3}, {"bytes_max": 25}, {"payload_max": 3}]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_does_what_the_replica_in_memory_does(
    shared: DirectStore, steps: list[tuple[Any, ...]], limits: dict[str, Any]
) -> None:
    """Whatever happens, both tell the same and show the same; what a next process counts is the same too."""
    memory = Replica(selectors=SELECTORS, **limits)
    table = shared.table(f"link {len(shared.file.sessions())}")
    disc = DiscReplica(table, selectors=SELECTORS, **limits)
    for step in steps:
        assert take(disc, step) == take(memory, step), step
        assert shown(disc) == shown(memory), step
        assert (disc.next_expiry_ns is None) == (memory.next_expiry_ns is None)
        assert not disc.values, "nothing stays in memory behind a batch"
    again = DiscReplica(table, selectors=SELECTORS, **limits)
    assert again.load(lambda _: True) == 0
    memory.drop_pass()
    memory.refused_total = 0
    memory.refused.clear()
    assert shown(again) == shown(memory)
    assert again.next_expiry_ns == disc.next_expiry_ns


def test_the_next_expiry_is_exact(tmp_path: Path) -> None:
    """It is that of the value that expires first, whatever comes and goes."""
    with opened(tmp_path / "retained.sqlite") as store:
        replica = DiscReplica(store.table("link"))
        for topic, seconds in ((b"a", 5), (b"b", 3), (b"c", 9)):
            replica.apply([value(topic, expires_ns=NOW + seconds * SECOND)], phase=Phase.LIVE)
        assert replica.next_expiry_ns == NOW + 3 * SECOND
        replica.apply([value(b"b", b"2")], phase=Phase.LIVE)
        assert replica.next_expiry_ns == NOW + 5 * SECOND
        assert [each[0] for each in replica.remove_expired(NOW + 5 * SECOND).updates] == [b"a"]
        assert replica.next_expiry_ns == NOW + 9 * SECOND


def test_large_values_come_in_small_pieces(tmp_path: Path) -> None:
    """A search has a few values in memory, however large they are; each comes once."""
    with opened(tmp_path / "retained.sqlite") as store:
        replica = DiscReplica(store.table("link"))
        for number in range(20):
            replica.apply([value(b"t/%02d" % number, bytes(400_000))], phase=Phase.LIVE)
        pieces = list(replica.match(b"t/#"))
        assert max(map(len, pieces)) == 3
        assert [each[0] for piece in pieces for each in piece] == [b"t/%02d" % number for number in range(20)]


def test_what_is_not_good_any_more_goes_when_it_is_loaded(tmp_path: Path) -> None:
    """Values of other selectors, and those over a limit of now, are removed from the file too."""
    path = tmp_path / "retained.sqlite"
    with opened(path) as store:
        replica = DiscReplica(store.table("link"))
        replica.apply([value(b"%s/%d" % (root, n)) for root in (b"a", b"b") for n in range(1000)], phase=Phase.LIVE)
    with opened(path) as store:
        replica = DiscReplica(store.table("link"), topics_max=600)
        assert replica.load(lambda update: update[0].startswith(b"a/")) == 1400
        assert len(replica) == 600
        assert not replica.refused_total, "they were not refused in this epoch"
        assert sum(len(piece) for piece in replica.match(b"#")) == 600


def test_the_file_of_disc_is_that_of_disc_only(tmp_path: Path) -> None:
    """A node may change from one to the other, either way."""
    path = tmp_path / "retained.sqlite"
    file = RetainedFile(path, sync="off")
    file.commit({"link": {b"a": value(b"a"), b"b": value(b"b")}}, {}, force=True)
    file.close()
    with opened(path) as store:
        replica = DiscReplica(store.table("link"))
        assert replica.load(lambda _: True) == 0
        replica.apply([value(b"b", b""), value(b"c", b"3")], phase=Phase.LIVE)
    file = RetainedFile(path, sync="off")
    assert contents(file, "link") == {b"a": b"1", b"c": b"3"}
    file.close()


@pytest.mark.parametrize("topic_filter", [b"#", b"t/+"])
def test_a_search_bears_changes_between_its_pieces(tmp_path: Path, topic_filter: bytes) -> None:
    """What is there from beginning to end comes once, with its newest value; what went does not come."""
    with opened(tmp_path / "retained.sqlite") as store:
        replica = DiscReplica(store.table("link"))
        replica.apply([value(b"t/%04d" % number) for number in range(2000)], phase=Phase.LIVE)
        found: list[Update] = []
        for number, piece in enumerate(replica.match(topic_filter)):
            found += piece
            if not number:
                replica.apply(
                    [value(b"t/1999", b"new"), value(b"t/0001", b"late"), value(b"t/1500", b"")], phase=Phase.LIVE
                )
        topics = [each[0] for each in found]
        assert sorted(topics) == [b"t/%04d" % number for number in range(2000) if number != 1500]
        assert found[-1][1] == b"new"


def test_a_draw_from_the_file_gives_every_topic_and_every_branch_its_turn(tmp_path: Path) -> None:
    """Those close together, too, whose bytes are a small part of what lies between the first and the last."""
    topics = [b"plant/%04d" % number for number in range(300)] + [b"plant/a", b"plant/z/1", b"plant/z/2", b"quay/1"]
    with opened(tmp_path / "file") as store:
        replica = DiscReplica(store.table("plant"), selectors=(Selector("plant/#"), Selector("quay/+")))
        replica.apply([value(topic) for topic in topics], phase=Phase.LIVE)
        draw, left = TopicDraw(b"plant", seed=3), set(topics) - {b"quay/1"}
        first = draw.draw(replica.topics, 16)
        assert len(first) >= 6
        for _ in range(400):
            drawn = draw.draw(replica.topics, 16)
            assert drawn <= set(topics) - {b"quay/1"}
            left -= drawn
        assert left == set()
        assert TopicDraw(b"quay", seed=3).draw(replica.topics, 16) == {b"quay/1"}
        assert TopicDraw(b"none", seed=3).draw(replica.topics, 16) == set()
