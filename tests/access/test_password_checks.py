"""Tests of `fanout.access.password_checks`, with the real Argon2 and threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator

import pytest

from fanout.access import password_checks
from fanout.access.password_checks import PasswordChecks, PasswordOutcome
from fanout.access.passwords import hash_password
from tests.access.pieces import ManualClock, cheap_hash

HASH = cheap_hash(b"secret")


@contextlib.asynccontextmanager
async def open_checks(
    clock: ManualClock | None = None,
    *,
    checks_max: int = 2,
    queue_max: int = 10,
    remember_s: float = 60,
    entries_max: int = 100,
) -> AsyncIterator[PasswordChecks]:
    """Give checks that are closed afterwards."""
    checks = PasswordChecks(
        checks_max=checks_max,
        queue_max=queue_max,
        remember_s=remember_s,
        entries_max=entries_max,
        monotonic=clock or ManualClock(),
    )
    yield checks
    await checks.close()


class HeldArgon:
    """Stands for the check itself and holds it until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = threading.Event()
        self.calls: list[tuple[str, bytes]] = []
        monkeypatch.setattr(password_checks, "_verify", self)

    def __call__(self, stored: str, password: bytes) -> PasswordOutcome:
        self.calls.append((stored, password))
        assert self.let_go.wait(30)
        return PasswordOutcome.MATCH if password == b"secret" else PasswordOutcome.MISMATCH


async def test_only_the_right_password_matches() -> None:
    """A wrong one, an empty one and that of an unknown user do not."""
    async with open_checks() as checks:
        assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH
        assert await checks.check(b"Secret", user="alice", stored=HASH) is PasswordOutcome.MISMATCH
        assert await checks.check(b"", user="alice", stored=HASH) is PasswordOutcome.MISMATCH
        assert await checks.check(b"secret", user="bob", stored=None) is PasswordOutcome.MISMATCH
        assert checks.checked_total == 4


async def test_passwords_are_bytes() -> None:
    """MQTT makes no text of them."""
    password = b"\xff\0" * 30_000
    async with open_checks() as checks:
        stored = cheap_hash(password)
        assert await checks.check(password, user="alice", stored=stored) is PasswordOutcome.MATCH
        assert await checks.check(password[:-1], user="alice", stored=stored) is PasswordOutcome.MISMATCH


async def test_a_hash_that_argon2_refuses_is_no_answer() -> None:
    """A damaged hash is neither a match nor a mismatch, and is not remembered."""
    async with open_checks() as checks:
        damaged = HASH[:-1] + "/"
        for _ in range(2):
            assert await checks.check(b"secret", user="alice", stored=damaged) is PasswordOutcome.FAILED
        assert checks.checked_total == 2


async def test_outcomes_are_remembered_for_their_time() -> None:
    """Matches, mismatches and unknown users alike; then they are checked again."""
    clock = ManualClock()
    async with open_checks(clock) as checks:
        for _ in range(3):
            assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH
            assert await checks.check(b"wrong", user="alice", stored=HASH) is PasswordOutcome.MISMATCH
            assert await checks.check(b"wrong", user="bob", stored=None) is PasswordOutcome.MISMATCH
        assert (checks.checked_total, checks.remembered_total) == (3, 6)
        clock.now_s += 60
        assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH
        assert checks.checked_total == 4


async def test_zero_seconds_check_each_time() -> None:
    """An operator may want nothing remembered."""
    async with open_checks(remember_s=0) as checks:
        for _ in range(3):
            assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH
        assert checks.checked_total == 3


async def test_another_hash_user_or_password_is_another_check() -> None:
    """What is remembered of the old password says nothing once the file has a new one."""
    async with open_checks() as checks:
        assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH
        assert await checks.check(b"secret", user="alice", stored=cheap_hash(b"new")) is PasswordOutcome.MISMATCH
        assert await checks.check(b"secret", user="bob", stored=HASH) is PasswordOutcome.MATCH
        assert await checks.check(b"esecret", user="alic", stored=HASH) is PasswordOutcome.MISMATCH
        assert checks.checked_total == 4


