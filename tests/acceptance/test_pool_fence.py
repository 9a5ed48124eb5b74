"""Members of a pool that are stopped: they serve no durable session until the others have answered."""

from __future__ import annotations

import asyncio
import signal

import pytest

from fanout.mqtt.packets import Connack, Connect, encode
from fanout.mqtt.reason_codes import ReasonCode
from tests.support.durable import DURABLE, come_back, publish_numbers, start_pool, take_numbers
from tests.support.mosquitto import Mosquitto
from tests.support.network import unread_bytes
from tests.support.nodes import Nodes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto


async def test_a_member_that_was_stopped_yields_what_began_meanwhile(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """It is fenced before it serves anybody again, and goes on with the sessions that nobody has begun elsewhere."""
    settings = "dead_after_s = 4\nsession_copies = false\n"
    stopped, other, third = await start_pool(mosquitto, nodes, settings=settings)
    for client_id in ("c", "kept"):
        async with await come_back(stopped.port, client_id) as client:
            await client.subscribe(b"plant/n", qos=1)
    connected = await come_back(stopped.port, "connected")
    assert stopped.process is not None
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        coming = asyncio.create_task(RawClient.connect(other.port, "c", clean_start=False, properties=DURABLE))
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
    figures = stopped.document("/v1/status")["pool"]
    assert figures["fences_total"] >= 1
    assert figures["sessions_ended_total"] == 1
    await publish_numbers(mosquitto, 1, 2)
    assert await take_numbers(client, until=1) == await take_numbers(kept, until=1) == [1]
    assert "durable sessions fenced" in stopped.log_text()
    for each in (first, elsewhere, client, connected, kept):
        await each.close()
