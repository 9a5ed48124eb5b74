"""Members of a pool beside a real Mosquitto: they are equal at common cuts, and what makes one differ is repaired."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from fanout.api.models import PoolDocument
from fanout.config import Address, PoolConfig
from fanout.node.node import Node
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import Selector
from tests.link.harness import config_for
from tests.node.test_node import config, node_of, port_of
from tests.node.test_pool import free_ports
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

CONVERGE_AFTER_S = 1.0
VALUES = [(f"plant/{number}", b"%d" % number) for number in range(300)]


@contextlib.asynccontextmanager
async def pool_at(mosquitto: Mosquitto, directory: Path, *, size: int) -> AsyncIterator[list[Node]]:
    """Give the members of a pool that all hold what Mosquitto holds, and know it."""
    ports = free_ports(size)
    link = config_for(mosquitto.port, Selector("plant/#", writes="forward"), Selector("other/#"), heartbeat_s=5.0)
    nodes = []
    try:
        for number, port in enumerate(ports):
            settings = config(directory / f"edge-{number}")
            pool = PoolConfig(
                listen=Address("http", "127.0.0.1", port),
                peers=tuple(Address("http", "127.0.0.1", each) for each in ports),
                converge_after_s=CONVERGE_AFTER_S,
            )
            identity = dataclasses.replace(settings.node, id=f"edge-{number}")
            node = node_of(dataclasses.replace(settings, node=identity, log=None, http=None, pool=pool, links=(link,)))
            nodes.append(node)
            await node.start()
        await wait_until(lambda: all(map(is_equal, nodes)), 30, what=lambda: str([told(node) for node in nodes]))
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


@pytest_asyncio.fixture
async def pool(mosquitto: Mosquitto, tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Return three members beside a Mosquitto with some values."""
    with publisher(mosquitto.port) as client:
        publish_all(client, VALUES)
    async with pool_at(mosquitto, tmp_path, size=3) as nodes:
        yield nodes


def told(node: Node) -> PoolDocument:
    """Return what a member says of the pool."""
    return node.documents.pool()


def is_equal(node: Node) -> bool:
    """Return whether a member sees every other one hold what it holds, and everybody is ready."""
    document = told(node)
    return document.ready and all(member.digest_equal for member in document.members)


def replica_of(node: Node) -> Replica:
    """Return the replica of the one link of a member."""
    [(_, replica)] = node.link_replicas
    return replica


def values_of(node: Node) -> dict[bytes, bytes]:
    """Return what a member holds."""
    return {topic: update[1] for topic, update in replica_of(node).view.items()}


def plant(node: Node, topic: bytes, payload: bytes) -> None:
    """Let a member hold something that the primary never sent."""
    update: Update = (topic, payload, 1, True, b"", node.clock.now_ns(), 0, content_digest(topic, payload), None)
    replica_of(node).apply([update], phase=Phase.LIVE)


def repairs_of(node: Node) -> int:
    """Return how many audits the pool made a member begin."""
    status = node.documents.status().pool
    assert status is not None
    return status.repairs_total


@contextlib.contextmanager
def traffic(mosquitto: Mosquitto) -> Iterator[None]:
    """Publish retained values at QoS 1 as fast as Mosquitto takes them, up to 100 at a time."""
    ended = threading.Event()

    def publish() -> None:
        number = 0
        with publisher(mosquitto.port) as client:
            while not ended.is_set():
                publish_all(client, ((f"plant/{(number + each) % 300}", b"%d" % number) for each in range(100)))
                number += 100

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


async def test_members_are_equal_at_cuts_while_values_change(mosquitto: Mosquitto, pool: list[Node]) -> None:
    """Though their replicas are never equal at one time; nobody audits."""
    first = pool[0]
    status = first.documents.status().pool
    assert status is not None
    since = {member.node: member.digest_equal_since for member in told(first).members}
    before = status.cuts_compared_total
    with traffic(mosquitto):

        def compared() -> bool:
            now = first.documents.status().pool
            return now is not None and now.cuts_compared_total >= before + 10

        await wait_until(compared, 30)
        assert is_equal(first)
    assert [repairs_of(node) for node in pool] == [0, 0, 0]
    after = first.documents.status().pool
    assert after is not None
    assert after.cuts_differed_total == 0
    assert {member.node: member.digest_equal_since for member in told(first).members} == since


