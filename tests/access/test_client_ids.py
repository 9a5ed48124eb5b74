"""Tests of `fanout.access.client_ids`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.access.client_ids import matches_pattern


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*", "", True),
        ("*", "sensor-1", True),
        ("sensor-1", "sensor-1", True),
        ("sensor-1", "sensor-12", False),
        ("sensor-*", "sensor-", True),
        ("sensor-*", "Sensor-1", False),
        ("*-1", "sensor-1", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
    ],
)
def test_a_star_stands_for_any_characters(pattern: str, text: str, expected: bool) -> None:
    """A star matches any characters or none; everything else matches itself."""
    assert matches_pattern(pattern, text) is expected


@given(st.text(alphabet="ab*", max_size=8), st.text(alphabet="ab\n", max_size=8))
def test_it_matches_as_a_regular_expression_would(pattern: str, text: str) -> None:
    """Against an oracle: each star is `.*`."""
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches_pattern(pattern, text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


def test_a_long_hostile_identifier_is_no_work() -> None:
    """What would take a backtracking matcher for ever takes one pass."""
    assert not matches_pattern("*a" * 30 + "*b", "a" * 65_535)
