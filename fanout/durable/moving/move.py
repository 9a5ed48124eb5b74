"""The way of one session from the member that has it (the holder) to the member of its client, from top to bottom.

The client's member asks every other one (TAKE), and the holder promises the session: its connection ends, and it goes
on to collect messages. The client's member collects for the same subscriptions, sends a marker through the primary, and
fetches the session (FETCH). The holder gives it with all messages before the marker, a long one in pieces (PIECE). The
holder's answer to COMMIT is the moment at which the owner changes. Then the session is put into the server here, with
the messages that were collected after the marker, and the others are told.

`Move` has the steps of the client's member, and `HolderAnswers` those of the holder. The rules are in
`fanout.durable.ownership.ownership`; `fanout.durable.hosting.server_sessions` carries each step out at the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential
from xxhash import xxh3_64_intdigest

from fanout.durable.moving.context import MoveContext
from fanout.durable.moving.member_calls import MemberCalls
from fanout.durable.moving.own_markers import MARKER_S
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.ledger import PROMISE_S, SessionLedger
from fanout.durable.ownership.move_messages import (
    COMMIT,
    FETCH,
    PIECE,
    PIECES_BYTES_MAX,
    SESSION_BYTES_MAX,
    TAKE,
    ClaimQuestion,
    Fetched,
    Holding,
    Piece,
    PieceQuestion,
    SessionQuestion,
    TakeQuestion,
)
from fanout.durable.ownership.ownership import (
    Answer,
    Choice,
    Decision,
    Reply,
    Stage,
    arrive,
    begin,
    choose,
    finish,
    give_up,
)
from fanout.pool.membership import AskFailed, AskFailure
from fanout.runtime.slices import in_turns
from fanout.server.session.exported_session import ExportedSubscription

__all__ = ["HolderAnswers", "Move", "admitted"]

_TAKE_S: Final = 5.0
"""Time for the answers to TAKE, waiting for other calls included; a client that has left by then comes again."""
_EXACT_S: Final = 3.0
"""Time in which a marker has to come; without one, a session is moved inexactly."""
_UNDECIDED_S: Final = 5.0
"""Longest wait for the primary's answers to messages of a client; after that the session stays where it is."""
_PULL_S: Final = 60.0
"""Time in which all pieces of a long session come."""
_PULL_IDLE_S: Final = 5.0
"""Time without a piece after which no further one is asked for; the holder keeps the value for longer."""
_PAUSE_S: Final = 0.05
_VALUES_BYTES_MAX: Final = 2 << 20
"""Bytes of sessions in one answer to FETCH; further ones are asked for again."""
_SUBSCRIPTIONS_MAX: Final = 5_000
"""Subscriptions in one answer to TAKE, some milliseconds to write and to read; further sessions are asked for again."""
_FILTERS_BYTES_MAX: Final = 4 << 20
"""Characters of their Topic Filters, likewise: an answer has the bound of `TAKE`."""

