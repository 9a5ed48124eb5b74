"""Users of a pool: nobody ends or gets the session of another one, at whatever member, and whoever is silent."""

from __future__ import annotations

import json

import pytest

from fanout.access.passwords import update_password_file
from fanout.mqtt.reason_codes import ReasonCode
from tests.access.pieces import cheap_hash
from tests.support.durable import come_back, publish_numbers, start_pool, take_numbers
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import LiveNode, Nodes
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

MESSAGES = 20


async def pool_of_users(mosquitto: Mosquitto, nodes: Nodes, *, settings: str = "") -> list[LiveNode]:
    """Start three members with two users."""
    users = nodes.directory / "users"
    update_password_file(
        users, lambda none: none.with_user("victim", cheap_hash(b"v")).with_user("stranger", cheap_hash(b"s"))
    )
    access = f'[access]\npassword_file = {json.dumps(str(users))}\nanonymous = "never"\n'
    sections = f'{access}[[access.rule]]\nallow = "all"\nfilter = "#"\n'
    return await start_pool(mosquitto, nodes, sections=sections, settings=f"dead_after_s = 3\n{settings}")


async def connect(member: LiveNode, user: str, *, clean_start: bool) -> RawClient:
    """Connect as a user with the Client Identifier of the victim, once it is known where the session is."""
    return await come_back(member.port, "x", user=user, clean_start=clean_start)


async def leave_messages(mosquitto: Mosquitto, member: LiveNode) -> None:
    """Leave a session of the victim with messages."""
    async with await connect(member, "victim", clean_start=True) as client:
        assert client.connack.reason_code == ReasonCode.SUCCESS
        await client.subscribe(b"plant/n", qos=1)
    await wait_until(lambda: member.document("/v1/status")["server"]["connections"] == 0)
    await publish_numbers(mosquitto, 0, MESSAGES)
    await wait_until(lambda: member.document("/v1/status")["server"]["queued_messages"] == MESSAGES)


async def refused(member: LiveNode, *, clean_start: bool) -> ReasonCode | int:
    """Return how the stranger is refused."""
    async with await connect(member, "stranger", clean_start=clean_start) as client:
        assert not client.connack.session_present
        return client.connack.reason_code


async def test_a_stranger_ends_no_session_of_another_member(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """It is refused with 0x85, and the victim keeps its messages and its connection; its own Clean Start ends it."""
    first, second, third = await pool_of_users(mosquitto, nodes)
    await leave_messages(mosquitto, first)
    for member in (second, third):
        for clean_start in (True, False):
            assert await refused(member, clean_start=clean_start) == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    victim = await connect(first, "victim", clean_start=False)
    assert victim.connack.session_present
    assert await refused(second, clean_start=True) == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert await take_numbers(victim, until=MESSAGES - 1) == list(range(MESSAGES))
    async with await connect(second, "victim", clean_start=True) as anew:
        assert anew.connack.reason_code == ReasonCode.SUCCESS
        await victim.expect_end(ReasonCode.SESSION_TAKEN_OVER)
    await victim.close()
