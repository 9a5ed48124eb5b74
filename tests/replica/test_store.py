"""What batches of updates do to a replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout.mqtt.topics import matches
from fanout.replica.store import Replica
from fanout.replica.update import ChangeKind, Changes, Phase, Update, content_digest
from fanout.selection import Selector
from tests.replica.passes import PassResult, end_pass
from tests.storage.replicas import STORAGES, Make, replicas
from tests.support.updates import update

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


@pytest.fixture(params=STORAGES)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return what makes an empty replica of each kind."""
    with replicas(request.param, tmp_path) as make:
        yield make


def kinds(changes: Changes) -> list[ChangeKind]:
    """Return the kinds of a batch's changes."""
    return [ChangeKind(kind) for kind in changes.kinds]


def digest_of(values: dict[bytes, bytes]) -> int:
    """Return the digest of a retained set, the slow way."""
    return sum(content_digest(topic, payload) for topic, payload in values.items()) % 2**64


# --- one step at a time ---


def test_apply_tells_new_replaced_removed_and_message(make: Make) -> None:
    """Each update is told by what it did to the retained value of its topic."""
    replica = make()
    batch = [
        update(b"a"),
        update(b"a", b"2"),
        update(b"a", b"3", retain=False),
        update(b"a", b""),
        update(b"a", b""),
        update(b"b", b"", retain=False),
    ]
    changes = replica.apply(batch, phase=Phase.LIVE)
    assert kinds(changes) == [
        ChangeKind.NEW,
        ChangeKind.REPLACED,
        ChangeKind.MESSAGE,
        ChangeKind.REMOVED,
        ChangeKind.MESSAGE,
        ChangeKind.MESSAGE,
    ]
    assert changes.updates is batch
    assert changes.dispatch is batch
    assert changes.phase is Phase.LIVE
    assert len(replica) == 0


# --- limits ---


def test_topics_above_the_limit_are_delivered_but_not_stored(make: Make) -> None:
    """A topic beyond `topics_max` is refused, counted and dispatched; known topics still change."""
    replica = make(topics_max=2)
    changes = replica.apply(
        [update(b"a"), update(b"b"), update(b"c"), update(b"a", b"2"), update(b"c", b"")], phase=Phase.LIVE
    )
    assert kinds(changes) == [
        ChangeKind.NEW,
        ChangeKind.NEW,
        ChangeKind.REFUSED,
        ChangeKind.REPLACED,
        ChangeKind.MESSAGE,
    ]
    assert len(changes.dispatch) == 5
    assert set(replica.view) == {b"a", b"b"}
    assert replica.refused_total == 1


def test_payload_above_the_limit_is_refused(make: Make) -> None:
    """A new value that would exceed `bytes_max` (topics count too) is refused; a removal makes room."""
    replica = make(bytes_max=12)
    assert kinds(replica.apply([update(b"a", b"12345678"), update(b"b", b"123")], phase=Phase.LIVE)) == [
        ChangeKind.NEW,
        ChangeKind.REFUSED,
    ]
    assert (replica.payload_bytes, replica.topic_bytes) == (8, 1)
    replica.apply([update(b"a", b""), update(b"b", b"123")], phase=Phase.LIVE)
    assert replica.payload_bytes == 3


def test_properties_count_towards_the_limit(make: Make) -> None:
    """A short payload with long properties needs room for both, as a new value and in place of another."""
    replica = make(bytes_max=20)
    batch = [
        update(b"a", b"1", properties=b"12345"),
        update(b"b", b"1", properties=b"12345678901"),
        update(b"c", b"1"),
    ]
    assert kinds(replica.apply(batch, phase=Phase.LIVE)) == [
        ChangeKind.NEW,
        ChangeKind.NEW,
        ChangeKind.REFUSED,
    ]
    assert (replica.payload_bytes, replica.topic_bytes) == (18, 2)
    grown, shrunk = update(b"a", b"1", properties=b"123456"), update(b"b", b"1", properties=b"1")
    assert kinds(replica.apply([grown, shrunk], phase=Phase.LIVE)) == [ChangeKind.REFUSED, ChangeKind.REPLACED]
    assert (replica.payload_bytes, replica.topic_bytes) == (2, 1)
    replica.sweep([b"b"], now_ns=NOW)
    assert (replica.payload_bytes, replica.topic_bytes) == (0, 0)


