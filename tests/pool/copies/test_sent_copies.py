"""Copies of a member's sessions: they stay while the member that keeps them is silent for a moment, and move later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from fanout.pool.copies.copy_messages import CopyAnswer, CopyRow, decode_copy_request, encode_copy_answer
from fanout.pool.copies.sent_copies import SentCopies
from fanout.pool.sessions.ledger import SessionLedger
from fanout.pool.sessions.ports import OtherMemberState, SessionHost
from tests.server.node_in_memory import ManualClock
from tests.support.waiting import wait_until

CLIENTS = tuple(f"client-{number}" for number in range(40))


class _Host:
    """Has sessions since before everything."""

    def has(self, client_id: str) -> bool:
        return True


class Pool:
    """Two other members that keep every copy, and the sessions of this one."""

    are_known, is_isolated, isolated_after_s = True, False, 2.0

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.instances = {"b": "b-1", "c": "c-1"}
        """Members that keep copies, and their processes."""
        self.kept: dict[str, set[str]] = {"b": set(), "c": set()}
        self.sent: Counter[str] = Counter()
        ledger = SessionLedger(node="a", host=cast("SessionHost", _Host()), clock=self.clock)
        self.copies = SentCopies(ledger, others=self, clock=self.clock)
        self.copies.copy_again = self.put

    def states(self) -> Sequence[OtherMemberState]:
        """Return both members; one that keeps nothing now is silent."""
        return [
            OtherMemberState(
                name,
                name not in self.instances,
                False,
                instance=self.instances.get(name, ""),
                keeps_copies=name in self.instances,
            )
            for name in ("b", "c")
        ]

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Keep copies, and forget those of sessions that are elsewhere."""
        for row in decode_copy_request(body):
            assert isinstance(row, CopyRow)
            (self.kept[name].discard if row.value is None else self.kept[name].add)(row.client_id)
            self.sent[name] += row.value is not None
        return encode_copy_answer(CopyAnswer())

    def put(self, client_ids: Iterable[str]) -> None:
        """Copy sessions."""
        self.copies.put(dict.fromkeys(client_ids, b"session"), done=lambda: None)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and the copies look at the members some times meanwhile."""
        for _ in range(10):
            self.clock.advance(seconds / 10)
            await asyncio.sleep(0.06)


@asynccontextmanager
async def running_pool() -> AsyncIterator[Pool]:
    """Give a pool in which every session has its copy."""
    pool = Pool()
    task = asyncio.create_task(pool.copies.run(), name="copies")
    try:
        pool.put(CLIENTS)
        await wait_until(lambda: pool.copies.copied == len(CLIENTS), 10)
        await pool.pass_time(3.0)
        assert sorted(pool.kept["b"] | pool.kept["c"]) == sorted(CLIENTS)
        assert min(map(len, pool.kept.values())) > 0
        pool.sent.clear()
        yield pool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_copies_stay_while_a_member_is_silent_for_a_moment() -> None:
    """However often: nothing is sent, and every session counts as copied."""
    async with running_pool() as pool:
        for _ in range(3):
            instance = pool.instances.pop("b")
            await pool.pass_time(0.5)
            pool.instances["b"] = instance
            await pool.pass_time(0.5)
        await pool.pass_time(3.0)
        assert pool.sent == Counter()
        assert pool.copies.copied == len(CLIENTS)


async def test_copies_of_a_member_that_is_away_are_made_at_another_one() -> None:
    """And go back when it has been there again for a while."""
    async with running_pool() as pool:
        before = set(pool.kept["b"])
        del pool.instances["b"]
        await pool.pass_time(1.5)
        await wait_until(lambda: pool.kept["c"] >= set(CLIENTS), 10)
        assert pool.sent == {"c": len(before)}
        pool.kept["b"].clear()
        pool.instances["b"] = "b-1"
        await pool.pass_time(1.0)
        assert pool.sent["b"] == 0
        await pool.pass_time(2.0)
        await wait_until(lambda: pool.kept["b"] == before, 10)
        await wait_until(lambda: not pool.kept["c"] & before, 10)


async def test_a_new_process_of_a_member_gets_its_copies_at_once() -> None:
    """It has none, however short the silence was."""
    async with running_pool() as pool:
        before = set(pool.kept["b"])
        pool.kept["b"].clear()
        pool.instances["b"] = "b-2"
        await wait_until(lambda: pool.kept["b"] == before, 10)
        assert pool.sent == {"b": len(before)}


@pytest.mark.parametrize("value", [b"newer", None])
async def test_what_replaces_a_copy_without_a_home_releases_all_that_waits(value: bytes | None) -> None:
    """Also when the session has ended meanwhile; the copies go on."""
    async with running_pool() as pool:
        instances, pool.instances = pool.instances, {}
        await asyncio.sleep(0.2)
        kept: list[str] = []
        pool.copies.put({"new": b"session"}, done=lambda: kept.append("first"))
        pool.copies.put({"new": value}, done=lambda: kept.append("second"))
        await pool.pass_time(3.0)
        assert sorted(kept) == ["first", "second"]
        pool.instances = instances
        pool.put(["other"])
        await wait_until(lambda: "other" in pool.kept["b"] | pool.kept["c"], 10)
        assert pool.copies.oldest_unconfirmed_s() == 0.0


async def test_an_error_of_a_call_ends_the_copies() -> None:
    """The node stops with it, in place of keeping what waits in silence."""
    pool = Pool()
    pool.instances = {"b": "b-1"}
    pool.kept.clear()  # the stand-in fails with a KeyError
    task = asyncio.create_task(pool.copies.run(), name="copies")
    await asyncio.sleep(0.1)
    pool.put(["c"])
    with pytest.raises(KeyError):
        await asyncio.wait_for(task, 10)
