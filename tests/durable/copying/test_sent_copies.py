"""Copies of a member's sessions: they stay while the member that keeps them is silent for a moment, and move later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from fanout.durable.copying.sent_copies import SentCopies
from fanout.durable.ownership.copy_messages import CopyAnswer, PlacesRow, encode_copy_answer
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.ports import OtherMemberState, SessionHost
from fanout.pool.membership import AskFailed, AskFailure
from tests.durable.alone import WithoutNotices
from tests.durable.ownership.test_copy_messages import decode_copy_request
from tests.server.node_in_memory import ManualClock
from tests.support.waiting import wait_until

CLIENTS = tuple(f"client-{number}" for number in range(40))


class _Host:
    """Has sessions since before everything."""

    def has(self, client_id: str) -> bool:
        return True


class Pool(WithoutNotices):
    """Two other members that keep every copy, and the sessions of this one."""

    instance, are_known, is_isolated, isolated_after_s = "a-1", True, False, 2.0

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.instances = {"b": "b-1", "c": "c-1"}
        """Members that keep copies, and their processes."""
        self.kept: dict[str, set[str]] = {"b": set(), "c": set()}
        self.sent: Counter[str] = Counter()
        self.failing: set[str] = set()
        """Members that answer no call."""
        self.full: set[str] = set()
        """Members without room."""
        self.made: Counter[str] = Counter()
        """How often each session was copied."""
        self.places: list[PlacesRow] = []
        """Places that came."""
        self.timeouts_s: list[float] = []
        """Time that each call had."""
        self.interruptions = 0
        """Interruptions of the streams of `b`."""
        self.looks = self.looks_anew = 0
        ledger = SessionLedger(node="a", host=cast("SessionHost", _Host()), others=self, clock=self.clock)
        self.copies = SentCopies(ledger, others=self, claim=lambda epochs: None, clock=self.clock)
        self.copies.copy_again, self.copies.look_anew = self.put, self._look_anew

    def states(self) -> Sequence[OtherMemberState]:
        """Return both members; one that keeps nothing now is silent."""
        self.looks += 1
        return [
            OtherMemberState(
                name,
                name not in self.instances,
                False,
                instance=self.instances.get(name, ""),
                keeps_copies=name in self.instances,
                interruptions=self.interruptions if name == "b" else 0,
            )
            for name in ("b", "c")
        ]

    def _look_anew(self) -> None:
        self.looks_anew += 1

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Keep copies, and forget those of sessions that are elsewhere."""
        self.timeouts_s.append(timeout_s)
        if name in self.failing:
            raise AskFailed(AskFailure.UNREACHABLE)
        full: list[str] = []
        for row in decode_copy_request(body).rows:
            if isinstance(row, PlacesRow):
                self.places.append(row)
                continue
            if name in self.full and row.value is not None:
                full.append(row.client_id)
                continue
            (self.kept[name].discard if row.value is None else self.kept[name].add)(row.client_id)
            self.sent[name] += row.value is not None
        return encode_copy_answer(CopyAnswer(full=tuple(full)))

    def put(self, client_ids: Iterable[str]) -> None:
        """Copy sessions."""
        client_ids = list(client_ids)
        self.made.update(client_ids)
        self.copies.put(dict.fromkeys(client_ids, b"session"), done=lambda: None)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and the copies look at the members some times meanwhile."""
        for _ in range(10):
            self.clock.advance(seconds / 10)
            await self.look()

    async def look(self) -> None:
        """Wait until the copies have looked at the members once more."""
        seen = self.looks
        await wait_until(lambda: self.looks > seen, 10)


async def look_at(copies: SentCopies) -> None:
    """Look again and again, as `PoolCopies.run` does."""
    try:
        while True:
            await asyncio.sleep(0)
            copies.look()
    finally:
        copies.cancel()


@asynccontextmanager
async def running_pool() -> AsyncIterator[Pool]:
    """Give a pool in which every session has its copy."""
    pool = Pool()
    task = asyncio.create_task(look_at(pool.copies), name="copies")
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


async def test_sessions_are_looked_at_anew_once_the_streams_of_a_member_were_interrupted() -> None:
    """It may not know the places any more that copies there name."""
    async with running_pool() as pool:
        assert pool.looks_anew == 0
        pool.interruptions += 1
        await pool.pass_time(0.5)
        assert pool.looks_anew == 1


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
        await pool.look()
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
    task = asyncio.create_task(look_at(pool.copies), name="copies")
    pool.put(["c"])
    with pytest.raises(KeyError):
        await asyncio.wait_for(task, 10)


async def test_a_member_that_brings_nothing_is_passed_over() -> None:
    """Though it answers pings: another one keeps what it was to keep, and nothing waits for it."""
    async with running_pool() as pool:
        pool.failing.add("b")
        pool.put(CLIENTS)
        await wait_until(lambda: pool.kept["c"] >= set(CLIENTS), 10)
        await wait_until(lambda: pool.copies.oldest_unconfirmed_s() == 0.0, 10)
        pool.failing.clear()
        await wait_until(lambda: not pool.kept["b"], 10)  # it had former ones, which it forgets when it answers


async def test_where_every_call_fails_sessions_go_on_after_a_while() -> None:
    """The members answer pings, so that they are no reason to wait for ever."""
    async with running_pool() as pool:
        pool.failing |= {"b", "c"}
        kept = asyncio.Event()
        pool.copies.put({"new": b"session"}, done=kept.set)
        await pool.pass_time(1.0)
        assert not kept.is_set()
        await pool.pass_time(2.0)
        async with asyncio.timeout(10):
            await kept.wait()


async def test_a_copy_that_nobody_can_keep_leaves_no_former_one() -> None:
    """A member that went on from the former one would send messages twice."""
    async with running_pool() as pool:
        former = sorted(pool.kept["b"])[:5]
        pool.failing.add("b")
        pool.full |= {"b", "c"}
        pool.put(former)
        await wait_until(lambda: pool.copies.figures.copies_refused_total == 5, 10)
        assert pool.kept["b"] >= set(former)
        assert not pool.copies.are_right_at("b")
        assert pool.copies.are_right_at("c")
        pool.failing.clear()
        await wait_until(lambda: not (pool.kept["b"] | pool.kept["c"]) & set(former), 10)
        await wait_until(lambda: pool.copies.are_right_at("b"), 10)


async def test_a_full_member_is_passed_over() -> None:
    """As long as another one has room."""
    async with running_pool() as pool:
        pool.full.add("b")
        pool.put(CLIENTS)
        await wait_until(lambda: pool.kept["c"] >= set(CLIENTS), 10)


async def test_a_member_that_was_away_forgets_what_another_one_keeps_by_now() -> None:
    """Also when the session ends meanwhile."""
    async with running_pool() as pool:
        ended = sorted(pool.kept["b"])[0]
        instance = pool.instances.pop("b")
        await pool.pass_time(1.5)
        await wait_until(lambda: pool.kept["c"] >= set(CLIENTS), 10)
        pool.copies.put({ended: None}, done=lambda: None)
        await wait_until(lambda: ended not in pool.kept["c"], 10)
        pool.instances["b"] = instance
        await wait_until(lambda: ended not in pool.kept["b"], 10)


async def test_sessions_that_nobody_can_keep_are_tried_again_ever_less_often() -> None:
    """Their copies are made whole each time; once there is room, or the members change, they are tried often again."""
    async with running_pool() as pool:
        pool.full |= {"b", "c"}
        pool.put(CLIENTS[:5])
        await wait_until(lambda: pool.copies.copied == len(CLIENTS) - 5, 10)
        pool.made.clear()
        for _ in range(16):
            await pool.pass_time(1.0)
        assert 4 <= pool.made[CLIENTS[0]] <= 5  # after 1, 2, 4 and 8 s, where each second would be 16
        pool.made.clear()
        instance = pool.instances.pop("c")
        await pool.look()
        pool.instances["c"] = instance
        await pool.look()
        await wait_until(lambda: pool.made[CLIENTS[0]] > 0, 10)
        pool.full.clear()
        pool.put(CLIENTS[:1])  # it has room: the others do not wait for the end of a long pause
        await wait_until(lambda: pool.copies.copied >= len(CLIENTS) - 4, 10)
        await pool.pass_time(1.5)
        await wait_until(lambda: pool.copies.copied == len(CLIENTS), 10)


async def test_a_long_copy_has_time_for_its_bytes() -> None:
    """A second, and one more for each 8 MiB."""
    async with running_pool() as pool:
        assert max(pool.timeouts_s) < 1.1
        kept = asyncio.Event()
        pool.copies.put({"long": bytes(16 << 20)}, done=kept.set)
        async with asyncio.timeout(10):
            await kept.wait()
        assert 3.0 <= max(pool.timeouts_s) < 3.1


async def test_places_have_ascending_numbers() -> None:
    """So that a member can tell which came too late."""
    async with running_pool() as pool:
        pool.copies.put_places(b"first", CLIENTS[:1])
        await wait_until(lambda: len(pool.places) == 1, 10)
        pool.copies.put_places(b"second", CLIENTS[:1])
        await wait_until(lambda: len(pool.places) == 2, 10)
        assert [row.places for row in pool.places] == [b"first", b"second"]
        assert pool.places[0].number < pool.places[1].number


async def test_copies_of_a_session_that_moved_stay_where_they_are() -> None:
    """Also an older one that a member was to forget, until the next holder says that it has the session."""
    async with running_pool() as pool:
        moved = sorted(pool.kept["b"])[0]
        pool.failing.add("b")
        pool.put([moved])
        await wait_until(lambda: moved in pool.kept["c"], 10)
        await wait_until(lambda: not pool.copies.oldest_unconfirmed_s() and pool.copies.copied == len(CLIENTS), 10)
        pool.copies.leave(moved)
        pool.failing.clear()
        pool.put([one for one in CLIENTS if one != moved])
        await wait_until(lambda: pool.copies.are_right_at("b"), 10)
        await pool.look()
        assert moved in pool.kept["b"] & pool.kept["c"]
