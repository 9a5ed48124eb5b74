"""Copies of sessions in a pool, as one member has them: those that it keeps, and those of its own sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from fanout.durable.copying.inheritance import CALL_S, Heirs, Inheritance
from fanout.durable.copying.sent_copies import SentCopies
from fanout.durable.ownership.copy_messages import (
    CopyAnswer,
    CopyRow,
    PlacesRow,
    decode_copy_request,
    decode_inherit_request,
    encode_copy_answer,
    encode_inherit_answer,
)
from fanout.durable.ownership.copy_rules import (
    GIVEN,
    CopyVersion,
    Right,
    answer_inherit,
    are_newer_places,
    is_kept,
    is_outdated,
)
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.held_copies import HeldCopies, HeldCopy
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.move_messages import ClaimAnswer, ClaimQuestion, SessionQuestion
from fanout.durable.ownership.ownership import Answer
from fanout.durable.ownership.ports import CopyFigures, Others
from fanout.runtime.system_clock import Clock

__all__ = ["PoolCopies"]


class _Agreed(NamedTuple):
    """A session that another member may go on with."""

    holder: str
    instance: str
    """The holder's process."""
    epoch: Epoch
    """Since when the holder has it."""
    until_s: float
    """When the heir has decided; most often it says before that it has the session."""


