"""Sessions on disk: clients of a secondary that is restarted go on, beside a real Mosquitto."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from fanout.link.snapshot.retained_set import KEEPS_QOS_TOPICS
from fanout.mqtt.packets import Ack, PacketType, Publish
from tests.support.durable import DURABLE, publish_numbers
from tests.support.examples import examples
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

DISC = '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n'


@pytest.fixture
def node(nodes: Nodes, patient: Mosquitto) -> LiveNode:
    """Describe a secondary with its sessions on disk, beside a Mosquitto that keeps every message for its session."""
    return nodes.secondary(DISC, link(patient.port, selector("plant/#", qos=2), settings=QUICK))


class Reader:
    """A durable client that connects again for ever, and completes what it gets; it leaves now and then on its own."""

    def __init__(self, node: LiveNode, name: str, *, qos: int = 2, leaves: Random | None = None) -> None:
        self._node = node
        self._name = name
        self._qos = qos
        self._leaves = leaves
        self.received: list[bytes] = []
        """Payloads of completed and open messages, each once it came without its Packet Identifier being open."""
        self.sessions_begun = 0
        """How often the server had no session for it."""
        self._open: set[int] = set()

    def has(self, count: int) -> bool:
        """Return whether it has received so many messages."""
        return len(self.received) >= count

    async def run(self) -> None:
        """Connect, read, and begin again; until it is cancelled."""
        while True:
            try:
                client = await RawClient.connect(self._node.port, self._name, clean_start=False, properties=DURABLE)
            except (ServerClosed, OSError, AssertionError):
                await asyncio.sleep(0.05)
                continue
            async with client:
                if not client.connack.session_present:
                    self.sessions_begun += 1
                    self._open.clear()
                    await client.subscribe(b"plant/#", qos=self._qos)
                try:
                    while self._leaves is None or self._leaves.random() > 0.005:
                        self._take(client, await client.receive())
                except (ServerClosed, ConnectionError, TimeoutError):
                    continue

    def _take(self, client: RawClient, packet: object) -> None:
        match packet:
            case Publish(packet_id=int(packet_id), payload=payload, qos=1):
                self.received.append(payload)
                client.send(Ack(PacketType.PUBACK, packet_id))
            case Publish(packet_id=int(packet_id), payload=payload):
                if packet_id not in self._open:
                    self._open.add(packet_id)
                    self.received.append(payload)
                client.send(Ack(PacketType.PUBREC, packet_id))
            case Ack(type=PacketType.PUBREL, packet_id=packet_id):
                self._open.discard(packet_id)
                client.send(Ack(PacketType.PUBCOMP, packet_id))


async def test_ends_in_a_stream_lose_and_double_nothing(patient: Mosquitto, nodes: Nodes) -> None:
    """Ten clients at QoS 2, half of them away for a while: each gets every number once and in order.

    The node is killed, stopped in good order and killed again.
    """
    stored = DISC.replace("disc", "disc_only", 1)
    node = nodes.secondary(stored, link(patient.port, selector("plant/#", qos=2), settings=QUICK))
    await through_a_stream(patient, node, [node.kill, node.stop, node.kill])
    assert node.link_status()["epochs_total"] == 0, "the link went on too"


async def test_kills_at_any_moment_beside_clients_that_come_and_go(patient: Mosquitto, nodes: Nodes) -> None:
    """At QoS 2 each number comes once and in order; at QoS 1 none is lost. Subscriptions change meanwhile."""
    draw = Random(1)
    each = examples(900)
    node = nodes.secondary(DISC, link(patient.port, selector("plant/#", qos=2), settings=QUICK))
    await node.begin()
    readers = [Reader(node, f"c{number}", qos=1 + number % 2, leaves=Random(draw.random())) for number in range(8)]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    await wait_until(lambda: all(reader.sessions_begun for reader in readers), what="subscriptions")
    for round_ in range(3):
        sending = asyncio.create_task(publish_numbers(patient, each * round_, each * (round_ + 1)))
        mark = each * round_ + draw.randrange(1, each - 20)
        await wait_until(partial(any_has, readers, mark), what="messages")
        await asyncio.to_thread(node.kill)
        await node.begin()
        await sending
    try:
        expected = [b"%d" % number for number in range(3 * each)]
        wanted = set(expected)
        await wait_until(lambda: all(wanted <= set(reader.received) for reader in readers), 30, what="all messages")
        assert [reader.received == expected for reader in readers[1::2]] == [True] * 4
        assert [list(dict.fromkeys(reader.received)) == expected for reader in readers[::2]] == [True] * 4
        assert [reader.sessions_begun for reader in readers] == [1] * 8
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


@pytest.mark.parametrize(("topics", "payload"), [(200, b"x" * 2_000), (12_000, b"x")], ids=["few", "many"])
async def test_a_kill_in_a_comparison_loses_nothing_or_says_so(
    patient: Mosquitto, nodes: Nodes, topics: int, payload: bytes
) -> None:
    """The session at the primary goes on collecting. With very many topics it cannot, and clients are told."""
    with publisher(patient.port) as client:
        publish_all(client, [(f"plant/set/{number}", payload) for number in range(topics)], qos=1)
    async with Proxy(patient.port) as proxy:
        proxy.accepting = False
        both = link(proxy.port, selector("plant/#", qos=2), other_ports=[patient.port], settings=QUICK)
        node = nodes.secondary(DISC, both)
        await node.begin()
        await node.until_ready()
        async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
            await client.subscribe(b"plant/n", qos=2)
        await asyncio.to_thread(node.kill)
        proxy.accepting, proxy.throttle_bytes_per_s = True, 2_000.0
        await node.begin()
        await wait_until(lambda: node.link_state() == "verifying", what="the comparison")
        await asyncio.to_thread(node.kill)
        proxy.throttle_bytes_per_s = None
        await publish_numbers(patient, 0, 20)
        await node.begin()
        async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
            if topics > KEEPS_QOS_TOPICS:
                assert not client.connack.session_present
                assert "sessions of clients ended" in node.log_text()
                return
            assert client.connack.session_present
            assert [message.payload for message in await client.messages(20)] == [b"%d" % each for each in range(20)]


def any_has(readers: Sequence[Reader], count: int) -> bool:
    """Return whether a reader has received so many messages."""
    return any(reader.has(count) for reader in readers)


async def through_a_stream(patient: Mosquitto, node: LiveNode, ends: Sequence[Callable[[], object]]) -> None:
    """Let ten clients at QoS 2 read a stream while a node ends and begins anew; half of them are away until the end."""
    await node.begin()
    readers = [Reader(node, f"c{number}") for number in range(10)]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    await wait_until(lambda: all(reader.sessions_begun for reader in readers), what="subscriptions")
    for task in reading[5:]:  # they stay away until the end
        task.cancel()
    await asyncio.gather(*reading[5:], return_exceptions=True)
    each = examples(1_800)
    for round_, end in enumerate(ends):
        first = each * round_
        sending = asyncio.create_task(publish_numbers(patient, first, first + each))
        await wait_until(partial(readers[0].has, first + 50), what="messages")
        await asyncio.to_thread(end)
        await node.begin()
        await sending
    reading[5:] = [asyncio.create_task(reader.run()) for reader in readers[5:]]
    try:
        count = each * len(ends)
        expected = [b"%d" % number for number in range(count)]
        await wait_until(lambda: all(reader.has(count) for reader in readers), 30, what="all messages")
        assert [reader.received == expected for reader in readers] == [True] * 10
        assert [reader.sessions_begun for reader in readers] == [1] * 10
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_sessions_that_wait_are_not_kept_for_later(nodes: Nodes, node: LiveNode) -> None:
    """A node that is started without storage removes them: they would be outdated when it has storage again."""
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE):
        pass
    await asyncio.to_thread(node.stop)
    kept = node.links
    node.links = kept.replace('[sessions]\nstorage = "disc"\n', "")
    await node.begin()
    assert "sessions of an earlier process removed" in node.log_text()
    await asyncio.to_thread(node.stop)
    node.links = kept
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
        assert not client.connack.session_present


async def test_a_start_that_fails_leaves_the_sessions_to_the_next(nodes: Nodes, node: LiveNode) -> None:
    """The address of the listener is taken: what was read is written again by the stop."""
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE):
        pass
    await asyncio.to_thread(node.stop)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", node.port))
        with pytest.raises(RuntimeError):
            await asyncio.to_thread(node.start)
    await node.begin()
    async with await RawClient.connect(node.port, "c", clean_start=False, properties=DURABLE) as client:
        assert client.connack.session_present
