"""A client with a bound on the age of what waits: little is under way, the newest comes, and others feel nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest
import structlog

from fanout.access.gate import Gate
from fanout.chain.age_bound import AgeBound
from fanout.mqtt.packets import PacketType, Pingreq, Pingresp, Publish, Suback, Subscribe, Subscription, encode_acks
from fanout.mqtt.properties import Properties
from fanout.server.client.send_buffer import BUFFER_BYTES_MIN, SendBuffer
from tests.access.pieces import ManualClock
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory, update
from tests.server.test_access import access_config
from tests.support.raw_client import RawClient

TOPICS = [b"t/%d" % number for number in range(50)]
PADDING = b"x" * 100
ROUNDS_MIN = 100
ROUNDS_MAX = 20_000
"""100 MB: more than any system holds for a connection."""


async def subscribe(client: RawClient, topic_filter: bytes, bound: AgeBound, *, qos: int = 0) -> Suback:
    """Subscribe with a bound."""
    properties = Properties(user_property=bound.properties)
    client.send(Subscribe(client.next_packet_id(), (Subscription(topic_filter, qos),), properties))
    return await client.expect(Suback)


async def flood(node: NodeInMemory, rounds: int, *, qos: int = 0, retain: bool = True) -> None:
    """Publish new messages of all topics, some thousand bytes at a time."""
    for number in range(rounds):
        await publish_all(node, number, qos=qos, retain=retain)


async def flood_until_all_wait(node: NodeInMemory, *, qos: int = 0, retain: bool = True) -> int:
    """Publish as `flood` does until messages of all topics wait for a stalled client; return the number of rounds.

    How much the system takes before it is full depends on how fast it is, as less comes in place of more meanwhile.
    """
    for number in range(ROUNDS_MAX):
        await publish_all(node, number, qos=qos, retain=retain)
        if number >= ROUNDS_MIN and node.server.figures()["conflated_topics"] >= len(TOPICS):
            return number + 1
    pytest.fail(f"after {ROUNDS_MAX} rounds the system still takes messages")


async def publish_all(node: NodeInMemory, number: int, *, qos: int, retain: bool) -> None:
    """Publish one message of each topic, that begins with the number of the round."""
    node.take([update(topic, b"%06d" % number + PADDING, qos=qos, retain=retain) for topic in TOPICS])
    await asyncio.sleep(0)


def acknowledge(client: RawClient, message: Publish) -> None:
    """Send the PUBACK of a message at QoS 1."""
    assert message.packet_id is not None
    client.send_bytes(encode_acks(PacketType.PUBACK, [message.packet_id]))


@pytest.mark.parametrize(("qos", "retain"), [(0, True), (1, True), (0, False)])
async def test_stalled_client_gets_the_newest_in_place_of_the_backlog(
    node: NodeInMemory, qos: int, retain: bool
) -> None:
    """It gets what the system held, then one message of each topic, at its QoS."""
    bound = AgeBound(1.0, qos_max=qos)
    async with await RawClient.connect(node.port) as client:
        suback = await subscribe(client, b"t/#", bound, qos=qos)
        assert suback.properties.user_property == bound.properties
        client.pause()
        rounds = await flood_until_all_wait(node, qos=qos, retain=retain)
        figures = node.server.figures()
        assert (figures["queued_messages"], figures["queued_bytes"]) == (0, 0)
        assert len(TOPICS) <= figures["conflated_topics"] <= 2 * len(TOPICS)  # some are being sent, and have newer ones
        client.resume()
        newest: dict[bytes, bytes] = {}
        while set(newest.values()) != {b"%06d" % (rounds - 1)} or len(newest) < len(TOPICS):
            message = await client.expect(Publish)
            newest[message.topic] = message.payload[:6]
            assert message.qos == qos
            if qos:
                acknowledge(client, message)
        figures = node.server.figures()
        assert figures["deliveries_total"] + figures["conflated_total"] == rounds * len(TOPICS)
        assert figures["conflated_total"] > 0


async def test_topics_by_name_and_pings_overtake_what_waits(node: NodeInMemory) -> None:
    """As heartbeats of a link do: they come before the newest values of other topics, however many these are."""
    async with await RawClient.connect(node.port) as client:
        await client.subscribe(b"heartbeat")
        await subscribe(client, b"t/#", AgeBound(1.0))
        client.pause()
        rounds = await flood_until_all_wait(node)
        node.take([update(b"heartbeat", b"1", retain=False)])
        client.send(Pingreq())
        await asyncio.sleep(0)
        client.resume()
        newest: set[bytes] = set()
        expected = {"ping", "heartbeat"}
        while expected:
            packet = await client.receive()
            if isinstance(packet, Pingresp):
                expected.discard("ping")
            elif isinstance(packet, Publish) and packet.topic == b"heartbeat":
                expected.discard("heartbeat")
            elif isinstance(packet, Publish) and packet.payload.startswith(b"%06d" % (rounds - 1)):
                newest.add(packet.topic)
        assert len(newest) < len(TOPICS)


async def test_all_messages_come_to_a_client_that_reads(node: NodeInMemory) -> None:
    """Nothing is left out while the line carries it, of a batch neither."""
    async with await RawClient.connect(node.port) as client:
        await subscribe(client, b"t/#", AgeBound(1.0))
        node.take([update(b"t/0", b"%d" % number) for number in range(10)])
        assert [message.payload for message in await client.messages(10)] == [b"%d" % number for number in range(10)]


async def test_others_with_the_same_subscription_are_in_an_audience_apart(node: NodeInMemory) -> None:
    """They are written to directly, as before."""
    async with await RawClient.connect(node.port, "bound") as bound, await RawClient.connect(node.port) as other:
        await other.subscribe(b"t/#")
        await bound.subscribe(b"t/#")
        assert node.server.figures()["audiences"] == 1
        await subscribe(bound, b"t/#", AgeBound(1.0))
        assert node.server.figures()["audiences"] == 2
        bound.pause()
        await flood(node, 100)
        assert [message.payload[:6] for message in await other.messages(5_000)][-1] == b"000099"


async def test_access_rule_bounds_clients_that_cannot_ask(start_node: StartNode) -> None:
    """The lowest age of the rules for a client counts, in a session that it resumes too; others have none."""
    rules = [
        {"allow": "read", "filter": "t/#", "client_id": "thin", "max_age_s": 2.0},
        {"allow": "read", "filter": "#", "client_id": "thin*", "max_age_s": 1.5},
        {"allow": "read", "filter": "#"},
    ]
    gate = Gate(access_config(rule=rules), passwords=None, monotonic=ManualClock(), logger=structlog.get_logger())
    node = await start_node(gate=gate)
    for clean_start in (True, False):
        async with await RawClient.connect(node.port, "thin", version=4, clean_start=clean_start) as client:
            if clean_start:
                continue
            await client.subscribe(b"t/#")
    async with (
        await RawClient.connect(node.port, "thin", version=4, clean_start=False) as thin,
        await RawClient.connect(node.port, "quick") as other,
    ):
        await other.subscribe(b"t/#")
        thin.pause()
        rounds = await flood_until_all_wait(node, retain=False)
        await other.messages(rounds * len(TOPICS))
        sessions = [one.session for one in node.server.connections]
        bounds = {one.client_id: one.sender.bound for one in sessions if one is not None}
        assert bounds == {"thin": AgeBound(1.5), "quick": None}
    await gate.close()


async def test_durable_client_loses_no_message_at_qos_1(node: NodeInMemory) -> None:
    """Copies of its session know each message of its queue, so what it asks for at QoS 1 is not done."""
    properties = Properties(session_expiry_interval=60)
    async with await RawClient.connect(node.port, "durable", properties=properties) as client:
        await subscribe(client, b"t/#", AgeBound(1.0, qos_max=1), qos=1)
        client.pause()
        await flood(node, 20, qos=1)
        assert node.server.figures()["conflated_topics"] == 0
        client.resume()
        for _ in range(20 * len(TOPICS)):
            acknowledge(client, await client.expect(Publish))


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="this system does not tell what a connection holds")
def test_send_buffer_follows_the_rate_of_the_line() -> None:
    """It grows on a quick line, and becomes small again on a slow one."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as near:
        far, _ = listening.accept()
        with far:
            near.setblocking(False)
            far.setblocking(False)
            buffer = SendBuffer(near, max_age_s=1.0)
            assert buffer.bytes == BUFFER_BYTES_MIN
            now_s = 0.0

            def fill(size: int) -> int:
                """Write up to `size` bytes, and return how many the system took."""
                try:
                    return near.send(b"x" * size)
                except BlockingIOError:
                    return 0

            def cycle(*, reads: int, seconds: float) -> None:
                """Fill the buffer, then read some bytes within some seconds."""
                nonlocal now_s
                while fill(4_096):
                    pass
                buffer.note_full(now_s)
                now_s += seconds
                for _ in range(reads):
                    try:
                        far.recv(1 << 20)
                    except BlockingIOError:
                        break
                    fill(4_096)
                buffer.note_room(now_s)

            for _ in range(10):
                cycle(reads=200, seconds=0.25)
            assert (quick := buffer.bytes) > BUFFER_BYTES_MIN
            for _ in range(40):
                cycle(reads=1, seconds=1.0)
            assert buffer.bytes < quick
