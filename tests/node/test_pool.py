"""Nodes that are members of one pool: each knows the others, what they hold, and when one of them is silent."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import socket
from collections.abc import AsyncIterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from bench.processes import free_port
from fanout.api.models import PoolDocument
from fanout.config import Address, PoolConfig
from fanout.errors import ConfigError, ListenError, RequestRefused
from fanout.node import housekeeping
from fanout.node.node import Node
from fanout.node.pool.documents import config_digest
from fanout.selection import Selector
from tests.node.test_node import LinkStandIn, config, http_port_of, node_of
from tests.support.waiting import wait_until

TOKEN = "a-token-of-the-pool"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in in the place of every link."""
    monkeypatch.setattr("fanout.link.link.Link", LinkStandIn)


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens, and that no connection gets meanwhile."""
    return [free_port() for _ in range(count)]


class Pool:
    """The members of one test, which share a list of addresses."""

    def __init__(self, directory: Path, *, size: int = 2) -> None:
        self.directory = directory
        self.ports = free_ports(size)
        self.nodes: list[Node] = []
        self.token = directory / "token"
        self.token.write_text(TOKEN)

    async def start(self, index: int, **changes: Any) -> Node:
        """Start the member number `index`, which finds itself in the list too."""
        settings = config(self.directory / f"edge-{index}")
        pool = PoolConfig(
            listen=Address("http", "127.0.0.1", self.ports[index]),
            peers=tuple(Address("http", "127.0.0.1", port) for port in self.ports),
            token_file=self.token,
            ping_interval_s=0.2,
            suspect_after_s=10.0,  # all share a process: while it gets no processor, none of them is silent
            dead_after_s=30.0,
        )
        identity = dataclasses.replace(settings.node, id=changes.pop("node_id", f"edge-{index}"))
        links = changes.pop("links", settings.links)
        settings = dataclasses.replace(
            settings, node=identity, links=links, log=None, pool=dataclasses.replace(pool, **changes)
        )
        node = node_of(settings)
        await node.start()
        self.nodes.append(node)
        return node

    async def stop(self, node: Node) -> None:
        """Stop one member."""
        self.nodes.remove(node)
        await node.stop()


@contextlib.asynccontextmanager
async def pool_of(directory: Path, *, size: int = 2) -> AsyncIterator[Pool]:
    """Give a pool without members; those that a test starts are stopped."""
    pool = Pool(directory, size=size)
    try:
        yield pool
    finally:
        for node in list(pool.nodes):
            await pool.stop(node)


def reachable(document: PoolDocument) -> list[str | None]:
    """Return the members that answer."""
    return [member.node for member in document.members if member.reachable]


def told(lines: Sequence[MutableMapping[str, Any]]) -> list[str]:
    """Return what edge-0 logged about a member that it had heard of."""
    return [
        line["event"]
        for line in lines
        if line["event"].startswith("pool member") and line["node"] == "edge-0" and line["member"] is not None
    ]


async def test_members_know_each_other(tmp_path: Path) -> None:
    """Each is listed once, this node first, with what it holds; a node that lists itself recognizes itself."""
    async with pool_of(tmp_path, size=3) as pool:
        nodes = [await pool.start(index) for index in range(3)]
        second = nodes[1]
        await wait_until(lambda: second.documents.pool().ready, what=lambda: str(second.documents.pool()))
        # Its own address takes a first answer to be known as its own.
        await wait_until(lambda: len(second.documents.pool().members) == 3)
        await wait_until(lambda: second.http is not None and second.http.port)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.get(f"http://127.0.0.1:{http_port_of(second)}/v1/pool")
        document = PoolDocument.model_validate(answer.json())
        assert [member.node for member in document.members] == ["edge-1", "edge-0", "edge-2"]
        assert [member.is_self for member in document.members] == [True, False, False]
        own, other = document.members[:2]
        assert other.address == f"127.0.0.1:{pool.ports[0]}"
        assert (other.state, other.ready, other.topics, other.sessions) == ("ready", True, len(nodes[0].store), 0)
        assert other.config_digest == own.config_digest
        assert other.version == own.version
        assert (own.digest_equal, own.digest_equal_since is not None) == (True, True)
        assert (other.digest_equal, other.digest_equal_since) == (None, None)
        assert (other.moved_in, other.moved_out) == (0, 0)
        status = second.documents.status().pool
        assert status is not None
        assert (status.members, status.members_reachable, status.members_ready) == (3, 3, 3)
        assert status.answered_total > 0
        assert set(status.refused_total.values()) == {0}


async def test_a_member_that_is_away_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason is told once when it begins, and once when it is over; one that was not asked yet is none."""
    monkeypatch.setattr(housekeeping, "INTERVAL_S", 0.01)
    async with pool_of(tmp_path) as pool:
        first, second = await pool.start(0, suspect_after_s=0.5), await pool.start(1)

        def texts() -> list[str]:
            events = first.browser.events(before=None, limit=100).events
            return [one.text for one in events if one.kind.startswith("pool_") and "edge-1" in one.text]

        await wait_until(lambda: len(reachable(first.documents.pool())) == 2)
        await pool.stop(second)
        reason = "edge-1 is not reachable: nothing answers there, or TLS does not accept the other side"
        await wait_until(lambda: f"In the pool: {reason}" in texts(), what=lambda: str(texts()))
        await pool.start(1)
        await wait_until(lambda: f"In the pool, no longer: {reason}" in texts())
        noted = [text for text in reversed(texts()) if text.endswith(reason)]
        assert set(noted[::2]) == {f"In the pool: {reason}"}
        assert set(noted[1::2]) == {f"In the pool, no longer: {reason}"}
        for node in pool.nodes:
            assert not [
                one.text for one in node.browser.events(before=None, limit=100).events if "says nothing" in one.text
            ]


