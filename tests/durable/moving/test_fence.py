"""When a member stops serving durable sessions, and when it serves them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

from fanout.durable.moving import fence as fence_module
from fanout.durable.moving.context import MoveContext
from fanout.durable.moving.fence import Fence
from fanout.durable.ownership.epochs import Epoch, RecordedEpochs
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.ports import OtherMemberState
from tests.server.node_in_memory import ManualClock
from tests.support.waiting import wait_until

AT_A = Epoch(1, "a")


class Member:
    """A member with two durable sessions, what it hears, and how others answer its claims."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.is_isolated = False
        self.isolated_after_s = 2.0
        self.instance = "process"
        self.others: Sequence[OtherMemberState] = (OtherMemberState("b", is_silent=False, is_dead=False),)
        self.sessions = {"x", "y"}
        self.newer_elsewhere: set[str] = set()
        self.calls: list[str] = []
        self.served_until_s = 0.0
        self.claimed: list[Mapping[str, Epoch]] = []
        self.answers = asyncio.Event()
        """Whether the others answer claims."""
        self.answers.set()
        self.ledger = SessionLedger(node="a", host=cast("Any", self), others=cast("Any", self), clock=self.clock)
        for client_id in self.sessions:
            self.ledger.resume(client_id, RecordedEpochs(AT_A))
        me = cast("Any", self)
        context = MoveContext("a", self.ledger, me, me, me, me, self.clock, structlog.get_logger())
        self.fence = Fence(context, returned=me)

    def has(self, client_id: str) -> bool:
        """Return whether a session is here."""
        return client_id in self.sessions

    def absent(self) -> list[tuple[str, str, bool]]:
        """Return the durable sessions."""
        return [(client_id, "", False) for client_id in sorted(self.sessions)]

    def serve_until(self, until_s: float) -> None:
        """Note it."""
        self.served_until_s = until_s

    def raise_fence(self) -> int:
        """Note it."""
        self.calls.append("raised")
        return 2

    def lower_fence(self) -> None:
        """Note it."""
        self.calls.append("lowered")

    def states(self) -> Sequence[OtherMemberState]:
        """Return the others."""
        return self.others

    async def settle_again(self, epochs: Mapping[str, Epoch]) -> int:
        """Claim sessions, and end those that are newer elsewhere, once the others answer."""
        self.claimed.append(epochs)
        await self.answers.wait()
        ended = len(self.sessions & self.newer_elsewhere)
        self.sessions -= self.newer_elsewhere
        return ended

    async def looks(self, seconds: float) -> None:
        """Let time pass, with the looks that are due."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.fence.look()
            await asyncio.sleep(0)


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Member]:
    """Give a member whose fence looks before a test that waits does."""
    monkeypatch.setattr(fence_module, "_LOOK_S", 0.001)
    member = Member()
    task = asyncio.create_task(member.fence.run())
    await asyncio.sleep(0)
    try:
        yield member
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_isolated_member_is_fenced_until_the_others_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims what it has as soon as it hears them; what is newer elsewhere ends before anything is served."""
    async with running(monkeypatch) as member:
        await member.looks(5)
        assert (member.calls, member.fence.look()) == ([], False)
        with capture_logs() as lines:
            member.is_isolated = True
            await member.looks(5)
            assert (member.calls, member.fence.look(), member.claimed) == (["raised"], True, [])
            member.newer_elsewhere = {"y"}
            member.answers.clear()
            member.is_isolated = False
            await wait_until(lambda: bool(member.claimed))
            await member.looks(1)
            assert (member.calls, member.claimed) == (["raised"], [{"x": AT_A, "y": AT_A}])
            member.answers.set()
            await wait_until(lambda: member.calls == ["raised", "lowered"])
        assert not member.fence.look()
        assert member.ledger.figures.fences_total == 1
        warning, info = lines
        assert (warning["event"], warning["log_level"], warning["disconnected"], bool(warning["hint"])) == (
            "durable sessions fenced",
            "warning",
            2,
            True,
        )
        assert warning["reason"] == "it hears nobody"
        assert (info["event"], info["log_level"]) == ("durable sessions served again", "info")
        assert (info["seconds"], info["sessions"], info["begun_anew_elsewhere"]) == (5.9, 1, 1)


async def test_a_member_that_did_not_run_is_fenced_though_it_hears_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first look, whoever asks for it; a shorter pause is none."""
    async with running(monkeypatch) as member:
        member.clock.advance(1.9)
        assert not member.fence.look()
        assert member.served_until_s == member.clock.monotonic() + 2.0
        member.answers.clear()
        member.clock.advance(2.1)
        with capture_logs() as lines:
            assert member.fence.look()
        assert [line["reason"] for line in lines] == ["it did not run for 2.1 s"]
        await wait_until(lambda: bool(member.claimed))
        member.answers.set()
        await wait_until(lambda: member.calls == ["raised", "lowered"])


async def test_a_member_that_is_alone_is_not_fenced_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there who could take its sessions over."""
    async with running(monkeypatch) as member:
        member.others = ()
        member.clock.advance(60)
        assert not member.fence.look()


@pytest.mark.parametrize("again", ["pause", "isolation"])
async def test_answers_from_before_another_doubt_do_not_count(again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are asked once more, and the fence is still the same one."""
    async with running(monkeypatch) as member:
        member.is_isolated = True
        await member.looks(0.1)
        member.answers.clear()
        member.is_isolated = False
        await wait_until(lambda: len(member.claimed) == 1)
        if again == "pause":
            member.clock.advance(10)
        else:
            member.is_isolated = True
            await member.looks(0.1)
            member.is_isolated = False
        member.answers.set()
        await wait_until(lambda: member.calls == ["raised", "lowered"])
        assert len(member.claimed) == 2
        assert member.ledger.figures.fences_total == 1
