"""Tests of `fanout.selection`: matching, the rules of filters and prefixes, overlap against enumeration."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.errors import ProtocolError, SelectorInvalid
from fanout.mqtt.topics import check_topic_filter
from fanout.mqtt.topics import matches as protocol_matches
from fanout.selection import (
    FILTER_BYTES_MAX,
    LEVELS_MAX,
    LinkSelectors,
    Namespace,
    Overlap,
    Selector,
    SelectorPlace,
    check_filter,
    check_prefix,
    common_filter,
    find_overlaps,
    intersect,
    overlap,
    sample_topic,
)
from tests.support.examples import examples

# The oracle: every topic over a few levels that filters name and two that none names, up to a depth beyond
# which no filter of the tests can tell topics apart.
NAMED = ("", "a", "b", "$d")
UNNAMED = ("n", "$n")


def topics(levels: tuple[str, ...], depth_max: int) -> tuple[str, ...]:
    """Return every Topic Name of these levels; an empty text is not one."""
    names = ("/".join(parts) for depth in range(1, depth_max + 1) for parts in itertools.product(levels, repeat=depth))
    return tuple(name for name in names if name)


TOPICS = topics(NAMED + UNNAMED, 4)
FEW_TOPICS = topics(("", "a", "$d", "n"), 5)


def obviously_matches(topic_filter: str, topic: str) -> bool:
    """Match as MQTT 5 says it, section 4.7, level by level."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return levels_match(topic_filter.split("/"), topic.split("/"))


def levels_match(filter_levels: list[str], levels: list[str]) -> bool:
    """Match level by level, without the rule for "$"."""
    if not filter_levels:
        return not levels
    if filter_levels[0] == "#":
        return True
    if not levels:
        return False
    return filter_levels[0] in ("+", levels[0]) and levels_match(filter_levels[1:], levels[1:])


def obviously_selected(selector: Selector, topic: str) -> bool:
    """Say whether the filter matches and no exclude does."""
    return obviously_matches(selector.filter, topic) and not any(
        obviously_matches(exclude, topic) for exclude in selector.exclude
    )


@functools.cache
def obviously_matched(topic_filter: str, among: tuple[str, ...]) -> frozenset[str]:
    """Return the topics that the filter matches; each filter is tried with each topic once."""
    return frozenset(topic for topic in among if obviously_matches(topic_filter, topic))


def obviously_replicated(selector: Selector, among: tuple[str, ...]) -> frozenset[str]:
    """Return the topics that the filter matches and no exclude does."""
    return obviously_matched(selector.filter, among).difference(
        *(obviously_matched(exclude, among) for exclude in selector.exclude)
    )


def obvious_locals(selector: Selector, among: tuple[str, ...]) -> set[str]:
    """Return the local names of the topics that are selected."""
    return {selector.prefix + topic for topic in obviously_replicated(selector, among)}


def depth(topic: str) -> int:
    """Return the number of levels."""
    return topic.count("/") + 1


def filters(levels: tuple[str, ...], levels_max: int) -> st.SearchStrategy[str]:
    """Make legal filters of these levels and wildcards."""
    literal_or_plus = st.sampled_from([*levels, "+", "+"])
    body = st.lists(literal_or_plus, min_size=0, max_size=levels_max)
    return st.builds(lambda parts, tail: "/".join(parts + tail), body, st.sampled_from([[], ["#"]])).filter(bool)


def selectors(
    levels: tuple[str, ...], levels_max: int, prefixes: tuple[str, ...] = ("",)
) -> st.SearchStrategy[Selector]:
    """Make selectors of such filters, with up to five excludes."""
    some_filters = filters(levels, levels_max)
    return st.builds(
        Selector,
        filter=some_filters,
        exclude=st.lists(some_filters, max_size=5).map(tuple),
        prefix=st.sampled_from(prefixes),
    )


FILTERS = filters(NAMED, 3)
SELECTORS = selectors(NAMED, 3)
PREFIXED = selectors(("", "a", "$d"), 2, ("", "", "a/", "/", "n/", "a/n/", "//", "n/$d/"))


