"""From rows to updates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.chain.stamp import encode_stamp, split_trailer
from fanout.link.ingest.convert import ConvertedRows, Converter
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.delivery import Inbound
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Stamp, content_digest
from fanout.selection import Selector
from tests.support.updates import row

NOW = 1_700_000_000_000_000_000
PLAIN = (Selector("plant/#", exclude=("plant/debug/#",)),)
PREFIXED = (Selector("plant/#", exclude=("plant/debug/#",), prefix="site/"),)
SEVERAL = (Selector("plant/+/a"), Selector("plant/#", exclude=("plant/+/a", "plant/debug/#"), prefix="site/", qos=2))


def converter(selectors: tuple[Selector, ...] = PLAIN, *, retain_all: bool = False) -> tuple[Converter, Replica]:
    """Return a converter and its replica."""
    replica = Replica(selectors=selectors)
    one = Converter(
        selectors, replica=replica, control_prefix=b"fanout/control/", inbound=Inbound(), retain_all=retain_all
    )
    return one, replica


def test_a_row_becomes_an_update() -> None:
    """Every field comes from its place."""
    one, _ = converter()
    converted = one.convert([row(b"plant/1", b"x", properties=b"\x01\x01", expiry_s=3)], now_ns=NOW)
    assert converted.updates == [
        (b"plant/1", b"x", 1, True, b"\x01\x01", NOW, NOW + 3_000_000_000, content_digest(b"plant/1", b"x"), None)
    ]


@pytest.mark.parametrize("selectors", [PLAIN, SEVERAL])
def test_values_of_one_read_share_the_time_at_which_it_came(selectors: tuple[Selector, ...]) -> None:
    """An object for each of them would be 32 bytes of a retained value, which compiled code does unless told."""
    taken, _ = converter(selectors)
    updates = taken.convert([row(b"plant/%d/a" % number) for number in range(9)], now_ns=NOW).updates
    assert {id(update[5]) for update in updates} == {id(updates[0][5])}


@pytest.mark.parametrize("selectors", [PLAIN, SEVERAL])
def test_any_number_of_topics_without_a_value(selectors: tuple[Selector, ...]) -> None:
    """Topics that come again without a value are sorted as the first time, however many there are."""
    taken, _ = converter(selectors)
    topics = [b"plant/%d/a" % number for number in range(70_000)] + [b"plant/" + b"x" * 1000]
    rows = [row(topic, flags=0) for topic in topics]
    outside = [row(b"plant/debug/%d" % number, flags=0) for number in range(10)]
    for _ in range(2):
        converted = taken.convert(rows + outside, now_ns=NOW)
        assert [update[0].removeprefix(b"site/") for update in converted.updates] == topics
        assert converted.others == outside


@pytest.mark.parametrize("selectors", [PLAIN, PREFIXED])
@pytest.mark.parametrize(
    ("flags", "qos", "retain"), [(0, 0, False), (1, 0, True), (2, 1, False), (3, 1, True), (5, 2, True), (11, 1, True)]
)
def test_qos_and_retain_come_from_the_flags(
    selectors: tuple[Selector, ...], flags: int, qos: int, retain: bool
) -> None:
    """With the subscription at its own QoS the PUBLISH decides; with the fixed QoS of a snapshot it does not."""
    one, _ = converter(selectors)
    one.fix_qos(0, None)
    (update,) = one.convert([row(b"plant/1", flags=flags, packet_id=9)], now_ns=NOW).updates
    assert (update[2], update[3]) == (qos, retain)
    one.fix_qos(0, 2)
    (update,) = one.convert([row(b"plant/1", flags=flags & 9, packet_id=0)], now_ns=NOW).updates
    assert update[2] == 2


def test_topics_outside_are_put_aside() -> None:
    """Outside the filter, excluded, below the control topic: none becomes an update; acknowledgements do not care."""
    for selectors in (PLAIN, PREFIXED, SEVERAL):
        one, _ = converter(selectors)
        rows = [
            row(b"office/1", flags=2, packet_id=1),
            row(b"plant/debug/x"),
            row(b"fanout/control/me/link", flags=2, packet_id=2),
            row(b"$SYS/x"),
        ]
        converted = one.convert(rows, now_ns=NOW)
        assert converted.updates == []
        assert converted.others == rows
        assert converted.to_puback == [1, 2]


def test_a_mirror_of_everything_leaves_control_topics_out() -> None:
    """The control topic is inside `#`, and yet not replicated."""
    one, _ = converter((Selector("#"),))
    converted = one.convert([row(b"a"), row(b"fanout/control/x/y")], now_ns=NOW)
    assert [update[0] for update in converted.updates] == [b"a"]
    assert len(converted.others) == 1


@pytest.mark.parametrize("selectors", [PLAIN, PREFIXED, SEVERAL])
def test_known_topics_share_their_name(selectors: tuple[Selector, ...]) -> None:
    """An update of a known topic carries the name object that the replica holds."""
    one, replica = converter(selectors)
    replica.apply(one.convert([row(b"plant/1/b")], now_ns=NOW).updates, phase=Phase.SNAPSHOT)
    (held,) = replica.values
    (update,) = one.convert([row(bytes(bytearray(b"plant/1/b")))], now_ns=NOW).updates
    assert update[0] is held


def test_prefixes_are_put_in_front_and_are_not_digested() -> None:
    """The local name has the prefix; the digest is that of the topic at the primary."""
    one, _ = converter(PREFIXED)
    (update,) = one.convert([row(b"plant/1", b"x")], now_ns=NOW).updates
    assert update[0] == b"site/plant/1"
    assert update[7] == content_digest(b"plant/1", b"x")
    assert one.known_topics == ()


def test_each_selector_has_its_own_prefix_and_qos() -> None:
    """The topic decides the selector, new or known."""
    one, replica = converter(SEVERAL)
    rows = [row(b"plant/1/a"), row(b"plant/1/b"), row(b"plant/2/a"), row(b"plant/2/b")]
    for _ in range(2):
        updates = one.convert(rows, now_ns=NOW).updates
        assert [update[0] for update in updates] == [b"plant/1/a", b"site/plant/1/b", b"plant/2/a", b"site/plant/2/b"]
        assert [update[2] for update in updates] == [1, 2, 1, 2]
        replica.apply(updates, phase=Phase.SNAPSHOT)


def test_a_topic_that_looks_like_a_local_name_is_not_taken_for_it() -> None:
    """The name of one topic at the primary may be the local name of another: it is outside all the same."""
    one, replica = converter((Selector("plant/+/a"), Selector("office/#", prefix="site/")))
    replica.apply(one.convert([row(b"office/1")], now_ns=NOW).updates, phase=Phase.SNAPSHOT)
    converted = one.convert([row(b"site/office/1", b"x")], now_ns=NOW)
    assert converted.updates == []
    assert len(converted.others) == 1


def test_what_is_held_is_found_by_the_topic_at_the_primary() -> None:
    """Under its local name; nothing is held of a topic outside."""
    one, replica = converter(SEVERAL)
    updates = one.convert([row(b"plant/1/a"), row(b"plant/1/b")], now_ns=NOW).updates
    replica.apply(updates, phase=Phase.SNAPSHOT)
    topics = (b"plant/1/a", b"plant/1/b", b"plant/2/b", b"plant/debug/1")
    assert [one.held(topic) for topic in topics] == [*updates, None, None]


def test_known_topics_are_the_replicas_without_prefix() -> None:
    """The decoder need not validate what the replica holds under the same name."""
    one, replica = converter()
    assert one.known_topics is replica.values


def test_acknowledgements_are_in_order_and_qos_2_is_applied_once() -> None:
    """Every QoS 1 and 2 row is acknowledged, in order; a repeated QoS 2 row is not applied again."""
    for selectors in (PLAIN, PREFIXED):
        one, _ = converter(selectors)
        inbound = Inbound()
        one.begin_session(inbound)
        rows = [
            row(b"plant/1", flags=3, packet_id=7),
            row(b"plant/2", flags=5, packet_id=8),
            row(b"plant/2", flags=13, packet_id=8),
            row(b"plant/3", flags=3, packet_id=6),
            row(b"plant/4"),
        ]
        converted = one.convert(rows, now_ns=NOW)
        assert converted.to_puback == [7, 6]
        assert converted.to_pubrec == [8, 8]
        assert len(converted.updates) == 4
        assert inbound.open_count == 1


def test_every_row_may_be_taken_for_retained() -> None:
    """MQTT 3.1.1 without the flag: the configuration says that updates are retained."""
    for selectors in (PLAIN, PREFIXED):
        one, _ = converter(selectors, retain_all=True)
        (update,) = one.convert([row(b"plant/1", flags=0)], now_ns=NOW).updates
        assert update[3] is True


def test_stamps_are_split_off() -> None:
    """With stamps promised, the last User Property is one; a row without a stamp has none."""
    one, _ = converter()
    one.split_stamp = split_trailer
    stamp = Stamp("root", 1, 2, 3)
    rows = [row(b"plant/1", properties=b"\x01\x01" + encode_stamp(stamp)), row(b"plant/1", properties=b"\x01\x01")]
    updates = one.convert(rows, now_ns=NOW).updates
    assert [(update[4], update[8]) for update in updates] == [(b"\x01\x01", stamp), (b"\x01\x01", None)]


TOPICS = st.sampled_from(
    [b"plant/1/a", b"plant/1/b", b"plant", b"plant/debug/1", b"office", b"fanout/control/x", b"site/plant/1/b", b"$a"]
)
ROWS = st.lists(
    st.builds(
        row,
        TOPICS,
        st.sampled_from([b"", b"1"]),
        flags=st.sampled_from([0, 1]),
        expiry_s=st.sampled_from([None, 0, 9]),
    ),
    max_size=12,
)


@given(st.sampled_from([PLAIN, PREFIXED, SEVERAL]), st.lists(ROWS, max_size=4))
def test_rows_are_split_as_the_selectors_say(selectors: tuple[Selector, ...], runs: list[list[PublishRow]]) -> None:
    """Whatever is known already, a row belongs to the selector that matches it, or to none."""
    one, replica = converter(selectors)
    for rows in runs:
        converted: ConvertedRows = one.convert(rows, now_ns=NOW)
        inside = [
            (selector.prefix.encode() + each[0], content_digest(each[0], each[1]))
            for each in rows
            for selector in selectors
            if selector.matches(each[0]) and not each[0].startswith(b"fanout/control/")
        ]
        assert [(update[0], update[7]) for update in converted.updates] == inside
        assert len(converted.others) == len(rows) - len(inside)
        replica.apply(converted.updates, phase=Phase.LIVE)
