"""Slow clients are named in the log, at every QoS, and once each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from fanout.mqtt.packets import Subscribe, Subscription
from fanout.mqtt.properties import Properties
from fanout.server.client.client_list import ClientQuery
from fanout.server.client.slow_clients import SLOW_S
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.server.slow_reader import PIECE, slow_down
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


async def lines_of(node: NodeInMemory, *, seconds: int) -> list[Mapping[str, Any]]:
    """Let time pass, a look each second, and return the log lines about slow clients."""
    with capture_logs() as lines:
        for _ in range(seconds):
            await node.pass_time(1)
    return [line for line in lines if line["event"] in {"client_reads_slowly", "client_caught_up"}]


@pytest.mark.parametrize("qos", [0, 1])
async def test_client_that_does_not_read_is_named_once(node: NodeInMemory, qos: int) -> None:
    """After some seconds, with what waits for it; when it reads again, that is told too."""
    async with await RawClient.connect(node.port, "slow") as client:
        await slow_down(node, client, qos=qos)
        node.set(b"data/0", PIECE, qos=qos)
        assert await lines_of(node, seconds=int(SLOW_S)) == []
        (line,) = await lines_of(node, seconds=30)
        assert (line["event"], line["log_level"], line["client_id"]) == ("client_reads_slowly", "warning", "slow")
        assert (line["slow_s"], line["waits_for"]) == (SLOW_S, "it to read")
        assert line["address"].startswith("127.0.0.1:")
        assert (line["conflated_topics"] > 0, line["messages"] > 0) == (qos == 0, qos == 1)
        assert [(one.clients, one.names) for one in node.server.slow_clients.news()] == [(1, ["slow"]), (0, [])]
        client.resume()
        await client.messages_until_ping()
        (line,) = await lines_of(node, seconds=1)
        assert (line["event"], line["log_level"], line["client_id"]) == ("client_caught_up", "info", "slow")
        assert line["slow_s"] == SLOW_S + 30
        assert [(one.clients, one.names) for one in node.server.slow_clients.news()] == [(0, []), (1, ["slow"])]


async def test_client_that_owes_acknowledgements_is_slow(start_node: StartNode) -> None:
    """Its socket has room, and it is told apart from one that does not read."""
    node = await start_node()
    async with await RawClient.connect(node.port, "slow", properties=Properties(receive_maximum=1)) as client:
        await client.subscribe(b"data", qos=1)
        node.take([update(b"data", b"%d" % number, qos=1, retain=False) for number in range(3)])
        await client.messages(1)
        (line,) = await lines_of(node, seconds=10)
        assert (line["waits_for"], line["messages"]) == ("its acknowledgements", 2)


async def test_client_that_reads_is_not_named(node: NodeInMemory) -> None:
    """Nor one that stopped for less than the time."""
    async with await RawClient.connect(node.port, "fast") as client:
        await slow_down(node, client)
        assert await lines_of(node, seconds=4) == []
        client.resume()
        await client.messages_until_ping()
        assert await lines_of(node, seconds=30) == []
        (found,) = (await node.server.clients(ClientQuery())).clients
        assert found.slow_s is None


async def test_client_that_stops_amid_retained_values_is_slow(node: NodeInMemory) -> None:
    """A socket that stays full counts while a retained set is delivered, too."""
    for number in range(50):
        node.set(b"data/%d" % number, PIECE)
    async with await RawClient.connect(node.port, "slow") as client:
        client.pause()
        client.send(Subscribe(1, (Subscription(b"data/#", 0),)))
        session = next(iter(node.server.registry))
        await wait_until(lambda: session.paused)
        (line,) = await lines_of(node, seconds=10)
        assert (line["event"], line["client_id"]) == ("client_reads_slowly", "slow")


async def test_slow_client_that_leaves_is_forgotten(node: NodeInMemory) -> None:
    """It has not caught up."""
    async with await RawClient.connect(node.port, "slow") as client:
        await slow_down(node, client)
        node.set(b"data/0", PIECE)
        assert len(await lines_of(node, seconds=10)) == 1
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert await lines_of(node, seconds=10) == []
