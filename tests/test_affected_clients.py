"""Whose subscriptions a link's topics concern."""

from __future__ import annotations

import pytest

from fanout.affected_clients import Concerned
from fanout.selection import LEVELS_MAX, Selector

SELECTORS = (Selector("plant/+/state", prefix="hq/"), Selector("office/#", exclude=("office/debug/#",)))


@pytest.mark.parametrize(
    ("topic_filter", "concerned"),
    [
        ("#", True),
        ("hq/#", True),
        ("hq/plant/a/state", True),
        ("+/+/a/+", True),
        ("office", True),
        ("plant/a/state", False),  # it has a prefix here
        ("hq/plant/a/value", False),
        ("garden/#", False),
        ("$SYS/#", False),
        ("office/debug/x", True),  # excludes play no part
        ("/".join(["a"] * (LEVELS_MAX + 1)), True),  # cannot be judged
    ],
)
def test_topic_filters_that_may_match_a_local_topic(topic_filter: str, concerned: bool) -> None:
    """By the names that clients see; asked again, the answer is the same."""
    judge = Concerned(SELECTORS)
    assert judge(topic_filter.encode()) is concerned
    assert judge(topic_filter.encode()) is concerned
