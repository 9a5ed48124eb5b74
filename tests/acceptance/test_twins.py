"""Two processes with one `node.id` at a Mosquitto, as two hosts with a copied configuration have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector, watched
from tests.support.waiting import wait_until

VALUES = [(f"plant/{number}", b"%d" % number) for number in range(200)]
SETTINGS = "retry_min_s = 1.5\nretry_max_s = 3.0\nheartbeat_s = 0.5\n"
"""Each comes back so late that the other one has seen whose session it has, on a busy machine too."""


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


async def until_received(node: LiveNode, messages: int) -> None:
    """Return once the link has received so many messages, heartbeats at least."""
    await wait_until(lambda: node.link_status()["received_total"] > messages, what="heartbeats")


async def test_two_processes_that_take_each_others_session_are_told(
    mosquitto: Mosquitto, nodes: Nodes, other_host: Nodes
) -> None:
    """Mosquitto only closes the connection of the first, which finds another session; none is ready any more."""
    with publisher(mosquitto.port) as client:
        publish_all(client, VALUES)
    first = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=SETTINGS))
    second = other_host.secondary(link(mosquitto.port, selector("plant/#"), settings=SETTINGS))
    await first.begin()
    epoch = first.link_status()["epoch"]
    with watched(first) as of_first, watched(second) as of_second:
        await asyncio.to_thread(second.start)
        for node in (first, second):
            await until_alarm(node, "another process uses node.id edge-1")
        assert "fanout-edge-1-primary" in alarm(first)
        seen = len(of_first), len(of_second)
        taken = first.link_status()["epochs_total"]
        await wait_until(lambda: first.link_status()["epochs_total"] > taken, 120, what="taking it over once more")
        assert not [answer for answer in (*of_first[seen[0] :], *of_second[seen[1] :]) if answer["ready"]]
    assert first.link_status()["epoch"] > epoch, "messages that the second one took are lost"
    for node in (first, second):
        assert "another process uses this identity" in node.log_text()
        assert "node.id of its own" in node.log_text()


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


async def test_a_process_that_is_started_again_is_no_twin(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """It was killed with heartbeats under way, and resumes the session with values from its disk."""
    disc = '[retained]\nstorage = "disc"\n'
    node = nodes.secondary(disc, link(mosquitto.port, selector("plant/#"), settings=f"{QUICK}heartbeat_s = 0.1\n"))
    await node.begin()
    for _ in range(3):
        await asyncio.to_thread(node.kill)
        await node.begin()
        assert node.link_status()["epochs_total"] == 0, "resumed"
        await until_received(node, node.link_status()["received_total"] + 5)
        assert node.ready
    assert "another process" not in node.log_text()