class TestAgainstEnumeration:
    """Every topic up to a depth, tried one by one, gives the same answer."""

    @given(FILTERS, FILTERS)
    @settings(deadline=None)
    def test_intersect_finds_a_shortest_topic_exactly_when_there_is_one(self, a: str, b: str) -> None:
        """Two filters intersect if and only if some topic matches both."""
        shared = obviously_matched(a, TOPICS) & obviously_matched(b, TOPICS)
        witness = intersect(a, b)
        if witness is None:
            assert not shared
        else:
            assert obviously_matches(a, witness)
            assert obviously_matches(b, witness)
            assert depth(witness) == min(map(depth, shared))

    @given(FILTERS, FILTERS)
    @example("/#", "+")
    @settings(deadline=None)
    def test_the_common_filter_matches_what_both_match(self, a: str, b: str) -> None:
        """The topics of two filters are the topics of one filter, or none."""
        shared = obviously_matched(a, TOPICS) & obviously_matched(b, TOPICS)
        common = common_filter(a, b)
        if common is None:
            assert not shared
        else:
            check_filter(common)
            assert obviously_matched(common, TOPICS) == shared

    @given(SELECTORS, SELECTORS)
    @settings(deadline=None, max_examples=examples(300))
    def test_overlap_at_the_primary_is_exact_with_excludes(self, a: Selector, b: Selector) -> None:
        """Two selectors overlap if and only if some topic is in both filters and in no exclude."""
        shared = obviously_replicated(a, TOPICS) & obviously_replicated(b, TOPICS)
        witness = overlap(a, b, local=False)
        assert witness == overlap(b, a, local=False)
        if witness is None:
            assert not shared
        else:
            assert obviously_selected(a, witness)
            assert obviously_selected(b, witness)
            assert depth(witness) == min(map(depth, shared))

    @given(PREFIXED, PREFIXED)
    @settings(deadline=None, max_examples=examples(300))
    def test_overlap_of_local_names_is_exact_with_prefixes(self, a: Selector, b: Selector) -> None:
        """Two selectors overlap locally if and only if topics of both get the same local name."""
        shared = obvious_locals(a, FEW_TOPICS) & obvious_locals(b, FEW_TOPICS)
        witness = overlap(a, b, local=True)
        if witness is None:
            assert not shared
        else:
            for selector in (a, b):
                assert witness.startswith(selector.prefix)
                topic = witness.removeprefix(selector.prefix)
                assert topic
                assert obviously_selected(selector, topic)
            assert depth(witness) == min(map(depth, shared))

    @given(SELECTORS)
    @settings(deadline=None)
    def test_matches_says_what_the_filter_and_the_excludes_say(self, selector: Selector) -> None:
        """A topic is replicated when the filter matches it and no exclude does."""
        expected = obviously_replicated(selector, TOPICS)
        for topic in TOPICS:
            assert selector.matches(topic.encode()) is (topic in expected), topic

    @given(PREFIXED)
    @settings(deadline=None)
    def test_covers_local_says_which_names_are_local_names(self, selector: Selector) -> None:
        """A local topic is covered when it is the prefix and a topic that is replicated."""
        expected = obvious_locals(selector, FEW_TOPICS)
        for topic in FEW_TOPICS:
            assert selector.covers_local(topic.encode()) is (topic in expected), topic

    @given(SELECTORS)
    @settings(deadline=None)
    def test_a_sample_topic_exists_when_something_is_selected(self, selector: Selector) -> None:
        """A selector has a sample topic if and only if its excludes leave something."""
        selected = obviously_replicated(selector, TOPICS)
        sample = sample_topic(selector)
        if sample is None:
            assert not selected
        else:
            assert obviously_selected(selector, sample)

    @given(SELECTORS)
    @settings(deadline=None)
    def test_the_root_is_in_front_of_every_topic(self, selector: Selector) -> None:
        """Every topic that is replicated is the root or lies below it."""
        for topic in TOPICS:
            if selector.matches(topic.encode()) and selector.root:
                assert topic == selector.root or topic.startswith(selector.root + "/")

    @given(FILTERS, st.sampled_from(TOPICS))
    @settings(deadline=None)
    def test_a_selector_matches_as_the_protocol_does(self, topic_filter: str, topic: str) -> None:
        """The selector and the server's own matching give the same answer."""
        expected = protocol_matches(topic_filter.encode(), topic.encode())
        assert Selector(topic_filter).matches(topic.encode()) is expected


