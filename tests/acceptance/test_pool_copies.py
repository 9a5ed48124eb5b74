"""Copies of sessions in a pool: sessions of a member that is killed and never comes back go on at the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from fanout.mqtt.packets import Ack, Packet, PacketType, Publish
from tests.cli.processes import run_fanout
from tests.support.durable import come_back, leave_session, publish_numbers, start_pool, take_numbers
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import LiveNode, Nodes
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto


def members_of(member: LiveNode) -> list[dict[str, object]]:
    """Return what a member says of all."""
    found: list[dict[str, object]] = member.document("/v1/pool")["members"]
    return found


def figure(member: LiveNode, name: str) -> int:
    """Return a figure of the copies of a member."""
    return int(member.document("/v1/status")["pool"][name])


async def test_sessions_of_a_killed_member_go_on_at_the_others(patient: Mosquitto, nodes: Nodes) -> None:
    """Whatever waited for them, and what came while nobody had them: at QoS 2 each message once, in order."""
    first, *others = await start_pool(patient, nodes)
    clients = [f"c-{number}" for number in range(8)]
    for number, client_id in enumerate(clients):
        await leave_session(first, client_id, qos=1 + number % 2)
    await publish_numbers(patient, 0, 50)
    await wait_until(lambda: first.document("/v1/status")["server"]["queued_messages"] == 50 * len(clients))
    await wait_until(lambda: figure(first, "sessions_copied") == len(clients), what="a copy of each session")
    await asyncio.to_thread(first.kill)
    await publish_numbers(patient, 50, 60)
    for number, client_id in enumerate(clients):
        async with await come_back(others[number // 2 % 2].port, client_id) as client:
            assert client.connack.session_present, client_id
            if number == 0:
                await publish_numbers(patient, 60, 70)
            got = await take_numbers(client, until=69)
            if number % 2:
                assert got == list(range(70)), client_id
            else:
                assert sorted(set(got)) == list(range(70)), client_id
    assert sum(figure(member, "sessions_inherited_total") for member in others) == len(clients)


class Reader:
    """A client that reads numbers, keeps its Session State, and goes to the next member when one ends."""

    def __init__(self, client_id: str, *, qos: int) -> None:
        """Begin without a session."""
        self.client_id, self.qos = client_id, qos
        self.numbers: list[int] = []
        self.subscribed = asyncio.Event()
        self._open: set[int] = set()

    async def read(self, nodes_: Sequence[LiveNode], *, until: int) -> None:
        """Read until a number has come, and every handshake has ended."""
        for node in nodes_:
            async with await come_back(node.port, self.client_id) as client:
                assert client.connack.session_present == self.subscribed.is_set(), self.client_id
                if not self.subscribed.is_set():
                    await client.subscribe(b"plant/n", qos=self.qos)
                    self.subscribed.set()
                with contextlib.suppress(ServerClosed, OSError):
                    while until not in self.numbers or self._open:
                        self._take(client, await client.receive())
                    return

    def _take(self, client: RawClient, packet: Packet) -> None:
        match packet:
            case Publish(packet_id=int(packet_id), payload=payload, qos=1):
                self.numbers.append(int(payload))
                client.send(Ack(PacketType.PUBACK, packet_id))
            case Publish(packet_id=int(packet_id), payload=payload):
                if packet_id not in self._open:
                    self.numbers.append(int(payload))
                self._open.add(packet_id)
                client.send(Ack(PacketType.PUBREC, packet_id))
            case Ack(type=PacketType.PUBREL, packet_id=packet_id):
                self._open.discard(packet_id)
                client.send(Ack(PacketType.PUBCOMP, packet_id))
            case other:
                raise AssertionError(f"did not expect {other}")


async def test_connected_clients_lose_nothing_and_get_nothing_twice(patient: Mosquitto, nodes: Nodes) -> None:
    """Their member is killed in a stream, in the middle of handshakes, and they connect elsewhere at once."""
    first, second, third = await start_pool(patient, nodes)
    readers = [Reader(f"c-{number}", qos=1 + number % 2) for number in range(6)]
    async with asyncio.TaskGroup() as group:
        for reader, other in zip(readers, (second, third) * 3, strict=True):
            group.create_task(reader.read((first, other), until=399))
        await asyncio.gather(*(reader.subscribed.wait() for reader in readers))
        await wait_until(lambda: figure(first, "sessions_copied") == 6, what="a copy of each session")
        publishing = group.create_task(publish_numbers(patient, 0, 400))
        await wait_until(lambda: all(len(reader.numbers) > 20 for reader in readers))
        await asyncio.to_thread(first.kill)
        await publishing
    for reader in readers:
        if reader.qos == 2:
            assert reader.numbers == list(range(400))
        else:
            assert sorted(set(reader.numbers)) == list(range(400))


async def test_what_is_not_held_any_more_is_told(patient: Mosquitto, nodes: Nodes) -> None:
    """Session Present 0 with a Reason String, at whichever member; and `fanout pool` shows what is kept."""
    first, *others = await start_pool(patient, nodes, settings="history_bytes = 20000\n")
    await leave_session(first, "c", qos=1)
    await publish_numbers(patient, 0, 10)
    await wait_until(lambda: figure(first, "sessions_copied") == 1)
    await wait_until(lambda: [each["copies_held"] for each in members_of(first)][1:] in ([0, 1], [1, 0]))
    table = (await asyncio.to_thread(run_fanout, "pool", first.url)).stdout
    assert "MEMBER SESSIONS COPIED COPIES HELD OLDEST ON ITS WAY HISTORY USED" in " ".join(table.split())
    await publish_numbers(patient, 10, 300)
    await wait_until(lambda: float(first.document("/v1/status")["pool"]["history_used_ratio"]) > 1)
    await asyncio.to_thread(first.kill)
    async with await come_back(others[0].port, "c") as client:
        assert not client.connack.session_present
        reason = client.connack.properties.reason_string
        assert reason == "The server that had the session is gone, and its messages are not held any more"


async def test_without_copies_sessions_are_lost_with_their_member(patient: Mosquitto, nodes: Nodes) -> None:
    """As the configuration says; the client is not kept waiting for longer than a verdict takes."""
    first, second = await start_pool(patient, nodes, count=2, settings="session_copies = false\n")
    await leave_session(first, "c", qos=1)
    await asyncio.to_thread(first.kill)
    async with await come_back(second.port, "c") as client:
        assert not client.connack.session_present
        assert client.connack.properties.reason_string is None