class PoolCopies:
    """The copies of one member."""

    def __init__(
        self,
        ledger: SessionLedger,
        *,
        node: str,
        heirs: Heirs,
        others: Others,
        claim: Callable[[Mapping[str, Epoch]], None],
        claim_at: Callable[[str, Mapping[str, Epoch]], None],
        bytes_max: int,
        dead_after_s: float,
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Begin without any; see `Inheritance` and `SentCopies`.

        Args:
            ledger: What is known of the sessions.
            node: This member.
            heirs: Makes sessions of copies.
            others: The other members.
            claim: Tells the others that sessions are here, each since an epoch.
            claim_at: Tells one member that sessions are here.
            bytes_max: Bytes that the copies kept here take at most.
            dead_after_s: Time after which a silent member is dead.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self._node = node
        self._ledger = ledger
        self._heirs = heirs
        self._others = others
        self._clock = clock
        self._agreed: dict[str, _Agreed] = {}
        """Client whose session another member may go on with, as far as this one is concerned."""
        self._agreed_s = dead_after_s + CALL_S
        self._held = HeldCopies(bytes_max=bytes_max)
        self.sent = SentCopies(ledger, others=others, claim=claim, clock=clock)
        """Copies of own sessions."""
        self.inheritance = Inheritance(
            self._held,
            ledger,
            heirs=heirs,
            others=others,
            claim=claim,
            claim_at=claim_at,
            node=node,
            dead_after_s=dead_after_s,
            figures=self.sent.figures,
            clock=clock,
            logger=logger,
        )
        """Sessions of members that are gone."""

    def figures(self) -> CopyFigures:
        """Return the figures of this moment."""
        figures = self.sent.figures
        figures.held, figures.held_bytes = len(self._held), self._held.bytes
        figures.copied, figures.oldest_unconfirmed_s = self.sent.copied, self.sent.oldest_unconfirmed_s()
        return figures

    async def run(self) -> None:
        """Place copies, and inherit, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sent.run(), name="session-copies")
            group.create_task(self.inheritance.run(), name="session-inheritance")

    def answer_take(self, client_id: str) -> Answer | None:
        """Return what the copy of a client's session says to who looks for the session; None for nothing."""
        return self.inheritance.answer_take(client_id)

    def was_lost(self, client_id: str) -> bool:
        """Return whether the newest session of a client could not go on here."""
        return self.inheritance.was_lost(client_id)

    def keep_given(self, client_id: str, member: str, *, epoch: Epoch, value: bytes) -> None:
        """Keep a session that was given to another member, until that has a copy of its own."""
        if value:
            instance, version = self._instance_of(member), CopyVersion(epoch, GIVEN)
            self._held.put(HeldCopy(client_id, member, instance, version, value, self._clock.monotonic()))

    def came_from(self, client_id: str, member: str) -> None:
        """Note that a session came from a member, which keeps it as it gave it away."""
        self.sent.came_from(client_id, member)

    def claim_when_kept(self, client_id: str, epoch: Epoch) -> None:
        """Tell the other members that a session is here since an epoch, once its copy is kept."""
        self.sent.claim_when_kept(client_id, epoch)

    def refuse_claim(self, question: ClaimQuestion) -> ClaimAnswer | None:
        """Return the answer to a claim that is against the copy of a stranger's session; None when nothing is."""
        copy = self._held.get(question.client_id)
        if copy is None or copy.version.epoch > question.epoch:
            return None
        owner = self._heirs.owner_of_copy(copy.value)
        if owner is None or not self._ledger.is_refused(question, epoch=copy.version.epoch, owner=owner):
            return None
        self._ledger.see(question.epoch)
        return ClaimAnswer(self._ledger.next_epoch(), prevails=True)

    def claimed(self, client_id: str, epoch: Epoch) -> None:
        """Note that a member has a session since an epoch: an older copy is of no use."""
        self.inheritance.claimed(client_id)
        agreed = self._agreed.get(client_id)
        if agreed is not None and agreed.epoch < epoch:
            del self._agreed[client_id]
        self._forget_outdated(client_id, epoch)

    def has_agreed(self, client_id: str, member: str) -> bool:
        """Return whether another member may go on with a session of this one, as far as this member is concerned."""
        return self._has_agreed(client_id, member, self._instance_of(member))

    # For the other members: the handlers of their requests.

    async def answer_copy(self, asker: str, body: bytes) -> bytes:
        """Answer COPY: keep copies of the process that is heard.

        Another one of the same member is over, and what waited for its copies too; or it has just begun, and copies
        again until it is heard, as nobody could say before that it lives.
        """
        instance, rows = decode_copy_request(body)
        if not any(other.name == asker and other.instance == instance for other in self._others.states()):
            raise ValueError("another process of the member is heard")
        if any(isinstance(row, CopyRow) and self._has_agreed(row.client_id, asker, instance) for row in rows):
            # They may be an heir's by now, whose claims are on their way.
            raise ValueError("another member may go on with these sessions")
        newer: dict[str, Epoch] = {}
        missing: list[str] = []
        full: list[str] = []
        unable: list[str] = []
        for row in rows:
            if isinstance(row, PlacesRow):
                missing += [client_id for client_id in row.client_ids if not self._move(asker, client_id, row)]
            elif row.value is None:
                copy = self._held.get(row.client_id)
                if copy is not None and copy.holder == asker and copy.version < row.version:
                    self._held.remove(row.client_id)
            elif not self._heirs.could_inherit(row.client_id, row.value):
                unable.append(row.client_id)
            elif not self._keep(asker, instance, row, row.value, newer):
                full.append(row.client_id)
        return encode_copy_answer(CopyAnswer(newer, tuple(missing), tuple(full), tuple(unable)))

    async def answer_inherit(self, asker: str, body: bytes) -> bytes:
        """Answer INHERIT: say whether another member may go on with sessions; older copies here go then."""
        request, now_s = decode_inherit_request(body), self._clock.monotonic()
        self._agreed = {client_id: one for client_id, one in self._agreed.items() if one.until_s > now_s}
        is_holder = (request.holder, request.instance) == (self._node, self._others.instance)
        lives = request.holder != self._node and self.inheritance.holder_lives(request.holder, request.instance)
        rights: list[Right] = []
        for client_id, version in request.copies:
            kept, newest = self._held.get(client_id), self._ledger.newest_of(client_id)
            # An older session here has missed a claim of the holder, which nobody repeats: it is no reason to wait.
            is_here = self._ledger.is_here(client_id) and (is_holder or newest >= version.epoch)
            right = answer_inherit(
                version,
                kept=None if kept is None else kept.version,
                newest=newest,
                holder_lives=lives,
                is_here=is_here,
                is_copied=not self.sent.is_pending(client_id),
                is_holder=is_holder,
            )
            if right is Right.YES:
                self._ledger.stop_arriving(client_id)
                until_s = now_s + self._agreed_s
                self._agreed[client_id] = _Agreed(request.holder, request.instance, version.epoch, until_s)
                if kept is not None:
                    self._held.remove(client_id)
            rights.append(right)
        return encode_inherit_answer(rights)

    def _has_agreed(self, client_id: str, holder: str, instance: str) -> bool:
        agreed = self._agreed.get(client_id)
        is_its = agreed is not None and (agreed.holder, agreed.instance) == (holder, instance)
        return agreed is not None and is_its and agreed.until_s > self._clock.monotonic()

    def _forget_outdated(self, client_id: str, epoch: Epoch) -> None:
        """Forget a copy that is of no use, as a member has a session since an epoch; before the ledger is told."""
        copy, is_of_heir = self._held.get(client_id), self._ledger.is_of_heir(client_id, epoch)
        if copy is not None and is_outdated(copy.version, epoch=epoch, is_of_heir=is_of_heir):
            self._held.remove(client_id)

    def _instance_of(self, member: str) -> str:
        return next((other.instance for other in self._others.states() if other.name == member), "")

    def _keep(self, holder: str, instance: str, row: CopyRow, value: bytes, newer: dict[str, Epoch]) -> bool:
        """Keep a copy unless a later one, or a later session, is known; return False when there is no room."""
        client_id, version = row.client_id, row.version
        kept = self._held.get(client_id)
        if self._ledger.is_here(client_id) or (kept is not None and kept.holder != holder):
            owner = self._heirs.owner_of_copy(value)
            claim = None if owner is None else ClaimQuestion(client_id, version.epoch, owner)
            refused = None if claim is None else self._ledger.refuse_claim(claim) or self.refuse_claim(claim)
            if refused is not None:
                newer[client_id] = refused.epoch
                return True
        self._forget_outdated(client_id, version.epoch)
        self._ledger.yield_to(SessionQuestion(client_id, version.epoch))
        kept, newest = self._held.get(client_id), self._ledger.newest_of(client_id)
        if newest > version.epoch:
            newer[client_id] = newest
            return True
        if not is_kept(version, kept=None if kept is None else kept.version, newest=newest):
            return True
        return self._held.put(HeldCopy(client_id, holder, instance, version, value, self._clock.monotonic()))

    def _move(self, holder: str, client_id: str, row: PlacesRow) -> bool:
        """Let a session go on at other places, unless later ones are known; return False without a copy of it."""
        copy = self._held.get(client_id)
        if copy is None or copy.holder != holder:
            return False
        if are_newer_places(row.number, version=copy.version, places_number=copy.places_number):
            copy.places, copy.places_number = row.places, row.number
        return True
