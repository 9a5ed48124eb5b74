"""Sessions that come to this member: who has one is asked, it is fetched, and its holder confirms that it is ours.

Owns the task of each session that comes. The rules are in `fanout.durable.ownership.ownership`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential
from xxhash import xxh3_64_intdigest

from fanout.durable.moving.member_calls import AllMemberCalls, MemberCalls
from fanout.durable.moving.passed_markers import PassedMarkers
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.ledger import PROMISE_S, SessionLedger
from fanout.durable.ownership.move_messages import (
    SESSION_BYTES_MAX,
    Fetched,
    Holding,
    PieceQuestion,
    SessionQuestion,
    Subscription,
    TakeQuestion,
)
from fanout.durable.ownership.ownership import (
    Answer,
    Choice,
    Decision,
    Reply,
    Stage,
    arrive,
    ask,
    begin,
    choose,
    finish,
    give_up,
)
from fanout.durable.ownership.ports import Others, SessionHost
from fanout.pool.membership import AskFailed, AskFailure
from fanout.runtime.system_clock import Clock

__all__ = ["Arrivals"]

_TAKE_S: Final = 5.0
"""Time for the answers to TAKE, waiting for other calls included; a client that has left by then comes again."""
_EXACT_S: Final = 3.0
"""Time in which a marker has to come; without one, a session is moved inexactly."""
_UNDECIDED_S: Final = 5.0
"""Time in which the primary answers the messages of a client; the session stays where it is after that."""
_PULL_S: Final = 60.0
"""Time in which all pieces of a long session come."""
_PULL_IDLE_S: Final = 5.0
"""Time without a piece after which no further one is asked for; the holder keeps the value for longer."""
_PAUSE_S: Final = 0.05
_MOVES_MAX: Final = 3_000
"""Sessions that are on their way here at a time: about as many as come in a second. Further clients come again.

Those that wait for a silent member only are not counted: they are connections, which have a limit, and cost nothing.
"""
_LOOK_S: Final = 0.1
"""Time between two looks at silent members for which clients wait."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers of the other members to TAKE."""

    given: list[tuple[str, Answer | None]]
    """Each member that is not dead, with its answer; None when none came."""
    subscriptions: dict[str, Sequence[Subscription]]
    """Member that holds the session to its subscriptions."""
    owner_since: int
    """Counter of the epoch since which the client has sessions that it may end; 0 for none."""
    silent: frozenset[str]
    """Of those without an answer, the ones that were silent, or could not be reached."""

    @property
    def only_silence_is_unknown(self) -> bool:
        """Whether every member has given an answer that counts, but for silent ones."""
        return bool(self.silent) and all(
            name in self.silent if answer is None else answer.reply not in (Reply.LATE, Reply.BUSY)
            for name, answer in self.given
        )