async def test_guesses_do_not_push_out_matches() -> None:
    """Many wrong passwords leave the right one remembered."""
    async with open_checks(entries_max=3) as checks:
        await checks.check(b"secret", user="alice", stored=HASH)
        for number in range(10):
            await checks.check(b"guess %d" % number, user="alice", stored=HASH)
        done = checks.checked_total
        assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH
        assert checks.checked_total == done


async def test_nothing_readable_is_remembered() -> None:
    """Neither the password nor the user, and the same pair is another key in another process."""
    async with open_checks() as one, open_checks() as other:
        for checks in (one, other):
            await checks.check(b"secret", user="alice", stored=HASH)
        [key], [other_key] = one._matches._entries, other._matches._entries
        assert key != other_key
        assert b"secret" not in key


async def test_clients_that_come_together_share_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand devices with one password cost one check, and one that leaves does not take it along."""
    argon = HeldArgon(monkeypatch)
    async with open_checks() as checks:
        waiting = [asyncio.create_task(checks.check(b"secret", user="plant", stored=HASH)) for _ in range(1000)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert checks.unfinished == 1
        argon.let_go.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert set(outcomes[1:]) == {PasswordOutcome.MATCH}
        assert len(argon.calls) == 1


async def test_when_too_many_wait_the_next_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many run, so many wait, and the rest is not checked."""
    argon = HeldArgon(monkeypatch)
    async with open_checks(checks_max=2, queue_max=3) as checks:
        waiting = [
            asyncio.create_task(checks.check(b"guess %d" % number, user="alice", stored=HASH)) for number in range(5)
        ]
        await asyncio.sleep(0)
        assert checks.unfinished == 5
        assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.BUSY
        argon.let_go.set()
        assert set(await asyncio.gather(*waiting)) == {PasswordOutcome.MISMATCH}
        assert checks.unfinished == 0
        assert await checks.check(b"secret", user="alice", stored=HASH) is PasswordOutcome.MATCH


async def test_a_right_password_does_not_wait_behind_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses take turns: 200 guesses from one, for the same user, cost a client of another one check."""
    order: list[bytes] = []

    def verify(_stored: str, password: bytes) -> PasswordOutcome:
        order.append(password)
        return PasswordOutcome.MATCH if password == b"secret" else PasswordOutcome.MISMATCH

    monkeypatch.setattr(password_checks, "_verify", verify)
    async with open_checks(checks_max=1, queue_max=200) as checks:
        guesses = [
            asyncio.create_task(checks.check(b"%d" % number, user="alice", stored=HASH, address=b"there"))
            for number in range(201)
        ]
        await asyncio.sleep(0)
        assert checks.unfinished == 201
        # The queue is full: the newest of the address with the most makes room.
        assert await checks.check(b"secret", user="alice", stored=HASH, address=b"here") is PasswordOutcome.MATCH
        assert order.index(b"secret") <= 2
        assert await guesses[-1] is PasswordOutcome.BUSY
        for guess in guesses:
            guess.cancel()


async def test_closing_answers_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told that the server is busy, and no thread is left."""
    argon = HeldArgon(monkeypatch)
    async with open_checks(checks_max=1) as checks:
        waiting = [
            asyncio.create_task(checks.check(b"guess %d" % number, user="alice", stored=HASH)) for number in range(3)
        ]
        await asyncio.sleep(0)
        threading.Timer(0.05, argon.let_go.set).start()
    assert set(await asyncio.gather(*waiting)) == {PasswordOutcome.BUSY}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("access-passwords")]


