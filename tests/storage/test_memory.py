"""What `disc_only` has in memory: a cache and the batch under way, however many topics there are."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path

from fanout.replica.store import Replica
from fanout.replica.update import Phase
from fanout.storage.replica import DiscReplica
from tests.replica.passes import end_pass
from tests.storage.replicas import direct_store
from tests.support.updates import update as value

TOPICS = 50_000
BATCH = 1_000
MIB = 1024 * 1024


def private_bytes() -> int:
    """Return how much memory of its own this process has."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def grown_by(path: Path | None) -> int:
    """Return by how much memory a replica makes this process grow: filled, passed over, and searched.

    Args:
        path: The file of `disc_only`; None for a replica in memory.
    """
    store = None if path is None else direct_store(path)
    replica = Replica()
    if store is not None:
        store.open(now_ns=1)
        replica = DiscReplica(store.table("link"))
    before = private_bytes()
    for phase in (Phase.LIVE, Phase.AUDIT):
        if phase is Phase.AUDIT:
            replica.begin_pass()
        for start in range(0, TOPICS, BATCH):
            numbers = range(start, start + BATCH)
            # Every other value is another one when it comes again.
            payloads = [(b"%d %d" % (number, number % 2 * phase)).ljust(200) for number in numbers]
            topics = [b"plant/%d/%d" % (number // 100, number) for number in numbers]
            replica.apply([value(*each) for each in zip(topics, payloads, strict=True)], phase=phase)
            if store is not None:
                store.commit()
    assert replica.seen_count == TOPICS
    assert len(end_pass(replica).changed) == TOPICS // 2
    assert sum(map(len, replica.match(b"plant/#"))) == TOPICS
    grown = private_bytes() - before
    assert len(replica) == TOPICS
    if store is not None:
        assert store.close(timeout_s=60)
    return grown


def test_disc_only_does_not_grow_with_the_number_of_topics(tmp_path: Path) -> None:
    """50,000 values of 200 bytes with a cache of 1 MiB: a few MiB, where a replica in memory takes tens of them."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        in_memory, on_disk = pool.map(grown_by, [None, tmp_path / "retained.sqlite"], chunksize=1)
    assert in_memory > 20 * MIB
    assert on_disk < 8 * MIB
