"""What a limit keeps out of a replica: when a topic is out of the count again, and what is told to whom below."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.replica import refused as module
from fanout.replica.refused import LimitKeys
from fanout.replica.store import Replica
from fanout.replica.update import Changes, Phase, Update
from fanout.selection import Selector
from tests.replica.passes import end_pass
from tests.storage.replicas import STORAGES, Make, replicas
from tests.support.updates import update

NOW = 1_700_000_000_000_000_000
LARGE = b"12345"


@pytest.fixture(params=STORAGES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return what makes an empty replica of each kind."""
    with replicas(request.param, tmp_path) as make:
        yield make


def dispatched(changes: Changes) -> list[tuple[bytes, bytes, bool]]:
    """Return topic, payload and RETAIN of what is delivered."""
    return [(update[0], update[1], update[3]) for update in changes.dispatch]


def live(replica: Replica, *updates: Update) -> list[tuple[bytes, bytes, bool]]:
    """Apply live updates, and return what is delivered."""
    return dispatched(replica.apply(list(updates), phase=Phase.LIVE))


def test_what_is_not_held_is_delivered_without_retain(make: Make) -> None:
    """A node below must not hold what this one does not, nor the value that is not held any more."""
    replica = make(payload_max=4)
    found = live(replica, update(b"a"), update(b"a", LARGE), update(b"a", LARGE), update(b"b", LARGE), update(b"b"))
    assert found == [
        (b"a", b"1", True),
        (b"a", b"", True),
        (b"a", LARGE, False),
        (b"a", LARGE, False),
        (b"b", LARGE, False),
        (b"b", b"1", True),
    ]
    assert set(replica.view) == {b"b"}
    assert replica.refused.limit_of(b"a", index=0) == "retained.max_payload"
    assert replica.refused.limit_of(b"b", index=0) is None


@pytest.mark.parametrize("way_out", ["value", "removal", "expiry"])
def test_a_topic_is_out_of_the_count_again(make: Make, way_out: str) -> None:
    """With a value that fits, its removal or its expiry; until then its limit is named."""
    replica = make(payload_max=4, limit_keys=LimitKeys(payload="own.key"))
    live(replica, update(b"a", LARGE, expires_ns=NOW + 5 if way_out == "expiry" else 0))
    assert replica.refused.limits(NOW) == ("own.key",)
    match way_out:
        case "value":
            live(replica, update(b"a"))
        case "removal":
            live(replica, update(b"a", b""))
    assert replica.refused.limits(NOW + 5) == ()
    assert (replica.refused_total, replica.refused_by["own.key"]) == (1, 1)


def test_each_limit_is_named(make: Make) -> None:
    """A payload that never fits is not put down to the number of topics."""
    replica = make(payload_max=4, topics_max=2, bytes_max=20)
    live(replica, update(b"a"), update(b"b"), update(b"c"), update(b"d", LARGE))
    assert replica.refused.limits(NOW) == ("retained.max_payload", "topics_max")
    live(replica, update(b"c", b""), update(b"d", b""), update(b"a" * 18, b""))
    assert replica.refused.limits(NOW) == ()
    replica = make(bytes_max=3)
    live(replica, update(b"a", b"12"), update(b"b"))
    assert replica.refused.limits(NOW) == ("bytes_max",)


def test_a_complete_pass_settles_what_it_did_not_bring(make: Make) -> None:
    """The primary has no such value any more; topics of other selectors are not of this pass."""
    replica = make(payload_max=4, selectors=(Selector("a/#"), Selector("b/#")))
    live(replica, update(b"a/1", LARGE), update(b"a/2", LARGE), update(b"b/1", LARGE))
    replica.begin_pass(0)
    changes = replica.apply([update(b"a/2", LARGE)], phase=Phase.AUDIT)
    assert dispatched(changes) == [], "it was delivered when it came"
    assert replica.apply([update(b"a/2", LARGE + b"6")], phase=Phase.AUDIT).dispatch, "this one was not"
    end_pass(replica)
    assert not replica.refused.knows(update(b"a/1", LARGE))
    assert replica.refused.knows(update(b"a/2", LARGE + b"6"))
    assert replica.refused.knows(update(b"b/1", LARGE))
    for index in (0, 1):
        assert replica.refused.limits(NOW) == ("retained.max_payload",)
        replica.begin_pass(index)
        end_pass(replica)
    assert replica.refused.limits(NOW) == ()


def test_a_pass_that_goes_on_with_another_settles_nothing(make: Make) -> None:
    """What the one before refused may be there still; nor does one that never began."""
    replica = make(payload_max=4)
    live(replica, update(b"a", LARGE), update(b"b"))
    replica.begin_pass(seen=iter([b"b"]))
    assert end_pass(replica).unseen == ()
    end_pass(replica)
    assert replica.refused.limits(NOW) == ("retained.max_payload",)


def test_what_fits_when_a_pass_brings_it_was_not_missed(make: Make) -> None:
    """A copy of what was delivered and kept out is no sign of loss; another value is."""
    replica = make(topics_max=1)
    live(replica, update(b"a"), update(b"b"), update(b"a", b""))
    replica.begin_pass()
    replica.apply([update(b"b")], phase=Phase.AUDIT)
    assert end_pass(replica).changed == ()
    assert set(replica.view) == {b"b"}
    live(replica, update(b"a"), update(b"b", b""))
    replica.begin_pass()
    replica.apply([update(b"a", b"2")], phase=Phase.AUDIT)
    assert end_pass(replica).changed == (b"a",)


def test_very_many_topics_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound it ends with a complete pass that stays within it, and not with the topics that are known."""
    monkeypatch.setattr(module, "REFUSED_TOPICS_MAX", 2)
    replica = make(payload_max=4)
    topics = [b"%d" % number for number in range(3)]
    live(replica, *(update(topic, LARGE) for topic in topics))
    live(replica, *(update(topic) for topic in topics))
    assert replica.refused.limits(NOW) == ("retained.max_payload",), "a third topic is not known by name"
    assert replica.refused.limit_of(b"0", index=0) == "retained.max_payload", "it may be the third"
    assert replica.refused.limit_of(b"0", index=1) is None
    replica.begin_pass()
    replica.apply([update(topic, LARGE) for topic in topics], phase=Phase.AUDIT)
    end_pass(replica)
    assert replica.refused.limits(NOW) == ("retained.max_payload",)
    replica.begin_pass()
    replica.apply([update(b"0", LARGE)], phase=Phase.AUDIT)
    end_pass(replica)
    live(replica, update(b"0"))
    assert replica.refused.limits(NOW) == ()
