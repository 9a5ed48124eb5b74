"""Sessions that come to this member: a `Move` for each, their number at a time, and waits for silent members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

from fanout.durable.moving.context import MoveContext
from fanout.durable.moving.move import Move
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import TakeQuestion
from fanout.durable.ownership.ownership import Choice, ask

__all__ = ["Arrivals"]

_MOVES_MAX: Final = 3_000
"""Sessions that are on their way here at a time: about as many as come in a second. Further clients come again.

Those that wait for a silent member only are not counted: they are connections, which have a limit, and cost nothing.
"""
_LOOK_S: Final = 0.1
"""Time between two looks at silent members for which clients wait."""


class Arrivals:
    """Brings sessions of other members here."""

    def __init__(
        self, context: MoveContext, *, came: Callable[[str, Epoch, str], None], begins_when_unknown: bool
    ) -> None:
        """Prepare.

        Args:
            context: Shared objects.
            came: Called for a session that has come, with its epoch and its former holder.
            begins_when_unknown: True if a client whose session may be at a silent member gets a new one at once.
        """
        self._context = context
        self._came = came
        self._begins_when_unknown = begins_when_unknown
        self._moves: dict[str, Move] = {}
        """The newest move of each client that has one."""
        self._waiting: dict[Move, None] = {}
        """Moves that wait for silent members; the longest waiting one first."""

    def start(self, question: TakeQuestion, *, patience_s: float = 0.0, is_offered: bool = False) -> Move | None:
        """Begin to bring a session here; return None when it is here, has all but arrived, or too many are coming.

        Args:
            question: The question for it; its epoch is set here.
            patience_s: Time for which the client waits, for silent members that may have the session.
            is_offered: True if the member that has the session leaves, and has offered it.
        """
        client_id, ledger = question.client_id, self._context.ledger
        move = self._moves.get(client_id)
        if move is None or not move.is_fetching or move.question._replace(epoch=question.epoch) != question:
            epoch = ledger.next_epoch()
            own = ask(ledger.get(client_id), epoch) if self._room > 0 else None
            if own is None:
                return None
            ledger.put(client_id, own)
            move = self._begin(question._replace(epoch=epoch), is_offered=is_offered)
        if patience_s:
            move.patience_until_s = self._context.clock.monotonic() + patience_s
        return move

    def _begin(self, question: TakeQuestion, *, is_offered: bool) -> Move:
        """Begin a move in place of the former one of the same client."""
        client_id, tasks = question.client_id, self._context.ledger.moves
        former = tasks.pop(client_id, None)
        if former is not None:
            former.cancel()
        move = self._moves[client_id] = Move(
            question,
            context=self._context,
            waiting=self._waiting,
            came=self._came,
            begins_when_unknown=self._begins_when_unknown,
            is_offered=is_offered,
        )
        move.task = tasks[client_id] = asyncio.create_task(move.run(), name="session-move")

        def ended(task: asyncio.Task[Choice]) -> None:
            if tasks.get(client_id) is task:
                del tasks[client_id]
            if self._moves.get(client_id) is move:
                del self._moves[client_id]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._context.logger.error("bug while a session moved", client_id=client_id, exc_info=error)

        move.task.add_done_callback(ended)
        return move

    def stop_waiting(self, move: Move) -> None:
        """Let a move wait for silent members no more, since its client does not: it ends if it does now."""
        move.patience_until_s = None
        if move in self._waiting:
            move.task.cancel()

    async def watch_silent(self) -> None:
        """Wake the moves that wait for members which have answered since, or are dead, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._waiting:
                continue
            others = self._context.others.states()
            silent = {other.name for other in others if other.is_silent and not other.is_dead}
            ready = (move.woken for move in self._waiting if not move.silent or not move.silent <= silent)
            for woken in list(islice(ready, max(0, self._room))):
                if woken is not None and not woken.done():
                    woken.set_result(None)

    async def cancel(self) -> None:
        """Bring nothing any more."""
        tasks = list(self._context.ledger.moves.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _room(self) -> int:
        """Number of further sessions that may be on their way here."""
        return _MOVES_MAX - len(self._context.ledger.moves) + len(self._waiting)
