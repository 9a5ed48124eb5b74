"""Comparison of the topics of a pool's members by one of them, over their HTTP interfaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanout.api.browse.models import PoolComparisonDocument
from fanout.api.models import PoolDocument, PoolMember
from fanout.api.operator_access import LOOPBACK, OperatorAccess
from fanout.node.pool import comparison
from fanout.node.pool.comparison import compare_pool
from tests.api.stand_in import pool_member, ready_node, serving
from tests.node.browse.pieces import Node, value

TOKEN = "a-token-of-24-characters"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once."""
    monkeypatch.setattr("fanout.api.browse.pool_values._PAUSE_S", 0.01)


@contextlib.contextmanager
def member(name: str, topics: Node, *, access: OperatorAccess = LOOPBACK) -> Iterator[PoolMember]:
    """Serve the topics of a member, and give what the pool knows of it."""
    node = ready_node()
    node.browser = topics.browser
    with serving(node, access=access) as url:
        yield pool_member(name, url=url)


async def compared(
    own: Node, *others: PoolMember, authorization: str = "", is_secure: bool = False
) -> PoolComparisonDocument:
    """Return what edge-1 finds."""
    members = (pool_member("edge-1", is_self=True), *others)
    pool = PoolDocument(node="edge-1", ready=True, reasons=(), members=members, stay_reasons=())
    return await compare_pool(pool, own.browser, authorization=authorization, is_secure=is_secure, authorities=None)


async def test_topics_that_members_hold_differently_are_named() -> None:
    """With the beginning of the value of each; an old value and a missing one are suspects."""
    own, second, third = (Node(["plant/1", "plant/2", "plant/3"]) for _ in range(3))
    for topics in (own, second):
        topics.publish(value("plant/2", b"x" * 100))
    third.publish(value("plant/3", b""))
    with member("edge-2", second) as two, member("edge-3", third) as three:
        found = await compared(own, two, three)
    assert (found.node, found.topics, found.whole, found.left_out) == ("edge-1", 3, True, ())
    assert list(found.members) == ["edge-1", "edge-2", "edge-3"]
    changed, removed = found.differing
    assert [(one.topic, one.suspect) for one in found.differing] == [("plant/2", "edge-1"), ("plant/3", "edge-3")]
    assert {name: held and (held.value, held.cut) for name, held in changed.values.items()} == {
        "edge-1": ("x" * 64, True),
        "edge-2": ("x" * 64, True),
        "edge-3": ("v", False),
    }
    assert removed.values["edge-3"] is None


async def test_members_that_cannot_be_read_are_left_out_with_a_reason() -> None:
    """The others are compared all the same."""
    topics = Node(["plant/1"])
    with member("edge-2", Node([])) as two, member("edge-3", topics, access=OperatorAccess(token=TOKEN)) as three:
        gone = pool_member("edge-4", url="http://127.0.0.1:9")
        unknown = pool_member("edge-5", url=None)
        found = await compared(topics, two, three, gone, unknown)
        assert [one.topic for one in found.differing] == ["plant/1"]
        assert list(found.members) == ["edge-1", "edge-2"]
        assert {one.node: one.reason for one in found.left_out} == {
            "edge-3": "it does not accept the token given to this node, or wants one",
            "edge-4": "nothing answers at http://127.0.0.1:9",
            "edge-5": "its HTTP address is not known",
        }
        found = await compared(topics, three, authorization=f"Bearer {TOKEN}")
        assert (list(found.members), found.left_out) == (["edge-1", "edge-3"], ())
        found = await compared(topics, two, three, authorization=f"Bearer {TOKEN}", is_secure=True)
        assert [one.reason for one in found.left_out] == ["a token is not sent there: it has no TLS"] * 2


async def test_a_comparison_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it is not whole."""
    monkeypatch.setattr(comparison, "_COMPARISON_S", 0.0)
    with member("edge-2", Node(["plant/1", "plant/2"])) as two:
        found = await compared(Node([]), two)
    assert (found.whole, found.differing) == (False, ())


async def test_an_endless_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member cannot fill the memory of another one."""
    monkeypatch.setattr(comparison, "_ANSWER_BYTES_MAX", 100)
    with member("edge-2", Node(["plant/1", "plant/2"])) as two:
        found = await compared(Node([]), two)
    assert [one.reason for one in found.left_out] == [f"no node of this version answers at {two.url}"]


async def test_authorities_of_the_members_are_trusted(tmp_path: Path) -> None:
    """A file that cannot be read leaves those of the system: members without TLS are compared."""
    topics = Node(["plant/1"])
    with member("edge-2", Node(["plant/1"])) as two:
        members = (pool_member("edge-1", is_self=True), two)
        pool = PoolDocument(node="edge-1", ready=True, reasons=(), members=members, stay_reasons=())
        authorities = tmp_path / "none.pem"
        found = await compare_pool(pool, topics.browser, authorization="", is_secure=False, authorities=authorities)
    assert list(found.members) == ["edge-1", "edge-2"]
