"""Ledger of every session: the member that has it and since when, and the member to which it is promised.

Owns one record for each client, the copies that are kept here of other members' sessions, and the tasks that bring
sessions here. The rules are in `ownership` and `copy_rules`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from fanout.durable.ownership.copy_messages import CopyRow, InheritRequest
from fanout.durable.ownership.copy_rules import GIVEN, CopyVersion, answer_take, is_kept, is_outdated
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch, EpochClock, RecordedEpochs
from fanout.durable.ownership.held_copies import HeldCopies, HeldCopy
from fanout.durable.ownership.move_messages import (
    ClaimAnswer,
    ClaimQuestion,
    Fetched,
    FetchQuestion,
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
    answer_giver,
    become,
    begin,
    claim,
    commit,
    fetch,
    has_older_right,
    keep_given,
    refuse,
    take,
    take_back,
)
from fanout.durable.ownership.ports import Heirs, Others, SessionHost
from fanout.runtime.system_clock import Clock

__all__ = ["PROMISE_S", "SessionFigures", "SessionLedger"]

PROMISE_S: Final = 10.0
"""Longest time of a promise: a session that is not fetched and committed by then goes on where it is."""
_TOMBSTONES_MAX: Final = 100_000
"""Maximum number of remembered epochs, of sessions that are elsewhere or have ended."""
_HERE: Final = frozenset((Stage.OWNED, Stage.PROMISED, Stage.FROZEN))


@dataclass(slots=True)
class SessionFigures:
    """Counters of sessions that move."""

    sessions_moved_in_total: int = 0
    """Sessions that came here."""
    sessions_moved_out_total: int = 0
    """Sessions that went to another member."""
    sessions_inexact_total: int = 0
    """Sessions that came without a marker between them: messages may be lost or doubled, retained ones come again.
    """
    sessions_ended_total: int = 0
    """Sessions that ended here because their clients began anew elsewhere."""
    clients_later_total: int = 0
    """Clients that were refused (0x88) because their session was not here in time."""
    sessions_lost_total: int = 0
    """Sessions that were dropped, because nobody knows whether they arrived."""
    fences_total: int = 0
    """Number of times that this member stopped serving durable sessions, because others might take it for dead."""


@dataclass(slots=True)
class _Promise:
    """A session that is promised to a member, or frozen for it."""

    member: str
    until_s: float


class _Agreed(NamedTuple):
    """A session that another member may go on with, as far as this one is concerned."""

    holder: str
    instance: str
    """The holder's process."""
    epoch: Epoch
    """Since when the holder has it."""
    until_s: float
    """When the heir has decided; most often it says before that it has the session."""


@dataclass(slots=True)
class _Record:
    """Knowledge of this member about the session of one client, without promises and kept copies."""

    own: Ownership | None = None
    """As it was put last, whatever has become of the session meanwhile; None for nothing."""
    agreed: _Agreed | None = None
    is_lost: bool = False
    """True if it was to go on here, and could not."""


