"""A pool on one machine: `fanout secondary --members` as processes, beside a real primary."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.processes import free_ports
from fanout.mqtt.properties import Properties
from tests.cli.processes import run_fanout
from tests.support.durable import come_back
from tests.support.mosquitto import Mosquitto, find_mosquitto
from tests.support.nodes import QUICK, LiveNode, Nodes, link, processes_with, selector
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_refused, wait_until, wait_until_blocking

pytestmark = pytest.mark.mosquitto

FORWARDS = selector("plant/#", qos=2, writes="forward")


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """Return the primary that tests share."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    with Mosquitto(tmp_path_factory.mktemp("primary")) as server:
        yield server


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory, mosquitto: Mosquitto) -> Iterator[LiveNode]:
    """Return two members that tests share; each uses clients of its own."""
    nodes = Nodes(tmp_path_factory.mktemp("members"))
    yield nodes.secondary(link(mosquitto.port, FORWARDS, settings=QUICK), log=False, members=2)
    nodes.end()


@pytest.fixture
def pool(members: LiveNode) -> LiveNode:
    """Return them once they are ready, and share one port."""
    if not members.running:
        members.start()
    wait_ready(members)
    return members


def wait_ready(members: LiveNode) -> None:
    """Return once all members are ready, and listen."""
    answer = run_fanout("ready", "--pool", "--wait", "60", members.url)
    assert answer.returncode == 0, answer.stdout + answer.stderr + members.log_text()
    wait_until_blocking(
        lambda: members.log_text().count("shared ports opened") > members.log_text().count("shared ports left")
    )


def asked(members: LiveNode, number: int, path: str) -> Any:
    """Return the document of one member."""
    return httpx.get(f"http://127.0.0.1:{members.http_port + number - 1}{path}", trust_env=False, timeout=60).json()


def order(members: LiveNode, number: int, path: str) -> None:
    """Send an order to one member."""
    httpx.post(
        f"http://127.0.0.1:{members.http_port + number - 1}{path}",
        json={"disconnect": False},
        trust_env=False,
        timeout=60,
    ).raise_for_status()


def member_of(members: LiveNode, client_id: str) -> int:
    """Return the number of the member to which a client is connected."""
    for number in (1, 2):
        clients = asked(members, number, f"/v1/clients?client_id={client_id}").get("clients", [])
        if any(client["address"] is not None for client in clients):
            return number
    raise AssertionError(f"{client_id} is nowhere")


async def test_a_killed_member_comes_back_and_its_clients_go_on_elsewhere(pool: LiveNode) -> None:
    """The other serves on; the session that was at the killed one is found, and the pool is whole again."""
    client = await come_back(pool.port, "survivor", has_ended=True)
    await client.subscribe(b"plant/#", qos=1)
    first = member_of(pool, "survivor")
    pid = asked(pool, first, "/v1/status")["pid"]

    def are_copied() -> bool:
        status = asked(pool, first, "/v1/status")
        return bool(status["pool"]["sessions_copied"] == status["server"]["sessions"])

    await wait_until(are_copied, what="a copy of each session")
    os.kill(pid, signal.SIGKILL)
    await client.expect_end()
    await client.close()
    again = await come_back(pool.port, "survivor", has_ended=True)
    assert again.connack.session_present
    await again.close()
    wait_ready(pool)
    assert asked(pool, first, "/v1/status")["pid"] != pid
    assert "member ended" in pool.log_text()


def test_strangers_do_not_share_the_port(pool: LiveNode, tmp_path: Path, mosquitto: Mosquitto) -> None:
    """Another pool, and a node alone: both fail at once, and say why."""
    ports = free_ports(4)
    config = tmp_path / "stranger.toml"
    config.write_text(
        f'[node]\nid = "stranger"\ndata_directory = "{tmp_path}"\n[server]\nlisten = ["{pool.address}"]\n'
        f'[pool]\nlisten = "127.0.0.1:{ports[0]}"\n{link(mosquitto.port, FORWARDS)}'
    )
    for options, why in (
        (("--members", "2"), "a process that is no member of this pool shares the port"),
        ((), "address already in use"),
    ):
        answer = run_fanout("secondary", "--config", str(config), *options)
        assert answer.returncode == 5, answer.stderr
        assert why in answer.stderr
    wait_ready(pool)


async def test_a_member_that_is_not_ready_leaves_the_port(pool: LiveNode) -> None:
    """New clients come to the other one, those that are there stay; without a ready member nobody listens."""
    stays = [
        await come_back(pool.port, f"stays-{number}", properties=Properties(), has_ended=True) for number in range(8)
    ]
    left = pool.log_text().count("shared ports left")
    order(pool, 1, "/v1/hold")
    try:
        await wait_until(lambda: pool.log_text().count("shared ports left") > left, what="a member that has left")
        for number in range(8):
            async with await come_back(pool.port, f"new-{number}", properties=Properties(), has_ended=True):
                assert member_of(pool, f"new-{number}") == 2
        assert [await client.messages_until_ping() for client in stays] == [[]] * len(stays)
        order(pool, 2, "/v1/hold")
        await wait_refused(pool.port)
    finally:
        for number in (1, 2):
            order(pool, number, "/v1/undrain")
    wait_ready(pool)
    with RawReader(pool.port) as reader:
        reader.subscribe("plant/#")
    for client in stays:
        await client.close()


def test_one_signal_ends_all_and_no_member_outlives_its_supervisor(pool: LiveNode) -> None:
    """After SIGTERM in good order; after a kill of the supervisor too."""
    config = pool.command[pool.command.index("--config") + 1]
    assert len(processes_with(config)) == 2
    assert pool.stop() == 0
    assert processes_with(config) == []
    assert "members killed" not in pool.log_text()
    pool.start()
    wait_ready(pool)
    pool.kill()
    wait_until_blocking(lambda: processes_with(config) == [], what="the end of all members")
