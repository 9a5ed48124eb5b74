"""Copies of this member's sessions at other members: which member keeps each, and what is on its way.

Each copied session is one object. It is dropped when the session ends or leaves; rows, retries and notes that name a
dropped object are ignored.

Rows to one member go in the order in which they were made, one call at a time. A row that brings nothing goes to the
member that is the next to keep it. Without another member nothing waits for longer than `ALONE_S`. If a member may have
an older copy, a notice (`AloneNotice`) tells the others before the session goes on without a copy.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fanout.durable.copying.absent_members import NotesForAbsent
from fanout.durable.copying.alone_notice import AloneNotice
from fanout.durable.copying.copy_keepers import ALONE_S, CopyKeepers
from fanout.durable.ownership.copy_messages import (
    COPY_BYTES_MAX,
    COPY_PATH,
    CopyAnswer,
    CopyRequest,
    CopyRow,
    PlacesRow,
    Row,
    decode_copy_answer,
    encode_copy_request,
)
from fanout.durable.ownership.copy_rules import CopyVersion
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.ledger import SessionLedger
from fanout.durable.ownership.move_messages import SessionQuestion
from fanout.durable.ownership.ports import CopyFigures, Others
from fanout.pool.membership import AskFailed
from fanout.runtime.system_clock import Clock

__all__ = ["SentCopies"]

_CALL_S: Final = 1.0
"""Time for one call, beside that for its bytes."""
_BYTES_PER_S: Final = 8 << 20
"""A call has time for so many bytes a second: the longest one has 5 s."""
_WINDOW_S: Final = 0.01
"""Shortest time from the beginning of one call to that of the next."""
_ROWS_MAX: Final = 1_000
_BYTES_AT_ONCE: Final = 1 << 20
"""Bytes of the copies of one call; a longer copy goes alone."""
_AGAIN_MAX: Final = 500
"""Sessions that are copied once more at a time."""
_HEAD_BYTES: Final = 200
_ANSWER_BYTES: Final = 256 * 1024
"""Bytes that an answer may have in any case: an epoch for each copy."""
_ANSWER_FACTOR: Final = 6
"""Bytes of a Client Identifier in the answer, in JSON, for one in the call."""
_RETRY_S: Final = 1.0
"""Time after which sessions that nobody could keep are copied once more; twice as long each time that is in vain."""
_RETRY_S_MAX: Final = 60.0
"""Longest time between two such tries."""


@dataclass(slots=True)
class _Group:
    """Copies that are waited for together."""

    left: int
    done: Callable[[], None]

    def settle(self) -> None:
        self.left -= 1
        if not self.left:
            self.done()


@dataclass(slots=True, eq=False)
class _Session:
    """A session that is copied."""

    client_id: str
    member: str | None = None
    """Member that keeps its copy; None for none."""
    unable: tuple[str, ...] = ()
    """Members that could not keep the newest copy, or were given it without success."""
    newest: _Copy | None = None
    """Its newest copy while that is on its way; None once a member keeps it, or the session goes on without."""


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy on its way."""

    session: _Session
    value: bytes | None
    """None for a session that has ended."""
    group: _Group | None
    since_s: float
    """When it was made."""
    put_s: float
    """The same, in seconds for which this member has run."""
    epoch: Epoch
    """Epoch of the session at this member when the copy was made."""

    @property
    def is_newest(self) -> bool:
        return self.session.newest is self

    def release(self) -> None:
        """Let go what waits for it, once."""
        group, self.group = self.group, None
        if group is not None:
            group.settle()


@dataclass(slots=True)
class _Outbox:
    """Rows that wait to be sent to one member."""

    task: asyncio.Task[None]
    """Sends it."""
    rows: deque[_Copy | str] = field(default_factory=deque)
    """Copies; and Client Identifiers whose copies the member is to forget, for which nothing waits."""
    places: dict[_Session, bytes] = field(default_factory=dict)
    """Session to the places at which it goes on."""
    forgetting: set[str] = field(default_factory=set)
    """Clients whose copies the member is being told to forget."""


