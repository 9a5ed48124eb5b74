"""Sessions that a member has again after a restart: they end here if their clients have begun anew elsewhere meanwhile.

While the member was away, the others told it nothing. So it claims each of its sessions once more, with its epoch, at
every living member. A member with a newer session says so. Until all have answered, no client goes on with one.

A session that the former process gave away goes on here only if the other member lives, and says that it never got it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Final

from fanout.durable.moving.context import MoveContext
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, RecordedEpochs
from fanout.durable.ownership.move_messages import ClaimQuestion
from fanout.pool.membership import AskFailed

__all__ = ["ReturnedSessions"]

_PAUSE_S: Final = 0.05
"""Time between two looks at who lives."""
_PIECE: Final = 10_000
"""Sessions that are claimed at a time."""


class ReturnedSessions:
    """The sessions of a former process of this member."""

    def __init__(self, context: MoveContext) -> None:
        """Begin with none.

        Args:
            context: Shared objects.
        """
        self._ledger = context.ledger
        self._others = context.others
        self._calls = context.calls
        self._logger = context.logger
        self._epochs: dict[str, Epoch] = {}
        self._lock = asyncio.Lock()
        """Held while the others are asked."""

    @property
    def are_settled(self) -> bool:
        """True if it is known of each whether it is still the client's."""
        return not self._epochs

    def add(self, epochs: Mapping[str, RecordedEpochs]) -> None:
        """Note sessions that are here again, with the epochs of their records."""
        for client_id, recorded in epochs.items():
            self._ledger.resume(client_id, recorded)
            self._epochs[client_id] = recorded.since

    async def settle(self) -> None:
        """Return once every other member has answered, or is dead: its sessions are taken for lost."""
        if not self._epochs:
            return
        async with self._lock:
            ended = await self._settle()
            self._logger.info("sessions kept over the restart", sessions=len(self._epochs), begun_anew_elsewhere=ended)
            self._epochs.clear()

    async def settle_again(self, epochs: Mapping[str, Epoch]) -> int:
        """Settle sessions that this member has had all along, as far as it knows; return how many ended."""
        async with self._lock:  # those of the former process come first
            self._epochs |= epochs
            ended = await self._settle()
            self._epochs.clear()
            return ended

    async def _settle(self) -> int:
        ended = self._ledger.figures.sessions_ended_total
        asked: set[str] = set()
        while True:
            left = [other for other in self._others.states() if not other.is_dead and other.name not in asked]
            if not left and self._others.are_known:
                for client_id in self._epochs:
                    given = self._ledger.given(client_id)
                    if given != NO_EPOCH:
                        self._ledger.settle_given(client_id, has_come=given.member not in asked)
                return self._ledger.figures.sessions_ended_total - ended
            for other in left:
                if not other.is_silent and await self._has_answered(other.name):
                    asked.add(other.name)
            await asyncio.sleep(_PAUSE_S)

    async def _has_answered(self, member: str) -> bool:
        """Claim the sessions at a member, and end those that are newer there; return whether all was answered."""
        claims = self._calls.to(member).claim
        waiting = iter(self._epochs.items())
        while piece := [self._claim(member, *one) for one in islice(waiting, _PIECE)]:
            answers = await asyncio.gather(*map(claims.ask, piece), return_exceptions=True)
            for question, answer in zip(piece, answers, strict=True):
                if isinstance(answer, AskFailed):
                    return False
                if isinstance(answer, BaseException):
                    raise answer
                self._ledger.claim_answered(question, answer)
        return True

    def _claim(self, member: str, client_id: str, epoch: Epoch) -> ClaimQuestion:
        """Return the claim of a session at a member; at the one that it was given to, of what is that one's."""
        given = self._ledger.given(client_id)
        return self._ledger.claim_of(client_id, given if given.member == member else epoch)
