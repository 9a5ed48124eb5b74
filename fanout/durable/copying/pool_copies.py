"""Copies of sessions in a pool, as one member has them: those that it keeps, and those of its own sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from structlog.typing import FilteringBoundLogger

from fanout.durable.copying.inheritance import CALL_S, LOOK_S, Inheritance
from fanout.durable.copying.sent_copies import SentCopies
from fanout.durable.ownership.copy_messages import (
    CopyAnswer,
    PlacesRow,
    copy_request_in_steps,
    decode_inherit_request,
    encode_copy_answer,
    encode_inherit_answer,
)
from fanout.durable.ownership.copy_rules import (
    Right,
    answer_inherit,
    are_newer_places,
)
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch
from fanout.durable.ownership.held_copies import HeldCopies, HeldCopy
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.ports import CopyFigures, Heirs, Others
from fanout.runtime.slices import Slices, in_turns
from fanout.runtime.system_clock import Clock

__all__ = ["PoolCopies"]


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
            ledger: Ledger of the sessions.
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
        self._agreed_s = dead_after_s + CALL_S
        ledger.heirs, ledger.held = heirs, HeldCopies(bytes_max=bytes_max)
        self._held = ledger.held
        self._slices = Slices()
        self.sent = SentCopies(ledger, others=others, claim=claim, clock=clock)
        """Copies of own sessions."""
        self.inheritance = Inheritance(
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
        figures.copies_held = len(self._held)
        figures.copies_held_bytes = self._held.bytes
        figures.sessions_copied = self.sent.copied
        figures.copies_oldest_unconfirmed_seconds = self.sent.oldest_unconfirmed_s()
        return figures

    async def run(self) -> None:
        """Look at the members again and again, to place copies anew and to inherit, until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self.sent.look()
                self.inheritance.look()
        finally:
            self.sent.cancel()
            await self.inheritance.cancel()

    # For the other members: the handlers of their requests.

    async def answer_copy(self, asker: str, body: bytes) -> bytes:
        """Answer COPY: keep copies of the process that is heard.

        Any other process of this member has ended, and nothing waits for its copies; or it has just begun, and copies
        again until it is heard.
        """
        instance, rows = await self._slices.run(copy_request_in_steps(body))
        if not any(other.name == asker and other.instance == instance for other in self._others.states()):
            raise ValueError("another process of the member is heard")
        newer: dict[str, Epoch] = {}
        missing: list[str] = []
        full: list[str] = []
        unable: list[str] = []
        async for row in in_turns(rows):
            if isinstance(row, PlacesRow):
                moved = in_turns(row.client_ids)
                missing += [client_id async for client_id in moved if not self._move(asker, client_id, row)]
                continue
            self._ledger.epochs.admit(row.version.epoch)
            if self._ledger.has_agreed(row.client_id, asker, instance):
                # It may be an heir's by now, whose claim is on its way.
                raise ValueError("another member may go on with this session")
            if row.value is None:
                copy = self._held.get(row.client_id)
                if copy is not None and copy.holder == asker and copy.version < row.version:
                    self._held.remove(row.client_id)
            elif not self._heirs.could_inherit(row.client_id, row.value):
                unable.append(row.client_id)
            elif (later := self._ledger.later_than(asker, row, row.value)) is not None:
                newer[row.client_id] = later
            elif not self._ledger.keep(asker, instance, row, row.value):
                full.append(row.client_id)
        return encode_copy_answer(CopyAnswer(newer, tuple(missing), tuple(full), tuple(unable)))

    async def answer_inherit(self, asker: str, body: bytes) -> bytes:
        """Answer INHERIT: say whether another member may go on with sessions; older copies here go then."""
        request = decode_inherit_request(body)
        for _, version in request.copies:
            self._ledger.epochs.admit(version.epoch)
        is_holder = (request.holder, request.instance) == (self._node, self._others.instance)
        lives = request.holder != self._node and self.inheritance.holder_lives(request.holder, request.instance)
        is_known = request.holder in (self._node, *(other.name for other in self._others.states()))
        rights: list[Right] = []
        for client_id, version in request.copies:
            kept, newest = self._held.get(client_id), self._ledger.newest_of(client_id)
            # An older session here has missed a claim of the holder, which nobody repeats: it is no reason to wait.
            is_here = self._ledger.is_here(client_id) and (is_holder or newest >= version.epoch)
            right = answer_inherit(
                version,
                kept=None if kept is None else kept.version,
                kept_lives=kept is not None and kept.holder == request.holder and self._is_heard(kept),
                newest=newest,
                # Nobody known has the session: no reason to give up the copy of a member that is heard.
                holder_lives=lives
                or self._ledger.given(client_id) != NO_EPOCH  # it is not known yet whose it is
                or (not is_known and kept is not None and self._is_heard(kept)),
                is_here=is_here,
                is_copied=not self.sent.is_pending(client_id),
                is_holder=is_holder,
            )
            if right is Right.YES:
                self._ledger.agree(client_id, request, version.epoch, for_s=self._agreed_s)
            rights.append(right)
        return encode_inherit_answer(rights)

    def _is_heard(self, copy: HeldCopy) -> bool:
        return self.inheritance.holder_lives(copy.holder, copy.instance)

    def _move(self, holder: str, client_id: str, row: PlacesRow) -> bool:
        """Let a session go on at other places, unless later ones are known; return False without a copy of it."""
        copy = self._held.get(client_id)
        if copy is None or copy.holder != holder:
            return False
        if are_newer_places(row.number, version=copy.version, places_number=copy.places_number):
            copy.places, copy.places_number = row.places, row.number
        return True