def test_a_replacement_that_does_not_fit_drops_the_old_value(make: Make) -> None:
    """A value that the primary has replaced is not served any longer, even if the new one does not fit."""
    replica = make(bytes_max=12)
    replica.apply([update(b"a", b"12345"), update(b"b", b"12345")], phase=Phase.LIVE)
    assert kinds(replica.apply([update(b"a", b"123456")], phase=Phase.LIVE)) == [ChangeKind.REFUSED]
    assert set(replica.view) == {b"b"}
    assert replica.payload_bytes == 5
    assert replica.digest() == content_digest(b"b", b"12345")
    assert replica.refused_total == 1


# --- expiry ---


@pytest.mark.parametrize(
    ("held", "copy", "expiry"),
    [
        (5 * SECOND, 0, None),
        (5 * SECOND, 60 * SECOND, NOW + 60 * SECOND),
        (60 * SECOND, 5 * SECOND, NOW + 5 * SECOND),
        (0, 5 * SECOND, NOW + 5 * SECOND),
        (5 * SECOND, 6 * SECOND, NOW + 5 * SECOND),
    ],
    ids=["forgotten", "longer", "shorter", "new", "rounded"],
)
def test_an_unchanged_copy_corrects_the_expiry(make: Make, held: int, copy: int, expiry: int | None) -> None:
    """A restarted primary may keep a value for longer than it told; the value is not dispatched again for that."""
    replica = make()
    replica.apply([update(b"a", expires_ns=NOW + held if held else 0)], phase=Phase.LIVE)
    changes = replica.apply([update(b"a", expires_ns=NOW + copy if copy else 0)], phase=Phase.AUDIT)
    assert changes.dispatch == []
    other = make()
    other.apply([update(b"a", expires_ns=NOW + held if held else 0)], phase=Phase.LIVE)
    other.correct([*changes.corrected, update(b"gone", expires_ns=NOW)])
    assert dict(other.view) == dict(replica.view)
    if expiry is not None:
        assert replica.remove_expired(expiry - 1).updates == []
        assert len(replica.remove_expired(expiry).updates) == 1
    assert replica.remove_expired(NOW + 100 * SECOND).updates == []
    assert len(replica) == (expiry is None)
    assert replica.next_expiry_ns is None


def later(seconds: int, topic: bytes, *, left_s: int) -> Update:
    """Return a copy that comes so much later, with so much left of its expiry."""
    copy = update(topic, expires_ns=NOW + (seconds + left_s) * SECOND)
    return (*copy[:5], NOW + seconds * SECOND, *copy[6:])


@pytest.mark.parametrize("phase", [Phase.SNAPSHOT, Phase.AUDIT])
def test_a_primary_that_does_not_count_down_lengthens_nothing(make: Make, phase: Phase) -> None:
    """Each copy has the whole expiry that was told first: the value goes when that is over, and not a copy later."""
    replica = make()
    replica.apply([later(0, b"a", left_s=60)], phase=Phase.LIVE)
    for seconds in (20, 40):
        replica.apply([later(seconds, b"a", left_s=60)], phase=phase)
    assert replica.next_expiry_ns == NOW + 60 * SECOND
    for seconds in (50, 55):
        replica.apply([later(seconds, b"a", left_s=70)], phase=phase)
    assert replica.remove_expired(NOW + 119 * SECOND).updates == [], "another expiry is not the same one told again"
    assert len(replica.remove_expired(NOW + 120 * SECOND).updates) == 1


def test_a_primary_that_counts_down_may_lengthen_by_the_same(make: Make) -> None:
    """It was published again, with the expiry that it had, and that was missed."""
    replica = make()
    replica.apply([later(0, b"a", left_s=60), later(0, b"b", left_s=60)], phase=Phase.LIVE)
    replica.apply([later(20, b"a", left_s=39), later(20, b"b", left_s=60)], phase=Phase.AUDIT)
    assert [each[0] for each in replica.remove_expired(NOW + 79 * SECOND).updates] == [b"a"]
    assert [each[0] for each in replica.remove_expired(NOW + 80 * SECOND).updates] == [b"b"]


expiry_steps = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.integers(0, 9), st.integers(0, 4)), max_size=30
)
"""Topic; in what time its new value expires, 0 for never, None to clear it; how much time passes then."""


