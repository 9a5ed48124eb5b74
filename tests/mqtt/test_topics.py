"""MQTT 5, sections 4.7 and 4.8.2: Topic Names, Topic Filters, matching."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fanout.mqtt.reason_codes import ReasonCode
from fanout.mqtt.topics import MAX, FilterTrie, check_topic_filter, check_topic_name, matches, parse_shared
from tests.mqtt.strategies import refused
from tests.support.examples import examples

ILL_FORMED = [b"a\0b", b"\0", b"\xed\xa0\x80", b"a/\xff", b"\xc3"]


def oracle(topic_filter: bytes, topic: bytes) -> bool:
    """Match by the words of section 4.7, level by level, slowly."""

    def levels_match(filters: list[bytes], names: list[bytes]) -> bool:
        if not filters:
            return not names
        if filters[0] == b"#":
            return True
        if not names:
            return False
        return filters[0] in (b"+", names[0]) and levels_match(filters[1:], names[1:])

    if topic.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False
    if topic_filter.endswith(b"/#") and oracle(topic_filter[:-2], topic):
        return True
    return levels_match(topic_filter.split(b"/"), topic.split(b"/"))


# A small alphabet, so that filters and names meet often.
small_levels = st.sampled_from([b"a", b"b", b"", b"$x"])
small_topics = st.lists(small_levels, min_size=1, max_size=4).map(b"/".join).filter(bool)
small_filters = (
    st.tuples(
        st.lists(small_levels | st.just(b"+"), max_size=4),
        st.booleans(),
    )
    .map(lambda parts: b"/".join([*parts[0], b"#"] if parts[1] else parts[0]))
    .filter(bool)
)


@pytest.mark.parametrize("topic", ILL_FORMED)
def test_name_ill_formed(topic: bytes) -> None:
    """Ill-formed UTF-8 and U+0000 make a Malformed Packet [MQTT-1.5.4-1] [MQTT-4.7.3-2]."""
    with refused(ReasonCode.MALFORMED_PACKET):
        check_topic_name(topic)


@pytest.mark.parametrize("topic", [b"", b"a/#", b"a/+/b", b"+", b"a+", b"#", b"x" * (MAX + 1)])
def test_name_invalid(topic: bytes) -> None:
    """Empty [MQTT-4.7.3-1], too long [MQTT-4.7.3-3] and with a wildcard [MQTT-3.3.2-2] are refused."""
    with refused(ReasonCode.TOPIC_NAME_INVALID):
        check_topic_name(topic)


@pytest.mark.parametrize("topic_filter", ILL_FORMED)
def test_filter_ill_formed(topic_filter: bytes) -> None:
    """Ill-formed UTF-8 and U+0000 make a Malformed Packet [MQTT-1.5.4-1] [MQTT-4.7.3-2]."""
    with refused(ReasonCode.MALFORMED_PACKET):
        check_topic_filter(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    [
        b"",
        b"sport/tennis#",
        b"sport/tennis/#/ranking",
        b"#/a",
        b"##",
        b"#a",
        b"sport+",
        b"+sport",
        b"a/+b/c",
        b"++",
        b"+#",
        b"#+",
        b"a\n#",
        b"#\n",
        b"x" * (MAX + 1),
    ],
)
def test_filter_invalid(topic_filter: bytes) -> None:
    """Empty, too long and misplaced wildcards [MQTT-4.7.1-1] [MQTT-4.7.1-2] are refused."""
    with refused(ReasonCode.TOPIC_FILTER_INVALID):
        check_topic_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "parsed"),
    [
        (b"$share/consumer1/sport/tennis/+", (b"consumer1", b"sport/tennis/+")),
        (b"$share/g//finance", (b"g", b"/finance")),
        (b"$share/g/#", (b"g", b"#")),
        (b"$share", None),
        (b"$shared/g/a", None),
        (b"a/$share/g/b", None),
        (b"#", None),
    ],
)
def test_shared_parsed(topic_filter: bytes, parsed: tuple[bytes, bytes] | None) -> None:
    """`$share/{ShareName}/{filter}` is split, anything else is not shared (section 4.8.2)."""
    assert parse_shared(topic_filter) == parsed


@pytest.mark.parametrize(
    "topic_filter",
    [b"$share/", b"$share//a", b"$share/g", b"$share/g/", b"$share/+/a", b"$share/#", b"$share/g+/a"],
)
def test_shared_invalid(topic_filter: bytes) -> None:
    """An empty ShareName [MQTT-4.8.2-1], wildcards in it, and a missing filter [MQTT-4.8.2-2] are refused."""
    with refused(ReasonCode.TOPIC_FILTER_INVALID):
        parse_shared(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "matching", "other"),
    [
        # the examples of sections 4.7.1.2, 4.7.1.3, 4.7.2 and 4.7.3
        (
            b"sport/tennis/player1/#",
            [
                b"sport/tennis/player1",
                b"sport/tennis/player1/ranking",
                b"sport/tennis/player1/score/wimbledon",
            ],
            [b"sport/tennis", b"sport/tennis/player10"],
        ),
        (b"sport/#", [b"sport", b"sport/", b"sport/a/b"], [b"sports"]),
        (b"#", [b"a", b"a/b", b"/"], [b"$SYS", b"$SYS/a"]),
        (b"sport/tennis/+", [b"sport/tennis/player1"], [b"sport/tennis/player1/ranking", b"sport/tennis"]),
        (b"sport/+", [b"sport/"], [b"sport"]),
        (b"+/+", [b"/finance"], [b"finance", b"$SYS/a"]),
        (b"/+", [b"/finance"], [b"finance"]),
        (b"+", [b"finance"], [b"/finance", b"$SYS"]),
        (b"+/monitor/Clients", [b"a/monitor/Clients"], [b"$SYS/monitor/Clients"]),
        (b"$SYS/#", [b"$SYS/", b"$SYS", b"$SYS/a/b"], [b"a"]),
        (b"$SYS/monitor/+", [b"$SYS/monitor/Clients"], []),
        (b"+/$SYS", [b"a/$SYS"], []),
        (b"ACCOUNTS", [b"ACCOUNTS"], [b"Accounts"]),
        (b"Accounts payable", [b"Accounts payable"], []),
        (b"a//b", [b"a//b"], [b"a/b", b"a/x/b"]),
    ],
)
def test_matches_the_examples_of_the_specification(
    topic_filter: bytes, matching: list[bytes], other: list[bytes]
) -> None:
    """`matches` and `FilterTrie` agree with the examples of section 4.7, also for `$` [MQTT-4.7.2-1]."""
    trie: FilterTrie[int] = FilterTrie()
    trie.add(topic_filter, 1)
    for topic in matching:
        assert matches(topic_filter, topic)
        assert trie.match(topic) == [1]
    for topic in other:
        assert not matches(topic_filter, topic)
        assert trie.match(topic) == []


@given(small_filters, small_topics)
@settings(max_examples=examples(500))
def test_matches_as_the_oracle(topic_filter: bytes, topic: bytes) -> None:
    """`matches` agrees with a slow, obvious matcher."""
    assert matches(topic_filter, topic) == oracle(topic_filter, topic)


@given(st.lists(st.tuples(small_filters, st.integers(0, 3)), max_size=20), small_topics)
@settings(max_examples=examples(300))
def test_trie_finds_what_the_oracle_finds(pairs: list[tuple[bytes, int]], topic: bytes) -> None:
    """`match` gives the value of each matching filter, once per filter and value."""
    trie: FilterTrie[int] = FilterTrie()
    for topic_filter, value in pairs:
        trie.add(topic_filter, value)
    expected = [value for topic_filter, value in set(pairs) if oracle(topic_filter, topic)]
    assert sorted(trie.match(topic)) == sorted(expected)
    assert trie.size == len(set(pairs))


class TrieMachine(RuleBasedStateMachine):
    """Adds and removes at random, beside a plain set of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: FilterTrie[int] = FilterTrie()
        self.pairs: set[tuple[bytes, int]] = set()

    @rule(topic_filter=small_filters, value=st.integers(0, 2))
    def add(self, topic_filter: bytes, value: int) -> None:
        self.trie.add(topic_filter, value)
        self.pairs.add((topic_filter, value))

    @rule(topic_filter=small_filters, value=st.integers(0, 2))
    def remove(self, topic_filter: bytes, value: int) -> None:
        if (topic_filter, value) in self.pairs:
            self.trie.remove(topic_filter, value)
            self.pairs.remove((topic_filter, value))
        else:
            with pytest.raises(KeyError):
                self.trie.remove(topic_filter, value)

    @rule(topic=small_topics)
    def match(self, topic: bytes) -> None:
        expected = sorted(value for topic_filter, value in self.pairs if oracle(topic_filter, topic))
        assert sorted(self.trie.match(topic)) == expected

    @rule(topic_filter=small_filters)
    def at(self, topic_filter: bytes) -> None:
        assert sorted(self.trie.at(topic_filter)) == sorted(value for each, value in self.pairs if each == topic_filter)

    @invariant()
    def size_is_right(self) -> None:
        assert self.trie.size == len(self.pairs)


TestTrieMachine = TrieMachine.TestCase


def test_trie_with_very_many_levels() -> None:
    """A name of the longest kind has 65,536 levels; matching it needs no recursion."""
    trie: FilterTrie[int] = FilterTrie()
    topic = b"/" * MAX
    trie.add(topic, 1)
    trie.add(b"/" * (MAX - 1) + b"#", 2)
    assert sorted(trie.match(topic)) == [1, 2]
    trie.remove(topic, 1)
    assert trie.match(topic) == [2]
