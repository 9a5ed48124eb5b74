"""Members of a pool beside a real Mosquitto: they are equal at common cuts, and what makes one differ is repaired."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from fanout.api.models import PoolDocument
from fanout.config import Address, PoolConfig
from fanout.node.node import Node
from fanout.pool import convergence
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import Selector
from tests.link.harness import config_for
from tests.node.test_node import config, node_of
from tests.node.test_pool import free_ports
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

CONVERGE_AFTER_S = 1.0
VALUES = [(f"plant/{number}", b"%d" % number) for number in range(300)]


@contextlib.asynccontextmanager
async def pool_at(directory: Path, *primaries: int, with_http: bool = False) -> AsyncIterator[list[Node]]:
    """Give the members of a pool that all hold what Mosquitto holds, and know it; each has its way to Mosquitto."""
    ports = free_ports(len(primaries))
    selectors = Selector("plant/#", writes="forward"), Selector("other/#")
    nodes = []
    try:
        for number, (port, primary) in enumerate(zip(ports, primaries, strict=True)):
            link = config_for(primary, *selectors, heartbeat_s=5.0)
            settings = config(directory / f"edge-{number}")
            pool = PoolConfig(
                listen=Address("http", "127.0.0.1", port),
                peers=tuple(Address("http", "127.0.0.1", each) for each in ports),
                converge_after_s=CONVERGE_AFTER_S,
                client_address=f"edge-{number}:1883",
                suspect_after_s=10.0,  # all share a process: while it gets no processor, none of them is silent
                dead_after_s=30.0,
            )
            identity = dataclasses.replace(settings.node, id=f"edge-{number}")
            http = settings.http if with_http else None
            node = node_of(dataclasses.replace(settings, node=identity, log=None, http=http, pool=pool, links=(link,)))
            nodes.append(node)
            await node.start()
        await wait_until(lambda: all(map(is_equal, nodes)), what=lambda: str([told(node) for node in nodes]))
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))  # one by one, each would hand its sessions to the next


@pytest_asyncio.fixture
async def pool(mosquitto: Mosquitto, tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Return three members beside a Mosquitto with some values."""
    with publisher(mosquitto.port) as client:
        publish_all(client, VALUES)
    async with pool_at(tmp_path, *[mosquitto.port] * 3) as nodes:
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
    """Publish retained values at QoS 1, and clear some, about 2,000 a second, 100 at a time."""
    ended = threading.Event()

    def payload(number: int) -> bytes:
        return b"" if number % 7 == 0 else b"%d" % number

    def publish() -> None:
        number = 0
        with publisher(mosquitto.port) as client:
            while not ended.wait(0.05):
                publish_all(
                    client, ((f"plant/{each * 11 % 300}", payload(each)) for each in range(number, number + 100))
                )
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

        await wait_until(lambda: compared() and is_equal(first))
    assert [repairs_of(node) for node in pool] == [0, 0, 0]
    after = first.documents.status().pool
    assert after is not None
    assert after.cuts_differed_total == 0
    assert {member.node: member.digest_equal_since for member in told(first).members} == since


async def test_a_member_that_differs_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value, one that it lacks, and one too many; the others, which agree, need no audit.

    That the primary has no more is evident from its count of retained messages.
    """
    for factor in ("OTHERS_FACTOR", "_FRESH_FACTOR"):  # on a slow machine one audit may take 3 s
        monkeypatch.setattr(convergence, factor, 30)
    expected = {topic.encode(): payload for topic, payload in VALUES}
    with Mosquitto(tmp_path, settings=["sys_interval 1"]) as mosquitto:
        with publisher(mosquitto.port) as client:
            publish_all(client, VALUES)
        async with pool_at(tmp_path, *[mosquitto.port] * 3) as pool:
            odd = pool[1]
            await wait_until(lambda: odd.links[0].status().counted_outside is not None)
            plant(odd, b"plant/7", b"wrong")
            plant(odd, b"plant/8", b"")
            plant(odd, b"plant/cleared", b"back again")

            def is_seen() -> bool:
                return any(member.digest_equal is False for member in told(pool[0]).members)

            await wait_until(is_seen)
            await wait_until(lambda: values_of(odd) == expected, what=lambda: str(told(odd)))
            await wait_until(lambda: all(map(is_equal, pool)))
            assert repairs_of(odd) >= 1
            last = odd.links[0].status().newest_audit
            assert last is not None
            assert last.reason == "pool"
            assert [repairs_of(node) for node in (pool[0], pool[2])] == [0, 0]
            assert [values_of(node) for node in pool] == [expected] * 3


async def test_a_difference_that_lasts_holds_the_pool_back(pool: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reasons name the member; each member is ready for itself, since nothing says which one is behind."""
    monkeypatch.setattr("fanout.link.link.Link.audit_for_pool", never)
    plant(pool[1], b"other/a", b"wrong")
    await wait_until(lambda: told(pool[0]).reasons == ("edge-0 and edge-1 do not hold the same values",))
    assert not told(pool[0]).ready
    await wait_until(lambda: len(told(pool[1]).reasons) == 2)
    assert all(node.documents.readiness().ready for node in pool)


