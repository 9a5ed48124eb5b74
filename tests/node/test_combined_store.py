"""Several replicas seen as one."""

from __future__ import annotations

from pathlib import Path

from fanout.node.combined_store import CombinedStore
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.retained_cache import RetainedPieces
from fanout.server.session.retained_delivery import RetainedDelivery
from fanout.storage.replica import DiscReplica
from tests.storage.replicas import direct_store


def value(topic: bytes, payload: bytes = b"v") -> Update:
    """Return a retained value."""
    return (topic, payload, 1, True, b"", 1, 0, content_digest(topic, payload), None)


def replica(*topics: bytes) -> Replica:
    """Return a replica that holds these topics."""
    held = Replica()
    held.apply([value(topic) for topic in topics], phase=Phase.SNAPSHOT)
    return held


def matched(store: CombinedStore, topic_filter: bytes) -> list[bytes]:
    """Return the topics that a Topic Filter matches, in the store's order."""
    return [update[0] for piece in store.match(topic_filter) for update in piece]


def test_match_goes_through_every_replica_in_order() -> None:
    """A SUBSCRIBE sees the values of all links and the node's own."""
    store = CombinedStore([replica(b"plant/1", b"plant/2"), replica(b"office/1"), replica(b"own")])
    assert set(matched(store, b"#")) == {b"plant/1", b"plant/2", b"office/1", b"own"}
    assert matched(store, b"#")[-2:] == [b"office/1", b"own"]
    assert sorted(matched(store, b"+/1")) == [b"office/1", b"plant/1"]
    assert matched(store, b"none/#") == []


def test_length_counts_the_topics_of_all() -> None:
    """The number of retained topics is the sum, at any moment."""
    first = replica(b"a", b"b")
    store = CombinedStore([first, replica(b"c")])
    assert len(store) == 3
    first.apply([value(b"a", b"")], phase=Phase.LIVE)
    assert len(store) == 2


def test_no_replica_is_an_empty_store() -> None:
    """A node without links and values has nothing to give."""
    assert len(CombinedStore([], uncounted=[replica(b"seen")])) == 0
    assert matched(CombinedStore([], uncounted=[replica(b"seen")]), b"#") == [b"seen"]
    store = CombinedStore([])
    assert (len(store), matched(store, b"#")) == (0, [])


def test_match_bears_changes_between_two_steps() -> None:
    """A walk over many turns of the event loop yields a later replica's values as they are then."""
    first, second = replica(b"a"), replica(b"b")
    walk = CombinedStore([first, second]).match(b"#")
    assert next(walk) == [value(b"a")]
    second.apply([value(b"b", b"newer")], phase=Phase.LIVE)
    assert list(walk) == [[value(b"b", b"newer")]]


def test_values_of_topics_are_found_in_any_replica() -> None:
    """A topic stands in one replica at most; those of one replica keep their order."""
    store = CombinedStore([replica(b"a"), replica(b"b", b"e")], uncounted=[replica(b"$SYS/c")])
    assert store.get_many([b"e", b"a", b"d", b"$SYS/c", b"b"]) == list(map(value, (b"a", b"e", b"b", b"$SYS/c")))
    assert store.get_many([b"d"]) == []


def test_a_delivery_goes_on_with_one_look_into_each_replica_on_disk(tmp_path: Path) -> None:
    """What could not be sent is looked up anew: a statement for each topic takes milliseconds of the loop."""
    disk = direct_store(tmp_path / "retained.sqlite")
    disk.open(now_ns=1)
    try:
        first, second = DiscReplica(disk.table("first")), DiscReplica(disk.table("second"))
        first.apply([value(b"a")], phase=Phase.SNAPSHOT)
        second.apply([value(b"b/%d" % number) for number in range(200)], phase=Phase.SNAPSHOT)
        store = CombinedStore([first, second])
        granted = SubscriptionOptions(0)
        delivery = RetainedDelivery(b"b/#", options=granted, store=store, pieces=RetainedPieces())
        taken: list[Update] = []
        while not taken:
            taken = delivery.take(1000) or []
        delivery.put_back(taken)
        statements: list[str] = []
        disk.database.set_trace_callback(statements.append)
        assert delivery.take(1000) == taken
        assert len(taken) == 200
        assert len(statements) == 2
    finally:
        disk.close(timeout_s=30)
