"""A node with many links beside a real Mosquitto: they start without holding up each other, nor anybody else."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from fanout.selection import Selector
from tests.link.harness import config_for
from tests.node.test_node import config, node_of
from tests.support.mosquitto import Mosquitto
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mosquitto

FEW, MANY = 50, 200
GROWTH_MAX = 9.0
"""How many times the work of few links that of many may take: in proportion it is 4, by the square 16."""
TURN_CPU_S_MAX = 0.2


async def test_many_links_become_ready_with_little_work_and_in_short_turns(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    """The work grows with the number of links, not with its square; it is measured as CPU time of this thread."""
    few_s, _ = await become_ready(tmp_path / "few", mosquitto, FEW)
    many_s, turn_s = await become_ready(tmp_path / "many", mosquitto, MANY)
    assert many_s < GROWTH_MAX * few_s
    assert turn_s < TURN_CPU_S_MAX


async def become_ready(directory: Path, mosquitto: Mosquitto, count: int) -> tuple[float, float]:
    """Start a node with so many links; return the CPU time until all are ready, and that of the longest turn."""
    links = (config_for(mosquitto.port, Selector(f"s{number}/#"), heartbeat_s=5.0) for number in range(count))
    named = tuple(dataclasses.replace(link, name=f"link-{number}") for number, link in enumerate(links))
    node = node_of(dataclasses.replace(config(directory), links=named))
    loop, longest_s, turn_began = asyncio.get_running_loop(), 0.0, time.thread_time()

    def next_turn() -> None:
        nonlocal longest_s, turn_began
        now = time.thread_time()
        longest_s, turn_began = max(longest_s, now - turn_began), now
        if not ended:
            loop.call_soon(next_turn)

    ended, began = False, time.thread_time()
    loop.call_soon(next_turn)
    try:
        await node.start()
        await wait_until(lambda: all(link.status().ready for link in node.links))
        ended = True
        assert node.documents.readiness_notice().reason == ""
        return time.thread_time() - began, longest_s
    finally:
        ended = True
        await node.stop()
