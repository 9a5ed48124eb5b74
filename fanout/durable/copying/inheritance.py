"""Inheritance: the sessions of a member that is gone go on at the members that keep their copies.

Owns the verdict that a holder is gone, the questions to the other members, and the answer to a holder that comes back.
`copy_rules` decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.durable.copying.absent_members import NotesForAbsent
from fanout.durable.ownership.copy_messages import (
    DOCUMENT_BYTES_MAX,
    INHERIT_PATH,
    InheritRequest,
    decode_inherit_answer,
    encode_inherit_request,
)
from fanout.durable.ownership.copy_rules import Right, inherited_epoch, may_inherit
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch
from fanout.durable.ownership.held_copies import HeldCopy
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.ownership import begin
from fanout.durable.ownership.ports import HERE, CopyFigures, Heirs, OtherMemberState, Others
from fanout.pool.membership import AskFailed
from fanout.runtime.system_clock import Clock

__all__ = ["CALL_S", "LOOK_S", "Inheritance"]

LOOK_S: Final = 0.05
"""Time between two looks at the members."""
_TURN_S: Final = 0.05
"""Time in one turn of the event loop for sessions that go on. A member that is busy for longer would be taken for
silent.
"""
_FEW: Final = 25
"""Number of sessions that go on in the first turn, whose duration decides the number in the next."""
_AT_ONCE_MAX: Final = 250
"""Sessions that are asked for, and go on, in one turn at most."""
_BYTES_AT_ONCE: Final = DOCUMENT_BYTES_MAX // 2
"""Bytes of the request for them beyond which it takes no more: one Client Identifier has up to 390,000 in JSON."""
CALL_S: Final = 1.0
"""Time for the answers to INHERIT; this member is isolated when it was stopped for much longer meanwhile."""
_GIVEN_S: Final = 12.0
"""Time until a session that was given away is searched; its next holder has had time enough by then."""


@dataclass(slots=True)
class _Gone:
    """A holder that is gone, or may be."""

    noted_s: float
    """When it was not there any more."""
    task: asyncio.Task[None] | None = None


class Inheritance:
    """Lets sessions of members that are gone go on here."""

    def __init__(
        self,
        ledger: SessionLedger,
        *,
        heirs: Heirs,
        others: Others,
        claim: Callable[[Mapping[str, Epoch]], None],
        claim_at: Callable[[str, Mapping[str, Epoch]], None],
        node: str,
        dead_after_s: float,
        figures: CopyFigures,
        clock: Clock,
        logger: FilteringBoundLogger,
    ) -> None:
        """Prepare.

        Args:
            ledger: Ledger of the sessions, with the copies that this member keeps.
            heirs: Makes sessions of copies.
            others: The other members.
            claim: Tells the others that sessions are here, each since an epoch.
            claim_at: Tells one member that sessions are here.
            node: This member.
            dead_after_s: Time after which a replaced process, or a member that is not listed any more, is gone.
            figures: Counters.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self._figures = figures
        self._held = ledger.held
        self._ledger = ledger
        self._heirs = heirs
        self._others = others
        self._claim = claim
        self._claim_at = claim_at
        self._node = node
        self._dead_after_s = dead_after_s
        self._clock = clock
        self._logger = logger
        self._gone: dict[tuple[str, str], _Gone] = {}
        """Holder and process."""
        ledger.gone = self._gone
        self._taken = NotesForAbsent[Epoch]()
        """Sessions of holders that went on here, until the holder is told."""
        self._given_task: asyncio.Task[None] | None = None
        self._given_at_s = 0.0
        self._at_once = _FEW

    def holder_lives(self, holder: str, instance: str) -> bool:
        """Return whether this member hears a process that has sessions."""
        return any(
            other.name == holder and not other.is_dead and other.instance == instance for other in self._others.states()
        )

    async def cancel(self) -> None:
        """Ask for nothing any more."""
        tasks = [task for task in (self._given_task, *(gone.task for gone in self._gone.values())) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """Look for holders that are gone, and let their sessions go on; to be called again and again."""
        states = {other.name: other for other in self._others.states()}
        now_s = self._clock.monotonic()
        for name in self._taken.members:
            if name in states and not states[name].is_silent:
                self._claim_at(name, self._taken.pop(name))
        processes = self._held.processes
        for key in [key for key in self._gone if key not in processes or self._is_back(states.get(key[0]), key[1])]:
            gone = self._gone.pop(key)
            if gone.task is not None:
                gone.task.cancel()
        for holder, instance in processes:
            state = states.get(holder)
            if (holder, instance) in self._gone or self._is_back(state, instance):
                continue
            self._gone[holder, instance] = _Gone(now_s)
        if self._others.is_isolated:
            return
        if self._given_task is not None and self._given_task.done():
            self._given_task.result()  # an error ends the node, in place of what waits for the session
            self._given_task = None
        if self._given_task is None and now_s >= self._given_at_s:
            self._given_at_s = now_s + 1.0
            given = self._given(until_s=now_s - _GIVEN_S)
            if given:
                holder, instance = given[0].holder, given[0].instance
                self._given_task = asyncio.create_task(
                    self._look_for_given(holder, instance, given), name=f"given-{holder}"
                )
        for (holder, instance), gone in self._gone.items():
            state = states.get(holder)
            if gone.task is not None and gone.task.done():
                gone.task.result()
                gone.task = None  # there are copies again
            if gone.task is None and self._is_over(gone, state, now_s=now_s):
                gone.task = asyncio.create_task(self._inherit_all(holder, instance), name=f"inherit-{holder}")

    def _is_over(self, gone: _Gone, state: OtherMemberState | None, *, now_s: float) -> bool:
        """Return whether sessions may go on now: this node has all that their holder had, and knows that it is gone.

        A process in its place has restored sessions from its disk before it answers, and is asked with the others.
        """
        if state is not None and state.is_dead:  # found by a heartbeat of this node that came behind its last one
            return True
        is_replaced = state is not None and not state.is_silent and self._others.is_current(gone.noted_s)
        return is_replaced or now_s >= gone.noted_s + self._dead_after_s

    def _is_back(self, state: OtherMemberState | None, instance: str) -> bool:
        return state is not None and not state.is_dead and state.instance == instance

    async def _inherit_all(self, holder: str, instance: str) -> None:
        """Let all sessions of a process go on, as far as the other members agree."""
        begun_s, figures = self._clock.monotonic(), self._figures
        before = figures.sessions_inherited_total, figures.sessions_not_inherited_total
        while True:
            part = self._first(self._held.of(holder, instance))
            if not part:
                break
            if not await self._inherit(holder, instance, part):
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(0)
        self._logger.warning(
            "sessions of a dead member go on here",
            member=holder,
            sessions=figures.sessions_inherited_total - before[0],
            lost=figures.sessions_not_inherited_total - before[1],
            seconds=round(self._clock.monotonic() - begun_s, 2),
            hint="Start the member again, or another one in its place; until then there is one less to take clients",
        )

    async def _look_for_given(self, holder: str, instance: str, copies: Sequence[HeldCopy]) -> None:
        """Let sessions go on that were given away and are nowhere; forget those that their next holder has."""
        if not await self._inherit(holder, instance, copies, asks_holder=True):
            now_s = self._clock.monotonic()
            for copy in copies:
                self._held.note_sought(copy.client_id, now_s=now_s)

    async def _inherit(
        self, holder: str, instance: str, copies: Sequence[HeldCopy], *, asks_holder: bool = False
    ) -> bool:
        """Let some sessions go on; return False when that cannot be decided now.

        Args:
            holder: Their holder.
            instance: Its process. A later one of the same member is asked as all others are: it may have them from
                its disk.
            copies: Their copies.
            asks_holder: True if the holder lives, so that it alone says whether it has them.
        """
        states = [
            other
            for other in self._others.states()
            if ((other.name, other.instance) == (holder, instance)) is asks_holder
        ]
        if any(other.is_silent and not other.is_dead and not other.is_empty for other in states):
            return False  # it may have a newer copy
        request = InheritRequest(holder, instance, tuple((copy.client_id, copy.version) for copy in copies))
        body = encode_inherit_request(request)
        living = [other.name for other in states if not other.is_dead and not other.is_silent]
        answers = await asyncio.gather(*(self._ask(name, body, len(copies)) for name in living))
        if any(answer is None for answer in answers) or self._others.is_isolated:
            return False
        begun_s = self._clock.monotonic()
        rights = [[each[index] for each in answers if each is not None] for index in range(len(copies))]
        chosen: list[HeldCopy] = []
        for copy, each in zip(copies, rights, strict=True):
            if self._held.get(copy.client_id) is not copy or Right.LIVES in each:
                continue
            self._held.remove(copy.client_id)
            if may_inherit(copy.version, newest=self._ledger.newest_of(copy.client_id), answers=each):
                chosen.append(copy)
        here: dict[str, Epoch] = {}
        is_stale = self._others.went_alone(instance)
        found = self._heirs.inherit(chosen, away_s=self._dead_after_s, is_stale=is_stale) if chosen else ()
        for copy, became in zip(chosen, found, strict=True):
            if became == HERE:
                here[copy.client_id] = self._go_on(copy, is_given_back=asks_holder)
            else:
                self._note_lost(copy, became)
        if here:
            self._claim(here)
        self._pace(len(copies), self._clock.monotonic() - begun_s)
        return not any(Right.LIVES in each for each in rights)

    def _go_on(self, copy: HeldCopy, *, is_given_back: bool) -> Epoch:
        """Note that a session goes on here, and return since which epoch."""
        given_since = self._ledger.given_since(copy.client_id) if is_given_back else NO_EPOCH
        epoch = inherited_epoch(copy.version, self._node, given_since=given_since)
        self._ledger.see(epoch)
        self._ledger.put(copy.client_id, begin(epoch))
        self._taken.put(copy.holder, copy.client_id, epoch)
        self._figures.sessions_inherited_total += 1
        return epoch

    def _note_lost(self, copy: HeldCopy, reason: str) -> None:
        client_id = copy.client_id
        self._figures.sessions_not_inherited_total += 1
        self._ledger.note_lost(client_id)
        self._logger.warning(
            "session not inherited",
            client_id=client_id,
            member=copy.holder,
            reason=reason,
            hint="Its client begins a new session; a larger pool.history_bytes keeps messages for longer",
        )

    def _given(self, *, until_s: float) -> list[HeldCopy]:
        """Return some copies of sessions that were given away to one process that lives, until some time."""
        process: tuple[str, str] | None = None
        found: list[HeldCopy] = []
        for copy in self._held.given(until_s=until_s):
            its = copy.holder, copy.instance
            if its not in self._gone and process in (None, its):
                process = its
                found.append(copy)
                if len(found) == self._at_once:
                    break
        return self._first(found)

    def _first(self, copies: Iterable[HeldCopy]) -> list[HeldCopy]:
        """Return the first copies, as many as one request and one turn have room for."""
        part: list[HeldCopy] = []
        size = 0
        for copy in islice(copies, self._at_once):
            part.append(copy)
            size += 100 + 6 * len(copy.client_id)
            if size > _BYTES_AT_ONCE:
                break
        return part

    def _pace(self, sessions: int, took_s: float) -> None:
        """Have as many sessions go on in the next turn as it has time for, after these took so many seconds."""
        fitting = int(sessions * _TURN_S / took_s) if took_s > 0 else _AT_ONCE_MAX
        self._at_once = max(1, min(fitting, 2 * self._at_once, _AT_ONCE_MAX))

    async def _ask(self, name: str, body: bytes, count: int) -> list[Right] | None:
        try:
            data = await self._others.call(
                name, INHERIT_PATH, body, timeout_s=CALL_S, answer_bytes_max=DOCUMENT_BYTES_MAX
            )
            rights = decode_inherit_answer(data)
        except (AskFailed, ValueError):
            return None
        return rights if len(rights) == count else None