async def test_a_member_that_differs_is_repaired(pool: list[Node]) -> None:
    """A value that it holds alone, and one that it lacks; the others, which agree, need no audit."""
    odd = pool[1]
    plant(odd, b"plant/7", b"wrong")
    plant(odd, b"plant/8", b"")

    def is_seen() -> bool:
        return any(member.digest_equal is False for member in told(pool[0]).members)

    await wait_until(is_seen, 10)
    expected = {topic.encode(): payload for topic, payload in VALUES}
    await wait_until(lambda: values_of(odd) == expected, 20, what=lambda: str(told(odd)))
    await wait_until(lambda: all(map(is_equal, pool)), 10)
    assert repairs_of(odd) >= 1
    last = odd.links[0].status().audits.last
    assert last is not None
    assert last.reason == "pool"
    assert [repairs_of(node) for node in (pool[0], pool[2])] == [0, 0]
    assert [values_of(node) for node in pool] == [expected] * 3


async def test_a_topic_that_was_cleared_does_not_come_back(tmp_path: Path) -> None:
    """A member that missed it removes it once the audit has evidence, here the primary's count; no other gets it."""
    with Mosquitto(tmp_path, settings=["sys_interval 1"]) as mosquitto:
        with publisher(mosquitto.port) as client:
            publish_all(client, VALUES)
        async with pool_at(mosquitto, tmp_path, size=2) as pool:
            odd = pool[1]
            await wait_until(lambda: odd.links[0].status().counted_outside is not None, 30)
            plant(odd, b"plant/cleared", b"back again")
            expected = {topic.encode(): payload for topic, payload in VALUES}
            await wait_until(lambda: repairs_of(odd) > 0, 20)
            await wait_until(lambda: values_of(odd) == expected and all(map(is_equal, pool)), 20)
            assert values_of(pool[0]) == expected


async def test_a_difference_that_lasts_holds_the_pool_back(pool: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reasons name the member; each member is ready for itself, since nothing says which one is behind."""
    monkeypatch.setattr("fanout.link.link.Link.audit_for_pool", never)
    plant(pool[1], b"other/a", b"wrong")
    await wait_until(lambda: not told(pool[0]).ready, 20)
    assert told(pool[0]).reasons == ("edge-1 does not hold the values that edge-0 holds",)
    await wait_until(lambda: len(told(pool[1]).reasons) == 2, 10)
    assert all(node.documents.readiness().ready for node in pool)


async def never(*_: object) -> None:
    """Wait for ever, as an audit of a very large set."""
    await asyncio.Event().wait()


async def test_two_publishers_at_two_members_end_with_one_value(mosquitto: Mosquitto, pool: list[Node]) -> None:
    """Whatever comes last at the primary is what every member holds."""

    def race(port: int, name: str) -> None:
        with publisher(port) as client:
            publish_all(client, (("plant/raced", b"%s %d" % (name.encode(), number)) for number in range(300)))

    await asyncio.gather(*(asyncio.to_thread(race, port_of(node), f"edge-{index}") for index, node in enumerate(pool)))
    with publisher(mosquitto.port) as client:
        await asyncio.to_thread(publish_all, client, [("plant/end", b"1")])
    await wait_until(lambda: all(b"plant/end" in values_of(node) for node in pool), 10)
    raced = {values_of(node)[b"plant/raced"] for node in pool}
    assert len(raced) == 1
    assert raced.pop().endswith(b" 299")
    await wait_until(lambda: all(map(is_equal, pool)), 10)
    assert [repairs_of(node) for node in pool] == [0, 0, 0]
