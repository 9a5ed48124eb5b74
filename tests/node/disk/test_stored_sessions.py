"""Sessions on disk: what a server that stopped leaves to the next one, and what becomes of it there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.access.gate import Gate
from fanout.config.access import AccessConfig
from fanout.durable.hosting.session_restart import RETURN_S, SessionRestart
from fanout.errors import StoreError
from fanout.mqtt.packets import Ack, PacketType, Publish, Will
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.disk.stored_sessions import StoredSessions
from tests.server.node_in_memory import NodeInMemory, update
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

DURABLE = Properties(session_expiry_interval=600)
START_S = 100.0

Restart = Callable[..., Awaitable[NodeInMemory]]
Connect = Callable[..., Awaitable[RawClient]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the sessions are stored."""
    return tmp_path / "sessions-edge-1"


@pytest.fixture
async def restart(path: Path) -> AsyncIterator[Restart]:
    """Give a function that starts a node, after the last one has stopped for `away_s`, with what it has stored."""
    running: list[tuple[NodeInMemory, Sessions]] = []

    async def start(*, away_s: float = 1.0, gate: Gate | None = None, **settings: object) -> NodeInMemory:
        node = NodeInMemory(gate=gate, connection_router=None, **settings)
        node.clock.advance(START_S)
        sessions = Sessions(node, path)
        if running:
            old, its_sessions = running.pop()
            await old.server.stop(deadline_s=0.1)
            await its_sessions.store()
            node.clock.advance((old.clock.now_ns() - node.clock.now_ns()) / 1e9 + away_s)
        await sessions.restore()
        await node.server.start()
        running.append((node, sessions))
        return node

    yield start
    for node, _ in running:
        await node.server.stop(deadline_s=0.1)


class Sessions:
    """The sessions of a node in memory, and their file."""

    def __init__(self, node: NodeInMemory, path: Path) -> None:
        """Prepare both."""
        logger = structlog.get_logger()
        self._file = StoredSessions(path, clock=node.clock, logger=logger)
        self._restart = SessionRestart(node.server, clock=node.clock, logger=logger)

    async def restore(self) -> None:
        """Take over what the file has."""
        await self._file.restore(self._restart.take_over)

    async def store(self) -> None:
        """Leave the sessions to the file."""
        await self._file.store(self._restart.leave())


@pytest.fixture(name="connect")
async def connector() -> AsyncIterator[Connect]:
    """Give a function that connects with a durable session."""
    async with contextlib.AsyncExitStack() as connections:

        async def connect(node: NodeInMemory, client_id: str = "c", **more: Any) -> RawClient:
            more = {"clean_start": False, "properties": DURABLE, **more}
            return await connections.enter_async_context(await RawClient.connect(node.port, client_id, **more))

        yield connect


async def write(node: NodeInMemory, path: Path) -> None:
    """Stop a node, and write its sessions."""
    await node.server.stop(deadline_s=0.1)
    sessions = Sessions(node, path)
    await sessions.restore()
    await sessions.store()


async def leave(node: NodeInMemory, client: RawClient) -> None:
    """End a Network Connection without DISCONNECT, and wait until the node has noticed."""
    left = len(node.server.connections) - 1
    await client.close()
    await wait_until(lambda: len(node.server.connections) == left)


def numbered(first: int, last: int, *, qos: int = 1, **more: Any) -> list[Any]:
    """Return numbered messages that are not retained."""
    return [update(b"t", b"%d" % each, qos=qos, retain=False, **more) for each in range(first, last + 1)]


def payloads(messages: list[Publish]) -> list[bytes]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]


