"""Sessions of this node and of the others, as one pool, for the server, the links and the other members.

`docs/reference/pool.md` says what moves, and when. `ledger` has the ownership of each session, `move` its way from
member to member, and `hand_over` the sessions of a member that leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.durable.copying.pool_copies import PoolCopies
from fanout.durable.moving.arrivals import Arrivals
from fanout.durable.moving.context import MoveContext
from fanout.durable.moving.fence import Fence
from fanout.durable.moving.hand_over import HandOver
from fanout.durable.moving.member_calls import AllMemberCalls
from fanout.durable.moving.move import HolderAnswers, admitted
from fanout.durable.moving.own_markers import OwnMarkers
from fanout.durable.moving.passed_markers import PassedMarkers
from fanout.durable.moving.returned import ReturnedSessions
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, RecordedEpochs, encode_epochs
from fanout.durable.ownership.ledger import SessionFigures, SessionLedger
from fanout.durable.ownership.move_messages import (
    CLAIM,
    COMMIT,
    FETCH,
    OFFER,
    PIECE,
    TAKE,
    ClaimAnswer,
    ClaimQuestion,
    TakeQuestion,
)
from fanout.durable.ownership.ownership import Choice
from fanout.durable.ownership.ports import CopyFigures, Markers, Others, SessionHost
from fanout.pool.membership import AskFailed
from fanout.runtime.slices import in_turns
from fanout.runtime.system_clock import Clock
from fanout.server.base.ports import SessionFound

__all__ = ["ANSWER_S", "SessionPool"]

ANSWER_S: Final = 0.3
"""Longest time for which a client waits, unless its session may be at a silent member."""
_VERDICT_S: Final = 0.5
"""Time after `dead_after_s` until a client has its answer: a silent member has answered or is dead by then."""
_SWEEP_S: Final = 1.0
_FOUND: Final = {
    Choice.FETCH: SessionFound.HERE,
    Choice.BEGIN: SessionFound.NONE,
    Choice.BEGIN_ANEW: SessionFound.LOST,
    Choice.REFUSE: SessionFound.OF_ANOTHER_USER,
}


class SessionPool:
    """The sessions of a pool, as one member has and finds them; the server's `SessionFinder`."""

    def __init__(
        self,
        *,
        node: str,
        host: SessionHost,
        markers: Markers,
        others: Others,
        clock: Clock,
        logger: FilteringBoundLogger,
        dead_after_s: float,
        has_access: bool,
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
            dead_after_s: Silence after which a member is dead.
            has_access: True if this node has access control.
            begins_when_unknown: True if a client whose session may be at a silent member gets a new one at once.
        """
        self._node = node
        self._host = host
        self.others = others
        """The other members."""
        self.copies: PoolCopies | None = None
        """Copies of sessions; None where none are kept."""
        self._silent_s = dead_after_s + _VERDICT_S
        self._anyone = not has_access
        self._passed = PassedMarkers()
        self._own_markers = OwnMarkers(markers, clock=clock)
        self.ledger = SessionLedger(node=node, host=host, others=others, clock=clock)
        """Ledger of every session."""
        self._calls = AllMemberCalls(
            others=others, mark=self._own_markers.send, on_disk=host.on_disk, admit=self.ledger.epochs.admit
        )
        self.ledger.go_on = self._go_on
        context = MoveContext(node, self.ledger, host, others, self._calls, self._passed, clock, logger)
        self._arrivals = Arrivals(context, came=self._came, begins_when_unknown=begins_when_unknown)
        holder = HolderAnswers(context)
        self.handlers: Mapping[str, Callable[[str, bytes], Awaitable[bytes]]] = {
            TAKE.path: holder.answer_take,
            FETCH.path: holder.answer_fetch,
            PIECE.path: holder.answer_piece,
            COMMIT.path: holder.answer_commit,
            CLAIM.path: self._answer_claim,
            OFFER.path: self._answer_offer,
        }
        """Handlers of the requests of other members, by path; each takes the member and the request."""
        self._returned = ReturnedSessions(context)
        self._fence = Fence(context, returned=self._returned)
        self._hand_over = HandOver(context)

    @property
    def figures(self) -> SessionFigures:
        """Counters."""
        return self.ledger.figures

    @property
    def calls_total(self) -> dict[str, int]:
        """Calls to other members, by kind."""
        return self._calls.totals

    def copy_figures(self) -> CopyFigures:
        """Return the figures of copies of this moment."""
        return CopyFigures() if self.copies is None else self.copies.figures()

    # For the server.

    @property
    def may_resume(self) -> bool:
        """True if this node may go on with its own sessions: False while others may have taken it for dead."""
        return self._returned.are_settled and not self._fence.look()

    @property
    def is_fenced(self) -> bool:
        """True if this node may not serve durable sessions, as others may take it for dead; looked at anew."""
        return self._fence.look()

    def began(self, client_id: str, *, is_copied: bool = False) -> None:
        """Note that the session of a client began here, or goes on here; older ones elsewhere end.

        Args:
            client_id: Its Client Identifier.
            is_copied: True if it is copied now, where copies are kept.
        """
        epoch, known = self.ledger.next_epoch(), self.ledger.known(client_id)
        since = epoch.counter if known is None or not known.owner_since else known.owner_since
        self._host.own(client_id, since=since)
        self.ledger.begin(client_id, epoch)
        self.ledger.forget_older(client_id, epoch)
        self._claim_begun(client_id, epoch, is_copied=is_copied)

    def epochs_of(self, client_id: str) -> bytes:
        """Return since when the session of a client is this node's, or another one's, as the pool writes it."""
        return encode_epochs(self.ledger.recorded_epochs(client_id))

    def find(self, client_id: str, *, user: str, superuser: bool, clean: bool = False) -> asyncio.Future[SessionFound]:
        """Bring the session of a client here that has none here.

        Args:
            client_id: Its Client Identifier.
            user: Its verified user; empty for a client without one.
            superuser: True if it may read and write every topic.
            clean: True if it wants a new session: then the members are only asked who owns a former one, which stays
                there.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[SessionFound] = loop.create_future()
        question = TakeQuestion(client_id, NO_EPOCH, user, superuser, self._anyone, clean)
        move = self._arrivals.start(question, patience_s=self._silent_s)
        if move is None:
            self._give_later(found)
            return found

        def in_time() -> None:
            if not move.has_waited:
                self._give_later(found)

        timers = loop.call_later(ANSWER_S, in_time), loop.call_later(self._silent_s, self._give_later, found)

        def ended(task: asyncio.Task[Choice]) -> None:
            if found.done():
                return
            choice = Choice.LATER if task.cancelled() or task.exception() is not None else task.result()
            if choice is Choice.LATER:
                self._give_later(found)
            else:
                found.set_result(_FOUND[choice])

        def answered(_: asyncio.Future[SessionFound]) -> None:
            for timer in timers:
                timer.cancel()
            self._arrivals.stop_waiting(move)  # the client has left, or comes again; what has been found comes here

        move.task.add_done_callback(ended)
        found.add_done_callback(answered)
        return found

    # For the links.

    def marker_passed(self, link: str, node: str, marker: str) -> None:
        """Note the place of a member's marker: messages before it were dispatched, later ones not yet."""
        if node == self._node:
            self._host.note_collected(self._own_markers.came_back(link, marker), link)
        else:
            self._host.note_place(self.ledger.promised_to(node), link, marker)
        self._passed.note(link, node, marker)

    # For the node.

    @property
    def is_leaving(self) -> bool:
        """True if this node gives its sessions away, and takes no client any more."""
        return self._hand_over.is_under_way

    async def hand_over(self, *, clients_per_s: float) -> None:
        """Give all sessions to other members, and take no client any more; ends when nothing moves any more.

        Sessions without a connection go at once. Clients are sent away at a pace, and their sessions follow them to
        other members. Sessions of clients that connect nowhere are offered too.

        Args:
            clients_per_s: Clients that are sent away in a second.
        """
        await self._hand_over.run(clients_per_s=clients_per_s)

    def returned(self, epochs: Mapping[str, RecordedEpochs]) -> None:
        """Note sessions that are here again after a restart, with the epochs of their records."""
        self._returned.add(epochs)

    async def run(self) -> None:
        """Settle who owns the sessions of the former process; then forget old entries, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fence.run(), name="pool-fence")
                group.create_task(self._arrivals.watch_silent(), name="pool-silent")
                group.create_task(self._keep_house(), name="session-sweeps")
                if self.copies is not None:
                    group.create_task(self.copies.run(), name="session-copies")
        finally:
            self._calls.close()
            await self._arrivals.cancel()

    async def _keep_house(self) -> None:
        await self._returned.settle()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.ledger.sweep()

    # For the other members: the handlers of their requests.

    async def _answer_offer(self, asker: str, body: bytes) -> bytes:
        """Answer OFFER: begin to take the sessions, as far as there is room."""
        answers = []
        for question in admitted(OFFER.decode(body), self.ledger):
            is_free = not self.is_leaving and question.client_id not in self.ledger.moves
            answers.append(
                is_free and self._arrivals.start(question._replace(clean=False), is_offered=True) is not None
            )
        return OFFER.encode_answers(answers)

    async def _answer_claim(self, asker: str, body: bytes) -> bytes:
        """Answer CLAIM: end older sessions here, if the owner of the claimed one may end them."""
        questions = admitted(CLAIM.decode(body), self.ledger)
        return CLAIM.encode_answers([self.ledger.claimed(question) async for question in in_turns(questions)])

    # Its own: what begins here is told to the others.

    def claim(self, epochs: Mapping[str, Epoch]) -> None:
        """Tell the others that sessions are here, each since an epoch."""
        for other in self.others.states():
            if not other.is_dead:
                self.claim_at(other.name, epochs)

    def _claim_begun(self, client_id: str, epoch: Epoch, *, is_copied: bool) -> None:
        """Tell the others that a session is here since an epoch; of one that is copied once a copy is kept.

        The claim ends former copies.
        """
        if is_copied and self.copies is not None:
            self.copies.sent.claim_when_kept(client_id, epoch)
        else:
            self.claim({client_id: epoch})

    def _came(self, client_id: str, epoch: Epoch, holder: str) -> None:
        """Note that a session has come from a member, which keeps it as it gave it away, and tell the others."""
        self._claim_begun(client_id, epoch, is_copied=True)
        if self.copies is not None:
            self.copies.sent.came_from(client_id, holder)

    def claim_at(self, member: str, epochs: Mapping[str, Epoch]) -> None:
        """Tell one member since when sessions are here: older ones of it end."""
        for client_id, epoch in epochs.items():
            self._claim_at(member, self.ledger.claim_of(client_id, epoch))

    def _claim_at(self, member: str, question: ClaimQuestion) -> None:
        def answered(answer: asyncio.Future[ClaimAnswer | None]) -> None:
            if answer.cancelled():
                return
            error = answer.exception()
            if error is None:
                self.ledger.claim_answered(question, answer.result())
                return
            if not isinstance(error, AskFailed):
                raise error
            own = self.ledger.known(question.client_id)
            if own is not None and own.epoch == question.epoch and self._is_living(member):
                asyncio.get_running_loop().call_later(_SWEEP_S, self._claim_at, member, question)

        self._calls.to(member).claim.ask(question).add_done_callback(answered)

    def _go_on(self, client_id: str) -> Epoch:
        """Go on with a session that is here, under an epoch above all known ones."""
        epoch = self.ledger.next_epoch()
        self.ledger.begin(client_id, epoch)
        self._claim_begun(client_id, epoch, is_copied=self._host.copy_again(client_id))
        return epoch

    def _is_living(self, member: str) -> bool:
        return any(other.name == member and not other.is_dead for other in self.others.states())

    def _give_later(self, found: asyncio.Future[SessionFound]) -> None:
        if not found.done():
            self.figures.clients_later_total += 1
            found.set_result(SessionFound.UNKNOWN)
