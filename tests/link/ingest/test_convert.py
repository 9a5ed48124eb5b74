"""From rows to updates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.link.ingest.convert import ConvertedRows, Converter
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.delivery import Inbound
from fanout.replica.store import Replica
from fanout.replica.update import Phase, content_digest
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


@pytest.mark.parametrize("selectors", [PLAIN, PREFIXED, SEVERAL])
def test_known_topics_share_their_name(selectors: tuple[Selector, ...]) -> None:
    """An update of a known topic carries the name object that the replica holds."""
    one, replica = converter(selectors)
    replica.apply(one.convert([row(b"plant/1/b")], now_ns=NOW).updates, phase=Phase.SNAPSHOT)
    (held,) = replica.values
    (update,) = one.convert([row(bytes(bytearray(b"plant/1/b")))], now_ns=NOW).updates
    assert update[0] is held


def test_what_is_held_is_found_by_the_topic_at_the_primary() -> None:
    """Under its local name; nothing is held of a topic outside."""
    one, replica = converter(SEVERAL)
    updates = one.convert([row(b"plant/1/a"), row(b"plant/1/b")], now_ns=NOW).updates
    replica.apply(updates, phase=Phase.SNAPSHOT)
    topics = (b"plant/1/a", b"plant/1/b", b"plant/2/b", b"plant/debug/1")
    assert [one.held(topic) for topic in topics] == [*updates, None, None]


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