def test_outdated_expiries_do_not_pile_up() -> None:
    """A topic updated often, always with a new expiry, does not make the heap grow without bound."""
    replica = Replica()
    for number in range(10_000):
        replica.apply([update(b"a", b"%d" % number, expires_ns=NOW + SECOND + number)], phase=Phase.LIVE)
        if number == 5_000:
            assert len(replica._expiries) == 1, "it is moved on when its time has come"
    for number in range(10_000):
        replica.apply([update(b"a", b"%d" % number, expires_ns=NOW + SECOND - number)], phase=Phase.LIVE)
    assert len(replica._expiries) < 3000
    assert len(replica.remove_expired(NOW + 2 * SECOND).updates) == 1


@given(steps=expiry_steps)
def test_each_value_goes_when_it_expires(steps: list[tuple[bytes, int | None, int]]) -> None:
    """Whatever came and went before: none earlier, none later, and never twice."""
    replica, expected, now = Replica(), dict[bytes, int](), 100
    for number, (topic, left, passed) in enumerate(steps):
        if left is None:
            replica.apply([update(topic, b"")], phase=Phase.LIVE)
            expected.pop(topic, None)
        else:
            expires = now + left if left else 0
            replica.apply([update(topic, b"%d" % number, expires_ns=expires)], phase=Phase.LIVE)
            expected[topic] = expires
        now += passed
        due = {topic for topic, at in expected.items() if 0 < at <= now}
        gone = [one[0] for _ in range(20) for one in replica.remove_expired(now, piece=2).updates]
        assert sorted(gone) == sorted(due)
        for topic in due:
            del expected[topic]
        assert set(replica.values) == set(expected)
        soonest = min((at for at in expected.values() if at), default=None)
        asked = replica.next_expiry_ns
        assert asked == soonest if asked is None or soonest is None else asked <= soonest


# --- selectors ---

TWO = (Selector("plant/+/a"), Selector("plant/#", exclude=("plant/+/a",), prefix="site/"))


def test_topics_outside_every_selector_count_for_the_total_only(make: Make) -> None:
    """A topic that no selector covers is held all the same; keeping it out is the link's business."""
    replica = make(selectors=TWO)
    replica.apply([update(b"elsewhere")], phase=Phase.LIVE)
    assert [replica.count(0), replica.count(1), replica.count()] == [0, 0, 1]
    assert replica.sweep([b"elsewhere"], now_ns=NOW).updates[0][7] == content_digest(b"elsewhere", b"")


def test_removals_carry_the_digest_of_the_topic_at_the_primary(make: Make) -> None:
    """The prefix is not part of what is digested, so that nodes with different prefixes agree."""
    replica = make(selectors=[Selector("a/#", prefix="site/")])
    replica.apply([update(b"a/1", prefix=b"site/")], phase=Phase.LIVE)
    (removal,) = replica.sweep([b"site/a/1"], now_ns=NOW).updates
    assert removal[0] == b"site/a/1"
    assert removal[7] == content_digest(b"a/1", b"")


# --- passes ---


def test_a_pass_finds_what_changed_and_what_is_new(make: Make) -> None:
    """A topic that comes once, with a value that was not held, was missed before the pass."""
    replica = make()
    replica.apply([update(b"a"), update(b"b")], phase=Phase.SNAPSHOT)
    replica.begin_pass()
    replica.apply([update(b"a", b"2"), update(b"b"), update(b"c")], phase=Phase.AUDIT)
    result = end_pass(replica)
    assert result.unseen == ()
    assert sorted(result.changed) == [b"a", b"c"]
    assert replica.view[b"a"][1] == b"2"


def test_a_live_update_during_a_pass_is_no_loss(make: Make) -> None:
    """A live update comes besides the copy, before or after it, so its topic comes twice."""
    replica = make()
    replica.apply([update(b"before"), update(b"after"), update(b"live")], phase=Phase.SNAPSHOT)
    replica.begin_pass()
    replica.apply([update(b"before", b"2")], phase=Phase.AUDIT)  # live, not told from a copy
    replica.apply([update(b"live", b"2"), update(b"created", b"2")], phase=Phase.LIVE)
    copies = [update(b"before", b"2"), update(b"after"), update(b"live", b"2"), update(b"created", b"2")]
    replica.apply(copies, phase=Phase.AUDIT)
    replica.apply([update(b"after", b"2")], phase=Phase.AUDIT)  # live, not told from a copy
    result = end_pass(replica)
    assert result.unseen == ()
    assert result.changed == ()