class _Retries:
    """Sessions that nobody could keep when they were copied last, and the time of the next try with them."""

    def __init__(self) -> None:
        self.sessions: dict[_Session, None] = {}
        self._wait_s = _RETRY_S
        """Time from the next try to the one after that."""
        self._at_s = math.inf

    def add(self, session: _Session, now_s: float) -> None:
        self.sessions[session] = None
        self._at_s = min(self._at_s, now_s + self._wait_s)

    def hasten(self, at_s: float) -> None:
        """Try at a time at the latest, and often from then on."""
        self._wait_s, self._at_s = _RETRY_S, min(self._at_s, at_s)

    def are_due(self, now_s: float, *, has_members: bool) -> bool:
        """Return True if it is time for another try; the pause before the next one is then longer."""
        if not self.sessions:
            self._wait_s, self._at_s = _RETRY_S, math.inf
        elif has_members and now_s >= self._at_s:
            self._at_s, self._wait_s = now_s + self._wait_s, min(2 * self._wait_s, _RETRY_S_MAX)
            return True
        return False


class _Claims:
    """Sessions that are here, with their epochs. The others are told of them once their copies are kept."""

    def __init__(self, tell: Callable[[Mapping[str, Epoch]], None]) -> None:
        self._tell = tell
        self._unkept: dict[str, Epoch] = {}
        self._kept: dict[str, Epoch] = {}

    def add(self, client_id: str, epoch: Epoch) -> None:
        self._unkept[client_id] = epoch

    def drop(self, client_id: str) -> None:
        self._unkept.pop(client_id, None)

    def note_kept(self, client_id: str, epoch: Epoch) -> None:
        """Note that the copy of a session since an epoch is kept, or that it goes on without."""
        unkept = self._unkept.get(client_id)
        if unkept is not None and epoch >= unkept:
            self._kept[client_id] = self._unkept.pop(client_id)

    def tell(self) -> None:
        """Tell the others, in one call, of all sessions with a kept copy."""
        if self._kept:
            kept, self._kept = self._kept, {}
            self._tell(kept)