@pytest.mark.parametrize(
    ("a", "b", "witness"),
    [
        ("a/+/c", "a/b/#", "a/b/c"),
        ("a/#", "a", "a"),
        ("a/#", "a/b", "a/b"),
        ("a/#", "a/#", "a"),
        ("a/b", "a/b/c", None),
        ("a/b", "a/c", None),
        ("#", "#", "x"),
        ("#", "x", "x"),
        ("+/x", "+/#", "y/x"),
        ("#", "$SYS/broker/uptime", None),
        ("+/a", "$d/a", None),
        ("$d/#", "$d/+", "$d/x"),
        ("$d/+/b", "+/a/b", None),
        ("/#", "+", None),
        ("/#", "+/+", "/x"),
        ("/", "+/#", "/"),
        ("a//+", "a/+/b", "a//b"),
    ],
)
def test_intersect_returns_a_readable_topic(a: str, b: str, witness: str | None) -> None:
    """The witness has the names of the filters, and short ones where the filters leave a choice."""
    assert intersect(a, b) == witness
    assert intersect(b, a) == witness


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ("a/+/c", "a/b/#", "a/b/c"),
        ("#", "+/#", "#"),
        ("#", "#", "#"),
        ("a/#", "#", "a/#"),
        ("+", "#", "+"),
        ("+/+/#", "a/#", "a/+/#"),
        ("a", "b", None),
        ("#", "$d/#", None),
    ],
)
def test_the_common_filter_is_written_as_people_write_it(a: str, b: str, common: str | None) -> None:
    """The intersection of two filters is a legal filter in its shortest form."""
    assert common_filter(a, b) == common


def test_intersect_refuses_what_is_not_a_filter() -> None:
    """A filter that is not legal raises instead of giving an answer."""
    with pytest.raises(SelectorInvalid):
        intersect("a/#/b", "a")


@pytest.mark.parametrize(
    ("exclude", "witness"),
    [
        ((), "a"),
        (("a",), "a/x"),
        (("a", "a/+"), "a/x/x"),
        (("a", "a/+", "a/+/+/#"), None),
        (("a", "a/+/#"), None),
        (("a/x", "a", "a/y"), "a/z"),
        (("a/#",), None),
        (("a/+/#",), "a"),
        (("+/+", "a"), "a/x/x"),
    ],
)
def test_excludes_are_taken_from_an_overlap(exclude: tuple[str, ...], witness: str | None) -> None:
    """The witness is in no exclude of either selector, and deeper if it must be."""
    a, b = Selector("a/#", exclude=exclude), Selector("#")
    assert overlap(a, b, local=False) == witness
    assert overlap(b, a, local=False) == witness


def test_a_witness_takes_a_name_that_no_filter_has() -> None:
    """When all the short names occur in excludes, a longer one is made up."""
    names = [*"xyzuvw", "x1"]
    selector = Selector("a/+", exclude=tuple(f"a/{name}" for name in names))
    assert sample_topic(selector) == "a/x2"


def test_many_excludes_are_decided_at_once() -> None:
    """Sixty entangled excludes, of which a search would try 2 ** 30 combinations, are no effort."""
    levels = 30
    excludes = tuple(
        "/".join(name if index == position else "+" for index in range(levels))
        for position in range(levels)
        for name in ("a", "b")
    )
    selector = Selector("/".join("+" * levels), exclude=excludes)
    assert overlap(selector, selector, local=False) == "/".join("x" * levels)


@pytest.mark.parametrize(
    ("a", "b", "witness"),
    [
        (Selector("#", prefix="s/"), Selector("#", prefix="t/"), None),
        (Selector("#", prefix="s/"), Selector("s/+/b"), "s/x/b"),
        (Selector("#", prefix="s/"), Selector("s"), None),
        (Selector("#", prefix="s/"), Selector("s/#"), "s/x"),
        (Selector("#", prefix="s/"), Selector("s/$d/a"), None),
        (Selector("$d/+", prefix="s/"), Selector("s/$d/a"), "s/$d/a"),
        (Selector("+", prefix="s/"), Selector("s/"), None),
        (Selector("+/#", prefix="s/"), Selector("s//#"), "s//x"),
        (Selector("a/#", prefix="s/", exclude=("a",)), Selector("#", exclude=("+/a/+",)), "s/a/x/x"),
        (Selector("b", prefix="a/"), Selector("a/b"), "a/b"),
    ],
)
def test_local_names_are_compared_after_the_prefix(a: Selector, b: Selector, witness: str | None) -> None:
    """Prefixes part selectors or bring them together; what stands after one is never empty."""
    assert overlap(a, b, local=True) == witness
    assert overlap(b, a, local=True) == witness


