"""Sessions of this node and of the others: where a client's session is, and the task that brings it here.

Owns the ownership of every session at this node, the requests under way, and the batches to each member. The rules are
in `fanout.pool.sessions.ownership`; `docs/reference/pool.md` says what moves, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from fanout.pool.membership import AskFailed
from fanout.pool.sessions.epochs import NO_EPOCH, Epoch, EpochClock
from fanout.pool.sessions.member_calls import KINDS, MemberCalls
from fanout.pool.sessions.move_messages import (
    Fetched,
    Holding,
    SessionQuestion,
    Subscription,
    TakeQuestion,
    decode_fetch_request,
    decode_request,
    decode_take_request,
    encode_claim_answers,
    encode_commit_answers,
    encode_fetch_answers,
    encode_take_answers,
)
from fanout.pool.sessions.ownership import (
    Answer,
    Choice,
    Ownership,
    Reply,
    Stage,
    arrive,
    ask,
    begin,
    choose,
    claim,
    commit,
    fetch,
    finish,
    give_up,
    refuse,
    take,
    take_back,
)
from fanout.pool.sessions.passed_markers import PassedMarkers
from fanout.pool.sessions.ports import Markers, Others, SessionHost
from fanout.runtime.system_clock import Clock

__all__ = ["ANSWER_S", "SessionFigures", "SessionPool"]

ANSWER_S: Final = 0.3
"""Longest time for which a client waits, whatever the other members do."""
_TAKE_S: Final = 5.0
"""Time for the answers to TAKE, waiting for other calls included; a client that has left by then comes again."""
_MARKER_S: Final = 1.0
"""Time in which a marker comes through the primary to a member; then another one is tried."""
_EXACT_S: Final = 3.0
"""Time in which a marker has to come; without one, a session is moved inexactly."""
_UNDECIDED_S: Final = 5.0
"""Time in which the primary answers the messages of a client; the session stays where it is after that."""
_PROMISE_S: Final = 10.0
"""Time after which a session that was promised, and not fetched or committed, goes on where it is."""
_PAUSE_S: Final = 0.05
_SWEEP_S: Final = 1.0
_OFFER_S: Final = 0.1
"""Pause between two rounds of a hand-over."""
_OFFERED_S: Final = 2.0
"""Time in which a session that was offered is fetched; then it is offered again."""
_GOODBYE_S: Final = 1.0
"""Time that a member which leaves is still there, so that all have heard that it does."""
_STUCK_S: Final = 8.0
"""Time without any progress after which a hand-over is given up."""
_VALUES_BYTES_MAX: Final = 32 << 20
"""Bytes of sessions in one answer to FETCH; further ones are asked for again."""
_MOVES_MAX: Final = 3_000
"""Sessions that are on their way here at a time: about as many as come in a second. Further clients come again."""
_TOMBSTONES_MAX: Final = 100_000
"""Sessions that are elsewhere or have ended, of which the newest epoch is remembered."""
_MARKERS_MAX: Final = 256
"""Own markers that are under way, of calls of which some may have failed."""


@dataclass(slots=True)
class SessionFigures:
    """Counters of sessions that move."""

    moved_in_total: int = 0
    """Sessions that came here."""
    moved_out_total: int = 0
    """Sessions that went to another member."""
    inexact_total: int = 0
    """Of those that came, the ones that no marker divided: messages may be lost or doubled, retained ones come again.
    """
    ended_total: int = 0
    """Sessions that ended here because their clients began anew elsewhere."""
    later_total: int = 0
    """Clients that were refused (0x88) because their session was not here in time."""
    lost_total: int = 0
    """Sessions of which it is not known whether they came, and which were thrown away."""


@dataclass(slots=True)
class _Promise:
    """A session that is promised to a member, or frozen for it."""

    member: str
    until_s: float


class SessionPool:
    """The sessions of a pool, as one member has and finds them."""

    def __init__(
        self,
        *,
        node: str,
        host: SessionHost,
        markers: Markers,
        others: Others,
        clock: Clock,
        logger: FilteringBoundLogger,
        begins_when_unknown: bool = False,
    ) -> None:
        """Prepare; `run` is to run as long as sessions move.

        Args:
            node: This node's `node.id`.
            host: The sessions of this node.
            markers: Divides the streams of all members at one place.
            others: The other members.
            clock: Gives the time.
            logger: Takes log lines.
            begins_when_unknown: Whether a client whose session may be at a silent member gets a new one at once.
        """
        self.figures = SessionFigures()
        """Counters."""
        self._node = node
        self._host = host
        self._markers = markers
        self._others = others
        self._clock = clock
        self._logger = logger
        self._begins_when_unknown = begins_when_unknown
        self._epochs = EpochClock(node)
        self.is_leaving = False
        """Whether this node gives its sessions away, and takes no client any more."""
        self._offered: dict[str, float] = {}
        """Client Identifier of a session that was offered, to when it is offered again."""
        self._known: dict[str, Ownership] = {}
        self._promises: dict[str, _Promise] = {}
        """Client Identifier to the promise, oldest first."""
        self._moves: dict[str, asyncio.Task[Choice]] = {}
        self._calls: dict[str, MemberCalls] = {}
        self._passed = PassedMarkers()
        self._collecting: dict[tuple[str, str], list[str]] = {}
        """Links and own markers to the Client Identifiers whose messages behind the marker are for this node."""

    # For the server.

    @property
    def may_resume(self) -> bool:
        """Whether this node may go on with its own sessions: False while others may take it for dead."""
        return not self._others.is_isolated

    def began(self, client_id: str) -> None:
        """Note that the session of a client began here, or goes on here: what is older elsewhere ends."""
        self._begin(client_id, self._next_epoch())

    def find(self, client_id: str, *, user: str, superuser: bool, anyone: bool) -> asyncio.Future[Choice]:
        """Bring the session of a client here that has none here.

        Args:
            client_id: Its Client Identifier.
            user: Its verified user; empty for a client without one.
            superuser: Whether it may read and write every topic.
            anyone: Whether this node has no access control.

        Returns:
            FETCH: it is here now; BEGIN: there is none; REFUSE: it is another user's; LATER: not known in time.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Choice] = loop.create_future()
        move = self._start(client_id, user=user, superuser=superuser, anyone=anyone)
        if move is None:
            self._give_later(found)
            return found
        timer = loop.call_later(ANSWER_S, self._give_later, found)

        def ended(task: asyncio.Task[Choice]) -> None:
            timer.cancel()
            if found.done():
                return
            choice = Choice.LATER if task.cancelled() or task.exception() is not None else task.result()
            if choice is Choice.LATER:
                self._give_later(found)
            else:
                found.set_result(choice)

        move.add_done_callback(ended)
        return found

    def _start(self, client_id: str, *, user: str, superuser: bool, anyone: bool) -> asyncio.Task[Choice] | None:
        """Begin to bring a session here; return None when it is here, has all but arrived, or too many are coming."""
        epoch = self._next_epoch()
        own = ask(self._get(client_id), epoch) if len(self._moves) < _MOVES_MAX else None
        if own is None:
            return None
        self._known[client_id] = own
        former = self._moves.pop(client_id, None)
        if former is not None:
            former.cancel()
        question = TakeQuestion(client_id, epoch, user, superuser, anyone)
        move = self._moves[client_id] = asyncio.create_task(self._move(question), name="session-move")

        def ended(task: asyncio.Task[Choice]) -> None:
            if self._moves.get(client_id) is task:
                del self._moves[client_id]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._logger.error("bug while a session moved", client_id=client_id, exc_info=error)

        move.add_done_callback(ended)
        return move

    # For the links.

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        """Note the place of a member's marker: what came before it was dispatched, what comes behind it not yet."""
        if node == self._node:
            self._host.note_collected(self._collecting.pop((link, marker), ()), link)
        else:
            ids = [client_id for client_id, promise in self._promises.items() if promise.member == node]
            self._host.note_place(ids, link, marker)
        self._passed.note(link, marker)

    # For the node.

    async def hand_over(self, *, clients_per_s: float) -> None:
        """Give all sessions to other members, and take no client any more; ends when nothing moves any more.

        Sessions without a connection go at once. Clients are sent away at a pace, and bring their sessions to the
        members at which they connect; those of clients that do not come are offered too.

        Args:
            clients_per_s: Clients that are sent away in a second.
        """
        self.is_leaving = True
        begun = self.figures.moved_out_total
        left, moved_at_s = 1, self._clock.monotonic()
        while any(other.is_ready for other in self._others.states()):
            before = (self.figures.moved_out_total, left)
            self._offer_absent()
            left = self._host.send_away(max(1, round(clients_per_s * _OFFER_S)))
            await asyncio.sleep(_OFFER_S)
            now_s = self._clock.monotonic()
            if (self.figures.moved_out_total, left) != before:
                moved_at_s = now_s
            is_done = not left and not self._host.absent() and not self._moves
            if now_s - moved_at_s >= (_GOODBYE_S if is_done else _STUCK_S):
                break
        self._logger.info(
            "sessions handed over", moved=self.figures.moved_out_total - begun, left=len(self._host.absent())
        )

    def _offer_absent(self) -> None:
        """Offer the sessions without a connection to the ready members in turn, each again until it has gone."""
        ready = [other.name for other in self._others.states() if other.is_ready]
        now_s = self._clock.monotonic()
        for turn, (client_id, user, superuser) in enumerate(self._host.absent()):
            if client_id in self._promises or not ready or self._offered.get(client_id, 0.0) > now_s:
                continue
            if len(self._offered) >= _MOVES_MAX:
                self._offered = {each: until_s for each, until_s in self._offered.items() if until_s > now_s}
                if len(self._offered) >= _MOVES_MAX:
                    break
            self._offered[client_id] = now_s + _OFFERED_S
            question = TakeQuestion(client_id, self._next_epoch(), user, superuser, anyone=False)
            self._calls_to(ready[turn % len(ready)]).offer.ask(question).add_done_callback(_ignore)

    async def run(self) -> None:
        """Take back what nobody fetched in time, and forget what is too old, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_SWEEP_S)
                self._sweep()
        finally:
            for calls in self._calls.values():
                for each in calls.all():
                    each.close()
            moves = list(self._moves.values())
            for move in moves:
                move.cancel()
            await asyncio.gather(*moves, return_exceptions=True)

    @property
    def calls_total(self) -> dict[str, int]:
        """Calls to other members, by kind."""
        totals = dict.fromkeys(KINDS, 0)
        for calls in self._calls.values():
            for kind, each in zip(KINDS, calls.all(), strict=True):
                totals[kind] += each.calls_total
        return totals

    # For the other members: the handlers of their requests.

    async def answer_take(self, asker: str, body: bytes) -> bytes:
        """Answer TAKE: promise the sessions that are here."""
        until_s = self._clock.monotonic() + _PROMISE_S
        return encode_take_answers([self._promise(one, asker, until_s) for one in decode_take_request(body)])

    async def answer_fetch(self, asker: str, body: bytes) -> bytes:
        """Answer FETCH: wait for the markers, and give the values of promised sessions."""
        questions, markers = decode_fetch_request(body)
        passed = await self._passed.wait(markers, timeout_s=_MARKER_S)
        answers: list[Fetched] = []
        size = 0
        for client_id, epoch in questions:
            fetched = Fetched("later")
            if size < _VALUES_BYTES_MAX:
                fetched = self._freeze(client_id, epoch, markers if passed else {})
            size += len(fetched.value)
            answers.append(fetched)
        return encode_fetch_answers(answers)

    async def answer_commit(self, asker: str, body: bytes) -> bytes:
        """Answer COMMIT: the sessions that were fetched are the other member's from now on."""
        answers = []
        for client_id, epoch in decode_request(body):
            before = self._get(client_id)
            own, committed = commit(before, epoch)
            if own is not before and own is not None:
                self._known[client_id] = own
                self._promises.pop(client_id, None)
                self._host.release(client_id)
                self.figures.moved_out_total += 1
            answers.append(committed)
        return encode_commit_answers(answers)

    async def answer_offer(self, asker: str, body: bytes) -> bytes:
        """Answer OFFER: begin to take the sessions, as far as there is room."""
        answers = []
        for client_id, _, user, superuser, anyone in decode_take_request(body):
            is_free = not self.is_leaving and client_id not in self._moves
            move = self._start(client_id, user=user, superuser=superuser, anyone=anyone) if is_free else None
            answers.append(move is not None)
        return encode_commit_answers(answers)

    async def answer_claim(self, asker: str, body: bytes) -> bytes:
        """Answer CLAIM: end what is older here."""
        return encode_claim_answers([self._yield_to(client_id, epoch) for client_id, epoch in decode_request(body)])

    # Its own: sessions that go.

    def _promise(self, question: TakeQuestion, asker: str, until_s: float) -> Holding:
        client_id, epoch = question.client_id, question.epoch
        self._epochs.see(epoch)
        own = self._get(client_id)
        after, answer = take(own, epoch)
        if answer.reply is not Reply.HELD or own is None:
            if after is not own:
                self._forget(client_id, after)
            return Holding(answer, ())
        subscriptions = self._host.promise(question)
        if isinstance(subscriptions, Reply):
            return Holding(refuse(own, epoch) if subscriptions is Reply.REFUSED else Answer(Reply.NONE, own.epoch), ())
        assert after is not None
        self._known[client_id] = after
        self._promises.pop(client_id, None)
        self._promises[client_id] = _Promise(asker, until_s)
        return Holding(answer, subscriptions)

    def _freeze(self, client_id: str, epoch: Epoch, markers: Mapping[str, str]) -> Fetched:
        own, given = fetch(self._get(client_id), epoch)
        if not given or own is None:
            return Fetched("gone")
        fetched = self._host.export(client_id, markers)
        if fetched.value:
            self._known[client_id] = own
        return fetched

    def _yield_to(self, client_id: str, epoch: Epoch) -> Epoch | None:
        self._epochs.see(epoch)
        before = self._get(client_id)
        own, newer = claim(before, epoch)
        if own is not before:
            self._forget(client_id, own)
            if self._host.has(client_id):
                self._host.end(client_id)
                self.figures.ended_total += 1
        return newer

    def _take_back(self, client_id: str) -> None:
        own = take_back(self._get(client_id))
        self._promises.pop(client_id, None)
        if own is not None:
            self._known[client_id] = own
            self._host.take_back(client_id)

    # Its own: sessions that come.

    async def _move(self, question: TakeQuestion) -> Choice:
        client_id, epoch = question.client_id, question.epoch
        try:
            answers, subscriptions = await self._ask_all(question)
            own = self._get(client_id)
            decision = choose(own, answers)
            if decision.choice is Choice.BEGIN:
                self._known[client_id] = begin(epoch)  # `began` follows, unless the client has left
            elif decision.choice is Choice.FETCH:
                arrived = await self._bring(question, decision.holder, subscriptions[decision.holder])
                return Choice.FETCH if arrived else Choice.LATER
            return decision.choice
        finally:
            own = self._known.get(client_id)
            left = give_up(own, epoch)
            if left is not own:
                self.figures.lost_total += own is not None and own.stage is Stage.ARRIVING
                self._forget(client_id, left)

    async def _ask_all(
        self, question: TakeQuestion
    ) -> tuple[list[tuple[str, Answer | None]], dict[str, Sequence[Subscription]]]:
        """Ask every member that is not dead, and wait for those that are not silent."""
        living = [other for other in self._others.states() if not other.is_dead]
        asked = {other.name: self._calls_to(other.name).take.ask(question) for other in living if not other.is_silent}
        if asked:
            await asyncio.wait(asked.values(), timeout=_TAKE_S)
        answers: list[tuple[str, Answer | None]] = []
        subscriptions: dict[str, Sequence[Subscription]] = {}
        for other in living:
            future = asked.get(other.name)
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                holding = future.result()
                self._epochs.see(holding.answer.epoch)
                subscriptions[other.name] = holding.subscriptions
                answers.append((other.name, holding.answer))
                continue
            if future is not None:
                future.cancel()
            if not other.is_empty and not self._begins_when_unknown:
                answers.append((other.name, None))
        return answers, subscriptions

    async def _bring(self, question: TakeQuestion, holder: str, subscriptions: Sequence[Subscription]) -> bool:
        """Fetch a session from its holder; return whether it is here."""
        client_id, epoch = question.client_id, question.epoch
        calls = self._calls_to(holder)
        self._host.collect(client_id, subscriptions)
        try:
            fetched, markers = await self._fetch(calls, SessionQuestion(client_id, epoch))
            exact = fetched.status == "exact" and await self._passed.wait(markers, timeout_s=_EXACT_S)
            found = bool(fetched.value) and self._host.may_adopt(client_id, fetched.value, question)
            own, arrives = arrive(self._get(client_id), epoch, found=found)
            if not arrives or own is None:
                return False
            self._known[client_id] = own
            committed = await self._commit(calls, SessionQuestion(client_id, epoch))
            own, here = finish(self._get(client_id), epoch, committed=committed)
            if not here or own is None:  # its holder has taken it back, or its client began anew elsewhere
                self._forget(client_id, own)
                return False
            if not self._host.adopt(client_id, fetched.value, exact=exact):
                self._forget(client_id, None)
                self.figures.lost_total += 1
                return False
            self._known[client_id] = own
            self._claim(client_id, epoch)
            self.figures.moved_in_total += 1
            self.figures.inexact_total += not exact
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
            stop=stop_after_delay(_PROMISE_S),
            wait=wait_exponential(multiplier=_PAUSE_S, max=1.0),
            reraise=True,
        ):
            with attempt:
                return await calls.commit.ask(question)
        raise AssertionError("the last attempt raises")

    async def _mark(self, questions: Sequence[SessionQuestion]) -> Mapping[str, str]:
        """Send a marker on each link for the sessions of one call, as soon as that is possible."""
        until_s = self._clock.monotonic() + _MARKER_S
        while not (markers := self._markers.send()):
            if not self._markers.come_back or self._clock.monotonic() >= until_s:
                break
            await asyncio.sleep(_PAUSE_S)
        ids = [client_id for client_id, _ in questions]
        for key in markers.items():
            self._collecting[key] = ids
        while len(self._collecting) > _MARKERS_MAX:  # markers that the primary dropped
            del self._collecting[next(iter(self._collecting))]
        return markers

    # Its own: both.

    def _get(self, client_id: str) -> Ownership | None:
        """Return what is known of a session; one that has ended meanwhile is remembered by its epoch."""
        own = self._known.get(client_id)
        if own is None:
            return Ownership(Stage.OWNED, NO_EPOCH) if self._host.has(client_id) else None
        if own.stage in _HERE and not self._host.has(client_id):
            self._promises.pop(client_id, None)
            return Ownership(Stage.CEDED, own.epoch)
        return own

    def _begin(self, client_id: str, epoch: Epoch) -> None:
        if self._promises.pop(client_id, None) is not None:
            self._host.take_back(client_id)
        self._known.pop(client_id, None)
        self._known[client_id] = begin(epoch)
        self._claim(client_id, epoch)

    def _forget(self, client_id: str, own: Ownership | None) -> None:
        """Set what is known of a session that is not here; whoever waits for it is told to come again."""
        self._promises.pop(client_id, None)
        self._known.pop(client_id, None)
        if own is not None:
            self._known[client_id] = own
        move = self._moves.get(client_id)
        if move is not None and move is not asyncio.current_task():
            move.cancel()

    def _claim(self, client_id: str, epoch: Epoch) -> None:
        """Tell the others that a session is here since an epoch."""
        for other in self._others.states():
            if not other.is_dead:
                self._claim_at(other.name, SessionQuestion(client_id, epoch))

    def _claim_at(self, member: str, question: SessionQuestion) -> None:
        def answered(answer: asyncio.Future[Epoch | None]) -> None:
            if answer.cancelled():
                return
            error = answer.exception()
            if error is None:
                newer = answer.result()
                if newer is not None:
                    self._yield_to(question.client_id, newer)
                return
            if not isinstance(error, AskFailed):
                raise error
            own = self._known.get(question.client_id)
            if own is not None and own.epoch == question.epoch and self._is_living(member):
                asyncio.get_running_loop().call_later(_SWEEP_S, self._claim_at, member, question)

        self._calls_to(member).claim.ask(question).add_done_callback(answered)

    def _is_living(self, member: str) -> bool:
        return any(other.name == member and not other.is_dead for other in self._others.states())

    def _calls_to(self, member: str) -> MemberCalls:
        calls = self._calls.get(member)
        if calls is None:
            calls = self._calls[member] = MemberCalls(member, others=self._others, mark=self._mark)
        return calls

    def _give_later(self, found: asyncio.Future[Choice]) -> None:
        if not found.done():
            self.figures.later_total += 1
            found.set_result(Choice.LATER)

    def _next_epoch(self) -> Epoch:
        return self._epochs.next(now_ns=self._clock.now_ns())

    def _sweep(self) -> None:
        """Take back promises that are over, and forget the oldest sessions that are not here."""
        now_s = self._clock.monotonic()
        for client_id in [one for one, promise in self._promises.items() if promise.until_s <= now_s]:
            self._take_back(client_id)
        surplus = len(self._known) - self._host.count - _TOMBSTONES_MAX
        if surplus > 0:
            gone = (one for one in self._known if one not in self._moves and not self._host.has(one))
            for client_id in list(islice(gone, surplus)):
                del self._known[client_id]


def _ignore(answer: asyncio.Future[bool]) -> None:
    """Take the answer to OFFER: whether the session goes is seen when it does."""
    if not answer.cancelled():
        answer.exception()


_HERE: Final = frozenset((Stage.OWNED, Stage.PROMISED, Stage.FROZEN))
