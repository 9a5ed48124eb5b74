"""What this member knows of every session: which member has it and since when, and to whom it is promised.

Owns the ownership of each session at this member, the promises, and the record of the tasks that bring sessions here.
The rules are in `fanout.durable.ownership.ownership`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, EpochClock
from fanout.durable.ownership.move_messages import (
    ClaimAnswer,
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
    Owner,
    Ownership,
    Reply,
    Stage,
    abandon,
    begin,
    claim,
    commit,
    fetch,
    has_older_right,
    refuse,
    take,
    take_back,
)
from fanout.durable.ownership.ports import Copies, SessionHost
from fanout.runtime.system_clock import Clock

__all__ = ["PROMISE_S", "SessionFigures", "SessionLedger"]

PROMISE_S: Final = 10.0
"""Time after which a session that was promised, and not fetched or committed, goes on where it is."""
_TOMBSTONES_MAX: Final = 100_000
"""Sessions that are elsewhere or have ended, of which the newest epoch is remembered."""
_HERE: Final = frozenset((Stage.OWNED, Stage.PROMISED, Stage.FROZEN))


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
    fences_total: int = 0
    """How often this member has stopped serving durable sessions, because others might take it for dead."""


@dataclass(slots=True)
class _Promise:
    """A session that is promised to a member, or frozen for it."""

    member: str
    until_s: float


class SessionLedger:
    """Ownership and promises of sessions, by Client Identifier."""

    def __init__(self, *, node: str, host: SessionHost, clock: Clock) -> None:
        """Begin without knowledge: a session that is here is owned since before everything.

        Args:
            node: This node's `node.id`.
            host: The sessions of this node.
            clock: Gives the time.
        """
        self.figures = SessionFigures()
        """Counters."""
        self.moves: dict[str, asyncio.Task[Choice]] = {}
        """Tasks that bring sessions here."""
        self.copies: Copies | None = None
        """Copies of other members' sessions; None where none are kept."""
        self.go_on: Callable[[str], Epoch] = _goes_nowhere
        """Goes on with a session that is here as a later one, which the others are told of."""
        self._host = host
        self._clock = clock
        self.epochs = EpochClock(node, clock=clock)
        """Orders the sessions of all members."""
        self._known: dict[str, Ownership] = {}
        self._promises: dict[str, _Promise] = {}
        """Oldest first."""

    def next_epoch(self) -> Epoch:
        """Return an epoch above all that were seen."""
        return self.epochs.next()

    def see(self, epoch: Epoch) -> None:
        """Note another member's epoch."""
        self.epochs.see(epoch)

    def get(self, client_id: str) -> Ownership | None:
        """Return what is known of a session; one that has ended meanwhile is remembered by its epoch."""
        own = self._known.get(client_id)
        if own is None:
            return Ownership(Stage.OWNED, NO_EPOCH) if self._host.has(client_id) else None
        if own.stage in _HERE and not self._host.has(client_id):
            self._promises.pop(client_id, None)
            return Ownership(Stage.CEDED, own.epoch)
        return own

    def epoch_of(self, client_id: str) -> Epoch:
        """Return since when the session of a client is this member's, or which epoch is the newest that is known."""
        own = self.get(client_id)
        return NO_EPOCH if own is None else own.epoch

    def newest_of(self, client_id: str) -> Epoch:
        """Return since when the newest session of a client is somebody's, as far as is known; `NO_EPOCH` for none."""
        own = self.get(client_id)
        return NO_EPOCH if own is None else own.settled

    def given_since(self, client_id: str) -> Epoch:
        """Return since when a session was here that was given away, and may never have come; `NO_EPOCH` for none."""
        own = self.get(client_id)
        return NO_EPOCH if own is None else own.given_since

    def is_of_heir(self, client_id: str, epoch: Epoch) -> bool:
        """Return whether an epoch is of a member that went on with a session after it was given away from here."""
        own = self.get(client_id)
        return own is not None and own.is_of_heir(epoch)

    def stop_arriving(self, client_id: str) -> None:
        """Throw a session away that has arrived here, and is not this member's yet: another one may go on with it."""
        own = self.get(client_id)
        if own is not None and own.stage is Stage.ARRIVING:
            self.figures.lost_total += 1
            self.forget(client_id, abandon(own))

    def is_here(self, client_id: str) -> bool:
        """Return whether a session is this member's."""
        own = self.get(client_id)
        return own is not None and own.stage in _HERE

    def known(self, client_id: str) -> Ownership | None:
        """Return what was put last, whatever has become of the session meanwhile."""
        return self._known.get(client_id)

    def put(self, client_id: str, own: Ownership) -> None:
        """Set what is known of a session."""
        self._known[client_id] = own

    def begin(self, client_id: str, epoch: Epoch) -> None:
        """Note that a session began here, or goes on here; who it was promised to gets nothing."""
        if self._promises.pop(client_id, None) is not None:
            self._host.take_back(client_id)
        self._known.pop(client_id, None)
        self._known[client_id] = begin(epoch)

    def resume(self, client_id: str, epoch: Epoch) -> None:
        """Note that a session is here again, after a restart, which has been this member's since an epoch."""
        self.see(epoch)
        self._known[client_id] = begin(epoch)

    def forget(self, client_id: str, own: Ownership | None) -> None:
        """Set what is known of a session that is not here; whoever waits for it is told to come again."""
        self._promises.pop(client_id, None)
        self._known.pop(client_id, None)
        if own is not None:
            self._known[client_id] = own
        move = self.moves.get(client_id)
        if move is not None and move is not asyncio.current_task():
            move.cancel()

    # Sessions that go.

    def is_promised(self, client_id: str) -> bool:
        """Return whether a session is promised to a member."""
        return client_id in self._promises

    def promised_to(self, member: str) -> list[str]:
        """Return the Client Identifiers of the sessions that are promised to a member."""
        return [client_id for client_id, promise in self._promises.items() if promise.member == member]

    def promise(self, question: TakeQuestion, asker: str) -> Holding:
        """Promise a session to a member that asks for it, if it is here and may go."""
        client_id, epoch = question.client_id, question.epoch
        self.see(epoch)
        if question.clean:
            return self._holding_of_clean(question)
        kept = self.answer_from_copy(client_id)
        if kept is not None and kept.reply is Reply.BUSY:
            return Holding(kept, ())
        own = self.get(client_id)
        after, answer = take(own, epoch)
        if kept is not None and answer.reply is Reply.NONE:
            answer = kept
        if answer.reply is not Reply.HELD or own is None:
            if after is not own:
                self.forget(client_id, after)
            if answer.reply is Reply.NONE and self.was_lost(client_id):
                answer = Answer(Reply.LOST, answer.epoch)
            return Holding(answer, ())
        subscriptions = self._host.promise(question)
        if isinstance(subscriptions, Reply):
            return Holding(refuse(own, epoch) if subscriptions is Reply.REFUSED else Answer(Reply.NONE, own.epoch), ())
        assert after is not None
        self._known[client_id] = after
        self._promises.pop(client_id, None)
        self._promises[client_id] = _Promise(asker, self._clock.monotonic() + PROMISE_S)
        return Holding(answer, subscriptions)

    def _holding_of_clean(self, question: TakeQuestion) -> Holding:
        """Return whether a client may begin a session, as far as this member is concerned; nothing changes by it."""
        client_id, epoch = question.client_id, question.epoch
        (own, owner), kept = self._owned(client_id), self.answer_from_copy(client_id)
        if own.stage is Stage.ARRIVING:
            return Holding(Answer(Reply.BUSY, own.epoch), ())
        if owner is None or (kept is not None and kept.reply is Reply.BUSY):
            return Holding(kept or Answer(Reply.NONE, own.settled), ())
        if epoch <= own.newest:
            return Holding(Answer(Reply.LATE, own.newest), ())
        client = Owner(question.user, question.superuser, question.anyone, epoch.counter)
        if not self._host.may_end(client, owner):
            return Holding(refuse(own, epoch), ())
        return Holding(Answer(Reply.NONE, own.epoch), (), owner.since)

    def answer_from_copy(self, client_id: str) -> Answer | None:
        """Return what the copy of a client's session that is kept here says to who looks for the session."""
        return None if self.copies is None else self.copies.answer_take(client_id)

    def was_lost(self, client_id: str) -> bool:
        """Return whether the newest session of a client was to go on here, and could not."""
        return self.copies is not None and self.copies.was_lost(client_id)

    def freeze(self, question: SessionQuestion, markers: Mapping[str, str]) -> Fetched:
        """Return the value of a promised session, with the messages before the markers, which are by link."""
        client_id, epoch = question
        own, given = fetch(self.get(client_id), epoch)
        if not given or own is None:
            return Fetched("gone")
        fetched = self._host.export(client_id, markers)
        if fetched.status in ("exact", "inexact"):
            self._known[client_id] = own
        return fetched

    def piece(self, question: PieceQuestion, *, bytes_max: int) -> Piece:
        """Return a piece of the value of a fetched session, which is kept for as long as pieces are asked for."""
        client_id, epoch, offset = question
        own, promise = self.get(client_id), self._promises.get(client_id)
        if promise is None or own is None or own.stage is not Stage.FROZEN or own.promised != epoch:
            return Piece(is_there=False)
        promise.until_s = self._clock.monotonic() + PROMISE_S
        return self._host.piece(client_id, offset, bytes_max=bytes_max)

    def commit(self, question: SessionQuestion) -> bool:
        """Give a session that was fetched away for good; return whether it is the other member's now."""
        client_id, epoch = question
        promise = self._promises.get(client_id)
        if promise is not None and promise.until_s <= self._clock.monotonic():  # the other member has given up by now
            self._take_back(client_id)
        before = self.get(client_id)
        own, committed = commit(before, epoch)
        if own is not before and own is not None:
            self._known[client_id] = own
            promise = self._promises.pop(client_id, None)
            if promise is not None and self.copies is not None:
                given = self._host.copy_of_given(client_id, to=promise.member)
                self.copies.keep_given(client_id, promise.member, epoch=epoch, value=given)
            self._host.release(client_id)
            self.figures.moved_out_total += 1
        return committed

    def refuse_claim(self, question: ClaimQuestion) -> ClaimAnswer | None:
        """Return the answer to a claim that is against a stranger's session here, which goes on; None for others."""
        own, mine = self._owned(question.client_id)
        if mine is None or not self.is_refused(question, epoch=own.epoch, owner=mine):
            return None
        self.see(question.epoch)
        epoch = self.go_on(question.client_id) if own.epoch < question.epoch else own.epoch
        return ClaimAnswer(epoch, prevails=True)

    def is_refused(self, claimed: ClaimQuestion, *, epoch: Epoch, owner: Owner) -> bool:
        """Return whether a claimed session ends, since a stranger has the older right to the Client Identifier.

        Args:
            claimed: The claim.
            epoch: Since when the other session is a member's.
            owner: Whose it is.
        """
        return self._are_strangers(claimed, epoch, owner) and not has_older_right(claimed.owner, owner)

    def claimed(self, question: ClaimQuestion) -> ClaimAnswer | None:
        """Take a member's claim that `refuse_claim` has nothing against: an older session here ends, or a stranger's.

        Returns:
            Since when a session is here, or was; None when nothing is against the claim.
        """
        client_id, epoch, _ = question
        own, mine = self._owned(client_id)
        if mine is None or not self._are_strangers(question, own.epoch, mine):
            newer = self.yield_to(SessionQuestion(client_id, epoch))
            return None if newer is None else ClaimAnswer(newer, prevails=True)
        self.see(epoch)
        self._end(client_id, Ownership(Stage.CEDED, epoch))
        return ClaimAnswer(own.epoch, prevails=False) if own.epoch > epoch else None

    def claim_of(self, client_id: str, epoch: Epoch) -> ClaimQuestion:
        """Return the claim of a session that is here since an epoch, or has been and has ended."""
        owner = self._host.owner_of(client_id)
        return ClaimQuestion(client_id, epoch, owner or Owner("", superuser=False, anyone=False, since=epoch.counter))

    def claim_answered(self, question: ClaimQuestion, answer: ClaimAnswer | None) -> None:
        """Take the answer to an own claim."""
        if answer is None:
            return
        if answer.prevails:
            self.yield_to(SessionQuestion(question.client_id, answer.epoch))
            return
        self.see(answer.epoch)
        if self.is_here(question.client_id) and self.epoch_of(question.client_id) < answer.epoch:
            self.go_on(question.client_id)

    def yield_to(self, question: SessionQuestion) -> Epoch | None:
        """End a session here that began anew elsewhere; return the epoch of the one here when that is newer."""
        client_id, epoch = question
        self.see(epoch)
        before = self.get(client_id)
        own, newer = claim(before, epoch)
        if own is not before:
            self._end(client_id, own)
        return newer

    def _owned(self, client_id: str) -> tuple[Ownership, Owner | None]:
        """Return what is known of a session, and whose it is if it is here."""
        own = self.get(client_id) or Ownership(Stage.CEDED, NO_EPOCH)
        return own, self._host.owner_of(client_id) if own.stage in _HERE else None

    def _are_strangers(self, claimed: ClaimQuestion, epoch: Epoch, owner: Owner) -> bool:
        """Return whether the owner of the later of two sessions may not end the earlier one."""
        later, earlier = (claimed.owner, owner) if claimed.epoch > epoch else (owner, claimed.owner)
        return claimed.epoch != epoch and not self._host.may_end(later, earlier)

    def _end(self, client_id: str, own: Ownership) -> None:
        self.forget(client_id, own)
        if self._host.has(client_id):
            self._host.end(client_id)
            self.figures.ended_total += 1

    def _take_back(self, client_id: str) -> None:
        own = take_back(self.get(client_id))
        self._promises.pop(client_id, None)
        if own is not None:
            self._known[client_id] = own
            self._host.take_back(client_id)

    def sweep(self) -> None:
        """Take back promises that are over, and forget the oldest sessions that are not here."""
        now_s = self._clock.monotonic()
        for client_id in [one for one, promise in self._promises.items() if promise.until_s <= now_s]:
            self._take_back(client_id)
        surplus = len(self._known) - self._host.count - _TOMBSTONES_MAX
        if surplus > 0:
            gone = (one for one in self._known if one not in self.moves and not self._host.has(one))
            for client_id in list(islice(gone, surplus)):
                del self._known[client_id]


def _goes_nowhere(client_id: str) -> Epoch:
    return NO_EPOCH
