"""What an operator sees of single clients, and how a client is sent away."""

from __future__ import annotations

import sys

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.access.gate import Gate
from fanout.affected_clients import Concerned
from fanout.mqtt.packets import Connack, Connect, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.selection import Selector
from fanout.server.client.client_list import (
    FILTERS_SHOWN,
    ClientFigures,
    ClientOrder,
    ClientQuery,
    Kicked,
    list_clients,
)
from fanout.server.messages.encoding import WireVariant
from tests.access.pieces import ManualClock
from tests.server.accept.test_admission import behind_proxy
from tests.server.accept.test_proxy_header import tcp4
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.server.slow_reader import PIECE, slow_down
from tests.server.test_access import access_config
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

LASTING = Properties(session_expiry_interval=600)


async def one(node: NodeInMemory, client_id: str, *, topic: bytes | None = None) -> ClientFigures:
    """Return the figures of one client."""
    (found,) = (await node.server.clients(ClientQuery(client_ids=(client_id,), topic=topic))).clients
    return found


async def test_client_that_keeps_up(node: NodeInMemory) -> None:
    """Nothing waits for it; its subscriptions are listed as it sent them."""
    async with await RawClient.connect(node.port, "app") as client:
        await client.subscribe(b"plant/#")
        await client.subscribe(b"$share/group/jobs")
        await node.pass_time(10)
        found = await one(node, "app")
        assert found.filters == ("plant/#", "$share/group/jobs")
        assert found.address is not None
        assert found.address.startswith("127.0.0.1:")
        assert (found.version, found.subscriptions, found.user) == (5, 2, "")
        assert (found.connected_s, found.slow_s) == (10.0, None)
        waiting = (found.queued_messages, found.queued_bytes, found.conflated_topics, found.in_flight_messages)
        assert (*waiting, found.unsent_bytes) == (0, 0, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what was acknowledged")
async def test_bytes_that_a_client_has_acknowledged(node: NodeInMemory) -> None:
    """They grow by what was sent, without a counter of the server."""
    async with await RawClient.connect(node.port, "app") as client:
        await client.subscribe(b"plant/#")
        before = (await one(node, "app")).acked_bytes
        node.set(b"plant/a", b"x" * 10_000)
        await client.messages(1)
        after = (await one(node, "app")).acked_bytes
        assert before is not None
        assert after is not None
        assert 10_000 < after - before < 10_100


async def test_address_behind_a_proxy(start_node: StartNode) -> None:
    """The client's own, of the PROXY header."""
    node = await start_node(**behind_proxy())
    async with await RawClient.open(node.port) as client:
        client.transport.write(tcp4("192.0.2.7", 4711))
        client.send(Connect("app"))
        await client.expect(Connack)
        assert (await one(node, "app")).address == "192.0.2.7:4711"


async def test_client_that_is_away(node: NodeInMemory) -> None:
    """It has a queue, and neither address nor time of connection."""
    async with await RawClient.connect(node.port, "app", properties=LASTING) as client:
        await client.subscribe(b"plant/#", qos=1)
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    node.set(b"plant/a", b"1", qos=1)
    found = await one(node, "app")
    assert (found.address, found.connected_s, found.acked_bytes, found.slow_s) == (None, None, None, None)
    assert (found.queued_messages, found.queued_bytes > 0) == (1, True)


async def test_pages_are_in_the_order_of_client_identifiers(node: NodeInMemory) -> None:
    """Each begins behind the last of the one before; the last page says that there is no more."""
    for name in ("d", "b", "a", "c", "e"):
        await (await RawClient.connect(node.port, name, properties=LASTING)).close()
    pages = []
    after: str | None = ""
    while after is not None:
        page = await node.server.clients(ClientQuery(after=after, limit=2))
        pages.append(([client.client_id for client in page.clients], page.next, page.sessions))
        after = page.next
    assert pages == [(["a", "b"], "b", 5), (["c", "d"], "d", 5), (["e"], None, 5)]


async def test_a_page_lists_some_filters_of_each_client(node: NodeInMemory) -> None:
    """All of them are listed for a client that is named."""
    async with await RawClient.connect(node.port, "app") as client:
        for number in range(FILTERS_SHOWN + 1):
            await client.subscribe(b"a/%d" % number)
        (of_page,) = (await node.server.clients(ClientQuery())).clients
        assert (of_page.subscriptions, len(of_page.filters)) == (FILTERS_SHOWN + 1, FILTERS_SHOWN)
        assert len((await one(node, "app")).filters) == FILTERS_SHOWN + 1


async def test_matching_filters_of_a_client(node: NodeInMemory) -> None:
    """Also shared ones, as the client sent them, and some of very many; without a topic there are none."""
    async with await RawClient.connect(node.port, "app") as client:
        await client.subscribe(b"plant/+", b"plant/2", b"$share/g/#")
        assert (await one(node, "app")).matching == ()
        assert (await one(node, "app", topic=b"plant/1")).matching == ("plant/+", "$share/g/#")
        assert (await one(node, "app", topic=b"$SYS/x")).matching == ()
        await client.subscribe(*(b"+/" * number + b"#" for number in range(FILTERS_SHOWN + 5)))
        assert len((await one(node, "app", topic=b"a/" * 30 + b"a")).matching) == FILTERS_SHOWN


async def test_clients_that_read_a_branch(node: NodeInMemory) -> None:
    """By a subscription that may match a topic of it, which is told, a shared one too; the number is theirs."""
    async with (
        await RawClient.connect(node.port, "all") as everything,
        await RawClient.connect(node.port, "one") as one_line,
        await RawClient.connect(node.port, "shared") as shared,
        await RawClient.connect(node.port, "none"),
    ):
        await everything.subscribe(b"#")
        await one_line.subscribe(b"office/1", b"plant/line1/+")
        await shared.subscribe(b"$share/g/+/line2/#")
        for reads, names, by in (
            ("plant/#", ["all", "one", "shared"], ["#", "plant/line1/+", "$share/g/+/line2/#"]),
            ("plant/line1/temp", ["all", "one"], ["#", "plant/line1/+"]),
            ("plant/line2/#", ["all", "shared"], ["#", "$share/g/+/line2/#"]),
            ("$SYS/#", [], []),
        ):
            page = await node.server.clients(ClientQuery(reads=Concerned((Selector(reads),))))
            assert [client.client_id for client in page.clients] == names, reads
            assert [client.matching for client in page.clients] == [(one,) for one in by]
            assert page.sessions == len(names)
        page = await node.server.clients(ClientQuery(reads=Concerned((Selector("plant/#"),)), order="slowest", limit=1))
        assert (len(page.clients), page.sessions) == (1, 3)


async def test_the_rule_that_denies_a_topic(start_node: StartNode) -> None:
    """By its place in the configuration; or none allows it."""
    config = access_config(rule=[{"deny": "read", "filter": "plant/secret/#"}, {"allow": "read", "filter": "plant/#"}])
    gate = Gate(config, passwords=None, monotonic=ManualClock(), logger=structlog.get_logger())
    node = await start_node(gate=gate)
    async with await RawClient.connect(node.port, "app"):
        for topic, denied_by in (
            (b"plant/secret/1", "access.rule[0] denies it"),
            (b"plant/1", ""),
            (b"office/1", "no access rule allows it"),
            (b"$share/x", ""),
        ):
            assert (await one(node, "app", topic=topic)).denied_by == denied_by
        assert (await one(node, "app")).denied_by == ""
    await gate.close()


async def test_unknown_clients_are_left_out(node: NodeInMemory) -> None:
    """A query for them has no answer, and is no error."""
    assert (await node.server.clients(ClientQuery(client_ids=("nobody",)))).clients == ()


async def test_the_slowest_come_first(node: NodeInMemory) -> None:
    """A client that reads nothing is in front of those for which nothing waits."""
    async with await RawClient.connect(node.port, "fast"), await RawClient.connect(node.port, "slow") as slow:
        await slow_down(node, slow)
        node.set(b"data/0", PIECE)
        await node.pass_time(1)
        await node.pass_time(30)
        page = await node.server.clients(ClientQuery(order="slowest", limit=1))
        (found,) = page.clients
        assert (found.client_id, found.slow_s, page.next) == ("slow", 30.0, None)
        assert found.conflated_topics > 0
        assert found.unsent_bytes > 0


@pytest.mark.parametrize("gone", [("c0000",), ("c0001",), ("c0000", "c0001")])
@pytest.mark.parametrize("order", ["id", "slowest"])
async def test_many_clients_are_listed_in_turns(node: NodeInMemory, order: ClientOrder, gone: tuple[str, ...]) -> None:
    """Others are served in between; a session that ends meanwhile is left out, and no page after it is missed."""
    for number in range(5_000):
        node.server.registry.create(f"c{number:04}", wire=WireVariant(5))
    steps = list_clients(
        ClientQuery(order=order, limit=2),
        list(node.server.registry),
        get=node.server.registry.get,
        connection_of=lambda session: None,
        slow_s=lambda connection: None,
        now_s=0.0,
    )
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            page = ended.value
            break
        turns += 1
        if turns == 10:
            for one in gone:
                node.server.registry.end(node.server.registry.get(one) or pytest.fail("it is there"))
    assert turns >= 10
    assert [client.client_id for client in page.clients] == sorted({"c0000", "c0001"} - set(gone))
    assert page.next == ("c0001" if order == "id" else None)


async def test_kicked_client_can_resume_its_session(node: NodeInMemory) -> None:
    """It is told 0x98 and its Will Message is published, as after a lost connection."""
    async with await RawClient.connect(node.port, "witness") as witness:
        await witness.subscribe(b"wills")
        will = Will(b"wills", b"gone")
        async with await RawClient.connect(node.port, "app", properties=LASTING, will=will) as client:
            with capture_logs() as lines:
                assert node.server.lifecycles.kick("app") == Kicked(was_connected=True, session_ended=False)
            await client.expect_end(ReasonCode.ADMINISTRATIVE_ACTION)
        assert [(line["event"], line["client_id"]) for line in lines if line["log_level"] == "info"] == [
            ("client_kicked", "app")
        ]
        assert [message.payload for message in await witness.messages_until_ping()] == [b"gone"]
    assert node.server.registry.get("app") is not None
    assert node.server.figures()["ended_total"] == {"administrative_action": 1}


async def test_kicked_client_without_an_expiry_loses_its_session(node: NodeInMemory) -> None:
    """As when its connection is lost."""
    async with await RawClient.connect(node.port, "app") as client:
        assert node.server.lifecycles.kick("app") == Kicked(was_connected=True, session_ended=True)
        await client.expect_end(ReasonCode.ADMINISTRATIVE_ACTION)


async def test_kicked_cleanly(node: NodeInMemory) -> None:
    """The session ends, of a client that is away too."""
    async with await RawClient.connect(node.port, "app", properties=LASTING) as client:
        assert node.server.lifecycles.kick("app", clean=True) == Kicked(was_connected=True, session_ended=True)
        await client.expect_end(ReasonCode.ADMINISTRATIVE_ACTION)
    await (await RawClient.connect(node.port, "away", properties=LASTING)).close()
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    assert node.server.lifecycles.kick("away") == Kicked(was_connected=False, session_ended=False)
    assert node.server.lifecycles.kick("away", clean=True) == Kicked(was_connected=False, session_ended=True)
    assert node.server.lifecycles.kick("away", clean=True) is None


async def test_kicked_3_1_1_client_is_closed(node: NodeInMemory) -> None:
    """MQTT 3.1.1 has no DISCONNECT for it."""
    async with await RawClient.connect(node.port, "old", version=4) as client:
        assert node.server.lifecycles.kick("old") is not None
        await client.expect_end()


def figures(client_id: str, *, slow_s: float | None = None) -> ClientFigures:
    """Return a client for which nothing waits."""
    return ClientFigures(
        client_id=client_id,
        address="127.0.0.1:4711",
        connected_s=1.0,
        user="",
        version=5,
        queued_messages=0,
        queued_bytes=0,
        conflated_topics=0,
        in_flight_messages=0,
        unsent_bytes=0,
        slow_s=slow_s,
        acked_bytes=0,
        subscriptions=0,
        filters=(),
    )