async def test_a_member_names_the_topics_that_differ(
    mosquitto: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, as its page asks for them: a lost update shows at the member that lacks it."""
    monkeypatch.setattr("tests.node.test_pool_mosquitto.CONVERGE_AFTER_S", 20.0)  # until then nothing repairs it
    with publisher(mosquitto.port) as client:
        publish_all(client, VALUES)
    async with pool_at(tmp_path, *[mosquitto.port] * 3, with_http=True) as nodes:
        plant(nodes[2], b"plant/7", b"old")
        found = await nodes[0].documents.compare_pool(authorization="")
    assert found.left_out == ()
    [one] = found.differing
    held = {name: view and view.value for name, view in one.values.items()}
    assert (one.topic, held) == ("plant/7", {"edge-0": "7", "edge-1": "7", "edge-2": "old"})


async def never(*_: object) -> None:
    """Wait for ever, as an audit of a very large set."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 21))])
async def test_members_converge_after_every_fault(seed: int, tmp_path: Path) -> None:
    """Connections that are lost or do not read, messages that Mosquitto drops, and values that are wrong or missing.

    At the end each member holds what Mosquitto tells a client that knows nothing.
    """
    draw = random.Random(seed)
    still = [(f"other/{number}", b"%d" % number) for number in range(10)]  # no later update repairs these
    async with contextlib.AsyncExitStack() as stack:
        mosquitto = stack.enter_context(Mosquitto(tmp_path))  # it keeps 1,000 messages for one that does not read
        with publisher(mosquitto.port) as client:
            publish_all(client, [*VALUES, *still])
        proxies = [await stack.enter_async_context(Proxy(mosquitto.port)) for _ in range(3)]
        pool = await stack.enter_async_context(pool_at(tmp_path, *(proxy.port for proxy in proxies)))
        with traffic(mosquitto):
            for kind in draw.sample(["cut", "pause", "plant", "lack", "cut two"], 5):
                index = draw.randrange(3)
                if kind in ("plant", "lack"):
                    plant(pool[index], b"other/%d" % draw.randrange(10), b"wrong" if kind == "plant" else b"")
                elif kind == "pause":
                    proxies[index].pause()
                    await asyncio.sleep(draw.uniform(0.2, 1.0))
                    proxies[index].resume()
                else:
                    for proxy in [proxies[index], proxies[index - 1]][: 1 + (kind == "cut two")]:
                        proxy.cut()
                await until_equal_anew(pool, f"seed {seed}, {kind} at edge-{index}")
        with RawReader(mosquitto.port) as reader:
            reader.subscribe("plant/#")
            reader.subscribe("other/#")
        truth = {topic.encode(): payload for topic, payload in reader.values.items()}
        await wait_until(lambda: [values_of(node) for node in pool] == [truth] * 3)


async def until_equal_anew(pool: Sequence[Node], what: str) -> None:
    """Wait until each member has been equal to every other one at cuts that came from now on."""
    compared = [cuts_of(node) for node in pool]

    def is_anew() -> bool:
        news = [cuts_of(node) - before for node, before in zip(pool, compared, strict=True)]
        return min(news) >= 4 and all(map(is_equal, pool))

    await wait_until(is_anew, what=lambda: f"{what}: {[told(node) for node in pool]}")


def cuts_of(node: Node) -> int:
    """Return at how many cuts a member was compared with others."""
    status = node.documents.status().pool
    assert status is not None
    return status.cuts_compared_total