class SentCopies:
    """The copies of this member's sessions, as `fanout.durable.keeping.session_copies.CopyCarrier`."""

    def __init__(
        self,
        ledger: SessionLedger,
        *,
        others: Others,
        claim: Callable[[Mapping[str, Epoch]], None],
        clock: Clock,
    ) -> None:
        """Begin without any.

        Args:
            ledger: Knows since when a session is this member's, and ends those that are another one's.
            others: The other members.
            claim: Tells the others that sessions are here, each since an epoch.
            clock: Gives the time.
        """
        self.figures = CopyFigures()
        """Counters."""
        self.copied = 0
        """Number of sessions of which another member keeps a copy."""
        self.copy_again: Callable[[Iterable[str]], None] = lambda client_ids: None
        """Makes copies of sessions once more, and puts them."""
        self.look_anew: Callable[[], None] = lambda: None
        """Has all sessions told of once more: where each goes on, or its copy."""
        self._ledger = ledger
        self._others = others
        self._clock = clock
        self._keepers = CopyKeepers(others, now_s=clock.monotonic())
        self._claims = _Claims(claim)
        self._number = clock.now_ns() // 1000
        self._sessions: dict[str, _Session] = {}
        self._under_way: dict[_Copy, None] = {}
        """The newest copies that are on their way, oldest first."""
        self._homeless: dict[_Copy, None] = {}
        """Copies that no member could keep when they were made, or that brought nothing."""
        self._outboxes: dict[str, _Outbox] = {}
        self._retries = _Retries()
        self._again: dict[_Session, None] = {}
        """Sessions that are to be copied once more."""
        self._outdated = NotesForAbsent[Epoch]()
        """Sessions with a possibly outdated copy at a member, until that member confirms that it forgot the copy.

        The epoch is that of the copy or later; a copy of a session that the member gave here since is another one.
        """
        self._notice = AloneNotice(others=others, clock=clock)

    # For the server.

    def put(self, copies: Mapping[str, bytes | None], *, done: Callable[[], None]) -> None:
        """Carry copies by Client Identifier, None for a session that has ended; call `done` when they are kept."""
        group, now_s = _Group(len(copies), done), self._clock.monotonic()
        for client_id, value in copies.items():
            session = self._session(client_id)
            copy = _Copy(session, value, group, now_s, self._keepers.ran_s, self._ledger.epoch_of(client_id))
            former, session.newest, session.unable = session.newest, copy, ()
            self._under_way[copy] = None
            self._again.pop(session, None)
            if former is not None:
                del self._under_way[former]
                if former in self._homeless:
                    del self._homeless[former]
                    former.release()
            self._place(copy)
        self._claims.tell()

    def leave(self, client_id: str) -> None:
        """Forget a session that is another member's now, and leave its copies where they are.

        If both are killed before that member says that it has the session, the session goes on from these copies.
        """
        self._outdated.forget(client_id)
        self._claims.drop(client_id)
        session = self._sessions.get(client_id)
        if session is not None:
            self._drop(session)

    def claim_when_kept(self, client_id: str, epoch: Epoch) -> None:
        """Tell the other members that a session is here since an epoch, once the copy that `put` brings now is kept.

        The claim ends former copies too, so the new copy comes first.
        """
        self._claims.add(client_id, epoch)

    def put_places(self, places: bytes, client_ids: Sequence[str]) -> None:
        """Carry that these sessions, otherwise as they were copied, go on at other places now."""
        for client_id in client_ids:
            session = self._sessions.get(client_id)
            if session is None:
                continue
            if session.newest is not None or session.member is None:
                self._again[session] = None
            else:
                self._outbox(session.member).places[session] = places

    # For the node.

    def came_from(self, client_id: str, member: str) -> None:
        """Note that a session came from a member, which keeps it as it gave it away."""
        self._keep_at(self._session(client_id), member)

    def is_pending(self, client_id: str) -> bool:
        """Return whether a copy of a session is on its way."""
        session = self._sessions.get(client_id)
        return session is not None and session.newest is not None

    def are_right_at(self, member: str) -> bool:
        """Return True if every copy at a member is current, or superseded by a newer copy at another member.

        True is the word that the member relies on (`Others.went_alone`).
        """
        if member not in self._keepers.names or self._homeless:
            return False
        for client_id in self._outdated.of(member):
            session = self._sessions.get(client_id)
            if session is None or session.member is None:
                return False
        self._notice.withdraw()
        return True

    def oldest_unconfirmed_s(self) -> float:
        """Return how long the oldest copy is on its way, in seconds; 0 when none is."""
        oldest = next(iter(self._under_way), None)
        return 0.0 if oldest is None else self._clock.monotonic() - oldest.since_s

    def cancel(self) -> None:
        """Send nothing any more."""
        for outbox in self._outboxes.values():
            outbox.task.cancel()

    def look(self) -> None:
        """Place copies anew as members come and go; to be called again and again."""
        now_s = self._clock.monotonic()
        for outbox in self._outboxes.values():
            if outbox.task.done():
                outbox.task.result()  # it has ended with an error: without this, all that waits would wait in silence
        self._look_at_keepers(now_s)
        members = self._keepers.names
        for member in members:
            for client_id in list(self._outdated.of(member)):
                session = self._sessions.get(client_id)
                if session is not None and session.member == member:
                    self._outdated.remove(member, client_id)
                elif session is None or session.newest is None:
                    self._forget_at(member, client_id)
        self._notice.look()
        if self._retries.are_due(now_s, has_members=bool(members)):
            self._again |= dict.fromkeys(one for one in self._retries.sessions if one.newest is None)
        homeless, self._homeless = self._homeless, {}
        for copy in homeless:
            if not copy.is_newest:  # what was released meanwhile has ended or replaced it
                copy.release()
            elif copy.value is not None and self._keepers.ran_s - copy.put_s >= ALONE_S:
                self._go_on_without(copy)
            else:
                self._place(copy)
        if self._again and members:
            again = list(self._again)[:_AGAIN_MAX]
            for session in again:
                del self._again[session]
            self.copy_again(session.client_id for session in again if self._is_copied(session))
        self._claims.tell()

    # Its own.

    def _look_at_keepers(self, now_s: float) -> None:
        """Make copies again that a member has no longer, and move copies once the members are steady."""
        change = self._keepers.look(now_s)
        if change.lost or change.has_changed:
            self._retries.hasten(now_s)
        if change.is_interrupted:
            self.look_anew()
        if not change.lost and not change.is_steady:
            return
        for session in self._sessions.values():
            is_misplaced = session.member in change.lost or (change.is_steady and session.member != self._next(session))
            if is_misplaced and session.newest is None:
                self._again[session] = None

    def _place(self, copy: _Copy) -> None:
        """Send a copy to the member that is to keep it."""
        session, members = copy.session, self._keepers.names
        if copy.value is None:
            member = session.member
            if member is None or member not in members:
                if member is not None:
                    self._outdated.put(member, session.client_id, copy.epoch)
                self._settle(copy, member=None)
                return
        elif len(copy.value) > COPY_BYTES_MAX - _HEAD_BYTES - len(session.client_id.encode()):
            self._go_on_without(copy)
            return
        else:
            member = self._next(session)
        if member is not None:
            self._outbox(member).rows.append(copy)
        elif members or self._keepers.are_gone:
            self._go_on_without(copy)
        else:
            self._homeless[copy] = None

    def _go_on_without(self, copy: _Copy) -> None:
        """Let a session go on without a copy, as no member can keep it, or none has for long.

        If a member may have an older copy, all are told before.
        """
        session = copy.session
        has_older = session.member is not None or self._outdated.members_of(session.client_id)
        if has_older and not self._notice.is_out():
            self._homeless[copy] = None
            return
        if self._keepers.names:
            self.figures.copies_refused_total += 1
        else:
            self.figures.copies_alone_total += 1
        self._settle(copy, member=None)

    def _session(self, client_id: str) -> _Session:
        session = self._sessions.get(client_id)
        if session is None:
            session = self._sessions[client_id] = _Session(client_id)
        return session

    def _is_copied(self, session: _Session) -> bool:
        """Return whether a session has not been dropped."""
        return self._sessions.get(session.client_id) is session

    def _drop(self, session: _Session) -> None:
        """Forget of a session; a copy of it that is on its way is of no use."""
        del self._sessions[session.client_id]
        self._keep_at(session, None)
        copy, session.newest = session.newest, None
        if copy is not None:
            del self._under_way[copy]
            self._homeless.pop(copy, None)
            copy.release()

    def _keep_at(self, session: _Session, member: str | None) -> None:
        self.copied += (member is not None) - (session.member is not None)
        session.member = member
        self._retries.sessions.pop(session, None)

    def _next(self, session: _Session) -> str | None:
        return self._keepers.next_for(session.client_id, unable=session.unable)

    def _outbox(self, member: str) -> _Outbox:
        """Return what waits to be sent to a member; it is sent as long as there is anything."""
        outbox = self._outboxes.get(member)
        if outbox is None:
            task = asyncio.create_task(self._send_all(member), name=f"session-copies-{member}")
            outbox = self._outboxes[member] = _Outbox(task)
        return outbox

    async def _send_all(self, member: str) -> None:
        loop, outbox = asyncio.get_running_loop(), self._outboxes[member]
        while outbox.rows or outbox.places:
            begun_s = loop.time()
            await self._send(member, outbox)
            await asyncio.sleep(max(0.0, begun_s + _WINDOW_S - loop.time()))
        del self._outboxes[member]

    async def _send(self, member: str, outbox: _Outbox) -> None:
        """Make one call."""
        copies, forgotten, rows = self._next_rows(member, outbox)
        places, outbox.places = outbox.places, {}
        by_places: dict[bytes, list[_Session]] = {}
        for session, each in places.items():
            if self._is_copied(session) and session.newest is None and session.member == member:
                by_places.setdefault(each, []).append(session)
        moved = [session for sessions in by_places.values() for session in sessions]
        for each, sessions in by_places.items():
            rows.append(PlacesRow(each, tuple(session.client_id for session in sessions), self._next_number()))
        if not rows:
            return
        body = encode_copy_request(CopyRequest(self._others.instance, rows))
        self.figures.copies_sent_total += len(copies) + len(forgotten) + len(moved)
        self.figures.copies_sent_bytes_total += len(body)
        answer: CopyAnswer | None = None
        try:
            data = await self._others.call(
                member,
                COPY_PATH,
                body,
                timeout_s=_CALL_S + len(body) / _BYTES_PER_S,
                answer_bytes_max=_ANSWER_BYTES + _ANSWER_FACTOR * len(body),
            )
            said = decode_copy_answer(data)
            for epoch in said.newer.values():
                self._ledger.epochs.admit(epoch)
            answer = said
        except (AskFailed, ValueError):
            self.figures.copies_failed_total += 1
        outbox.forgetting.difference_update(forgotten)
        if answer is None:
            self._again |= dict.fromkeys(moved)
            self._note_failed(member, copies)
        else:
            for client_id in forgotten:
                self._outdated.remove(member, client_id)
            self._note(member, copies, answer)

    def _next_rows(self, member: str, outbox: _Outbox) -> tuple[list[_Copy], list[str], list[Row]]:
        """Take the rows of one call out of an outbox; return the copies, the clients to be forgotten, and the rows."""
        copies: list[_Copy] = []
        forgotten: list[str] = []
        rows: list[Row] = []
        size = 0
        while outbox.rows and len(rows) < _ROWS_MAX:
            one = outbox.rows[0]
            if isinstance(one, str):
                epoch = self._outdated.of(member).get(one)
                if epoch is None:  # it has been kept there since, or is another member's
                    outbox.forgetting.discard(one)
                else:
                    forgotten.append(one)
                    rows.append(CopyRow(one, CopyVersion(epoch, self._next_number()), None))
            else:
                size += len(one.value or b"")
                if rows and size > _BYTES_AT_ONCE:
                    break
                copies.append(one)
                rows.append(CopyRow(one.session.client_id, CopyVersion(one.epoch, self._next_number()), one.value))
            outbox.rows.popleft()
        return copies, forgotten, rows

    def _note_failed(self, member: str, copies: Sequence[_Copy]) -> None:
        """Note that a call brought nothing, as far as is known; other members are to keep its copies."""
        for copy in copies:
            session = copy.session
            if session.client_id in self._sessions:
                self._outdated.put(member, session.client_id, copy.epoch)  # it may have come
            if copy.is_newest:
                unable = (*session.unable, member)
                if any(one not in unable for one in self._keepers.names):
                    session.unable = unable
                self._homeless[copy] = None
            else:
                copy.release()

    def _note(self, member: str, copies: Sequence[_Copy], answer: CopyAnswer) -> None:
        for client_id, epoch in answer.newer.items():
            self._ledger.yield_to(SessionQuestion(client_id, epoch))
        missing = map(self._sessions.get, answer.missing)
        self._again |= dict.fromkeys(session for session in missing if session is not None)
        unable = frozenset(answer.full) | frozenset(answer.unable)
        for copy in copies:
            session = copy.session
            is_refused = session.client_id in unable and copy.value is not None
            if not is_refused:
                self._outdated.remove(member, session.client_id)
            if not copy.is_newest:
                if copy.value is not None and session.client_id in self._sessions:
                    self._outdated.put(member, session.client_id, copy.epoch)
                copy.release()
            elif is_refused:  # it has what it had before: all that there is if this member dies now
                session.unable = (*session.unable, member)
                self._place(copy)
            else:
                self._settle(copy, member=None if session.client_id in answer.newer else member)
        self._claims.tell()

    def _settle(self, copy: _Copy, *, member: str | None) -> None:
        """Note the outcome of the newest copy of a session, and release the output that waits for it."""
        session, now_s = copy.session, self._clock.monotonic()
        self._claims.note_kept(session.client_id, copy.epoch)
        session.newest = None
        del self._under_way[copy]
        if copy.value is None:
            self._drop(session)
        else:
            former, was_without = session.member, session in self._retries.sessions
            self._keep_at(session, member)
            if member is None:
                self._retries.add(session, now_s)
            elif was_without:  # a member has room
                self._retries.hasten(now_s + _RETRY_S)
            if former is not None and former != member:
                self._outdated.put(former, session.client_id, copy.epoch)
                if former in self._keepers.names:
                    self._forget_at(former, session.client_id)
            if member is not None and self._keepers.are_steady and member != self._next(session):
                self._again[session] = None
        copy.release()

    def _forget_at(self, member: str, client_id: str) -> None:
        """Let a member forget the outdated copy that it has of a session."""
        outbox = self._outbox(member)
        if client_id not in outbox.forgetting:
            outbox.forgetting.add(client_id)
            outbox.rows.append(client_id)

    def _next_number(self) -> int:
        self._number += 1
        return self._number
