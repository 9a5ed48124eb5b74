"""Fixtures: nodes that are ended after the test, and servers that tests share where none disturbs the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.mosquitto import Mosquitto, find_mosquitto
from tests.support.network import Proxy
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector


@dataclass(frozen=True, slots=True)
class Mirror:
    """A Mosquitto and a secondary beside it, which many tests share: each uses topics of its own.

    The secondary replicates `plant/#` without `plant/debug/#` at QoS 2, `office/+/state` below `hq/`, and
    `set/#`, whose writes it forwards. Its heartbeats are half a second apart.
    """

    mosquitto: Mosquitto
    secondary: LiveNode


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Return where to get nodes; after the test they are stopped, and checked for how they ended."""
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.end()


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    """Return the secondary that tests share, and its primary."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    directory = tmp_path_factory.mktemp("mirror")
    nodes = Nodes(directory)
    with Mosquitto(directory) as mosquitto:
        secondary = nodes.secondary(
            link(
                mosquitto.port,
                selector("plant/#", qos=2, exclude=["plant/debug/#"]),
                selector("office/+/state", prefix="hq/"),
                selector("set/#", writes="forward"),
                settings=QUICK + "heartbeat_s = 2.0\n",
            )
        )
        try:
            yield Mirror(mosquitto, secondary.started())
        finally:
            nodes.end()


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """Return the `fanout primary` that tests share: each uses topics of its own."""
    nodes = Nodes(tmp_path_factory.mktemp("hub"))
    try:
        yield nodes.primary().started()
    finally:
        nodes.end()


@pytest.fixture
def second_mosquitto(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Mosquitto]:
    """Return another running Mosquitto."""
    with Mosquitto(tmp_path, name="second") as server:
        yield server


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Mosquitto]:
    """Give a Mosquitto that keeps every message for a session, however many they are."""
    with Mosquitto(tmp_path, settings=["max_queued_messages 0", "max_inflight_messages 200"]) as server:
        yield server


@pytest_asyncio.fixture
async def proxy(mosquitto: Mosquitto) -> AsyncIterator[Proxy]:
    """Return a proxy in front of Mosquitto, whose connections the test can cut."""
    async with Proxy(mosquitto.port) as proxy:
        yield proxy
