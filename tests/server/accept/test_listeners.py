"""Tests of the listening sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from pathlib import Path

import pytest

from bench.processes import free_port
from fanout.config import Address, ListenerConfig, PoolConfig
from fanout.errors import ListenError
from fanout.mqtt.packets import Connect, encode
from fanout.server.accept import shared_port
from fanout.server.accept.listeners import Listeners
from tests.server.conftest import StartNode
from tests.server.node_in_memory import NodeInMemory
from tests.support.waiting import wait_until

ANY = ListenerConfig(address=Address("mqtt", "127.0.0.1", 0))


async def test_addresses_have_the_real_ports() -> None:
    """Port 0 becomes the port that the system chose, on every address."""
    listeners = Listeners()
    await listeners.open([ANY, ANY], NodeInMemory().server)
    addresses = listeners.addresses
    assert len(set(addresses)) == 2
    assert all(address.startswith("mqtt://127.0.0.1:") for address in addresses)
    listeners.close()
    assert listeners.addresses == []


async def test_a_crowd_fills_no_backlog(start_node: StartNode) -> None:
    """Of 400 connections of one address and then one of another, all with CONNECT, the last is answered early."""
    node = await start_node()
    with contextlib.ExitStack() as stack:

        def connect(address: str) -> socket.socket:
            client = socket.create_connection(("127.0.0.1", node.port), source_address=(address, 0))
            client.sendall(encode(Connect(""), version=5))
            return stack.enter_context(client)

        for _ in range(400):
            connect("127.0.0.1")
        other = connect("127.0.0.2")
        other.setblocking(False)
        async with asyncio.timeout(30):
            assert await asyncio.get_running_loop().sock_recv(other, 1) == b"\x20"  # CONNACK
        assert node.server.session_count < 300
        await wait_until(lambda: node.server.session_count == 401)


async def test_address_in_use_opens_none(tmp_path: Path) -> None:
    """When one address cannot be bound, the error names it and the others are closed again."""
    listeners = Listeners()
    path = tmp_path / "mqtt.sock"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = ListenerConfig(address=Address("mqtt", "127.0.0.1", port))
        unix = ListenerConfig(address=Address("unix", str(path), 0))
        with pytest.raises(ListenError, match=f"cannot listen on mqtt://127.0.0.1:{port}: .*in use"):
            await listeners.open([ANY, unix, other], NodeInMemory().server)
    assert listeners.addresses == []
    assert not path.exists()


async def test_unix_socket_comes_and_goes_with_the_listener(tmp_path: Path) -> None:
    """The socket is there for owner and group while it is listened on, also where a killed process left one."""
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    listeners = Listeners()
    unix = ListenerConfig(address=Address("unix", str(path), 0))
    await listeners.open([unix], NodeInMemory().server)
    assert listeners.addresses == [f"unix://{path}"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    second = Listeners()
    with pytest.raises(ListenError) as caught:
        await second.open([unix], NodeInMemory().server)
    assert caught.value.message == f"cannot listen on unix://{path}: address already in use"
    assert "choose another path in server.listen or [[server.listener]]" in caught.value.hint
    assert path.exists()
    listeners.close()
    assert not path.exists()


async def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    """Only sockets are replaced."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ListenError, match="file exists") as caught:
        await Listeners().open([ListenerConfig(address=Address("unix", str(path), 0))], NodeInMemory().server)
    assert caught.value.hint.startswith("Remove what is there, or choose another path in server.listen")
    assert path.read_text() == "data"


@pytest.mark.parametrize(
    ("address", "problem", "hint"),
    [
        (
            Address("mqtt", "192.0.2.1", 1883),  # for documentation, hence nobody's
            "cannot assign requested address",
            "This machine does not have that address: use one of its own, or 0.0.0.0, in ",
        ),
        (Address("ws", "no-such-host.invalid", 80), "", "Check the host name in "),
        (
            Address("unix", "/nonexistent/mqtt.sock", 0),
            "no such file or directory",
            "Make the directory for this user, or choose another path in ",
        ),
    ],
)
async def test_an_address_that_cannot_be_is_told_with_what_would_do(address: Address, problem: str, hint: str) -> None:
    """Each cause has its own remedy."""
    with pytest.raises(ListenError) as caught:
        await Listeners().open([ListenerConfig(address=address)], NodeInMemory().server)
    assert caught.value.message.startswith(f"cannot listen on {address}: {problem}")
    assert caught.value.hint == f"{hint}server.listen or [[server.listener]]"


async def test_a_socket_of_another_process_is_not_removed(tmp_path: Path) -> None:
    """Who closes removes only what it made itself."""
    path = tmp_path / "mqtt.sock"
    listeners = Listeners()
    await listeners.open([ListenerConfig(address=Address("unix", str(path), 0))], NodeInMemory().server)
    path.rename(tmp_path / "moved.sock")
    path.write_text("another's")
    listeners.close()
    await asyncio.sleep(0)
    assert path.read_text() == "another's"


def pool_of(port: int, *peers: int) -> PoolConfig:
    """Return the pool of a process that answers members at one port, and knows those at others."""
    return PoolConfig(
        listen=Address("http", "127.0.0.1", port), peers=tuple(Address("http", "127.0.0.1", peer) for peer in peers)
    )


async def test_only_members_of_one_pool_share_a_port() -> None:
    """Others fail, whether they share their ports or not; who has left no longer counts."""
    port = free_port()
    shared = [ListenerConfig(address=Address("mqtt", "127.0.0.1", port), share_port=True)]
    first, second, stranger = Listeners(pool_of(1, 2)), Listeners(pool_of(2, 1)), Listeners(pool_of(3, 4))
    server = NodeInMemory().server
    await first.open(shared, server)
    await second.check(shared)
    await second.open(shared, server)
    assert first.addresses == second.addresses
    for attempt in (stranger.open(shared, server), stranger.check(shared)):
        with pytest.raises(ListenError, match="a process that is no member of this pool shares the port") as caught:
            await attempt
        assert "pool.peers" in caught.value.hint
    alone = [ListenerConfig(address=Address("mqtt", "127.0.0.1", port))]
    with pytest.raises(ListenError, match="in use"):
        await Listeners().open(alone, server)
    first.close()
    with pytest.raises(ListenError):
        await stranger.check(shared)
    second.close()
    await stranger.open(shared, server)
    with pytest.raises(ListenError):
        await first.open(shared, server)
    stranger.close()


async def test_a_port_is_free_again_if_its_processes_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while no descriptor is left: the port is not opened now, which does not end the node."""
    port = free_port()
    shared = [ListenerConfig(address=Address("mqtt", "127.0.0.1", port), share_port=True)]
    listeners, server = Listeners(pool_of(1, 2)), NodeInMemory().server
    with monkeypatch.context() as patch:
        patch.setattr(shared_port, "_CLAIMS", Path("/nowhere"))
        with pytest.raises(ListenError, match="no such file"):
            await listeners.open(shared, server)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
    await listeners.open(shared, server)
    listeners.close()


async def test_a_program_that_shares_its_port_with_anybody_is_a_stranger() -> None:
    """It claims nothing. At another address of the machine it is in nobody's way."""
    port = free_port()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        for host, is_taken in (("127.0.0.1", True), ("0.0.0.0", True), ("127.0.0.2", False)):
            listeners = Listeners(pool_of(1, 2))
            opened = listeners.open(
                [ListenerConfig(address=Address("mqtt", host, port), share_port=True)], NodeInMemory().server
            )
            if is_taken:
                with pytest.raises(ListenError, match="no member of this pool"):
                    await opened
            else:
                await opened
                listeners.close()