async def test_the_configured_members_are_known_before_they_are_asked(tmp_path: Path) -> None:
    """A member that has just started does not take itself for the whole pool."""
    async with pool_of(tmp_path) as pool:
        first = await pool.start(0)
        document = first.documents.pool()
        assert f"127.0.0.1:{pool.ports[1]}" in [member.address for member in document.members]
        assert not document.ready


async def test_a_member_that_ends_is_suspect_and_comes_back(tmp_path: Path) -> None:
    """Its state and figures are not known then, what it was is; log lines tell both, once each."""
    async with pool_of(tmp_path) as pool:
        with capture_logs() as lines:
            first, second = await pool.start(0, suspect_after_s=0.5), await pool.start(1)
            await wait_until(lambda: reachable(first.documents.pool()) == ["edge-0", "edge-1"])
            await pool.stop(second)
            await wait_until(lambda: reachable(first.documents.pool()) == ["edge-0"])
            document = first.documents.pool()
            member = document.members[1]
            assert (member.node, member.state, member.ready, member.topics) == ("edge-1", None, None, None)
            assert member.config_digest == document.members[0].config_digest
            assert document.reasons == document.stay_reasons == (f"edge-1 is not reachable: {member.failure}",)
            assert member.failure == "nothing answers there, or TLS does not accept the other side"
            await pool.start(1)
            await wait_until(lambda: first.documents.pool().ready)
            await wait_until(lambda: told(lines)[-1:] == ["pool member reachable"])
        assert told(lines)[0] == "pool member reachable"
        assert "pool member suspect" in told(lines)
        # The reason may change once, from silence to a refused connection; on a busy machine it may happen again.
        runs = [(event, len(list(same))) for event, same in itertools.groupby(told(lines))]
        assert all(length <= (2 if event == "pool member suspect" else 1) for event, length in runs), runs


async def test_a_member_that_is_not_ready_holds_the_pool_back(tmp_path: Path) -> None:
    """The reasons name it; it is reachable all the same. It may be stopped, and the other one may not."""
    async with pool_of(tmp_path) as pool:
        first, second = await pool.start(0), await pool.start(1)
        await wait_until(lambda: first.documents.pool().ready)
        second.drain.hold(now_ns=1)
        held = ("edge-1 is not ready",)
        await wait_until(lambda: first.documents.pool().reasons == second.documents.pool().reasons == held)
        assert not first.documents.pool().ready
        await wait_until(lambda: first.documents.pool().stay_reasons == held)
        await wait_until(lambda: second.documents.pool().stay_reasons == ())
        assert reachable(first.documents.pool()) == ["edge-0", "edge-1"]