async def test_the_event_loop_goes_on_meanwhile() -> None:
    """While a password of the usual cost is checked, the loop turns many times."""
    stored = hash_password(b"secret")
    async with open_checks() as checks:
        check = asyncio.create_task(checks.check(b"secret", user="alice", stored=stored))
        turns = 0
        while not check.done():
            turns += 1
            await asyncio.sleep(0)
        assert check.result() is PasswordOutcome.MATCH
        assert turns > 20


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
async def test_the_event_loop_goes_before_checks() -> None:
    """On one processor a check of tens of milliseconds would hold it up."""
    async with open_checks() as checks:
        await checks.check(b"secret", user="alice", stored=HASH)
        (thread,) = (one for one in threading.enumerate() if one.name.startswith("access-passwords"))
        assert thread.native_id is not None
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id) > os.getpriority(os.PRIO_PROCESS, 0)


async def test_an_unknown_user_costs_what_a_known_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has the cost that most hashes of the file have, and is checked the same way."""
    calls: list[str] = []
    real = password_checks._verify

    def noted(stored: str, password: bytes) -> PasswordOutcome:
        calls.append(stored)
        return real(stored, password)

    monkeypatch.setattr(password_checks, "_verify", noted)
    async with open_checks() as checks:
        await checks.check(b"x", user="bob", stored=None)
        checks.resemble([HASH, cheap_hash(b"b"), hash_password(b"c")])
        await checks.check(b"x", user="bob", stored=None)
        checks.resemble([])
        await checks.check(b"x", user="eve", stored=None)
    assert [stored.rsplit("$", 2)[0] for stored in calls] == [
        "$argon2id$v=19$m=19456,t=2,p=1",
        "$argon2id$v=19$m=8,t=1,p=1",
        "$argon2id$v=19$m=19456,t=2,p=1",
    ]


async def test_the_stand_in_never_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a password for it were found."""
    argon = HeldArgon(monkeypatch)
    argon.let_go.set()
    async with open_checks() as checks:
        for _ in range(2):  # also when it is remembered
            assert await checks.check(b"secret", user="bob", stored=None) is PasswordOutcome.MISMATCH


async def test_a_remembered_outcome_is_there_at_once() -> None:
    """A reconnect storm waits neither for Argon2 nor for a turn of the event loop."""
    async with open_checks() as checks:
        await checks.check(b"secret", user="alice", stored=HASH)
        for _ in range(1000):
            with pytest.raises(StopIteration) as answered:
                checks.check(b"secret", user="alice", stored=HASH).send(None)
            assert answered.value.value is PasswordOutcome.MATCH
        assert (checks.checked_total, checks.remembered_total) == (1, 1000)


async def test_checks_of_a_paused_address_are_bounded_too() -> None:
    """Clients that fail, connect again and leave fill the queue of their address, and no more."""
    async with open_checks(checks_max=2, queue_max=10) as checks:
        for number in range(9):
            await checks.check(b"%d" % number, user="u", stored=HASH, address=b"10.0.0.7")
        for number in range(100):
            left = asyncio.create_task(checks.check(b"x%d" % number, user="u", stored=HASH, address=b"10.0.0.7"))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.wait([left])
        assert checks.unfinished <= 10


async def test_the_pause_of_an_address_is_no_other_address_pause() -> None:
    """Others with the same user and password have the outcome at once, and the check is done once."""
    clock = ManualClock()
    async with open_checks(clock, queue_max=100) as checks:
        for number in range(12):
            clock.now_s += 2
            await checks.check(b"%d" % number, user="u", stored=HASH, address=b"10.0.0.7")
        done = checks.checked_total
        paused = asyncio.create_task(checks.check(b"secret", user="u", stored=HASH, address=b"10.0.0.7"))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            others = (checks.check(b"secret", user="u", stored=HASH, address=b"10.0.0.8") for _ in range(5))
            assert set(await asyncio.gather(*others)) == {PasswordOutcome.MATCH}
            assert await paused is PasswordOutcome.MATCH
        clock.now_s += 2
        assert await checks.check(b"x", user="u", stored=HASH, address=b"10.0.0.8") is PasswordOutcome.MISMATCH
        assert (checks.checked_total, checks.unfinished) == (done + 2, 0)