class SessionLedger:
    """Entries of sessions, by Client Identifier."""

    def __init__(self, *, node: str, host: SessionHost, others: Others, clock: Clock) -> None:
        """Begin without knowledge: a session that is here is owned since before everything.

        Args:
            node: This node's `node.id`.
            host: The sessions of this node.
            others: The other members.
            clock: Gives the time.
        """
        self.figures = SessionFigures()
        """Counters."""
        self.moves: dict[str, asyncio.Task[Choice]] = {}
        """Tasks that bring sessions here."""
        self.heirs: Heirs | None = None
        """Reads copies; None where none are kept."""
        self.held = HeldCopies(bytes_max=0)
        """Copies of other members' sessions."""
        self.gone: Container[tuple[str, str]] = ()
        """Holders of these copies, each with its process, that are gone, or may be."""
        self.go_on: Callable[[str], Epoch] = _goes_nowhere
        """Goes on with a session that is here as a later one, which the others are told of."""
        self._node = node
        self._host = host
        self._others = others
        self._clock = clock
        self.epochs = EpochClock(node, clock=clock)
        """Orders the sessions of all members."""
        self._records: dict[str, _Record] = {}
        """Those that were put longest ago first."""
        self._promised: dict[str, _Promise] = {}
        """Promises of sessions that are PROMISED or FROZEN, oldest first."""

    def next_epoch(self) -> Epoch:
        """Return an epoch above all that were seen."""
        return self.epochs.next()

    def see(self, epoch: Epoch) -> None:
        """Note an epoch of this member, or one of another that was admitted (`EpochClock.admit`)."""
        self.epochs.see(epoch)

    def get(self, client_id: str) -> Ownership | None:
        """Return what is known of a session; one that has ended meanwhile is remembered by its epoch."""
        own = self.known(client_id)
        if own is None:
            return Ownership(Stage.OWNED, NO_EPOCH) if self._host.has(client_id) else None
        if own.stage in _HERE and not self._host.has(client_id):
            self._promised.pop(client_id, None)
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
            self.figures.sessions_lost_total += 1
            self.forget(client_id, abandon(own))

    def is_here(self, client_id: str) -> bool:
        """Return whether a session is this member's."""
        own = self.get(client_id)
        return own is not None and own.stage in _HERE

    def known(self, client_id: str) -> Ownership | None:
        """Return what was put last, whatever has become of the session meanwhile."""
        record = self._records.get(client_id)
        return None if record is None else record.own

    def put(self, client_id: str, own: Ownership | None) -> None:
        """Set what is known of a session.

        Raises:
            IllegalTransitionError: It cannot follow what is known.
        """
        become(self.get(client_id), own)
        self._record(client_id).own = own

    def begin(self, client_id: str, epoch: Epoch) -> None:
        """Note that a session began here, or goes on here; who it was promised to gets nothing."""
        if self._promised.pop(client_id, None) is not None:
            self._host.take_back(client_id)
        self.put(client_id, begin(epoch))
        self._renew(client_id)

    def resume(self, client_id: str, epochs: RecordedEpochs) -> None:
        """Note that a session is here again, after a restart, with the epochs of its record."""
        self.see(max(epochs))
        self.put(client_id, begin(epochs.since) if epochs.given == NO_EPOCH else keep_given(epochs))

    def recorded_epochs(self, client_id: str) -> RecordedEpochs:
        """Return the epochs for the record of a session that is here, or was and has just been given away."""
        own = self.get(client_id)
        if own is None:
            return RecordedEpochs(NO_EPOCH)
        if own.stage is Stage.CEDED:
            return RecordedEpochs(own.given_since, own.epoch)
        return RecordedEpochs(own.epoch, self.given(client_id))

    def given(self, client_id: str) -> Epoch:
        """Return since when a session is another member's that a former process gave away; `NO_EPOCH` for others."""
        own = self.known(client_id)
        return own.promised if own is not None and own.stage is Stage.GIVEN else NO_EPOCH

    def settle_given(self, client_id: str, *, has_come: bool) -> None:
        """Settle whose a session is that a former process gave away, and that no member has said to have.

        Args:
            client_id: Its Client Identifier.
            has_come: True if it may have come to the other member: it ends here. Otherwise it is here, as it was.
        """
        own = self.known(client_id)
        assert own is not None
        if has_come:
            self._end(client_id, None)
            return
        self.put(client_id, begin(own.epoch))
        self._host.copy_again(client_id)

    def forget(self, client_id: str, own: Ownership | None) -> None:
        """Set the knowledge of a session that is not here; members that wait for it are told to come again."""
        self._promised.pop(client_id, None)
        self.put(client_id, own)
        self._renew(client_id)
        move = self.moves.get(client_id)
        if move is not None and move is not asyncio.current_task():
            move.cancel()

    # Sessions that go.

    def promised_for(self, client_id: str) -> str | None:
        """Return the member to which a session is promised; None for none."""
        promise = self._promised.get(client_id)
        return None if promise is None else promise.member

    def promised_to(self, member: str) -> list[str]:
        """Return the Client Identifiers of the sessions that are promised to a member."""
        return [client_id for client_id, promise in self._promised.items() if promise.member == member]

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
        self.put(client_id, after)
        self._promised.pop(client_id, None)
        self._promised[client_id] = _Promise(asker, self._clock.monotonic() + PROMISE_S)
        return Holding(answer, subscriptions)

    def _holding_of_clean(self, question: TakeQuestion) -> Holding:
        """Return whether a client may begin a session, as far as this member is concerned; nothing changes by it."""
        client_id, epoch = question.client_id, question.epoch
        (own, owner), kept = self._owned(client_id), self.answer_from_copy(client_id)
        if own.stage in (Stage.ARRIVING, Stage.GIVEN):
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
        """Return the answer to a member that looks for a session with a copy here."""
        copy = self.held.get(client_id)
        if copy is None:
            return None
        is_gone = (copy.holder, copy.instance) in self.gone
        return answer_take(copy.version, newest=self.newest_of(client_id), is_gone=is_gone)

    def was_lost(self, client_id: str) -> bool:
        """Return whether the newest session of a client was to go on here, and could not."""
        record = self._records.get(client_id)
        return record is not None and record.is_lost

    def note_lost(self, client_id: str) -> None:
        """Note that the newest session of a client was to go on here, and could not."""
        self._record(client_id).is_lost = True
        self._renew(client_id)

    def freeze(self, question: FetchQuestion) -> Fetched:
        """Return the value of a promised session, with the messages before the markers."""
        client_id, epoch, markers = question
        own, given = fetch(self.get(client_id), epoch)
        if not given or own is None:
            return Fetched("gone")
        fetched = self._host.export(client_id, markers)
        if fetched.status in ("exact", "inexact"):
            self.put(client_id, own)
        return fetched

    def piece(self, question: PieceQuestion, *, bytes_max: int) -> Piece:
        """Return a piece of the value of a fetched session, which is kept for as long as pieces are asked for."""
        client_id, epoch, offset = question
        own, promise = self.get(client_id), self._promised.get(client_id)
        if promise is None or own is None or own.stage is not Stage.FROZEN or own.promised != epoch:
            return Piece(is_there=False)
        promise.until_s = self._clock.monotonic() + PROMISE_S
        return self._host.piece(client_id, offset, bytes_max=bytes_max)

    def commit(self, question: SessionQuestion) -> bool:
        """Give a session that was fetched away for good; return whether it is the other member's now."""
        client_id, epoch = question
        promise = self._promised.get(client_id)
        if promise is not None and promise.until_s <= self._clock.monotonic():  # the other member has given up by now
            self._take_back(client_id)
        before = self.get(client_id)
        own, committed = commit(before, epoch)
        if own is not before and own is not None:
            self.put(client_id, own)
            promise = self._promised.pop(client_id, None)
            if promise is not None and self.heirs is not None:
                given = self._host.copy_of_given(client_id, to=promise.member)
                self.keep_given(client_id, promise.member, epoch=epoch, value=given)
            self._host.release(client_id)
            self.figures.sessions_moved_out_total += 1
        return committed

    def refuse_claim(self, question: ClaimQuestion) -> ClaimAnswer | None:
        """Return the answer to a claim that is against a stranger's session here, or its copy; None for others."""
        own, mine = self._owned(question.client_id)
        if mine is not None and self._is_refused(question, epoch=own.epoch, owner=mine):
            self.see(question.epoch)
            epoch = self.go_on(question.client_id) if own.epoch < question.epoch else own.epoch
            return ClaimAnswer(epoch, prevails=True)
        copy = self.held.get(question.client_id)
        if copy is None or self.heirs is None or copy.version.epoch > question.epoch:
            return None
        owner = self.heirs.owner_of_copy(copy.value)
        if owner is None or not self._is_refused(question, epoch=copy.version.epoch, owner=owner):
            return None
        self.see(question.epoch)
        return ClaimAnswer(self.next_epoch(), prevails=True)

    def _is_refused(self, claimed: ClaimQuestion, *, epoch: Epoch, owner: Owner) -> bool:
        """Return whether a claimed session ends, since a stranger has the older right to the Client Identifier.

        Args:
            claimed: The claim.
            epoch: Since when the other session is a member's.
            owner: Whose it is.
        """
        return self._are_strangers(claimed, epoch, owner) and not has_older_right(claimed.owner, owner)

    def claimed(self, question: ClaimQuestion) -> ClaimAnswer | None:
        """Take a member's claim: an older session here ends, or a stranger's, unless that prevails.

        Returns:
            Since when a session is here, or was; None when nothing is against the claim.
        """
        answer = self._answer_claim(question)
        if answer is None and self.newest_of(question.client_id) == question.epoch:
            self._host.let_go(question.client_id)  # the other member has it on disk
        return answer

    def _answer_claim(self, question: ClaimQuestion) -> ClaimAnswer | None:
        if question.epoch.member == self._node:
            came = answer_giver(self.get(question.client_id), question.epoch)
            if came is None:
                self.stop_arriving(question.client_id)
            return None if came is None else ClaimAnswer(came, prevails=True)
        refused = self.refuse_claim(question)
        if refused is not None:
            return refused
        client_id, epoch, _ = question
        self.forget_older(client_id, epoch)
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
        """Return the knowledge of a session, and its user if it is here."""
        own = self.get(client_id) or Ownership(Stage.CEDED, NO_EPOCH)
        return own, self._host.owner_of(client_id) if own.stage in _HERE else None

    def _are_strangers(self, claimed: ClaimQuestion, epoch: Epoch, owner: Owner) -> bool:
        """Return whether the owner of the later of two sessions may not end the earlier one."""
        later, earlier = (claimed.owner, owner) if claimed.epoch > epoch else (owner, claimed.owner)
        return claimed.epoch != epoch and not self._host.may_end(later, earlier)

    def _end(self, client_id: str, own: Ownership | None) -> None:
        self.forget(client_id, own)
        if self._host.has(client_id):
            self._host.end(client_id)
            self.figures.sessions_ended_total += 1

    def _take_back(self, client_id: str) -> None:
        before = self.get(client_id)
        own = take_back(before)
        self._promised.pop(client_id, None)
        if own is not None:
            if own is not before:
                self.put(client_id, own)
            self._host.take_back(client_id)

    def sweep(self) -> None:
        """Take back promises that are over, and forget the oldest sessions that are not here."""
        now_s = self._clock.monotonic()
        for client_id in [one for one, promise in self._promised.items() if promise.until_s <= now_s]:
            self._take_back(client_id)
        surplus = len(self._records) - self._host.count - _TOMBSTONES_MAX
        if surplus > 0:
            gone = (one for one in self._records if one not in self.moves and not self._host.has(one))
            for client_id in list(islice(gone, surplus)):
                del self._records[client_id]

    # Copies of other members' sessions.

    def keep_given(self, client_id: str, member: str, *, epoch: Epoch, value: bytes) -> None:
        """Keep a session that was given to another member, until that has a copy of its own.

        Args:
            client_id: Its Client Identifier.
            member: The member.
            epoch: Since when it is that member's.
            value: The copy; empty when it has none.
        """
        if value:
            instance, version = self._instance_of(member), CopyVersion(epoch, GIVEN)
            self.held.put(HeldCopy(client_id, member, instance, version, value, self._clock.monotonic()))

    def later_than(self, holder: str, row: CopyRow, value: bytes) -> Epoch | None:
        """Return the epoch of a session that is newer than the copy that came, or prevails over it; None for none.

        A session here that is older ends.
        """
        client_id, epoch = row.client_id, row.version.epoch
        kept = self.held.get(client_id)
        if self.is_here(client_id) or (kept is not None and kept.holder != holder):
            owner = None if self.heirs is None else self.heirs.owner_of_copy(value)
            refused = None if owner is None else self.refuse_claim(ClaimQuestion(client_id, epoch, owner))
            if refused is not None:
                return refused.epoch
        self._forget_outdated(client_id, epoch)
        self.yield_to(SessionQuestion(client_id, epoch))
        newest = self.newest_of(client_id)
        return newest if newest > epoch else None

    def keep(self, holder: str, instance: str, row: CopyRow, value: bytes) -> bool:
        """Keep a copy unless a later one is known; return False when there is no room."""
        kept = self.held.get(row.client_id)
        if not is_kept(row.version, kept=None if kept is None else kept.version, newest=self.newest_of(row.client_id)):
            return True
        return self.held.put(HeldCopy(row.client_id, holder, instance, row.version, value, self._clock.monotonic()))

    def forget_older(self, client_id: str, epoch: Epoch) -> None:
        """Note that a member has a session since an epoch: an older copy is of no use, nor that it was lost."""
        record = self._records.get(client_id)
        if record is not None:
            record.is_lost = False
            if record.agreed is not None and record.agreed.epoch < epoch:
                record.agreed = None
        self._forget_outdated(client_id, epoch)

    def agree(self, client_id: str, request: InheritRequest, epoch: Epoch, *, for_s: float) -> None:
        """Note that a member may go on with a session of a holder that is gone: nothing here is against it.

        Args:
            client_id: Its Client Identifier.
            request: The member's request.
            epoch: Since when the holder has it.
            for_s: Time in which the member has decided.
        """
        self.stop_arriving(client_id)
        until_s = self._clock.monotonic() + for_s
        self._record(client_id).agreed = _Agreed(request.holder, request.instance, epoch, until_s)
        self._renew(client_id)
        self.held.remove(client_id)

    def has_agreed(self, client_id: str, holder: str, instance: str | None = None) -> bool:
        """Return whether another member may go on with the session of a holder, as far as this member is concerned.

        Args:
            client_id: Its Client Identifier.
            holder: The holder.
            instance: Its process; None for the one that is heard.
        """
        record = self._records.get(client_id)
        agreed = None if record is None else record.agreed
        if agreed is None or agreed.until_s <= self._clock.monotonic():
            return False
        return (agreed.holder, agreed.instance) == (holder, instance or self._instance_of(holder))

    def _forget_outdated(self, client_id: str, epoch: Epoch) -> None:
        """Forget a copy that is of no use, as a member has a session since an epoch; before that is noted."""
        copy, is_of_heir = self.held.get(client_id), self.is_of_heir(client_id, epoch)
        if copy is not None and is_outdated(copy.version, epoch=epoch, is_of_heir=is_of_heir):
            self.held.remove(client_id)

    def _instance_of(self, member: str) -> str:
        return next((other.instance for other in self._others.states() if other.name == member), "")

    # Its own.

    def _record(self, client_id: str) -> _Record:
        record = self._records.get(client_id)
        if record is None:
            record = self._records[client_id] = _Record()
        return record

    def _renew(self, client_id: str) -> None:
        """Let a record be the one that was put last, or none if it says nothing."""
        record = self._records.pop(client_id)
        if record != _Record():
            self._records[client_id] = record


def _goes_nowhere(client_id: str) -> Epoch:
    return NO_EPOCH
