"""Pages of unconfirmed topics, and their branches."""

from __future__ import annotations

from fanout.api.unconfirmed_page import BRANCHES_MAX, PAGE_BYTES_MAX, PAGE_TOPICS_MAX, unconfirmed_page
from fanout.replica.unconfirmed import UnconfirmedTopics


def topics_of(*topics: bytes) -> UnconfirmedTopics:
    """Return a set of unconfirmed topics."""
    unconfirmed = UnconfirmedTopics()
    unconfirmed.note(topics, selector_index=0)
    return unconfirmed


async def test_pages_bring_every_topic_once_and_in_order() -> None:
    """Whatever the bounds of a page cut."""
    names = sorted(b"plant/%d/%d" % divmod(number, 7) for number in range(2 * PAGE_TOPICS_MAX + 5))
    unconfirmed, found, after, sizes = topics_of(*names), list[str](), "", []
    while True:
        page = await unconfirmed_page("plant", unconfirmed, causes="", after=after)
        assert page.unconfirmed == len(names)
        found += page.topics
        sizes.append(len(page.topics))
        if page.next is None:
            break
        after = page.next
    assert found == [name.decode() for name in names]
    assert sizes == [PAGE_TOPICS_MAX, PAGE_TOPICS_MAX, 5]


async def test_a_page_ends_before_it_grows_too_large() -> None:
    """Topics of 65,535 bytes; one that is larger than a page alone would still come."""
    names = [b"plant/%d/" % number + b"x" * 60_000 for number in range(40)]
    page = await unconfirmed_page("plant", topics_of(*names), causes="", after="")
    assert 1 < len(page.topics) < 40
    assert sum(map(len, page.topics)) <= PAGE_BYTES_MAX
    assert page.next == page.topics[-1]


async def test_branches_are_those_of_the_deepest_level_that_is_not_too_long() -> None:
    """With their numbers, the fullest first; topics of fewer levels count at their own."""
    few = topics_of(*(b"plant/%d/%d" % (number % 3, number) for number in range(10)), b"plant/one", b"top")
    page = await unconfirmed_page("plant", few, causes="", after="")
    assert [(one.branch, one.topics) for one in page.branches] == [
        ("plant/0", 4),
        ("plant/1", 3),
        ("plant/2", 3),
        ("plant", 1),
        ("", 1),
    ]
    many = topics_of(*(b"plant/%d/%d" % (number, number) for number in range(BRANCHES_MAX + 1)))
    page = await unconfirmed_page("plant", many, causes="", after="")
    assert [(one.branch, one.topics) for one in page.branches] == [("plant", BRANCHES_MAX + 1)]
