"""Sessions on disk at members of a pool: a member that is killed and comes back has them, unless they began anew."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.durable import DISC, come_back, leave_session, publish_numbers, start_pool, take_numbers
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import LiveNode, Nodes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto


async def publish(mosquitto: Mosquitto, node: LiveNode, first: int, last: int, *, clients: int) -> None:
    """Publish numbers, and wait until they wait for so many clients."""
    await publish_numbers(mosquitto, first, last)
    waiting = (last - first) * clients
    await wait_until(lambda: node.document("/v1/status")["server"]["queued_messages"] == waiting)


async def test_a_killed_member_has_its_sessions_again(patient: Mosquitto, nodes: Nodes) -> None:
    """At itself, and for a client that comes to the other member meanwhile: every message once, in order."""
    first, second = await start_pool(patient, nodes, count=2, sections=DISC, settings="dead_after_s = 20\n")
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