def test_removals_during_a_pass_are_no_loss(make: Make) -> None:
    """A topic removed while the pass runs, by a message or by expiry, is neither unseen nor changed."""
    replica = make()
    batch = [update(b"a"), update(b"b"), update(b"c", expires_ns=NOW + SECOND)]
    replica.apply(batch, phase=Phase.SNAPSHOT)
    replica.begin_pass()
    replica.apply([update(b"a", b"2"), *batch[1:]], phase=Phase.AUDIT)
    replica.apply([update(b"a", b""), update(b"a", b""), update(b"d", b"1", retain=False)], phase=Phase.LIVE)
    replica.remove_expired(NOW + SECOND)
    assert replica.unseen_count == 0
    result = end_pass(replica)
    assert result.unseen == ()
    assert result.changed == ()


def test_a_value_that_expires_during_a_pass_is_none_that_it_shows(make: Make) -> None:
    """Neither as one that changed, nor as one that is missing."""
    replica = make()
    replica.begin_pass()
    replica.apply([update(b"a", expires_ns=NOW + SECOND), update(b"b")], phase=Phase.AUDIT)
    replica.remove_expired(NOW + SECOND)
    assert end_pass(replica) == PassResult(unseen=(), changed=(b"b",))


def test_a_pass_looks_at_its_own_selector_only(make: Make) -> None:
    """Topics of other selectors are neither unseen nor changed."""
    replica = make(selectors=TWO)
    replica.apply([update(b"plant/1/a"), update(b"plant/1/b", prefix=b"site/")], phase=Phase.SNAPSHOT)
    replica.begin_pass(1)
    replica.apply([update(b"plant/9/a")], phase=Phase.AUDIT)
    assert replica.unseen_count == 1
    assert end_pass(replica).unseen == (b"site/plant/1/b",)


def test_what_is_older_than_a_pass_is_not_of_it_and_may_be_overtaken(make: Make) -> None:
    """By what the pass brought, be it gone by now; by nothing else, and by nothing once the pass is over."""
    replica = make()
    replica.apply([update(b"a"), update(b"b"), update(b"c")], phase=Phase.SNAPSHOT)
    assert not replica.overtakes(update(b"a"))
    replica.begin_pass()
    replica.apply([update(b"a", b"2"), update(b"b"), update(b"never", b"")], phase=Phase.AUDIT)
    replica.apply([update(b"b", b"")], phase=Phase.LIVE)
    replica.apply([update(b"c", b"2")], phase=Phase.LIVE, of_pass=False)
    older = [update(b"a"), update(b"b"), update(b"c"), update(b"never"), update(b"a", retain=False)]
    assert [replica.overtakes(each) for each in older] == [True, True, False, True, False]
    assert replica.unseen_count == 1
    assert replica.overtakes(update(b"a", b"2"))  # the very value: it was not missed
    assert end_pass(replica) == PassResult(unseen=(b"c",), changed=())
    assert not replica.overtakes(update(b"a"))


def test_a_dropped_pass_shows_nothing(make: Make) -> None:
    """A pass that was broken off says nothing about what it did not bring."""
    replica = make()
    replica.apply([update(b"a")], phase=Phase.SNAPSHOT)
    replica.begin_pass()
    replica.drop_pass()
    assert replica.unseen_count == 0
    assert end_pass(replica).unseen == ()


# --- tear-down ---


@pytest.mark.parametrize("selectors", [(), TWO])
def test_tear_down_removes_everything_in_pieces(make: Make, selectors: Sequence[Selector]) -> None:
    """Each step removes a bounded piece and tells the removals; at the end nothing is left."""
    replica = make(selectors=selectors)
    replica.apply(
        [update(b"plant/%d/a" % number, expires_ns=NOW + SECOND) for number in range(1000)],
        phase=Phase.SNAPSHOT,
    )
    removed: list[Update] = []
    for changes in replica.tear_down(300, now_ns=NOW):
        assert 0 < len(changes.updates) <= 300
        assert changes.dispatch is changes.updates
        assert set(changes.kinds) == {ChangeKind.REMOVED}
        removed += changes.updates
    assert {each[0] for each in removed} == {b"plant/%d/a" % number for number in range(1000)}
    assert all(each[1] == b"" and each[3] for each in removed)
    assert len(removed) == 1000
    assert len(replica) == replica.digest() == replica.payload_bytes == replica.topic_bytes == 0
    assert replica.next_expiry_ns is None
    assert [each for piece in replica.match(b"#") for each in piece] == []
    assert [replica.count(index) for index in range(len(selectors))] == [0] * len(selectors)


