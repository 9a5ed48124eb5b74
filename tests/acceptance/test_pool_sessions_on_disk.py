"""Sessions on disk at members of a pool: a member that is killed and comes back has them, unless they began anew."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.processes import free_port
from tests.support.durable import come_back, leave_session, publish_numbers, take_numbers
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

DISC = '[retained]\nstorage = "disc"\n[sessions]\nstorage = "disc"\n'


async def start_pool(mosquitto: Mosquitto, nodes: Nodes, *, dead_after_s: float, settings: str = "") -> list[LiveNode]:
    """Start two members that have heard each other."""
    ports = [free_port() for _ in range(2)]
    peers = json.dumps([f"127.0.0.1:{port}" for port in ports])
    members = [
        nodes.secondary(
            DISC,
            link(mosquitto.port, selector("plant/#", qos=2, writes="forward"), settings=QUICK),
            name=f"edge-{number}",
            http=f'\n[pool]\nlisten = "127.0.0.1:{port}"\npeers = {peers}\ndead_after_s = {dead_after_s}\n{settings}',
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


async def publish(mosquitto: Mosquitto, node: LiveNode, first: int, last: int, *, clients: int) -> None:
    """Publish numbers, and wait until they wait for so many clients."""
    await publish_numbers(mosquitto, first, last)
    waiting = (last - first) * clients
    await wait_until(lambda: node.document("/v1/status")["server"]["queued_messages"] == waiting)


async def test_a_killed_member_has_its_sessions_again(patient: Mosquitto, nodes: Nodes) -> None:
    """At itself, and for a client that comes to the other member meanwhile: every message once, in order."""
    first, second = await start_pool(patient, nodes, dead_after_s=20)
    for client_id in ("stays", "roams"):
        await leave_session(first, client_id, qos=2)
    await publish(patient, first, 0, 10, clients=2)
    await asyncio.to_thread(first.kill)
    coming = asyncio.create_task(come_back(second.port, "roams"))
    await first.begin()
    async with await coming as roaming, await come_back(first.port, "stays") as staying:
        assert roaming.connack.session_present
        assert staying.connack.session_present
        await publish(patient, first, 10, 20, clients=0)
        assert await take_numbers(roaming, until=19) == list(range(20))
        assert await take_numbers(staying, until=19) == list(range(20))
    assert "sessions kept over the restart" in first.log_text()


async def test_a_session_that_was_given_away_does_not_come_back(patient: Mosquitto, nodes: Nodes) -> None:
    """A member is killed after its session has moved: it has none, and the client goes on at the other one."""
    first, second = await start_pool(patient, nodes, dead_after_s=20)
    await leave_session(first, "c", qos=2)
    async with await come_back(second.port, "c") as client:
        assert client.connack.session_present
        await asyncio.to_thread(first.kill)
        await first.begin()
        assert first.document("/v1/status")["server"]["sessions"] == 0
        await publish(patient, second, 0, 3, clients=0)
        assert await take_numbers(client, until=2) == [0, 1, 2]


async def test_a_member_that_was_dead_yields_to_what_began_meanwhile(patient: Mosquitto, nodes: Nodes) -> None:
    """Its session is older: it ends, and the client gets the newer one there too, without what waited for the older."""
    first, second = await start_pool(patient, nodes, dead_after_s=3, settings="session_copies = false\n")
    await leave_session(first, "c", qos=2)
    await leave_session(first, "kept", qos=2)
    await publish(patient, first, 0, 10, clients=2)
    await asyncio.to_thread(first.kill)
    async with await come_back(second.port, "c") as client:
        assert not client.connack.session_present
        await client.subscribe(b"plant/n", qos=2)
    await first.begin()
    await wait_until(lambda: first.document("/v1/status")["server"]["sessions"] == 1, what="the end of the older one")
    async with await come_back(first.port, "c") as client, await come_back(first.port, "kept") as other:
        assert client.connack.session_present
        assert other.connack.session_present
        await publish(patient, first, 10, 12, clients=0)
        assert await take_numbers(client, until=11) == [10, 11]
        assert await take_numbers(other, until=11) == list(range(12))
