"""Sessions that come to this member: who has one is asked, it is fetched, and its holder confirms that it is ours.

Owns the task of each session that comes. The rules are in `fanout.pool.sessions.ownership`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from fanout.pool.membership import AskFailed
from fanout.pool.sessions.epochs import Epoch
from fanout.pool.sessions.ledger import PROMISE_S, SessionLedger
from fanout.pool.sessions.member_calls import AllMemberCalls, MemberCalls
from fanout.pool.sessions.move_messages import Fetched, SessionQuestion, Subscription, TakeQuestion
from fanout.pool.sessions.ownership import Answer, Choice, Decision, Stage, arrive, ask, begin, choose, finish, give_up
from fanout.pool.sessions.passed_markers import PassedMarkers
from fanout.pool.sessions.ports import Others, SessionHost
from fanout.runtime.system_clock import Clock

__all__ = ["Arrivals"]

_TAKE_S: Final = 5.0
"""Time for the answers to TAKE, waiting for other calls included; a client that has left by then comes again."""
_EXACT_S: Final = 3.0
"""Time in which a marker has to come; without one, a session is moved inexactly."""
_UNDECIDED_S: Final = 5.0
"""Time in which the primary answers the messages of a client; the session stays where it is after that."""
_PAUSE_S: Final = 0.05
_MOVES_MAX: Final = 3_000
"""Sessions that are on their way here at a time: about as many as come in a second. Further clients come again."""


class Arrivals:
    """Brings sessions of other members here."""

    def __init__(
        self,
        ledger: SessionLedger,
        *,
        host: SessionHost,
        others: Others,
        calls: AllMemberCalls,
        passed: PassedMarkers,
        claim: Callable[[str, Epoch], None],
        clock: Clock,
        logger: FilteringBoundLogger,
        begins_when_unknown: bool,
    ) -> None:
        """Prepare.

        Args:
            ledger: What is known of the sessions.
            host: The sessions of this node.
            others: The other members.
            calls: Calls to them.
            passed: Markers that have passed here.
            claim: Tells the others that a session is here since an epoch.
            clock: Gives the time.
            logger: Takes log lines.
            begins_when_unknown: Whether a client whose session may be at a silent member gets a new one at once.
        """
        self._ledger = ledger
        self._host = host
        self._others = others
        self._calls = calls
        self._passed = passed
        self._claim = claim
        self._clock = clock
        self._logger = logger
        self._begins_when_unknown = begins_when_unknown

    def start(self, client_id: str, *, user: str, superuser: bool, anyone: bool) -> asyncio.Task[Choice] | None:
        """Begin to bring a session here; return None when it is here, has all but arrived, or too many are coming.

        Args:
            client_id: Its Client Identifier.
            user: The verified user of its client; empty for a client without one.
            superuser: Whether that may read and write every topic.
            anyone: Whether this node has no access control.
        """
        ledger, moves = self._ledger, self._ledger.moves
        epoch = ledger.next_epoch()
        own = ask(ledger.get(client_id), epoch) if len(moves) < _MOVES_MAX else None
        if own is None:
            return None
        ledger.put(client_id, own)
        former = moves.pop(client_id, None)
        if former is not None:
            former.cancel()
        question = TakeQuestion(client_id, epoch, user, superuser, anyone)
        move = moves[client_id] = asyncio.create_task(self._move(question), name="session-move")

        def ended(task: asyncio.Task[Choice]) -> None:
            if moves.get(client_id) is task:
                del moves[client_id]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._logger.error("bug while a session moved", client_id=client_id, exc_info=error)

        move.add_done_callback(ended)
        return move

    async def cancel(self) -> None:
        """Bring nothing any more."""
        moves = list(self._ledger.moves.values())
        for move in moves:
            move.cancel()
        await asyncio.gather(*moves, return_exceptions=True)

    # Its own.

    async def _move(self, question: TakeQuestion) -> Choice:
        ledger, client_id, epoch = self._ledger, question.client_id, question.epoch
        try:
            answers, subscriptions = await self._ask_all(question)
            own = ledger.get(client_id)
            decision = choose(own, answers)
            if decision.choice is Choice.BEGIN:
                ledger.put(client_id, begin(epoch))  # `began` follows, unless the client has left
            elif decision.choice is Choice.FETCH:
                arrived = await self._bring(question, decision, subscriptions[decision.holder])
                return Choice.FETCH if arrived else Choice.LATER
            return decision.choice
        finally:
            own = ledger.known(client_id)
            left = give_up(own, epoch)
            if left is not own:
                ledger.figures.lost_total += own is not None and own.stage is Stage.ARRIVING
                ledger.forget(client_id, left)

    async def _ask_all(
        self, question: TakeQuestion
    ) -> tuple[list[tuple[str, Answer | None]], dict[str, Sequence[Subscription]]]:
        """Ask every member that is not dead, and wait for those that are not silent."""
        living = [other for other in self._others.states() if not other.is_dead]
        asked = {other.name: self._calls.to(other.name).take.ask(question) for other in living if not other.is_silent}
        if asked:
            await asyncio.wait(asked.values(), timeout=_TAKE_S)
        answers: list[tuple[str, Answer | None]] = []
        subscriptions: dict[str, Sequence[Subscription]] = {}
        for other in living:
            future = asked.get(other.name)
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                holding = future.result()
                self._ledger.see(holding.answer.epoch)
                subscriptions[other.name] = holding.subscriptions
                answers.append((other.name, holding.answer))
                continue
            if future is not None:
                future.cancel()
            if not other.is_empty and not self._begins_when_unknown:
                answers.append((other.name, None))
        return answers, subscriptions

    async def _bring(self, question: TakeQuestion, found: Decision, subscriptions: Sequence[Subscription]) -> bool:
        """Fetch a session from its holder; return whether it is here."""
        ledger, client_id, epoch = self._ledger, question.client_id, question.epoch
        calls = self._calls.to(found.holder)
        self._host.collect(client_id, subscriptions)
        try:
            fetched, markers = await self._fetch(calls, SessionQuestion(client_id, epoch))
            exact = fetched.status == "exact" and await self._passed.wait(markers, timeout_s=_EXACT_S)
            came = bool(fetched.value) and self._host.may_adopt(client_id, fetched.value, question)
            own, arrives = arrive(ledger.get(client_id), epoch, found=came, since=found.epoch)
            if not arrives or own is None:
                return False
            ledger.put(client_id, own)
            committed = await self._commit(calls, SessionQuestion(client_id, epoch))
            own, here = finish(ledger.get(client_id), epoch, committed=committed)
            if not here or own is None:  # its holder has taken it back, or its client began anew elsewhere
                ledger.forget(client_id, own)
                return False
            if not self._host.adopt(client_id, fetched.value, exact=exact):
                ledger.forget(client_id, None)
                ledger.figures.lost_total += 1
                return False
            ledger.put(client_id, own)
            self._claim(client_id, epoch)
            ledger.figures.moved_in_total += 1
            ledger.figures.inexact_total += not exact
            return True
        except AskFailed:
            return False
        finally:
            self._host.stop_collecting(client_id)

    async def _fetch(self, calls: MemberCalls, question: SessionQuestion) -> tuple[Fetched, Mapping[str, str]]:
        """Fetch a session, again as long as a message of its client has no verdict, or a marker may be late only."""
        asked_s = self._clock.monotonic()
        while True:
            fetched, markers = await calls.fetch.ask(question)
            wait_s = {"later": _UNDECIDED_S, "inexact": _EXACT_S if markers else 0.0}.get(fetched.status, 0.0)
            if self._clock.monotonic() >= asked_s + wait_s:
                return fetched, markers
            await asyncio.sleep(_PAUSE_S)

    async def _commit(self, calls: MemberCalls, question: SessionQuestion) -> bool:
        """Ask the holder until it answers: only it knows whether the session is this member's."""
        with contextlib.suppress(AskFailed):
            return await calls.commit.ask(question)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(AskFailed),
            stop=stop_after_delay(PROMISE_S),
            wait=wait_exponential(multiplier=_PAUSE_S, max=1.0),
            reraise=True,
        ):
            with attempt:
                return await calls.commit.ask(question)
        raise AssertionError("the last attempt raises")