class TestFindOverlaps:
    """Which pairs of selectors are compared, and in which namespace."""

    def test_two_selectors_of_one_link_may_not_share_a_topic(self) -> None:
        """Within a link an overlap at the primary is found, whatever the prefixes."""
        link = LinkSelectors(
            frozenset({"mqtt://p:1883"}), (Selector("a/+/c", prefix="s/"), Selector("b"), Selector("a/b/#"))
        )
        assert find_overlaps([link]) == [Overlap(SelectorPlace(0, 0), SelectorPlace(0, 2), "a/b/c", Namespace.PRIMARY)]

    def test_two_selectors_of_one_link_may_not_share_a_local_name(self) -> None:
        """Within a link prefixes may bring together what is apart at the primary."""
        link = LinkSelectors(frozenset({"mqtt://p:1883"}), (Selector("a/b"), Selector("b", prefix="a/")))
        assert find_overlaps([link]) == [Overlap(SelectorPlace(0, 0), SelectorPlace(0, 1), "a/b", Namespace.LOCAL)]

    def test_links_to_different_primaries_meet_only_locally(self) -> None:
        """The same filter on two primaries is an overlap unless prefixes part it."""
        one = LinkSelectors(frozenset({"mqtt://p:1883"}), (Selector("a/#"),))
        other = LinkSelectors(frozenset({"mqtt://q:1883"}), (Selector("a/#"),))
        parted = LinkSelectors(frozenset({"mqtt://q:1883"}), (Selector("a/#", prefix="q/"),))
        assert find_overlaps([one, parted]) == []
        assert find_overlaps([one, other]) == [Overlap(SelectorPlace(0, 0), SelectorPlace(1, 0), "a", Namespace.LOCAL)]

    def test_links_to_one_primary_meet_there_too(self) -> None:
        """Two links that share one address have the same primary, where a prefix parts nothing."""
        one = LinkSelectors(frozenset({"mqtt://p:1883", "mqtt://q:1883"}), (Selector("a/#"),))
        other = LinkSelectors(frozenset({"mqtt://q:1883"}), (Selector("a/b", prefix="q/"),))
        assert find_overlaps([one, other]) == [
            Overlap(SelectorPlace(0, 0), SelectorPlace(1, 0), "a/b", Namespace.PRIMARY)
        ]

    def test_selectors_that_are_apart_give_nothing(self) -> None:
        """Excludes part selectors, at the primary and locally; prefixes that differ are compared in both."""
        link = LinkSelectors(
            frozenset({"mqtt://p:1883"}),
            (Selector("a/#", exclude=("a/b/#",)), Selector("a/b/#"), Selector("c", prefix="d/")),
        )
        assert find_overlaps([link]) == []

    def test_hundreds_of_selectors_are_compared(self) -> None:
        """Four hundred selectors with excludes are found to be apart, and one more to be too many."""
        lines = tuple(Selector(f"plant/line-{n}/+/value", exclude=("plant/+/debug/#",)) for n in range(400))
        one_more = Selector("+/line-399/test/#")
        assert find_overlaps([LinkSelectors(frozenset({"p"}), lines)]) == []
        assert find_overlaps([LinkSelectors(frozenset({"p"}), (*lines, one_more))]) == [
            Overlap(SelectorPlace(0, 399), SelectorPlace(0, 400), "plant/line-399/test/value", Namespace.PRIMARY)
        ]


