"""Tests of `fanout.access.filters`: placeholders, and that no name makes a filter wider."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.access.filters import NOTHING, RuleFilter, covers
from fanout.errors import AccessRuleInvalid
from tests.access.pieces import TOPICS, filters, obviously_matches


@pytest.mark.parametrize(
    ("text", "user", "client_id", "expected"),
    [
        ("plant/#", "u", "c", "plant/#"),
        ("home/%u/#", "alice", "c", "home/alice/#"),
        ("dev-%c/+/%u", "alice", "s1", "dev-s1/+/alice"),
        ("%%u/%%", "alice", "s1", "%u/%"),
        ("%u/x", "%c", "s1", "%c/x"),
        ("home/%u", "$x", "c", "home/$x"),
        ("$SYS/%u", "x", "c", "$SYS/x"),
    ],
)
def test_names_are_filled_in_once(text: str, user: str, client_id: str, expected: str) -> None:
    """`%u` and `%c` become the names, `%%` a per cent sign; what a name contains is not looked at again."""
    assert RuleFilter(text).fill_in(user=user, client_id=client_id) == expected


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+", "a#", "/", "a\0", "\ud800"])
@pytest.mark.parametrize("text", ["home/%u/x", "home/a-%u", "%u"])
def test_a_name_that_no_level_can_hold_is_not_filled_in(text: str, name: str) -> None:
    """A wildcard, a slash, U+0000 or half a character never becomes part of a filter."""
    assert RuleFilter(text).fill_in(user=name, client_id="c") is None
    assert RuleFilter(text.replace("%u", "%c")).fill_in(user="u", client_id=name) is None


def test_a_name_does_not_reach_the_topics_of_the_server() -> None:
    """A name that begins with "$" at the beginning of a filter would open `$SYS`."""
    assert RuleFilter("%c/#").fill_in(user="", client_id="$SYS") is None
    assert RuleFilter("%c-x/#").fill_in(user="", client_id="$share") is None


def test_a_name_that_makes_the_filter_too_long_is_not_filled_in() -> None:
    """No topic is that long."""
    assert RuleFilter("home/%u").fill_in(user="u" * 65_535, client_id="c") is None


def test_a_missing_name_is_told_apart() -> None:
    """A rule about the user says nothing about clients without one."""
    assert RuleFilter("home/%u").fill_in(user="", client_id="c") is NOTHING
    assert RuleFilter("home/%c").fill_in(user="u", client_id="") is NOTHING
    assert RuleFilter("home").fill_in(user="", client_id="") == "home"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at least one character"),
        ("a/#/b", '"#" in'),
        ("a+/b", '"+" in'),
        ("%u+/b", '"+" in'),
        ("%x/b", "is not %u"),
        ("100%", "is not %u"),
        ("%u%c/x", "more than one"),
        ("$share/g/x", "Shared Subscription"),
    ],
)
def test_an_illegal_filter_is_refused(text: str, problem: str) -> None:
    """The message says what is wrong, and there is a hint."""
    with pytest.raises(AccessRuleInvalid, match=problem.replace("+", r"\+")) as caught:
        RuleFilter(text)
    assert caught.value.hint


@given(filters(("a", "%u", "x%u", "%c")), st.text(alphabet="a+#/$\0n", max_size=3))
def test_no_name_makes_a_filter_wider(text: str, name: str) -> None:
    """What a filled-in filter matches, the filter with "+" for its placeholders matches too."""
    filled_in = RuleFilter(text).fill_in(user=name, client_id=name)
    widest = "/".join("+" if "%" in level else level for level in text.split("/"))
    if isinstance(filled_in, str):
        assert not [
            topic for topic in TOPICS if obviously_matches(filled_in, topic) and not obviously_matches(widest, topic)
        ]


@given(filters(), filters())
def test_covers_says_what_enumeration_says(wide: str, narrow: str) -> None:
    """One filter covers another when it matches every topic of it."""
    missing = [t for t in TOPICS if obviously_matches(narrow, t) and not obviously_matches(wide, t)]
    assert covers(wide, narrow) is not bool(missing)