_Asked = TypeVar("_Asked", TakeQuestion, ClaimQuestion)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers of the other members to TAKE."""

    given: list[tuple[str, Answer | None]]
    """Each member that is not dead, with its answer; None when none came."""
    subscriptions: dict[str, Sequence[ExportedSubscription]]
    """Member that holds the session to its subscriptions."""
    owner_since: int
    """Counter of the epoch since which the client has sessions that it may end; 0 for none."""
    silent: frozenset[str]
    """Members without an answer that were silent, or could not be reached."""

    @property
    def only_silence_is_unknown(self) -> bool:
        """True if every member has given an answer that counts, but for silent ones."""
        return bool(self.silent) and all(
            name in self.silent if answer is None else answer.reply not in (Reply.LATE, Reply.BUSY)
            for name, answer in self.given
        )


class Move:
    """One session on its way here, for as long as its task runs."""

    def __init__(
        self,
        question: TakeQuestion,
        *,
        context: MoveContext,
        waiting: dict[Move, None],
        came: Callable[[str, Epoch, str], None],
        begins_when_unknown: bool,
        is_offered: bool,
    ) -> None:
        """Prepare.

        Args:
            question: The question to the other members.
            context: Shared objects.
            waiting: Moves that wait for silent members; the longest waiting one first.
            came: Called for a session that has come, with its epoch and its former holder.
            begins_when_unknown: True if a client whose session may be at a silent member gets a new one at once.
            is_offered: True if the member that has the session leaves, and has offered it.
        """
        self.question = question
        """The question, which names the client."""
        self.task: asyncio.Task[Choice]
        """Runs `run`."""
        self.patience_until_s: float | None = None
        """Time until which its client waits for silent members; None without a client."""
        self.has_waited = False
        """True if it has waited for one."""
        self.is_fetching = False
        """True if the session is fetched now.

        A client that comes again as the same user waits for the same move: to fetch a long session anew each time would
        never end.
        """
        self.silent = frozenset[str]()
        """Members for which it waits now, or has waited."""
        self.woken: asyncio.Future[None] | None = None
        """Wakes it."""
        self._context = context
        self._waiting = waiting
        self._came = came
        self._begins_when_unknown = begins_when_unknown
        self._is_offered = is_offered

    async def run(self) -> Choice:
        """Bring the session here, if it may come; return what its client gets."""
        ledger, question = self._context.ledger, self.question
        client_id, epoch = question.client_id, question.epoch
        try:
            while True:
                answers = await self._ask_all()
                own = ledger.get(client_id)
                decision = choose(own, answers.given)
                if decision.choice is Choice.FETCH:
                    arrived = await self._bring(decision, answers.subscriptions[decision.holder])
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
                ledger.figures.sessions_lost_total += own is not None and own.stage is Stage.ARRIVING
                ledger.forget(client_id, left)

    async def _wait_for(self, silent: frozenset[str]) -> bool:
        """Wait until a silent member has answered, or is dead, or without any for the next look.

        Returns:
            True if that came in time.
        """
        if self.patience_until_s is None:
            return False
        self.has_waited = True
        self.silent, self.woken = silent, asyncio.get_running_loop().create_future()
        self._waiting[self] = None
        try:
            async with asyncio.timeout(max(0.0, self.patience_until_s - self._context.clock.monotonic())):
                await self.woken
        except TimeoutError:
            return False
        finally:
            del self._waiting[self]
        return True

    async def _ask_all(self) -> _Answers:
        """Ask every member that is not dead (TAKE), and wait for those that are not silent."""
        question = self.question
        living = [other for other in self._context.others.states() if not other.is_dead]
        asked = {
            other.name: self._context.calls.to(other.name).take.ask(question) for other in living if not other.is_silent
        }
        if asked:
            await asyncio.wait(asked.values(), timeout=_TAKE_S)
        answers: list[tuple[str, Answer | None]] = []
        silent: set[str] = set()
        since: list[int] = []
        subscriptions: dict[str, Sequence[ExportedSubscription]] = {}
        for other in living:
            future = asked.get(other.name)
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                holding = future.result()
                self._context.ledger.see(holding.answer.epoch)
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
        for other in self._context.others.states():
            if other.name not in known and not other.is_dead:  # it is heard again, and was not asked
                silent.add(other.name)
                answers.append((other.name, None))
        kept = self._context.ledger.answer_from_copy(question.client_id)
        if kept is not None:
            answers.append((self._context.node, kept))
        return _Answers(answers, subscriptions, min(since, default=0), frozenset(silent))

    async def _bring(self, found: Decision, subscriptions: Sequence[ExportedSubscription]) -> bool:
        """Fetch the session from its holder; return whether it is here."""
        ledger, host, question = self._context.ledger, self._context.host, self.question
        client_id, epoch = question.client_id, question.epoch
        calls, passed = self._context.calls.to(found.holder), self._context.passed
        self.is_fetching = True
        try:
            await host.collect(client_id, subscriptions)
            fetched, markers = await self._fetch(calls, SessionQuestion(client_id, epoch))
            exact = fetched.status == "exact" and await passed.wait(self._context.node, markers, timeout_s=_EXACT_S)
            value = fetched.value
            if not value and fetched.status in ("exact", "inexact"):
                value = await self._pull(calls, client_id, epoch)
            if value:
                await host.read(client_id, value)
                exact = exact or await host.follow(client_id, fetched.places)
            came = bool(value) and host.may_adopt(client_id, question, is_offered=self._is_offered)
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
            if not host.adopt(client_id, exact=exact):
                ledger.forget(client_id, None)
                ledger.figures.sessions_lost_total += 1
                return False
            ledger.put(client_id, own)
            self._came(client_id, epoch, found.holder)
            ledger.figures.sessions_moved_in_total += 1
            ledger.figures.sessions_inexact_total += not exact
            return True
        except AskFailed:
            return False
        finally:
            self.is_fetching = False
            host.stop_collecting(client_id)

    async def _fetch(self, calls: MemberCalls, question: SessionQuestion) -> tuple[Fetched, Mapping[str, str]]:
        """Fetch a session, again as long as a message of its client has no verdict, or a marker may be late only."""
        asked_s = self._context.clock.monotonic()
        while True:
            fetched, markers = await calls.fetch.ask(question)
            may_wait = markers or fetched.places  # what follows these may be on its way
            wait_s = {"later": _UNDECIDED_S, "inexact": _EXACT_S if may_wait else 0.0}.get(fetched.status, 0.0)
            is_over = self._context.clock.monotonic() >= asked_s + wait_s
            if is_over and self._context.host.awaits(fetched.places):
                return Fetched("later"), markers  # the streams here are behind: what they bring would come twice
            if is_over or self._context.host.follows(fetched.places):
                return fetched, markers
            await asyncio.sleep(_PAUSE_S)

    async def _pull(self, calls: MemberCalls, client_id: str, epoch: Epoch) -> bytes:
        """Fetch the value of a long session in pieces; return nothing if that does not succeed."""
        data = bytearray()
        digest: int | None = None
        begun_s = progress_s = self._context.clock.monotonic()
        while (now_s := self._context.clock.monotonic()) < min(begun_s + _PULL_S, progress_s + _PULL_IDLE_S):
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


class HolderAnswers:
    """Answers of a member that may have the sessions for which others ask."""

    def __init__(self, context: MoveContext) -> None:
        """Prepare.

        Args:
            context: Shared objects.
        """
        self._ledger = context.ledger
        self._host = context.host
        self._passed = context.passed

    async def answer_take(self, asker: str, body: bytes) -> bytes:
        """Answer TAKE: promise the sessions that are here."""
        answers: list[Holding] = []
        subscriptions = size = 0
        async for question in in_turns(admitted(TAKE.decode(body), self._ledger)):
            holding = Holding(Answer(Reply.BUSY), ())
            full = subscriptions >= _SUBSCRIPTIONS_MAX or size >= _FILTERS_BYTES_MAX
            if not full or not self._ledger.is_here(question.client_id):
                holding = self._ledger.promise(question, asker)
            subscriptions += len(holding.subscriptions)
            size += sum(len(one.topic_filter) for one in holding.subscriptions)
            answers.append(holding)
        return TAKE.encode_answers(answers)

    async def answer_fetch(self, asker: str, body: bytes) -> bytes:
        """Answer FETCH: wait for the markers, and give the values of promised sessions."""
        questions = FETCH.decode(body)
        markers = questions[0].markers if questions else {}
        passed = await self._passed.wait(asker, markers, timeout_s=MARKER_S)
        answers: list[Fetched] = []
        size = 0
        async for question in in_turns(questions):
            fetched = Fetched("later")
            if size < _VALUES_BYTES_MAX:
                fetched = self._ledger.freeze(question._replace(markers=markers if passed else {}))
            size += len(fetched.value)
            answers.append(fetched)
        return FETCH.encode_answers(answers)

    async def answer_piece(self, asker: str, body: bytes) -> bytes:
        """Answer PIECE: give pieces of the values of long sessions that were fetched."""
        answers: list[Piece] = []
        left = PIECES_BYTES_MAX
        for question in PIECE.decode(body):
            answers.append(self._ledger.piece(question, bytes_max=left))
            left -= len(answers[-1].data)
        return PIECE.encode_answers(answers)

    async def answer_commit(self, asker: str, body: bytes) -> bytes:
        """Answer COMMIT: the sessions that were fetched are the other member's from now on."""
        committed = [self._ledger.commit(question) async for question in in_turns(COMMIT.decode(body))]
        await self._host.on_disk()  # or a restart here would bring back what the other member has
        return COMMIT.encode_answers(committed)


def admitted(questions: Sequence[_Asked], ledger: SessionLedger) -> Sequence[_Asked]:
    """Return questions with epochs that this member believes.

    Raises:
        ValueError: One has an epoch too far ahead; nothing of them is done.
    """
    for question in questions:
        ledger.epochs.admit(question.epoch)
    return questions


def _is_unreachable(answer: asyncio.Future[Holding]) -> bool:
    """Return whether a question has failed since nothing listens at a member: it is silent soon."""
    error = answer.exception() if answer.done() and not answer.cancelled() else None
    return isinstance(error, AskFailed) and error.failure is AskFailure.UNREACHABLE