class TestFilterRules:
    """Which Topic Filters and prefixes are legal."""

    @pytest.mark.parametrize("topic_filter", ["a", "#", "+", "/", "//", "+/+/#", "a/+/b", "/#", "$d/#", "a b/ü", "a\n"])
    def test_a_legal_filter_passes(self, topic_filter: str) -> None:
        """Wildcards that fill a level, empty levels and any characters but U+0000 are legal."""
        check_filter(topic_filter)
        assert Selector(topic_filter).filter == topic_filter

    @pytest.mark.parametrize(
        ("topic_filter", "message"),
        [
            ("", "a Topic Filter has at least one character"),
            ("a/#/b", '"#" in "a/#/b" is not the whole last level'),
            ("a#", '"#" in "a#" is not the whole last level'),
            ("a/b+/c", '"+" in "a/b+/c" does not fill its level'),
            ("++", '"+" in "++" does not fill its level'),
            ("a\0", "it contains the character U+0000, which MQTT does not allow"),
            ("a\ud800", "it contains half of a surrogate pair, which UTF-8 cannot carry"),
            ("ü" * 32_768, "it has 65536 bytes; 65535 is the most"),
            ("/" * LEVELS_MAX, "it has 201 levels; 200 is the most"),
        ],
    )
    def test_an_illegal_filter_is_refused(self, topic_filter: str, message: str) -> None:
        """What MQTT does not allow, or no broker takes, is refused with a reason and a hint."""
        with pytest.raises(SelectorInvalid) as caught:
            check_filter(topic_filter)
        assert caught.value.message == message
        assert caught.value.hint
        with pytest.raises(SelectorInvalid):
            Selector(topic_filter)
        with pytest.raises(SelectorInvalid):
            Selector("a", exclude=("b", topic_filter))

    @given(st.text(alphabet="ab/+#$\0ü", max_size=8))
    def test_the_rules_are_those_of_the_protocol(self, text: str) -> None:
        """A filter is legal here exactly when the server would take it in a SUBSCRIBE."""
        try:
            check_topic_filter(text.encode())
        except ProtocolError:
            with pytest.raises(SelectorInvalid):
                check_filter(text)
        else:
            check_filter(text)

    def test_the_longest_filter_passes(self) -> None:
        """The bounds themselves are allowed."""
        check_filter("a" * FILTER_BYTES_MAX)
        check_filter("/".join("+" * LEVELS_MAX))

    @pytest.mark.parametrize("prefix", ["", "a/", "/", "//", "a/b/", "a/$d/"])
    def test_a_legal_prefix_passes(self, prefix: str) -> None:
        """A prefix is empty or whole literal levels."""
        check_prefix(prefix)
        assert Selector("b", prefix=prefix).local_filter == f"{prefix}b"

    @pytest.mark.parametrize(
        ("prefix", "message", "hint"),
        [
            ("p-", 'the prefix "p-" does not end with "/"', 'Write "p-/".'),
            ("+/", 'the prefix "+/" contains a wildcard', 'Use a literal prefix, such as "site-1/".'),
            ("a#/", 'the prefix "a#/" contains a wildcard', 'Use a literal prefix, such as "site-1/".'),
            (
                "$d/",
                'the prefix "$d/" begins with "$", which is kept for topics of the server itself',
                'Begin it with another character, as in "site-1/".',
            ),
            ("\0/", "it contains the character U+0000, which MQTT does not allow", "Remove that character."),
        ],
    )
    def test_an_illegal_prefix_is_refused(self, prefix: str, message: str, hint: str) -> None:
        """A prefix that would merge with a level, match several, or look like the server's own is refused."""
        with pytest.raises(SelectorInvalid) as caught:
            Selector("a", prefix=prefix)
        assert (caught.value.message, caught.value.hint) == (message, hint)


class TestSelector:
    """The selector as a value."""

    def test_a_qos_that_does_not_exist_is_refused(self) -> None:
        """QoS is 0, 1 or 2."""
        with pytest.raises(SelectorInvalid, match="QoS 3 does not exist"):
            Selector("a", qos=3)

    def test_selectors_are_values(self) -> None:
        """Equality, hash and text depend on what was given, not on what was prepared."""
        assert Selector("a/#", exclude=("a/b",)) == Selector("a/#", exclude=("a/b",))
        assert len({Selector("a"), Selector("a"), Selector("b")}) == 2
        assert repr(Selector("a")) == (
            "Selector(filter='a', exclude=(), qos=1, prefix='', writes='reject', content=(), retained_only=False,"
            " live_only=False, max_payload=0, min_topics=0)"
        )

    @pytest.mark.parametrize(
        ("topic_filter", "root"),
        [("a/b", "a/b"), ("a/+/b", "a"), ("a/#", "a"), ("#", ""), ("+/a", ""), ("a//#", "a/")],
    )
    def test_the_root_is_what_stands_before_the_first_wildcard(self, topic_filter: str, root: str) -> None:
        """The root is the literal levels at the front."""
        assert Selector(topic_filter).root == root

    def test_matching_is_by_characters(self) -> None:
        """Characters that mean something to a regular expression, line ends and UTF-8 mean themselves."""
        selector = Selector("a.b/(c)*/+/ü/#", exclude=("+/+/x|y/#",))
        assert selector.matches("a.b/(c)*/\n/ü/d\n/e".encode())
        assert not selector.matches("a.b/(c)*/x|y/ü/d".encode())
        assert selector.matches("a.b/(c)*/x/ü".encode())
        assert not selector.matches("aXb/(c)*/x/ü".encode())
        assert not Selector("a").matches(b"a\n")
        assert not Selector("a", prefix="p.q/").covers_local(b"pXq/a")

    def test_an_empty_topic_is_never_replicated(self) -> None:
        """A prefix alone is not the local name of anything."""
        assert not Selector("#").matches(b"")
        assert not Selector("#", prefix="p/").covers_local(b"p/")
        assert not Selector("/#", prefix="p/").covers_local(b"p/")
        assert Selector("/#", prefix="p/").covers_local(b"p//")
