"""Copies of sessions in a pool: sessions of a member that is killed and never comes back go on at the others."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.processes import run_fanout
from tests.support.durable import come_back, leave_session, publish_numbers, start_pool
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import LiveNode, Nodes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto


def members_of(member: LiveNode) -> list[dict[str, object]]:
    """Return what a member says of all."""
    found: list[dict[str, object]] = member.document("/v1/pool")["members"]
    return found


def figure(member: LiveNode, name: str) -> int:
    """Return a figure of the copies of a member."""
    return int(member.document("/v1/status")["pool"][name])


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
