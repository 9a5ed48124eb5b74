"""Password checks, which are slow on purpose, in threads beside the event loop.

Owns the threads, the limits of running and waiting checks, and the memory of results.

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
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from argon2.exceptions import VerificationError, VerifyMismatchError
from argon2.low_level import Type, verify_secret

from fanout.access.memory import TimedMemory

__all__ = ["PasswordChecks", "PasswordOutcome"]

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
        self._unfinished_max = checks_max + queue_max
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        self._unfinished: dict[bytes, asyncio.Future[PasswordOutcome]] = {}
        # Apart, so that guessers do not displace users with the right password.
        self._matches: TimedMemory[bytes, PasswordOutcome] = TimedMemory(seconds=remember_s, entries_max=entries_max)
        self._mismatches: TimedMemory[bytes, PasswordOutcome] = TimedMemory(seconds=remember_s, entries_max=entries_max)
        self._threads = ThreadPoolExecutor(checks_max, thread_name_prefix="access-passwords")
        self._stand_in = _stand_in(_STAND_IN_PARAMETERS)

    @property
    def unfinished(self) -> int:
        """Number of checks that run or wait."""
        return len(self._unfinished)

    def resemble(self, hashes: Iterable[str]) -> None:
        """Make an unknown user cost as much as most users with `hashes`."""
        common = collections.Counter(stored.split("$")[3] for stored in hashes).most_common(1)
        self._stand_in = _stand_in(common[0][0] if common else _STAND_IN_PARAMETERS)

    async def check(self, password: bytes, *, user: str, stored: str | None) -> PasswordOutcome:
        """Check a password; after a cancellation the check goes on and is remembered.

        Args:
            password: The password of the client.
            user: Its user.
            stored: The hash of that user; None for an unknown user.
        """
        outcome = await self._check(password, user=user, stored=self._stand_in if stored is None else stored)
        return PasswordOutcome.MISMATCH if stored is None and outcome is PasswordOutcome.MATCH else outcome

    async def close(self) -> None:
        """Drop waiting checks, and wait for running ones."""
        for future in list(self._unfinished.values()):
            future.cancel()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _check(self, password: bytes, *, user: str, stored: str) -> PasswordOutcome:
        key = self._digest(user, stored, password)
        now_s = self._monotonic()
        outcome = self._matches.get(key, now_s=now_s) or self._mismatches.get(key, now_s=now_s)
        if outcome is not None:
            self.remembered_total += 1
            return outcome
        future = self._unfinished.get(key)
        if future is not None:
            self.remembered_total += 1
        elif len(self._unfinished) >= self._unfinished_max:
            return PasswordOutcome.BUSY
        else:
            future = asyncio.get_running_loop().run_in_executor(self._threads, _verify, stored, password)
            self._unfinished[key] = future
            future.add_done_callback(lambda done: self._finish(key, done))
        await asyncio.wait([future])  # unlike `await future`: a cancelled waiter does not cancel the others
        return PasswordOutcome.BUSY if future.cancelled() else future.result()

    def _finish(self, key: bytes, done: asyncio.Future[PasswordOutcome]) -> None:
        del self._unfinished[key]
        if done.cancelled():
            return
        self.checked_total += 1
        outcome = done.result()
        if outcome is PasswordOutcome.MATCH:
            self._matches.put(key, outcome, now_s=self._monotonic())
        elif outcome is PasswordOutcome.MISMATCH:
            self._mismatches.put(key, outcome, now_s=self._monotonic())

    def _digest(self, user: str, stored: str, password: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in (user.encode(), stored.encode(), password):
            digest.update(len(part).to_bytes(4, "big"))  # so that different triples give different bytes
            digest.update(part)
        return digest.digest()


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