# --- against a plain model ---

TOPICS = st.sampled_from([b"plant/1/a", b"plant/2/a", b"plant/1/b", b"plant", b"plant/1/b/c"])
STEPS = st.lists(
    st.tuples(
        TOPICS,
        st.sampled_from([b"", b"1", b"22", b"333"]),
        st.booleans(),
        st.sampled_from([0, NOW + SECOND, NOW + 2 * SECOND]),
        st.sampled_from([b"", b"p", b"pp"]),
    ),
    max_size=30,
)


def same(held: tuple[bytes, int, bytes], copy: tuple[bytes, int, bytes]) -> bool:
    """Say whether a copy is what is held, but for what whole seconds round away from its expiry."""
    rounded = 0 not in (held[1], copy[1]) and abs(held[1] - copy[1]) <= 2 * SECOND
    return (held[0], held[2]) == (copy[0], copy[2]) and (held[1] == copy[1] or rounded)


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), STEPS), max_size=6))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_replica_agrees_with_a_plain_dictionary(
    make: Make,
    batches: list[tuple[Phase, list[tuple[bytes, bytes, bool, int, bytes]]]],
) -> None:
    """Values, counts, digests, bytes, expiry and search agree with a dictionary changed step by step."""
    selectors = (Selector("plant/+/a"), Selector("plant/#", exclude=("plant/+/a",)))
    replica = make(selectors=selectors)
    model: dict[bytes, tuple[bytes, int, bytes]] = {}
    for number, (phase, steps) in enumerate(batches):
        replica.apply(
            [
                update(topic, payload, retain=retain, expires_ns=at, properties=properties)
                for topic, payload, retain, at, properties in steps
            ],
            phase=phase,
        )
        for topic, payload, retain, at, properties in steps:
            if not retain:
                continue
            if not payload:
                model.pop(topic, None)
            elif phase is Phase.LIVE or topic not in model or not same(model[topic], (payload, at, properties)):
                model[topic] = (payload, at, properties)
        if number % 2:
            replica.remove_expired(NOW + SECOND)
            model = {topic: each for topic, each in model.items() if each[1] != NOW + SECOND}
        values = {topic: payload for topic, (payload, *_) in model.items()}
        assert {topic: each[1] for topic, each in replica.view.items()} == values
        assert replica.digest() == digest_of(values)
        assert replica.payload_bytes == sum(len(payload) + len(properties) for payload, _, properties in model.values())
        assert replica.topic_bytes == sum(map(len, values))
        for index, selector in enumerate(selectors):
            own = {topic: payload for topic, payload in values.items() if selector.matches(topic)}
            assert replica.digest(index) == digest_of(own)
            assert replica.count(index) == len(own)
        for topic_filter in (b"#", b"plant/+/a", b"plant/1/#"):
            found = {each[0]: each[1] for piece in replica.match(topic_filter) for each in piece}
            assert found == {topic: values[topic] for topic in values if matches(topic_filter, topic)}
            assert {topic for piece in replica.match_topics(topic_filter) for topic in piece} == found.keys()


def test_payload_over_the_limit_is_delivered_and_not_stored(make: Make) -> None:
    """T15: `payload_max` refuses the value, counts it, and the one it would have replaced is not served any longer."""
    replica = make(payload_max=3)
    changes = replica.apply([update(b"a", b"123"), update(b"b", b"1234")], phase=Phase.LIVE)
    assert list(changes.kinds) == [ChangeKind.NEW, ChangeKind.REFUSED]
    assert len(changes.dispatch) == 2
    changes = replica.apply([update(b"a", b"1234")], phase=Phase.LIVE)
    assert list(changes.kinds) == [ChangeKind.REFUSED]
    assert replica.refused_total == 2
    assert not replica.view
    assert list(replica.match(b"#")) == []
