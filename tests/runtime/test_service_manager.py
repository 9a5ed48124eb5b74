"""What systemd is told, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fanout.runtime.service_manager import ServiceManager


@contextmanager
def service_manager(address: str) -> Iterator[socket.socket]:
    """Listen as systemd does; an address that begins with @ is in no directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address.startswith("@") else address)
        receiver.settimeout(10)
        yield receiver


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_a_manager_gets_states_and_signs_of_life(tmp_path: Path, is_abstract: bool) -> None:
    """As datagrams, at least two in an interval; and no process that is started later finds the socket."""
    address = f"@fanout-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    with service_manager(address) as receiver:
        manager = ServiceManager(environment)
        assert environment == {"HOME": "/"}
        manager.tell("READY=1")
        begun = time.monotonic()
        watchdog = asyncio.create_task(manager.keep_watchdog())
        received = [(await asyncio.to_thread(receiver.recv, 64)).decode() for _ in range(4)]
        watchdog.cancel()
    assert received == ["READY=1", *["WATCHDOG=1"] * 3]
    assert time.monotonic() - begun >= 0.1


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
    ],
)
async def test_without_a_manager_nothing_is_sent(environment: dict[str, str]) -> None:
    """No socket, one that is gone, or a watchdog of another process is no reason to fail."""
    manager = ServiceManager(environment)
    manager.tell("READY=1")
    await asyncio.wait_for(manager.keep_watchdog(), 10)


async def test_a_manager_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    """Its queue of datagrams is full; the node goes on."""
    address = str(tmp_path / "notify")
    with service_manager(address):
        manager = ServiceManager({"NOTIFY_SOCKET": address})
        for _ in range(2_000):
            manager.tell("WATCHDOG=1")
