"""Pages of topics and levels of branches."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.api.browse.view import TopicQuery
from fanout.replica.store import Replica
from fanout.replica.update import Phase
from tests.node.browse.pieces import Node, value

NAMES = st.lists(st.sampled_from(["", "a", "b", "a-b", "a0", "é"]), min_size=1, max_size=3).map("/".join).filter(bool)


async def all_pages(node: Node, query: TopicQuery) -> list[str]:
    """Return the topics of all pages."""
    found: list[str] = []
    while True:
        page = await node.browser.page(query)
        assert len(page.topics) <= query.limit
        found += [view.topic for view in page.topics]
        if page.next is None:
            return found
        query = replace(query, after=page.next.encode())


@given(st.sets(NAMES, max_size=20), st.integers(1, 4), st.integers(0, 2))
async def test_pages_have_each_topic_once_in_order(topics: set[str], limit: int, at: int) -> None:
    """The topics of several links come in one order, whatever the page ends with."""
    parts: list[list[str]] = [[], [], []]
    for number, topic in enumerate(sorted(topics)):
        parts[(number + at) % 3].append(topic)
    node = Node(*parts[:2], own=parts[2])
    assert await all_pages(node, TopicQuery(limit=limit)) == sorted(topics, key=str.encode)


@given(st.sets(NAMES, max_size=20), st.integers(1, 4), st.sampled_from(["", "a", "a/b", "b"]))
async def test_levels_of_a_branch_come_once(topics: set[str], limit: int, prefix: str) -> None:
    """Each level has its number of topics, though the topics of one level are not adjacent and in several links."""
    ordered = sorted(topics)
    node = Node(ordered[::2], own=ordered[1::2])
    root = f"{prefix}/" if prefix else ""
    expected: dict[str, int] = {}
    for topic in topics:
        if topic.startswith(root):
            name = topic[len(root) :].partition("/")[0]
            expected[name] = expected.get(name, 0) + 1
    found: dict[str, int] = {}
    after: bytes | None = None
    while True:
        tree = await node.browser.tree(prefix.encode(), after=after, limit=limit)
        for child in tree.children:
            assert child.name not in found
            assert child.is_topic == (root + child.name in topics)
            found[child.name] = child.topics
        if tree.next is None:
            break
        after = tree.next.encode()
    assert found == expected


async def test_filter_prefix_and_words_narrow_a_page() -> None:
    """All of them count together."""
    node = Node(["plant/s1/temp", "plant/s2/temp", "plant/s2/Speed", "office/s2/temp"])
    assert await all_pages(node, TopicQuery(topic_filter=b"plant/+/temp")) == ["plant/s1/temp", "plant/s2/temp"]
    assert await all_pages(node, TopicQuery(prefix=b"plant/s2")) == ["plant/s2/Speed", "plant/s2/temp"]
    assert await all_pages(node, TopicQuery(search=b"SPEED plant")) == ["plant/s2/Speed"]
    assert await all_pages(node, TopicQuery(topic_filter=b"+/s2/#", prefix=b"o", search=b"t")) == ["office/s2/temp"]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"v": 1}', ("json", '{"v": 1}', False)),
        (b"21.5", ("text", "21.5", False)),
        (b"\xff\x00", ("base64", "/wA=", False)),
        ("é".encode() * 6, ("text", "ééééé", True)),  # the cut goes through the sixth
        (b"[" * 11, ("text", "[" * 11, False)),
        (b"\xc3" + b"a" * 20, ("base64", "w2FhYWFhYWFhYWE=", True)),
    ],
)
async def test_payloads_are_shown_by_their_form(payload: bytes, expected: tuple[str, str, bool]) -> None:
    """JSON, text, or bytes in base64; a long one is cut between characters."""
    node = Node([])
    node.publish(value("t", payload))
    (view,) = (await node.browser.page(TopicQuery(value_bytes=11))).topics
    assert (view.format, view.value, view.cut) == expected
    assert view.payload_bytes == len(payload)


async def test_a_topic_shows_the_messages_since_somebody_looks() -> None:
    """Nothing is remembered before; `held` is the retained value."""
    node = Node(["t"])
    node.publish(value("t", b"unseen"))
    assert node.browser.topic(b"t", for_operator=True).changes == ()
    node.publish(value("t", b"1"), value("other"), value("t", b"2", retain=False))
    detail = node.browser.topic(b"t", for_operator=True)
    assert [change.value for change in detail.changes] == ["2", "1"]
    assert detail.held is not None
    assert (detail.held.value, detail.held.link) == ("1", "link0")
    assert node.browser.topic(b"none", for_operator=True).held is None


async def test_a_page_of_many_topics_is_quick() -> None:
    """A page from the middle looks at its own topics, not at all of them."""
    node = Node([])
    replica = Replica()
    topics = [f"plant/line{number // 1000}/s{number}" for number in range(200_000)]
    replica.apply([value(topic) for topic in topics], phase=Phase.SNAPSHOT)
    node.stores[0] = node.stores[0]._replace(replica=replica)
    began_s = time.process_time()
    page = await node.browser.page(TopicQuery(after=b"plant/line150/s15", limit=1000))
    assert len(page.topics) == 1000
    assert time.process_time() - began_s < 0.25


async def test_a_long_search_gives_the_event_loop_turns() -> None:
    """Between two slices others run."""
    node = Node([f"plant/{number}" for number in range(100_000)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await node.browser.page(TopicQuery(search=b"nowhere"))
    counting.cancel()
    assert turns > 3


async def test_a_page_of_large_values_ends_early() -> None:
    """So that no answer is tens of megabytes, made in one turn."""
    node = Node([])
    node.stores[0].replica.apply([value(f"a/{n:03}", b"x" * 60_000) for n in range(100)], phase=Phase.LIVE)
    page = await node.browser.page(TopicQuery(limit=100, value_bytes=65_536))
    assert page.next == "a/017"
    assert len(await all_pages(node, TopicQuery(limit=100, value_bytes=65_536))) == 100
