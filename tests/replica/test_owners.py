"""Users of retained values: what each has, against a count of all values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanout.replica.owners import RETAINED_BYTES_KEY, RETAINED_TOPICS_KEY, RetainedOwners
from fanout.replica.store import Replica
from fanout.replica.update import Phase
from tests.server.node_in_memory import update

QUOTAS = {"alice": (3, 40), "bob": (2, 1000)}
ROWS = st.tuples(st.sampled_from([b"a", b"bb", b"ccc", b"d"]), st.integers(0, 30), st.booleans())
BATCHES = st.lists(st.tuples(st.sampled_from([*QUOTAS]), st.lists(ROWS, max_size=6)), max_size=12)


@given(BATCHES)
def test_each_user_has_its_values_and_never_more_than_its_quota(
    batches: list[tuple[str, list[tuple[bytes, int, bool]]]],
) -> None:
    """A value counts for its last publisher until it is removed, replaced by another's, or kept out by a limit."""
    replica = Replica(payload_max=25)
    owners = RetainedOwners(QUOTAS.get)
    owner_of: dict[bytes, str] = {}
    for user, rows in batches:
        quota = QUOTAS[user]
        updates = []
        for topic, length, retain in rows:
            payload = b"x" * length
            if retain and payload:
                if not owners.take(user, topic, size=len(topic) + length, quota=quota):
                    continue
                owner_of[topic] = user
            updates.append(update(topic, payload, retain=retain))
        owners.note(replica.apply(updates, phase=Phase.LIVE))
        for one, (topics, nbytes) in QUOTAS.items():
            held = [topic for topic in replica.values if owner_of.get(topic) == one]
            size = sum(len(topic) + len(replica.values[topic][1]) for topic in held)
            assert owners.used(one) == (len(held), size)
            assert owners.used(one)[0] <= topics
            assert owners.used(one)[1] <= nbytes


def test_each_quota_counts_its_refusals() -> None:
    """A value that takes the place of the user's own needs no further topic, and only the bytes that it grows by."""
    owners = RetainedOwners(QUOTAS.get)
    quota = QUOTAS["alice"]
    assert all(owners.take("alice", topic, size=10, quota=quota) for topic in (b"a", b"b", b"c"))
    assert not owners.take("alice", b"d", size=1, quota=quota)
    assert owners.take("alice", b"a", size=20, quota=quota)
    assert not owners.take("alice", b"b", size=11, quota=quota)
    assert owners.take("bob", b"a", size=20, quota=QUOTAS["bob"])  # which frees the other's
    assert owners.take("alice", b"d", size=20, quota=quota)
    assert owners.used("alice") == (3, 40)
    assert owners.refused_by == {RETAINED_TOPICS_KEY: 1, RETAINED_BYTES_KEY: 1}
