"""Sessions on disk at members of a pool: a member that is killed and comes back has them, unless they began anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.processes import free_port
from fanout.mqtt.packets import Ack, PacketType, Publish
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

DISC = '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n'
DURABLE = Properties(session_expiry_interval=600)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Mosquitto]:
    """Give a Mosquitto that keeps every message for a session, however many they are."""
    with Mosquitto(tmp_path, settings=["max_queued_messages 0", "max_inflight_messages 200"]) as server:
        yield server


async def start_pool(mosquitto: Mosquitto, nodes: Nodes, *, dead_after_s: float) -> list[LiveNode]:
    """Start two members that have heard each other."""
    ports = [free_port() for _ in range(2)]
    peers = json.dumps([f"127.0.0.1:{port}" for port in ports])
    members = [
        nodes.secondary(
            DISC,
            link(mosquitto.port, selector("plant/#", qos=2, writes="forward"), settings=QUICK),
            name=f"edge-{number}",
            http=f'\n[pool]\nlisten = "127.0.0.1:{port}"\npeers = {peers}\ndead_after_s = {dead_after_s}\n',
        )
        for number, port in enumerate(ports, start=1)
    ]
    for member in members:
        await member.begin()
    await wait_until(lambda: all(knows_all(member) for member in members), what="members that know each other")
    return members


def knows_all(member: LiveNode) -> bool:
    """Return whether a member reaches both."""
    return [each["reachable"] for each in member.document("/v1/pool")["members"]] == [True, True]


async def come_back(node: LiveNode, client_id: str) -> RawClient:
    """Connect, again as long as it is not known whether the session is there."""
    async with asyncio.timeout(30):
        while True:
            client = await RawClient.connect(node.port, client_id, clean_start=False, properties=DURABLE)
            if client.connack.reason_code != ReasonCode.SERVER_UNAVAILABLE:
                return client
            await client.close()
            await asyncio.sleep(0.1)


async def leave_session(node: LiveNode, client_id: str) -> None:
    """Begin a session at QoS 2, and leave it there."""
    async with await RawClient.connect(node.port, client_id, clean_start=False, properties=DURABLE) as client:
        await client.subscribe(b"plant/n", qos=2)
    await wait_until(lambda: node.document("/v1/status")["server"]["connections"] == 0)


async def publish(mosquitto: Mosquitto, node: LiveNode, first: int, last: int, *, clients: int) -> None:
    """Publish numbers at QoS 2, and wait until they wait for so many clients."""

    def send() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/n", b"%d" % number) for number in range(first, last)], qos=2, retain=False)

    await asyncio.to_thread(send)
    waiting = (last - first) * clients
    await wait_until(lambda: node.document("/v1/status")["server"]["queued_messages"] == waiting)


async def numbers(client: RawClient, count: int) -> list[int]:
    """Take so many messages at QoS 2 to the end of their handshakes, and return their numbers."""
    got: list[int] = []
    open_ids: set[int] = set()
    while len(got) < count or open_ids:
        match await client.receive():
            case Publish(packet_id=int(packet_id), payload=payload):
                got.append(int(payload))
                open_ids.add(packet_id)
                client.send(Ack(PacketType.PUBREC, packet_id))
            case Ack(type=PacketType.PUBREL, packet_id=packet_id):
                open_ids.discard(packet_id)
                client.send(Ack(PacketType.PUBCOMP, packet_id))
            case other:
                raise AssertionError(f"did not expect {other}")
    return got


async def test_a_killed_member_has_its_sessions_again(patient: Mosquitto, nodes: Nodes) -> None:
    """At itself, and for a client that comes to the other member meanwhile: every message once, in order."""
    first, second = await start_pool(patient, nodes, dead_after_s=20)
    for client_id in ("stays", "roams"):
        await leave_session(first, client_id)
    await publish(patient, first, 0, 10, clients=2)
    await asyncio.to_thread(first.kill)
    coming = asyncio.create_task(come_back(second, "roams"))
    await first.begin()
    async with await coming as roaming, await come_back(first, "stays") as staying:
        assert roaming.connack.session_present
        assert staying.connack.session_present
        await publish(patient, first, 10, 20, clients=0)
        assert await numbers(roaming, 20) == list(range(20))
        assert await numbers(staying, 20) == list(range(20))
    assert "sessions kept over the restart" in first.log_text()


async def test_a_session_that_was_given_away_does_not_come_back(patient: Mosquitto, nodes: Nodes) -> None:
    """A member is killed after its session has moved: it has none, and the client goes on at the other one."""
    first, second = await start_pool(patient, nodes, dead_after_s=20)
    await leave_session(first, "c")
    async with await come_back(second, "c") as client:
        assert client.connack.session_present
        await asyncio.to_thread(first.kill)
        await first.begin()
        assert first.document("/v1/status")["server"]["sessions"] == 0
        await publish(patient, second, 0, 3, clients=0)
        assert await numbers(client, 3) == [0, 1, 2]


async def test_a_member_that_was_dead_yields_to_what_began_meanwhile(patient: Mosquitto, nodes: Nodes) -> None:
    """Its session is older: it ends, and the client gets the newer one there too, without what waited for the older."""
    first, second = await start_pool(patient, nodes, dead_after_s=3)
    await leave_session(first, "c")
    await leave_session(first, "kept")
    await publish(patient, first, 0, 10, clients=2)
    await asyncio.to_thread(first.kill)
    async with await come_back(second, "c") as client:
        assert not client.connack.session_present
        await client.subscribe(b"plant/n", qos=2)
    await first.begin()
    await wait_until(lambda: first.document("/v1/status")["server"]["sessions"] == 1, what="the end of the older one")
    async with await come_back(first, "c") as client, await come_back(first, "kept") as other:
        assert client.connack.session_present
        assert other.connack.session_present
        await publish(patient, first, 10, 12, clients=0)
        assert await numbers(client, 2) == [10, 11]
        assert await numbers(other, 12) == list(range(12))


async def test_kills_while_clients_roam(patient: Mosquitto, nodes: Nodes) -> None:
    """Each member is killed twice in a stream of messages: clients that move between them get each once, in order."""
    members = await start_pool(patient, nodes, dead_after_s=30)
    for number in range(4):
        await leave_session(members[number % 2], f"c-{number}")
    count = 0
    got: dict[str, list[int]] = {f"c-{number}": [] for number in range(4)}
    for turn in range(4):
        killed, other = members[turn % 2], members[1 - turn % 2]

        def send(first: int) -> None:
            with publisher(patient.port) as client:
                publish_all(client, [("plant/n", b"%d" % n) for n in range(first, first + 100)], qos=2, retain=False)

        sending = asyncio.create_task(asyncio.to_thread(partial(send, count)))
        await asyncio.to_thread(killed.kill)
        await killed.begin()
        await sending
        count += 100
        for client_id, numbers_ in got.items():
            async with await come_back(other, client_id) as client:
                assert client.connack.session_present, (turn, client_id)
                numbers_ += await numbers(client, count - len(numbers_))
    assert all(numbers_ == list(range(count)) for numbers_ in got.values())
