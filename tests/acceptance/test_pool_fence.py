"""Members of a pool that are stopped, or cut off: they serve no durable session until the others have answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest

from bench.processes import free_port
from fanout.mqtt.packets import Connack, Connect, encode
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from tests.support.durable import DURABLE, come_back
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.network import Proxy, unread_bytes
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_client import RawClient, ServerClosed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

DEAD_AFTER_S = 3.0
LEFT_S = 60.0


class Pool:
    """Three members; each has a way of its own to Mosquitto and to each of the others."""

    def __init__(self, members: list[LiveNode], to_primary: list[Proxy], between: dict[tuple[int, int], Proxy]) -> None:
        self.members = members
        self._to_primary = to_primary
        self._between = between

    def ways_of(self, number: int) -> list[Proxy]:
        """Return all ways of a member, in both directions."""
        return [self._to_primary[number], *(proxy for ends, proxy in self._between.items() if number in ends)]


@contextlib.asynccontextmanager
async def pool_of_three(mosquitto: Mosquitto, nodes: Nodes) -> AsyncIterator[Pool]:
    """Run three members that have heard each other; without copies, so that a session ends with its member."""
    async with contextlib.AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        to_primary = [await stack.enter_async_context(Proxy(mosquitto.port)) for _ in ports]
        between = {
            (asker, other): await stack.enter_async_context(Proxy(ports[other]))
            for asker in range(3)
            for other in range(3)
            if asker != other
        }
        members = []
        for number, port in enumerate(ports):
            peers = json.dumps([f"127.0.0.1:{between[number, other].port}" for other in range(3) if other != number])
            members.append(
                nodes.secondary(
                    link(to_primary[number].port, selector("plant/#", qos=1, writes="forward"), settings=QUICK),
                    name=f"edge-{number}",
                    log=False,
                    http=f'\n[pool]\nlisten = "127.0.0.1:{port}"\npeers = {peers}\ndead_after_s = {DEAD_AFTER_S}\n'
                    "session_copies = false\n",
                )
            )
        for member in members:
            await member.begin()
        for member in members:
            await wait_until(partial(knows_the_pool, member), LEFT_S, what=f"{member.name} knowing the pool")
        try:
            yield Pool(members, to_primary, between)
        finally:
            await asyncio.to_thread(nodes.end)  # while they reach each other: cut off, each waits for the others


def knows_the_pool(member: LiveNode) -> bool:
    """Return whether a member sees the whole pool."""
    return bool(member.document("/v1/pool")["ready"])


def figures(member: LiveNode) -> dict[str, int]:
    """Return the figures of a member."""
    return dict(member.document("/v1/status")["pool"])


async def connect(member: LiveNode, client_id: str, *, properties: Properties = DURABLE) -> RawClient:
    """Connect with Clean Start 0."""
    return await RawClient.connect(member.port, client_id, clean_start=False, properties=properties)


async def leave_session(member: LiveNode, client_id: str) -> None:
    """Begin a session, and leave it there."""
    async with await come_back(member.port, client_id) as client:
        assert client.connack.reason_code == ReasonCode.SUCCESS
        await client.subscribe(b"plant/n", qos=1)


async def publish(mosquitto: Mosquitto, payload: bytes) -> None:
    """Publish a message at the primary."""

    def send() -> None:
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/n", payload)], retain=False)

    await asyncio.to_thread(send)


async def test_a_member_that_was_stopped_yields_what_began_meanwhile(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """It is fenced before it serves anybody again, and goes on with the sessions that nobody has begun elsewhere."""
    async with pool_of_three(mosquitto, nodes) as pool:
        stopped, other, third = pool.members
        for client_id in ("c", "kept"):
            await leave_session(stopped, client_id)
        connected = await come_back(stopped.port, "connected")
        assert stopped.process is not None
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            coming = asyncio.create_task(connect(other, "c"))
            elsewhere = await come_back(third.port, "another")  # it waits for the verdict, and so does "c"
            assert elsewhere.connack.reason_code == ReasonCode.SUCCESS
            client = await coming
            if client.connack.reason_code == ReasonCode.SERVER_UNAVAILABLE:  # it came before the silence was known
                await client.close()
                client = await come_back(other.port, "c")
            assert not client.connack.session_present
            await client.subscribe(b"plant/n", qos=1)
            first = await RawClient.open(stopped.port)
            packet = encode(Connect("kept", clean_start=False, properties=DURABLE), version=5)
            first.send_bytes(packet)
            await wait_until(lambda: unread_bytes(stopped.port) >= len(packet), what="a CONNECT that nobody reads")
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        assert (await first.expect(Connack)).reason_code == ReasonCode.SERVER_UNAVAILABLE
        await connected.expect_end(ReasonCode.SERVER_BUSY)
        kept = await come_back(stopped.port, "kept")
        assert kept.connack.session_present
        assert figures(stopped)["fences_total"] == 1
        assert figures(stopped)["sessions_ended_total"] == 1
        await publish(mosquitto, b"1")
        assert [message.payload for message in await client.messages(1)] == [b"1"]
        assert [message.payload for message in await kept.messages(1)] == [b"1"]
        assert "durable sessions fenced" in stopped.log_text()
        assert [figures(member)["fences_total"] for member in (other, third)] == [0, 0]
        for each in (first, elsewhere, client, connected, kept):
            await each.close()


async def test_a_member_that_is_cut_off_is_fenced_before_it_is_dead(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """Its durable clients are sent away by then, others stay; when it is back it has what nobody began elsewhere."""
    async with pool_of_three(mosquitto, nodes) as pool:
        cut_off, other, _ = pool.members
        await leave_session(cut_off, "c")
        connected = await come_back(cut_off.port, "connected")
        plain = await RawClient.connect(cut_off.port, "plain")
        for way in pool.ways_of(0):
            way.pause()
        # This client waits until the member is dead; by then nobody is served there.
        await wait_until(
            lambda: other.document("/v1/pool")["members"][1]["reachable"] is False, LEFT_S, what="a silent member"
        )
        client = await come_back(other.port, "c")
        assert not client.connack.session_present
        assert cut_off.document("/v1/pool")["fenced"]
        with contextlib.suppress(ServerClosed):
            await connected.expect_end(ReasonCode.SERVER_BUSY)
        refused = await connect(cut_off, "new")
        assert refused.connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        assert await plain.messages_until_ping() == []
        [reason] = [one for one in cut_off.document("/v1/pool")["reasons"] if "fenced" in one]
        assert reason == "edge-0 is fenced: it serves no durable session until the others have answered it"
        for way in pool.ways_of(0):
            way.resume()
        await wait_until(lambda: not cut_off.document("/v1/pool")["fenced"], LEFT_S, what="the end of the fence")
        assert figures(cut_off)["sessions_ended_total"] == 1
        back = await come_back(cut_off.port, "connected")
        assert back.connack.session_present
        assert await plain.messages_until_ping() == []
        assert [figures(member)["fences_total"] for member in pool.members] == [1, 0, 0]
        for each in (client, connected, refused, plain, back):
            await each.close()
