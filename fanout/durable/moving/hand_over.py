"""Hand-over of all sessions to the other members, by a member that leaves."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from fanout.durable.moving.context import MoveContext
from fanout.durable.ownership.move_messages import TakeQuestion
from fanout.durable.ownership.ports import OtherMemberState

__all__ = ["HandOver"]

_ROUND_S: Final = 0.1
"""Pause between two rounds."""
_OFFERED_S: Final = 2.0
"""Time in which a session that was offered is fetched; then it is offered again."""
_OFFERS_MAX: Final = 3_000
"""Sessions that are offered at a time: as many as a member lets come."""
_GOODBYE_S: Final = 1.0
"""Longest time that a member without sessions stays there, so that all others hear that it has none."""
_STUCK_S: Final = 8.0
"""Time without any progress after which a hand-over is given up."""


class HandOver:
    """Gives the sessions of this member away."""

    def __init__(self, context: MoveContext) -> None:
        """Prepare.

        Args:
            context: Shared objects.
        """
        self.is_under_way = False
        """True if this member gives its sessions away, and takes no client any more."""
        self._ledger = context.ledger
        self._host = context.host
        self._others = context.others
        self._calls = context.calls
        self._clock = context.clock
        self._logger = context.logger
        self._offered: dict[str, float] = {}
        """Client Identifier of a session that was offered, to when it is offered again."""

    async def run(self, *, clients_per_s: float) -> None:
        """Give all sessions away; ends when nothing moves any more.

        Args:
            clients_per_s: Clients that are sent away in a second.
        """
        self.is_under_way = True
        figures = self._ledger.figures
        begun = figures.sessions_moved_out_total
        left, moved_at_s, done_s = 1, self._clock.monotonic(), math.inf
        while takers := [other for other in self._others.states() if _may_take(other)]:
            before = (figures.sessions_moved_out_total, left)
            self._offer_absent()
            count = max(1, round(clients_per_s * _ROUND_S)) if any(other.is_ready for other in takers) else 0
            left = self._host.send_away(count, to=self._addresses())
            await asyncio.sleep(_ROUND_S)
            now_s = self._clock.monotonic()
            if (figures.sessions_moved_out_total, left) != before:
                moved_at_s = now_s
            if left or self._host.absent() or self._ledger.moves:
                is_over = now_s - moved_at_s >= _STUCK_S
            else:
                done_s = min(done_s, now_s)
                is_over = self._others.have_asked(since_s=done_s) or now_s - moved_at_s >= _GOODBYE_S
            if is_over:
                break
        self._logger.info(
            "sessions handed over", moved=figures.sessions_moved_out_total - begun, left=len(self._host.absent())
        )

    def _addresses(self) -> list[str]:
        """Return where clients reach the ready members themselves."""
        return [other.client_address for other in self._others.states() if other.is_ready and other.client_address]

    def _offer_absent(self) -> None:
        """Offer the sessions without a connection to the ready members in turn, each again until it has gone."""
        ready = [other.name for other in self._others.states() if other.is_ready]
        now_s = self._clock.monotonic()
        for turn, (client_id, user, superuser) in enumerate(self._host.absent()):
            if not ready or self._offered.get(client_id, 0.0) > now_s:
                continue
            if len(self._offered) >= _OFFERS_MAX:
                self._offered = {each: until_s for each, until_s in self._offered.items() if until_s > now_s}
                if len(self._offered) >= _OFFERS_MAX:
                    break
            self._offered[client_id] = now_s + _OFFERED_S
            question = TakeQuestion(client_id, self._ledger.next_epoch(), user, superuser, anyone=False)
            # A member that has asked for it may have given up since; if it has not, the offer changes nothing there.
            asker = self._ledger.promised_for(client_id)
            taker = asker if asker in ready else ready[turn % len(ready)]
            self._calls.to(taker).offer.ask(question).add_done_callback(_ignore)


def _may_take(other: OtherMemberState) -> bool:
    """Return whether a member takes sessions, or may in a moment: a busy one is silent now and then."""
    return other.is_ready or (other.is_silent and not other.is_dead and not other.is_empty)


def _ignore(answer: asyncio.Future[bool]) -> None:
    """Take the answer to OFFER: whether the session goes is seen when it does."""
    if not answer.cancelled():
        answer.exception()
