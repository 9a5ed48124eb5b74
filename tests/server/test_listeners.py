"""Tests of the listening sockets."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from fanout.config import Address, ListenerConfig
from fanout.errors import ListenError
from fanout.server.listeners import Listeners
from tests.server.node_in_memory import NodeInMemory

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
    assert "stop the process that has the path" in caught.value.hint
    assert path.exists()
    listeners.close()
    assert not path.exists()


async def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    """Only sockets are replaced."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ListenError, match="already in use"):
        await Listeners().open([ListenerConfig(address=Address("unix", str(path), 0))], NodeInMemory().server)
    assert path.read_text() == "data"


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
