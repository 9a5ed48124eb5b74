"""Quotas of users, over real sockets with a real gate: sessions, connections and subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from fanout.mqtt.packets import Connack, Disconnect
from fanout.mqtt.reason_codes import ReasonCode
from tests.server.client.test_session_fence import Finder
from tests.server.test_access import DURABLE, USERS, StartGuarded, access_config, alice, gates, start_guarded, users
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

__all__ = ["gates", "start_guarded"]  # fixtures

QUOTA = ReasonCode.QUOTA_EXCEEDED


async def bob(node: Any, client_id: str, **more: Any) -> RawClient:
    """Connect as the other user of the password file."""
    return await RawClient.connect(node.port, client_id, username="bob", password=USERS["bob"], **more)


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, QUOTA)])
async def test_one_user_cannot_take_all_sessions(start_guarded: StartGuarded, version: int, code: int) -> None:
    """By default it gets four fifths of them; its own client may come back, and another user gets in."""
    node = await start_guarded(passwords=users(**USERS), server={"sessions_max": 5})
    for number in range(4):
        await (await alice(node, f"a{number}", properties=DURABLE)).close()
    with capture_logs() as lines:
        async with await alice(node, "\x1b[31m", version=version) as client:
            assert client.connack.reason_code == code
    assert [(line["quota"], line["user"]) for line in lines if line["event"] == "quota_reached"] == [
        ("access.quota.sessions_max", "alice")
    ]
    assert node.server.figures()["limits_reached_total"]["access.quota.sessions_max"] == 1
    async with await alice(node, "a0", clean_start=False, properties=DURABLE) as client:
        assert client.connack == Connack(True, ReasonCode.SUCCESS, client.connack.properties)
    async with await bob(node, "b") as client:
        assert client.connack.reason_code == 0
    node.server.lifecycles.kick("a1", clean=True)
    async with await alice(node, "a4") as client:
        assert client.connack.reason_code == 0


async def test_no_quota_holds_where_no_client_can_have_a_user(start_guarded: StartGuarded) -> None:
    """All clients are alike then, and may have all that there is; a table for them is kept all the same."""
    node = await start_guarded(server={"sessions_max": 2})
    async with await RawClient.connect(node.port, "a"), await RawClient.connect(node.port, "b") as client:
        assert client.connack.reason_code == 0
    node = await start_guarded(quota=[{"user": "", "sessions_max": 1}])
    async with await RawClient.connect(node.port, "a"), await RawClient.connect(node.port, "b") as client:
        assert client.connack.reason_code == QUOTA


async def test_connections_of_a_user_are_bounded(start_guarded: StartGuarded) -> None:
    """A client that comes back takes over its own connection, and needs no further one."""
    quota = [{"user": "alice", "connections_max": 1}]
    node = await start_guarded(passwords=users(**USERS), quota=quota)
    async with await alice(node, "a", properties=DURABLE) as first:
        async with await alice(node, "b") as client:
            assert client.connack.reason_code == QUOTA
        async with await alice(node, "a", clean_start=False, properties=DURABLE) as client:
            assert client.connack.session_present
            assert (await first.expect(Disconnect)).reason_code == ReasonCode.SESSION_TAKEN_OVER
        await wait_until(lambda: node.server.figures()["connections"] == 0)
    async with await alice(node, "b") as client:
        assert client.connack.reason_code == 0
    assert node.server.figures()["limits_reached_total"]["access.quota.connections_max"] == 1


async def test_subscriptions_of_a_user_are_bounded(start_guarded: StartGuarded) -> None:
    """Those of all its sessions count, shared ones too; a subscription that is made again needs no further place."""
    quota = [{"subscriptions_max": 3}]
    node = await start_guarded(passwords=users(**USERS), quota=quota)
    async with await alice(node, "a") as first, await alice(node, "b") as second, await bob(node, "c") as other:
        assert (await first.subscribe(b"x", b"$share/g/x")).reason_codes == (0, 0)
        with capture_logs() as lines:
            assert (await second.subscribe(b"x", b"y", b"z", b"x")).reason_codes == (0, QUOTA, QUOTA, 0)
        assert [line["user"] for line in lines if line["event"] == "quota_reached"] == ["alice"]
        assert (await other.subscribe(b"x", b"y", b"z")).reason_codes == (0, 0, 0)
        await first.unsubscribe(b"x")
        assert (await second.subscribe(b"y", b"z")).reason_codes == (0, QUOTA)
        assert node.server.figures()["limits_reached_total"]["access.quota.subscriptions_max"] == 3
    await wait_until(lambda: node.server.figures()["sessions"] == 0)
    async with await alice(node, "d") as client:
        assert (await client.subscribe(b"x", b"y", b"z")).reason_codes == (0, 0, 0)


async def test_a_refused_client_leaves_the_session_with_its_identifier_alone(start_guarded: StartGuarded) -> None:
    """The quota is judged before anything is taken over: of its own user, and of a client without one."""
    quota = [{"user": "alice", "connections_max": 1}, {"user": "bob", "sessions_max": 1}]
    node = await start_guarded(passwords=users(**USERS), quota=quota)
    async with await alice(node, "absent", properties=DURABLE) as client:
        await client.subscribe(b"x")
    await wait_until(lambda: node.server.figures()["connections"] == 0)
    nobodys = await RawClient.connect(node.port, "nobody's", properties=DURABLE)
    async with nobodys, await alice(node, "a"), await bob(node, "b"):
        sessions = list(node.server.registry)
        async with await alice(node, "absent", properties=DURABLE) as client:
            assert client.connack.reason_code == QUOTA
        async with await bob(node, "nobody's") as client:
            assert client.connack.reason_code == QUOTA
        assert list(node.server.registry) == sessions
        assert await nobodys.messages_until_ping() == []
    assert node.server.figures()["takeovers_total"] == 0


async def test_a_client_that_replaces_what_its_user_has_needs_no_further_place(start_guarded: StartGuarded) -> None:
    """Neither with Clean Start, nor when a reload has lowered the quota below what the user has."""
    node = await start_guarded(passwords=users(**USERS), quota=[{"sessions_max": 3, "connections_max": 3}])
    async with await alice(node, "a"), await alice(node, "b"), await alice(node, "c", properties=DURABLE):
        gate = node.server.gate
        assert gate is not None
        lowered = access_config(quota=[{"sessions_max": 1, "connections_max": 1}])
        gate.replace(lowered, passwords=users(**USERS))
        for client_id in ("a", "c"):
            async with await alice(node, client_id, properties=DURABLE) as client:
                assert client.connack.reason_code == 0
        async with await alice(node, "d") as client:
            assert client.connack.reason_code == QUOTA


@pytest.mark.parametrize("clean_start", [True, False])
async def test_the_pool_is_not_asked_for_a_client_over_its_quota(
    start_guarded: StartGuarded, clean_start: bool
) -> None:
    """What it has at another member stays there."""
    node = await start_guarded(passwords=users(**USERS), quota=[{"sessions_max": 1}])
    async with await alice(node, "a"):
        finder = node.server.lifecycles.finder = Finder(node)
        async with await alice(node, "b", clean_start=clean_start, properties=DURABLE) as client:
            assert client.connack.reason_code == QUOTA
        assert not finder.asked
