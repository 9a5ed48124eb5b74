"""Two processes with one `node.id` at a Mosquitto, as two hosts with a copied configuration have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mosquitto import Mosquitto
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.waiting import wait_until

SETTINGS = QUICK + "heartbeat_s = 0.5\n"


@pytest.fixture
def other_host(tmp_path: Path) -> Iterator[Nodes]:
    """Give the nodes of another host, which may have the same names."""
    (tmp_path / "other").mkdir()
    nodes = Nodes(tmp_path / "other")
    yield nodes
    nodes.end()


def alarm(node: LiveNode) -> str:
    """Return the alarm of the link; empty for none."""
    return str(node.link_status()["alarm"] or "")


async def until_alarm(node: LiveNode, text: str) -> None:
    """Return once the alarm of the link says something."""
    await wait_until(lambda: text in alarm(node), what=lambda: f"the alarm, and not {alarm(node)!r}")


async def test_two_processes_with_other_client_identifiers_hear_each_other(
    mosquitto: Mosquitto, nodes: Nodes, other_host: Nodes
) -> None:
    """Both have a session, and publish heartbeats to one topic: each session counts as lost, once."""
    other = f'{SETTINGS}client_id = "other"\n'
    first = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=SETTINGS))
    second = other_host.secondary(link(mosquitto.port, selector("plant/#"), settings=other))
    await first.begin()
    await asyncio.to_thread(second.start)
    for node in (first, second):
        await until_alarm(node, "heartbeats of another process")
    for node in (first, second):
        await wait_until(lambda node=node: node.link_state() == "live", what="a new session")  # type: ignore[misc]
        assert not node.ready
        assert "heartbeats of another process" in str(node.probe()[1]["reasons"])
        assert node.link_status()["epochs_total"] == 2
