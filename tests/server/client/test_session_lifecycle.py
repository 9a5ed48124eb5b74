"""Many sessions that end together, each with what its end sets off."""

from __future__ import annotations

from contextlib import AsyncExitStack

from fanout.mqtt.packets import Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.client.connection import ConnectionState
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

SESSIONS = 300
"""Enough that a chain of calls through all of them would be too deep for Python."""
WAITING_MAX = 10
BATCH = [update(b"data/%d" % number, b"x", qos=1, retain=False) for number in range(2 * WAITING_MAX)]
"""More than may wait for a session that acknowledges nothing."""
STALLING = Properties(session_expiry_interval=600, receive_maximum=1)


async def witness_of(node: NodeInMemory, stack: AsyncExitStack, topic: bytes) -> RawClient:
    """Connect a client that gets Will Messages."""
    witness = await stack.enter_async_context(await RawClient.connect(node.port, "witness"))
    await witness.subscribe(topic)
    return witness


async def connect_all(
    node: NodeInMemory, stack: AsyncExitStack, *, count: int, topic_filter: bytes, properties: Properties, will: Will
) -> list[RawClient]:
    """Connect clients that acknowledge nothing, with the same subscription and Will Message."""
    clients = []
    for number in range(count):
        client = await RawClient.connect(node.port, f"{topic_filter!r}-{number}", will=will, properties=properties)
        clients.append(await stack.enter_async_context(client))
        await client.subscribe(topic_filter, qos=1)
    return clients


async def test_sessions_of_an_audience_overflow_together(start_node: StartNode) -> None:
    """Each client is told, and its Will Message published; none of them gets those of the others."""
    node = await start_node(queue_messages_max=WAITING_MAX)
    async with AsyncExitStack() as stack:
        witness = await witness_of(node, stack, b"wills")
        will = Will(b"wills", b"gone", qos=1)
        clients = await connect_all(node, stack, count=SESSIONS, topic_filter=b"#", properties=STALLING, will=will)
        node.take(BATCH)
        figures = node.server.figures()
        assert (figures["sessions"], figures["sessions_overflowed_total"], figures["wills_total"]) == (
            1,
            SESSIONS,
            SESSIONS,
        )
        assert figures["dropped_total"]["session_ended"] == SESSIONS * len(BATCH)
        assert sum(one.state is ConnectionState.OPEN for one in node.server.connections) == 1
        assert len(await witness.messages_until_ping()) == SESSIONS
        for client in clients:
            assert [message.topic for message in await client.messages(1)] == [b"data/0"]
            await client.expect_end(ReasonCode.QUOTA_EXCEEDED)


async def test_absent_sessions_overflow_together_while_their_will_delay_runs(start_node: StartNode) -> None:
    """Their end comes before the Will Delay Interval has passed, so it publishes the Will Messages [MQTT-3.1.3-9]."""
    node = await start_node(queue_messages_max=WAITING_MAX)
    async with AsyncExitStack() as stack:
        witness = await witness_of(node, stack, b"wills")
        will = Will(b"wills", b"gone", properties=Properties(will_delay_interval=300))
        async with AsyncExitStack() as leaving:
            await connect_all(node, leaving, count=SESSIONS, topic_filter=b"#", properties=STALLING, will=will)
        await wait_until(lambda: node.server.figures()["connections"] == 1)
        assert await witness.messages_until_ping() == []
        node.take(BATCH)
        figures = node.server.figures()
        assert (figures["sessions"], figures["sessions_overflowed_total"], figures["wills_total"]) == (
            1,
            SESSIONS,
            SESSIONS,
        )
        assert len(await witness.messages_until_ping()) == SESSIONS
        await node.pass_time(1000)  # longer than the Session Expiry Interval
        assert (node.server.figures()["wills_total"], await witness.messages_until_ping()) == (SESSIONS, [])


async def test_will_messages_of_overflowed_sessions_overflow_others(start_node: StartNode) -> None:
    """These end too, and their own Will Messages are published."""
    node = await start_node(queue_messages_max=WAITING_MAX)
    async with AsyncExitStack() as stack:
        witness = await witness_of(node, stack, b"slow/will")
        for topic_filter, topic, count in ((b"wills", b"slow/will", 2), (b"data/#", b"wills", 2 * WAITING_MAX)):
            will = Will(topic, b"gone", qos=1)
            await connect_all(node, stack, count=count, topic_filter=topic_filter, properties=STALLING, will=will)
        node.take(BATCH)
        assert [message.topic for message in await witness.messages_until_ping()] == [b"slow/will"] * 2
        figures = node.server.figures()
        assert (figures["sessions"], figures["wills_total"]) == (1, 2 * WAITING_MAX + 2)
