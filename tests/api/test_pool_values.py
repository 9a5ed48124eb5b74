"""Comparison of what the members of a pool hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from fanout.api.browse.models import TopicsDocument, TopicView
from fanout.api.browse.pool_values import CANDIDATES_MAX, compare_members
from fanout.api.models import utc_from_ns
from fanout.errors import RequestRefused


class Member:
    """Answers pages of topics, at most two a page."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)

    def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
        after, only = asked.get("after", ""), asked.get("filter")
        found = [topic for topic in sorted(self.values, key=str.encode) if topic.encode() > after.encode()]
        found = [topic for topic in found if only in (None, topic)]
        views = tuple(self._view(topic) for topic in found[:2])
        return TopicsDocument(topics=views, next=found[1] if len(found) > 2 else None, held=len(self.values))

    def _view(self, topic: str) -> TopicView:
        return TopicView(
            received=utc_from_ns(1),
            qos=1,
            payload_bytes=1,
            format="text",
            value="",
            topic=topic,
            link="plant",
            selector="#",
            digest=self.values[topic],
        )


def changes(*steps: Callable[[], object]) -> Callable[[float], None]:
    """Return a pause in which something happens, another thing each time."""
    left = list(steps)

    def pause(_: float) -> None:
        left.pop(0)()

    return pause


def test_differences_of_all_pages_are_found() -> None:
    """A value that one lacks, an old value and one that only one has; in the order of the bytes of names."""
    first = Member({f"t/{number}": "a" for number in range(9)} | {"\U0001f600": "a", "\uffee": "a"})
    second = Member({**first.values, "t/4": "b", "u": "a"})
    del second.values["t/0"], second.values["\U0001f600"]
    found = compare_members({"one": first, "two": second}, sleep=lambda _: None)
    assert [one.topic for one in found.differing] == ["t/0", "t/4", "u", "\U0001f600"]
    assert [(one.values["one"] is None, one.values["two"] is None) for one in found.differing] == [
        (False, True),
        (False, False),
        (True, False),
        (False, True),
    ]
    assert (found.topics, found.changing, found.whole) == (12, 0, True)


def test_a_message_on_its_way_is_no_difference() -> None:
    """The other member has it at the next look; a topic that was removed meanwhile is none either."""
    first, second = Member({"a": "2", "b": "1"}), Member({"a": "1"})
    arrive = changes(lambda: (second.values.update(a="2"), first.values.pop("b")), lambda: None)
    found = compare_members({"one": first, "two": second}, sleep=arrive)
    assert (found.differing, found.changing) == ((), 0)


def test_a_topic_that_changes_at_one_member_only_differs() -> None:
    """The other does not get its messages. One that changes at both at each look cannot be compared."""
    first, second = Member({"a": "1", "b": "1"}), Member({"a": "0", "b": "0"})

    def change() -> None:
        for member in (first, second):
            member.values["b"] += "+"
        first.values["a"] += "+"

    found = compare_members({"one": first, "two": second}, sleep=changes(change, change))
    assert [one.topic for one in found.differing] == ["a"]
    assert found.changing == 1


def test_members_that_hold_nothing_in_common_end_the_comparison() -> None:
    """Not all of a million topics are asked one by one."""
    first, second = Member({f"{number:05}": "a" for number in range(CANDIDATES_MAX + 500)}), Member({})
    found = compare_members({"one": first, "two": second}, sleep=lambda _: None)
    assert (len(found.differing), found.whole) == (CANDIDATES_MAX + 1, False)


def test_a_node_that_sends_the_same_page_again() -> None:
    """It is not asked without end."""

    class Stuck(Member):
        def topics(self, asked: Mapping[str, str]) -> TopicsDocument:
            return super().topics({})

    with pytest.raises(RequestRefused, match="the same page"):
        compare_members({"one": Stuck({"a": "", "b": "", "c": ""}), "two": Member({})}, sleep=lambda _: None)