async def test_a_session_goes_on_after_a_restart(restart: Restart, connect: Connect, path: Path) -> None:
    """In both directions: what was sent and not completed, what waits, which identifiers are taken."""
    node = await restart()
    client = await connect(node)
    await client.subscribe(b"t", qos=2)
    node.take(numbered(1, 2, qos=2))
    first, second = await client.messages(2)
    client.send(Ack(PacketType.PUBREC, first.packet_id or 0))
    await client.expect_ack(PacketType.PUBREL, first.packet_id or 0)
    client.publish(b"p", b"once", qos=2, packet_id=7)
    await client.expect_ack(PacketType.PUBREC, 7, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    await leave(node, client)
    node.take(numbered(3, 4, qos=2))

    node = await restart()
    assert not path.exists(), "it is read once"
    node.take(numbered(5, 5, qos=2))
    client = await connect(node)
    assert client.connack.session_present
    await client.expect_ack(PacketType.PUBREL, first.packet_id or 0)
    again, *others = await client.messages(4)
    assert (again.payload, again.packet_id, again.dup) == (b"2", second.packet_id, True)
    assert payloads(others) == [b"3", b"4", b"5"]
    client.publish(b"p", b"once", qos=2, packet_id=7, dup=True)
    await client.expect_ack(PacketType.PUBREC, 7)
    client.send(Ack(PacketType.PUBREL, 7))
    await client.expect_ack(PacketType.PUBCOMP, 7)
    assert node.published == []


async def test_a_client_that_was_connected_goes_on_too(restart: Restart, connect: Connect) -> None:
    """The stop ends its connection (0x8B) and not its session; one without a Session Expiry Interval is gone."""
    node = await restart()
    durable, brief = await connect(node), await connect(node, "brief", properties=Properties())
    for client in (durable, brief):
        await client.subscribe(b"t", qos=1)
    node.take(numbered(1, 1))
    assert payloads(await durable.messages(1)) == [b"1"]  # not acknowledged

    node = await restart()
    await durable.expect_end(ReasonCode.SERVER_SHUTTING_DOWN)
    durable, brief = await connect(node), await connect(node, "brief")
    assert (durable.connack.session_present, brief.connack.session_present) == (True, False)
    (again,) = await durable.messages(1)
    assert (again.payload, again.dup) == (b"1", True)


async def test_sessions_share_their_messages_after_a_restart_too(restart: Restart, connect: Connect) -> None:
    """A hundred sessions that wait for the same message have it once in memory."""
    node = await restart()
    clients = [await connect(node, f"c{number}") for number in range(100)]
    for client in clients:
        await client.subscribe(b"t", qos=1)
        await leave(node, client)
    node.take(numbered(1, 10))
    node = await restart()
    waiting = [list(session.sender.queue.waiting()) for session in node.server.registry]
    assert [len(messages) for messages in waiting] == [10] * 100
    assert len({id(message) for messages in waiting for message in messages}) == 10


async def test_time_goes_on_while_the_node_is_away(restart: Restart, connect: Connect, path: Path) -> None:
    """Sessions and messages expire by the time that has passed; what was expired stays away."""
    node = await restart()
    for client_id, expiry_s in (("short", 50), ("long", 500)):
        client = await connect(node, client_id, properties=Properties(session_expiry_interval=expiry_s))
        await client.subscribe(b"t", qos=1)
        await leave(node, client)
    now_ns = node.clock.now_ns()
    node.take(numbered(1, 1, expires_ns=now_ns + 90_000_000_000))
    node.take(numbered(2, 2, expires_ns=now_ns + 400_000_000_000))
    node = await restart(away_s=100)
    short, long = await connect(node, "short"), await connect(node, "long")
    assert (short.connack.session_present, long.connack.session_present) == (False, True)
    (message,) = await long.messages(1)
    assert (message.payload, message.properties.message_expiry_interval) == (b"2", 300)
    await leave(node, long)
    await restart(away_s=601)
    assert not path.exists()


@pytest.mark.parametrize("delay_s", [0, 5, 70, None])
async def test_a_will_waits_for_its_client_to_come_back(
    restart: Restart, connect: Connect, delay_s: int | None
) -> None:
    """It is published once the node has served for a while, or after its own delay; not if the client is back."""
    node = await restart()
    properties = Properties(will_delay_interval=delay_s) if delay_s is not None else Properties()
    for client_id in ("back", "gone"):
        will = Will(b"will", client_id.encode(), qos=1, retain=False, properties=properties)
        await connect(node, client_id, will=will)
    node = await restart()
    assert node.server.session_count == 2
    back = await connect(node, "back")
    assert back.connack.session_present
    due_s = max(RETURN_S, (delay_s or 0) - 1)
    await node.pass_time(due_s - 0.5)
    assert node.published == []
    await node.pass_time(1)
    assert [row[1] for _, row in node.published] == [b"gone"]
    assert node.server.session_count == 2, "a Will Message does not end the session"


@pytest.mark.parametrize("starts", [1, 3])
async def test_a_will_of_a_session_that_expired_meanwhile_is_published(
    restart: Restart, connect: Connect, starts: int
) -> None:
    """Nobody could publish it at the end of the session; however often the node stops before it may be published.

    A client that is back has nothing to fear.
    """
    node = await restart()
    for client_id in ("back", "gone"):
        await connect(node, client_id, will=Will(b"will", client_id.encode(), qos=1, retain=False))
    for _ in range(starts):
        node = await restart(away_s=601)
        await node.pass_time(RETURN_S - 1)
        assert node.published == []
    assert node.server.session_count == 0
    assert not (await connect(node, "back")).connack.session_present
    await node.pass_time(2)
    assert [row[1] for _, row in node.published] == [b"gone"]
    assert node.server.session_count == 1
    node = await restart()
    await node.pass_time(RETURN_S + 1)
    assert node.published == []


async def test_a_message_without_a_verdict_is_taken_when_it_comes_again(restart: Restart, connect: Connect) -> None:
    """The node that stopped had not acknowledged it; its session is stored all the same."""
    node = await restart()
    verdict: asyncio.Future[ReasonCode] = asyncio.get_running_loop().create_future()
    node.verdicts[b"slow"] = lambda: verdict
    client = await connect(node)
    client.publish(b"slow", b"x", qos=2, packet_id=3)
    await wait_until(lambda: bool(node.published))
    await leave(node, client)
    node = await restart()
    client = await connect(node)
    assert client.connack.session_present
    client.publish(b"slow", b"x", qos=2, packet_id=3, dup=True)
    await client.expect_ack(PacketType.PUBREC, 3, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    assert [row[1] for _, row in node.published] == [b"x"]


async def test_a_session_that_must_not_come_back_is_named(restart: Restart, connect: Connect) -> None:
    """What limits or access control do not allow any more is refused one by one, and the log says why."""
    node = await restart()
    for client_id in ("a", "b"):
        await leave(node, await connect(node, client_id))
    with capture_logs() as logs:
        node = await restart(sessions_max=1)
    refusals = [line for line in logs if line["event"] == "session not restored"]
    assert ["'b'" in line["reason"] and bool(line["hint"]) for line in refusals] == [True]
    (summary,) = [line for line in logs if line["event"] == "sessions restored"]
    assert (summary["sessions"], summary["refused"]) == (1, 1)
    gate = Gate(AccessConfig(), passwords=None, monotonic=node.clock.monotonic, logger=structlog.get_logger())
    with capture_logs() as logs:
        node = await restart(gate=gate)
    assert [line["log_level"] for line in logs if line["event"] == "session not restored"] == ["warning"]


@pytest.mark.parametrize("damage", ["cut off", "changed", "another version"])
async def test_a_damaged_file_is_set_aside(restart: Restart, connect: Connect, path: Path, damage: str) -> None:
    """No session of it is restored, the file stays under another name, and the log says so."""
    node = await restart()
    await leave(node, await connect(node))
    await write(node, path)
    content = path.read_bytes()
    at = content.index(b"fanout session\0") + 15
    path.write_bytes(
        {
            "cut off": content[:-1],
            "changed": content[: at + 3] + b"\xff" + content[at + 4 :],
            "another version": content.replace(b"fanout sessions\0\1", b"fanout sessions\0\2"),
        }[damage]
    )
    fresh = NodeInMemory()
    with capture_logs() as logs:
        await Sessions(fresh, path).restore()
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("file of sessions is damaged, set aside", "error")
    assert os.listdir(path.parent) == [Path(line["file"]).name]
    assert fresh.server.session_count == 0


async def test_a_file_that_cannot_be_written_or_removed(restart: Restart, path: Path, tmp_path: Path) -> None:
    """A stop goes on, and the log says what was lost; a start does not, since the sessions would be outdated next."""
    node = await restart()
    unwritable = Sessions(node, tmp_path / "folder" / "sessions")
    await unwritable.restore()
    (tmp_path / "folder").touch()
    with capture_logs() as logs:
        await unwritable.store()
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("sessions not stored", "error")
    path.mkdir()
    with pytest.raises(StoreError, match="is a directory"):
        await Sessions(node, path).restore()


async def test_a_start_that_fails_before_it_has_read_them_keeps_the_file(
    restart: Restart, connect: Connect, path: Path
) -> None:
    """The stop behind it has no sessions, and does not write that over those of the last process."""
    node = await restart()
    await leave(node, await connect(node))
    await write(node, path)
    content = path.read_bytes()
    await Sessions(NodeInMemory(), path).store()
    assert path.read_bytes() == content
