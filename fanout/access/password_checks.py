"""Password checks, which are slow on purpose, in threads beside the event loop.

Owns the threads, the limits of running and waiting checks, their order (`fanout.access.fair_queue`), and the memory of
results.

A check takes tens of milliseconds, so after a restart reconnecting clients would wait in line for minutes. Therefore a
result is remembered for a short time, under a keyed hash (BLAKE2b with a key that only this process has) of user,
stored hash and password: neither the password nor anything that outlives the process is kept. Clients that share a
password and come at the same time share one check. An unknown user costs the same as a known one, remembered or not.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import enum
import hashlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from argon2.exceptions import VerificationError, VerifyMismatchError
from argon2.low_level import Type, verify_secret

from fanout.access.fair_queue import FairQueue
from fanout.access.memory import TimedMemory

__all__ = ["PasswordChecks", "PasswordOutcome"]

_NICE: Final = 5
"""By how much the priority of a check is below that of the event loop: a third of its share of one processor."""
_STAND_IN_PARAMETERS = "m=19456,t=2,p=1"


class PasswordOutcome(enum.Enum):
    """Result of a check."""

    MATCH = "match"
    MISMATCH = "mismatch"
    """The password is wrong, or there is no such user."""
    BUSY = "busy"
    """Too many checks wait already; nothing was checked."""
    FAILED = "failed"
    """The check failed: no memory, or a hash that Argon2 refuses."""


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """A check that waits or runs."""

    key: bytes
    address: bytes
    stored: str
    password: bytes
    outcome: asyncio.Future[PasswordOutcome]


class PasswordChecks:
    """Checks passwords in threads."""

    def __init__(
        self,
        *,
        checks_max: int,
        queue_max: int,
        remember_s: float,
        entries_max: int,
        monotonic: Callable[[], float],
    ) -> None:
        """Prepare; threads begin with the first check.

        Args:
            checks_max: Checks at a time; each takes one core, and the memory that its hash asks for.
            queue_max: Checks that may wait for their turn.
            remember_s: Time for which a result is remembered, in seconds; 0 for not at all.
            entries_max: Number of remembered results: of matches, and the same of mismatches.
            monotonic: Tells seconds of a clock that never goes back.
        """
        self.checked_total = 0
        """Checks that were done."""
        self.remembered_total = 0
        """Checks that a remembered or a pending result saved."""
        self._checks_max = checks_max
        self._queue_max = queue_max
        self._running = 0
        self._queue: FairQueue[_Check] = FairQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        self._unfinished: dict[bytes, _Check] = {}
        # Apart, so that guessers do not displace users with the right password.
        self._matches: TimedMemory[bytes, PasswordOutcome] = TimedMemory(seconds=remember_s, entries_max=entries_max)
        self._mismatches: TimedMemory[bytes, PasswordOutcome] = TimedMemory(seconds=remember_s, entries_max=entries_max)
        self._threads = ThreadPoolExecutor(checks_max, thread_name_prefix="access-passwords", initializer=_give_way)
        self._stand_in = _stand_in(_STAND_IN_PARAMETERS)

    @property
    def unfinished(self) -> int:
        """Number of checks that run or wait."""
        return len(self._unfinished)

    def resemble(self, hashes: Iterable[str]) -> None:
        """Make an unknown user cost as much as most users with `hashes`."""
        common = collections.Counter(stored.split("$")[3] for stored in hashes).most_common(1)
        self._stand_in = _stand_in(common[0][0] if common else _STAND_IN_PARAMETERS)

    async def check(self, password: bytes, *, user: str, stored: str | None, address: bytes = b"") -> PasswordOutcome:
        """Check a password; after a cancellation the check goes on and is remembered.

        Args:
            password: The password of the client.
            user: Its user.
            stored: The hash of that user; None for an unknown user.
            address: Key of the client's address (`fanout.runtime.origin`); empty for none.
        """
        known = self._stand_in if stored is None else stored
        outcome = await self._check(password, user=user, stored=known, address=address)
        return PasswordOutcome.MISMATCH if stored is None and outcome is PasswordOutcome.MATCH else outcome

    async def close(self) -> None:
        """Drop waiting checks, and wait for running ones."""
        self._queue.drain()
        if self._timer is not None:
            self._timer.cancel()
        for check in list(self._unfinished.values()):
            check.outcome.cancel()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _check(self, password: bytes, *, user: str, stored: str, address: bytes) -> PasswordOutcome:
        key = self._digest(user, stored, password)
        now_s = self._monotonic()
        outcome = self._matches.get(key, now_s=now_s) or self._mismatches.get(key, now_s=now_s)
        if outcome is not None:
            self.remembered_total += 1
            return outcome
        is_paused = self._queue.is_paused(address, now_s=now_s)
        check = self._unfinished.get(key)
        if check is not None:
            self.remembered_total += 1
            if not is_paused and self._queue.is_paused(check.address, now_s=now_s):
                # The pause is that of another address: the same check gets a turn of this one too.
                check = self._unfinished[key] = replace(check, address=address)
                self._queue.add(address, user, check)
                self._start()
        else:
            waits = self._running >= self._checks_max or is_paused
            if waits and len(self._queue) >= self._queue_max:
                displaced = self._queue.displace(address)
                if displaced is None:
                    return PasswordOutcome.BUSY
                self._answer(displaced, PasswordOutcome.BUSY)
            check = _Check(key, address, stored, password, asyncio.get_running_loop().create_future())
            self._unfinished[key] = check
            self._queue.add(address, user, check)
            self._start()
        future = check.outcome
        await asyncio.wait([future])  # unlike `await future`: a cancelled waiter does not cancel the others
        return PasswordOutcome.BUSY if future.cancelled() else future.result()

    def _start(self) -> None:
        """Start the checks whose turn it is; those of an address in a pause later."""
        loop, now_s = asyncio.get_running_loop(), self._monotonic()
        while self._running < self._checks_max and (check := self._queue.take(now_s=now_s)) is not None:
            if check.outcome.done():  # by a turn of another address
                continue
            self._running += 1
            running = loop.run_in_executor(self._threads, _verify, check.stored, check.password)
            running.add_done_callback(partial(self._finish, check))
        next_s = self._queue.next_s(now_s=now_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_s is not None and self._running < self._checks_max:
            self._timer = loop.call_later(max(0.0, next_s - now_s), self._start)

    def _finish(self, check: _Check, done: asyncio.Future[PasswordOutcome]) -> None:
        self._running -= 1
        if done.cancelled():  # from `close`
            return
        now_s = self._monotonic()
        self.checked_total += 1
        try:
            outcome = done.result()
        except Exception as error:  # a bug; those who wait see it
            self._unfinished.pop(check.key, None)
            if not check.outcome.done():
                check.outcome.set_exception(error)
            self._start()
            return
        if outcome is PasswordOutcome.MATCH:
            self._matches.put(check.key, outcome, now_s=now_s)
        elif outcome is PasswordOutcome.MISMATCH:
            self._mismatches.put(check.key, outcome, now_s=now_s)
        if check.address:
            self._queue.note(check.address, is_right=outcome is PasswordOutcome.MATCH, now_s=now_s)
        self._answer(check, outcome)
        self._start()

    def _answer(self, check: _Check, outcome: PasswordOutcome) -> None:
        if not check.outcome.done():
            del self._unfinished[check.key]
            check.outcome.set_result(outcome)

    def _digest(self, user: str, stored: str, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (user.encode(), stored.encode(), password):
            digest.update(len(part).to_bytes(4, "big"))  # so that different triples give different bytes
            digest.update(part)
        return digest.digest()


def _give_way() -> None:
    """Let the event loop have the processor first: a check takes tens of milliseconds."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE))


def _verify(stored: str, password: bytes) -> PasswordOutcome:
    try:
        verify_secret(stored.encode(), password, Type.ID)
    except VerifyMismatchError:
        return PasswordOutcome.MISMATCH
    except VerificationError:
        return PasswordOutcome.FAILED
    return PasswordOutcome.MATCH


def _stand_in(parameters: str) -> str:
    """Return a hash with these parameters and no known password."""
    salt, digest = (base64.b64encode(secrets.token_bytes(size)).rstrip(b"=").decode() for size in (16, 32))
    return f"$argon2id$v=19${parameters}${salt}${digest}"
