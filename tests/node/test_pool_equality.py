"""Cuts that a link gives the members of its pool: when they are due, and as soon as it can give one again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import structlog

from fanout.link.link import Link
from fanout.node.pool.equality import keep_equal
from fanout.runtime.system_clock import SystemClock
from tests.support.waiting import wait_until


class LinkStandIn:
    """Whether it can give a cut is up to the test, which sees how often it was asked."""

    config = SimpleNamespace(name="plant")

    def __init__(self, cuts: list[list[str]]) -> None:
        self.cut = cuts.append
        self.can_cut = False
        self.looks = 0

    @property
    def may_cut(self) -> bool:
        """Count a look."""
        self.looks += 1
        return self.can_cut


async def test_a_link_gives_a_cut_as_soon_as_it_can_again_and_to_new_members() -> None:
    """And some more at once: a session that begins here has no place that others know before they have heard one."""
    cuts: list[list[str]] = []
    heard = ["edge-2"]
    link = LinkStandIn(cuts)
    members: Any = SimpleNamespace(
        config=SimpleNamespace(converge_after_s=3600.0, dead_after_s=3600.0, ping_interval_s=600.0),
        convergence=SimpleNamespace(due=lambda name, now_s: None),
        others_heard=lambda: list(heard),
    )
    keeps = keep_equal(cast(Link, link), members=members, clock=SystemClock(), logger=structlog.get_logger())
    task = asyncio.create_task(keeps)
    try:
        for number in (1, 2):
            link.can_cut, looks = False, link.looks
            await wait_until(lambda looks=looks: link.looks > looks + 3)  # type: ignore[misc]
            assert len(cuts) == number - 1
            link.can_cut = True
            await wait_until(lambda number=number: len(cuts) == number)  # type: ignore[misc]
        assert cuts == [["edge-2"]] * 2
        members.config.ping_interval_s = 0.01
        heard.append("edge-3")
        await wait_until(lambda: len(cuts) == 5)
        assert cuts[2:] == [["edge-2", "edge-3"]] * 3
    finally:
        task.cancel()