async def test_a_member_that_leaves_waits_until_the_others_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need not ask it for sessions after that; nor does it wait for longer."""
    monkeypatch.setattr("fanout.durable.moving.hand_over._GOODBYE_S", 60.0)
    async with asyncio.timeout(50), pool_of(tmp_path) as pool:
        first, second = [await pool.start(index, ping_interval_s=0.4) for index in range(2)]
        await wait_until(lambda: first.documents.pool().ready and second.documents.pool().ready)
        await pool.stop(second)
        assert first.pool is not None
        [other] = first.pool.members.others()
        assert other.peer.facts is not None
        assert (other.peer.facts.state, other.peer.facts.sessions) == ("stopping", 0)


async def test_a_member_with_other_selectors_is_told(tmp_path: Path) -> None:
    """It would serve other topics to the same clients."""
    async with pool_of(tmp_path) as pool:
        first = await pool.start(0)
        [link] = first.config.links
        wider = dataclasses.replace(link, selectors=(Selector("plant-1/#", qos=0, prefix="hq/"),))
        await pool.start(1, links=(wider,))
        told = ("edge-1 has other links or selectors than edge-0",)
        await wait_until(lambda: first.documents.pool().reasons == told)
        assert first.documents.pool().stay_reasons == told


async def test_a_member_with_another_token_is_refused_and_counted(tmp_path: Path) -> None:
    """By both: neither believes the other, and each says why."""
    async with pool_of(tmp_path) as pool:
        first = await pool.start(0)
        other = tmp_path / "other-token"
        other.write_text("another-token-of-a-pool")
        second = await pool.start(1, token_file=other)
        await wait_until(lambda: first.documents.pool().members[1].failure is not None)
        failure = "it does not accept the token of this node"
        await wait_until(lambda: first.documents.pool().members[1].failure == failure)
        await wait_until(lambda: second.documents.pool().members[1].failure == failure)
        for node in (first, second):
            figures = node.documents.status().pool
            assert figures is not None
            assert figures.refused_total["token"] > 0
            assert figures.ask_failures_total["refused"] > 0
            assert figures.members_reachable == 1


async def test_two_nodes_with_one_identifier_are_told(tmp_path: Path) -> None:
    """They would take each other's session at the primary."""
    async with pool_of(tmp_path) as pool:
        first = await pool.start(0)
        await pool.start(1, node_id="edge-0")
        failure = "it has the node.id of this node"
        await wait_until(lambda: failure in [member.failure for member in first.documents.pool().members])
        assert reachable(first.documents.pool()) == ["edge-0"]


async def test_members_are_found_by_a_name(tmp_path: Path) -> None:
    """The name is looked up again and again; one that is not known leaves the members as they are, and is told once."""
    async with pool_of(tmp_path) as pool:
        second = await pool.start(1)
        name = Address("http", "localhost", pool.ports[1])
        first = await pool.start(0, peers=(), dns=name, dns_interval_s=0.05)
        await wait_until(lambda: "edge-1" in reachable(first.documents.pool()))
        assert second.documents.pool().members
        with capture_logs() as lines:
            nowhere = Address("http", "no-such-name.invalid", 9201)
            lost = await pool.start(
                0, peers=(), dns=nowhere, dns_interval_s=0.05, listen=Address("http", "127.0.0.1", 0)
            )
            await wait_until(lambda: any(line["event"] == "pool addresses not found" for line in lines))
            asked = lost.documents.status().pool
            assert asked is not None
            assert asked.members == 1
        assert sum(line["event"] == "pool addresses not found" for line in lines) == 1


async def test_a_bug_in_a_question_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the member would be suspect for ever, and nobody knew why."""

    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fanout.pool.peer_client.PeerClient.ask", fail)
    async with pool_of(tmp_path) as pool:
        node = await pool.start(0)
        async with asyncio.timeout(60):
            assert isinstance(await node.wait_failed(), ZeroDivisionError)


async def test_a_node_without_a_pool_says_so(tmp_path: Path) -> None:
    """Its document is refused with what to do, and its status has no figures of one."""
    node = node_of(config(tmp_path))
    with pytest.raises(RequestRefused, match="edge-1 is in no pool"):
        node.documents.pool()
    assert node.documents.status().pool is None


async def test_a_node_does_not_start_with_a_pool_that_cannot_be(tmp_path: Path) -> None:
    """The token is read before anything is opened; a port that is taken is told with its key."""
    pool = Pool(tmp_path)
    with pytest.raises(ConfigError, match=r"pool\.token_file"):
        await pool.start(0, token_file=tmp_path / "none")
    with socket.create_server(("127.0.0.1", pool.ports[1])), pytest.raises(ListenError) as caught:
        await pool.start(1)
    assert "pool.listen" in caught.value.hint


def test_the_digest_of_what_is_replicated_is_that_of_the_keys(tmp_path: Path) -> None:
    """It is the same in every process, so members can compare it; names of links and selectors count, addresses not."""
    [link] = config(tmp_path).links
    assert config_digest([link]) == "35d56e8dc98d5494"
    elsewhere = dataclasses.replace(link, primaries=(Address("mqtt", "10.0.0.9", 1883),))
    assert config_digest([elsewhere]) == config_digest([link])
    for other in (
        dataclasses.replace(link, name="b"),
        dataclasses.replace(link, selectors=(Selector("plant-1/#"),)),
        dataclasses.replace(link, selectors=(Selector("plant-1/#", ("plant-1/a",), prefix="hq/"),)),
    ):
        assert config_digest([other]) != config_digest([link])