class Arrivals:
    """Brings sessions of other members here."""

    def __init__(
        self,
        ledger: SessionLedger,
        *,
        node: str,
        host: SessionHost,
        others: Others,
        calls: AllMemberCalls,
        passed: PassedMarkers,
        came: Callable[[str, Epoch, str], None],
        clock: Clock,
        logger: FilteringBoundLogger,
        begins_when_unknown: bool,
    ) -> None:
        """Prepare.

        Args:
            ledger: What is known of the sessions.
            node: This member.
            host: The sessions of this node.
            others: The other members.
            calls: Calls to them.
            passed: Markers that have passed here.
            came: Called for a session that has come, with its epoch and its former holder.
            clock: Gives the time.
            logger: Takes log lines.
            begins_when_unknown: Whether a client whose session may be at a silent member gets a new one at once.
        """
        self._ledger = ledger
        self._node = node
        self._host = host
        self._others = others
        self._calls = calls
        self._passed = passed
        self._came = came
        self._clock = clock
        self._logger = logger
        self._begins_when_unknown = begins_when_unknown
        self._patience: dict[asyncio.Task[Choice], float] = {}
        """Task with a client to the time until which it waits for silent members."""
        self._have_waited: set[asyncio.Task[Choice]] = set()
        self._brought: dict[str, tuple[str, bool, bool]] = {}
        """Client whose session is fetched now, with its user, whether that is a superuser, and whether it is anybody.

        Whoever comes again waits for the same: to fetch a long one anew each time would never end.
        """
        self._waiting: dict[asyncio.Task[Choice], tuple[frozenset[str], asyncio.Future[None]]] = {}
        """Task that waits now to the members for which it does, and what wakes it; the longest waiting one first."""

    def start(
        self,
        client_id: str,
        *,
        user: str,
        superuser: bool,
        anyone: bool,
        clean: bool = False,
        patience_s: float = 0.0,
    ) -> asyncio.Task[Choice] | None:
        """Begin to bring a session here; return None when it is here, has all but arrived, or too many are coming.

        Args:
            client_id: Its Client Identifier.
            user: The verified user of its client; empty for a client without one.
            superuser: Whether that may read and write every topic.
            anyone: Whether this node has no access control.
            clean: Whether the client wants a new session, so that none comes here.
            patience_s: Time for which the client waits, for silent members that may have the session.
        """
        ledger, moves = self._ledger, self._ledger.moves
        brought = self._brought.get(client_id)
        if brought is not None and not clean and brought == (user, superuser, anyone):
            move = moves[client_id]  # its client has come again before all of it was here
            if patience_s:
                self._patience[move] = self._clock.monotonic() + patience_s
            return move
        epoch = ledger.next_epoch()
        own = ask(ledger.get(client_id), epoch) if self._room > 0 else None
        if own is None:
            return None
        ledger.put(client_id, own)
        former = moves.pop(client_id, None)
        if former is not None:
            former.cancel()
        question = TakeQuestion(client_id, epoch, user, superuser, anyone, clean)
        move = moves[client_id] = asyncio.create_task(self._move(question), name="session-move")
        if patience_s:
            self._patience[move] = self._clock.monotonic() + patience_s

        def ended(task: asyncio.Task[Choice]) -> None:
            self._patience.pop(task, None)
            self._have_waited.discard(task)
            if moves.get(client_id) is task:
                del moves[client_id]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._logger.error("bug while a session moved", client_id=client_id, exc_info=error)

        move.add_done_callback(ended)
        return move

    def has_waited(self, move: asyncio.Task[Choice]) -> bool:
        """Return whether a session comes late for a silent member only."""
        return move in self._have_waited

    def stop_waiting(self, move: asyncio.Task[Choice]) -> None:
        """Let a task wait for silent members no more, since its client does not: it ends if it does now."""
        self._patience.pop(move, None)
        if move in self._waiting:
            move.cancel()

    async def watch_silent(self) -> None:
        """Wake the tasks that wait for members which have answered since, or are dead, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if not self._waiting:
                continue
            silent = {other.name for other in self._others.states() if other.is_silent and not other.is_dead}
            ready = (woken for members, woken in self._waiting.values() if not members or not members <= silent)
            for woken in list(islice(ready, max(0, self._room))):
                if not woken.done():
                    woken.set_result(None)

    async def cancel(self) -> None:
        """Bring nothing any more."""
        moves = list(self._ledger.moves.values())
        for move in moves:
            move.cancel()
        await asyncio.gather(*moves, return_exceptions=True)

    # Its own.

    @property
    def _room(self) -> int:
        """How many sessions more may be on their way here."""
        return _MOVES_MAX - len(self._ledger.moves) + len(self._waiting)

    async def _move(self, question: TakeQuestion) -> Choice:
        ledger, client_id, epoch = self._ledger, question.client_id, question.epoch
        try:
            while True:
                answers = await self._ask_all(question)
                own = ledger.get(client_id)
                decision = choose(own, answers.given)
                if decision.choice is Choice.FETCH:
                    arrived = await self._bring(question, decision, answers.subscriptions[decision.holder])
                    return Choice.FETCH if arrived else Choice.LATER
                if decision.choice in (Choice.BEGIN, Choice.BEGIN_ANEW):
                    # `began` follows, unless the client has left.
                    ledger.put(client_id, begin(epoch, owner_since=answers.owner_since))
                    is_lost = ledger.was_lost(client_id) and not question.clean
                    return Choice.BEGIN_ANEW if is_lost else decision.choice
                # The same question is asked again: a client that connects elsewhere meanwhile has a later one.
                is_asking = own is not None and own.stage is Stage.ASKING
                waits = decision.is_coming or answers.only_silence_is_unknown
                if not (is_asking and decision.choice is Choice.LATER and waits):
                    return decision.choice
                if not await self._wait_for(frozenset() if decision.is_coming else answers.silent):
                    return decision.choice
        finally:
            own = ledger.known(client_id)
            left = give_up(own, epoch)
            if left is not own:
                ledger.figures.lost_total += own is not None and own.stage is Stage.ARRIVING
                ledger.forget(client_id, left)

    async def _wait_for(self, silent: frozenset[str]) -> bool:
        """Wait until a silent member has answered, or is dead, or without any for the next look.

        Returns:
            Whether that came in time.
        """
        move = asyncio.current_task()
        until_s = self._patience.get(move)  # type: ignore[arg-type]  # a task runs this
        if move is None or until_s is None:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._have_waited.add(move)
        self._waiting[move] = silent, woken
        try:
            async with asyncio.timeout(max(0.0, until_s - self._clock.monotonic())):
                await woken
        except TimeoutError:
            return False
        finally:
            del self._waiting[move]
        return True

    async def _ask_all(self, question: TakeQuestion) -> _Answers:
        """Ask every member that is not dead, and wait for those that are not silent."""
        living = [other for other in self._others.states() if not other.is_dead]
        asked = {other.name: self._calls.to(other.name).take.ask(question) for other in living if not other.is_silent}
        if asked:
            await asyncio.wait(asked.values(), timeout=_TAKE_S)
        answers: list[tuple[str, Answer | None]] = []
        silent: set[str] = set()
        since: list[int] = []
        subscriptions: dict[str, Sequence[Subscription]] = {}
        for other in living:
            future = asked.get(other.name)
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                holding = future.result()
                self._ledger.see(holding.answer.epoch)
                subscriptions[other.name] = holding.subscriptions
                since += [holding.owner_since] if holding.owner_since else []
                answers.append((other.name, holding.answer))
                continue
            if future is None or _is_unreachable(future):
                silent.add(other.name)
            else:
                future.cancel()
            if not other.is_empty and not self._begins_when_unknown:
                answers.append((other.name, None))
        known = {other.name for other in living}
        for other in self._others.states():
            if other.name not in known and not other.is_dead:  # it is heard again, and was not asked
                silent.add(other.name)
                answers.append((other.name, None))
        kept = self._ledger.answer_from_copy(question.client_id)
        if kept is not None:
            answers.append((self._node, kept))
        return _Answers(answers, subscriptions, min(since, default=0), frozenset(silent))

    async def _bring(self, question: TakeQuestion, found: Decision, subscriptions: Sequence[Subscription]) -> bool:
        """Fetch a session from its holder; return whether it is here."""
        ledger, client_id, epoch = self._ledger, question.client_id, question.epoch
        calls = self._calls.to(found.holder)
        self._brought[client_id] = question.user, question.superuser, question.anyone
        try:
            await self._host.collect(client_id, subscriptions)
            fetched, markers = await self._fetch(calls, SessionQuestion(client_id, epoch))
            exact = fetched.status == "exact" and await self._passed.wait(markers, timeout_s=_EXACT_S)
            value = fetched.value
            if not value and fetched.status in ("exact", "inexact"):
                value = await self._pull(calls, client_id, epoch)
            if value:
                await self._host.read(client_id, value)
            came = bool(value) and self._host.may_adopt(client_id, question)
            if ledger.has_agreed(client_id, found.holder):
                came = False  # an heir may have it: the client comes again, and it is fetched from there
            own, arrives = arrive(ledger.get(client_id), epoch, found=came, since=found.epoch)
            if not arrives or own is None:
                return False
            ledger.put(client_id, own)
            committed = await self._commit(calls, SessionQuestion(client_id, epoch))
            own, here = finish(ledger.get(client_id), epoch, committed=committed)
            if not here or own is None:  # its holder has taken it back, or its client began anew elsewhere
                ledger.forget(client_id, own)
                return False
            if not self._host.adopt(client_id, exact=exact):
                ledger.forget(client_id, None)
                ledger.figures.lost_total += 1
                return False
            ledger.put(client_id, own)
            self._came(client_id, epoch, found.holder)
            ledger.figures.moved_in_total += 1
            ledger.figures.inexact_total += not exact
            return True
        except AskFailed:
            return False
        finally:
            if ledger.moves.get(client_id) in (None, asyncio.current_task()):
                self._brought.pop(client_id, None)
            self._host.stop_collecting(client_id)

    async def _pull(self, calls: MemberCalls, client_id: str, epoch: Epoch) -> bytes:
        """Fetch the value of a long session in pieces; return nothing if that does not succeed."""
        data = bytearray()
        digest: int | None = None
        begun_s = progress_s = self._clock.monotonic()
        while (now_s := self._clock.monotonic()) < min(begun_s + _PULL_S, progress_s + _PULL_IDLE_S):
            try:
                piece = await calls.piece.ask(PieceQuestion(client_id, epoch, len(data)))
            except AskFailed:  # it is busy, or away for a moment; the value stays as it is
                await asyncio.sleep(_PAUSE_S)
                continue
            is_another = piece.total and digest not in (None, piece.digest)
            if not piece.is_there or is_another or piece.total > SESSION_BYTES_MAX:
                break
            if not piece.total or not piece.data:
                progress_s = progress_s if piece.total else now_s  # it is being made
                await asyncio.sleep(_PAUSE_S)
                continue
            digest = piece.digest
            data += piece.data
            progress_s = now_s
            if len(data) >= piece.total:
                return bytes(data) if xxh3_64_intdigest(data) == digest else b""
        return b""

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


def _is_unreachable(answer: asyncio.Future[Holding]) -> bool:
    """Return whether a question has failed since nothing listens at a member: it is silent soon."""
    error = answer.exception() if answer.done() and not answer.cancelled() else None
    return isinstance(error, AskFailed) and error.failure is AskFailure.UNREACHABLE
