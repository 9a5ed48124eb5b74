"""HAProxy's agent check: the line, and the port that answers it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from fanout.api import agent
from fanout.api.agent import AgentListener, agent_line
from fanout.errors import ListenError
from tests.api.stand_in import StandInNode, ready_node, syncing_node


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test with asyncio's own event loop, and with uvloop, which a node uses."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def line(node: StandInNode, *, connections: int = 0, connections_max: int = 100) -> str:
    """Return what the agent check is told."""
    return agent_line(node.readiness(), connections=connections, connections_max=connections_max)


@pytest.mark.parametrize(
    ("connections", "connections_max", "weight"),
    [(0, 100, 100), (1, 100, 99), (1, 10_000, 100), (9_999, 10_000, 1), (100, 100, 0), (101, 100, 0), (0, 0, 100)],
)
def test_ready_node_is_up_with_its_free_share(connections: int, connections_max: int, weight: int) -> None:
    """At least 1 % while one more connection fits, 0 when none does."""
    told = line(ready_node(), connections=connections, connections_max=connections_max)
    assert told == f"ready up {weight}%\n"


def test_node_that_is_not_ready_is_down_and_says_why() -> None:
    """In one line of printable ASCII, however long the reasons are; `ready` ends a drain of the process before."""
    assert line(syncing_node()) == "ready down #link plant: snapshot, 12,040 topics so far\n"
    node = syncing_node()
    node.reasons = ("link plänt is\x1b[2J\x7f down:\n" + "x" * 1000,)
    told = line(node)
    assert told.startswith("ready down #link pl?nt is\\x1b[2J\\x7f down: xxx")
    assert told.count("\n") == 1
    assert len(told) < 250


def test_node_that_drains_keeps_its_clients() -> None:
    """`drain` and not `down`, which would move them at once."""
    node = ready_node()
    node.drain()
    assert line(node) == "drain #the node is draining\n"


def test_node_that_is_held_keeps_its_clients() -> None:
    """As one that drains, and it is taken back with `ready` once it is held no more."""
    node = ready_node()
    node.hold(disconnect=False)
    assert line(node) == "drain #held by operator since 2025-11-21 08:00:00 UTC\n"
    node.undrain()
    assert line(node) == "ready up 100%\n"


def test_node_that_offers_stale_values_keeps_its_clients() -> None:
    """They would find no better node while the primary is frozen; new ones are sent elsewhere if there is one."""
    node = ready_node()
    node.reasons, node.stale_seconds = ("link plant is stalled, waits for a heartbeat",), 41.7
    assert line(node) == "drain #link plant is stalled, waits for a heartbeat\n"


@pytest.fixture
async def listener() -> AsyncIterator[AgentListener]:
    """Give a listener that says what number its answer has."""
    numbers = iter(range(1, 1000))
    listener = AgentListener(lambda: f"up {next(numbers)}%\n", host="127.0.0.1", port=0)
    await listener.start()
    yield listener
    await listener.stop()


async def ask(listener: AgentListener, sent: bytes = b"") -> bytes:
    """Return what a peer reads until the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(sent)
    async with asyncio.timeout(30):
        told = await reader.read()
    writer.close()
    await writer.wait_closed()
    return told


async def test_every_connection_gets_the_line_of_that_moment(listener: AgentListener) -> None:
    """Also one that sends something first (`agent-send`)."""
    assert await ask(listener) == b"up 1%\n"
    assert await ask(listener, b"edge-1\n" * 1000) == b"up 2%\n"


async def test_peers_that_do_not_close_are_bounded(listener: AgentListener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its line; beyond the limit the oldest is closed at once, and not after its time to close."""
    monkeypatch.setattr(agent, "_LINGER_S", 3600.0)
    monkeypatch.setattr(agent, "_CONNECTIONS_MAX", 3)
    writers = []
    async with asyncio.timeout(30):
        for number in range(1, 7):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            assert await reader.read() == b"up %d%%\n" % number
            writers.append(writer)
        for writer in writers[:3]:
            while not writer.is_closing():
                writer.write(b"x")  # what is sent to a closed connection is refused
                await asyncio.sleep(0.01)
    assert not any(writer.is_closing() for writer in writers[3:])
    for writer in writers:
        writer.transport.abort()


async def test_stopped_listener_is_gone(listener: AgentListener) -> None:
    """Nothing listens any more; to stop twice, or before the start, is harmless."""
    await listener.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
    await AgentListener(lambda: "", host="127.0.0.1", port=0).stop()


async def test_taken_port_is_told() -> None:
    """With the key to change."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listener = AgentListener(lambda: "", host="127.0.0.1", port=other.getsockname()[1])
        with pytest.raises(ListenError) as caught:
            await listener.start()
    port = listener.port
    assert caught.value.message == f"cannot listen on 127.0.0.1:{port}: address already in use"
    assert caught.value.hint == "Another process listens there: stop it, or choose another port in http.agent_listen"
