"""Copies of this member's sessions at other members: which member keeps each, and what is on its way.

Rows to one member go in the order in which they were made, one call at a time. A row that brings nothing goes to the
member that is the next to keep it. While there is no other member, nothing waits for longer than `ALONE_S`; where an
older copy is left at one, the others are told before a session goes on without (`AloneNotice`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fanout.pool.copies.absent_members import NotesForAbsent
from fanout.pool.copies.alone_notice import AloneNotice
from fanout.pool.copies.copy_messages import (
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
from fanout.pool.copies.copy_rules import CopyVersion
from fanout.pool.copies.placement import keeper_of
from fanout.pool.membership import AskFailed
from fanout.pool.sessions.epochs import Epoch
from fanout.pool.sessions.ledger import SessionLedger
from fanout.pool.sessions.move_messages import SessionQuestion
from fanout.pool.sessions.ports import Others
from fanout.runtime.system_clock import Clock

__all__ = ["ALONE_S", "SentCopies", "SentFigures"]

ALONE_S: Final = 2.5
"""Time without a member that could keep a copy, after which sessions go on without one."""
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
_LOOK_S: Final = 0.05
_AWAY_S: Final = 1.0
"""Time after which copies at a member that keeps none now are made elsewhere: a busy one has them still."""
_STOOD_S: Final = 0.25
"""Longest time between two looks that counts: beyond that, this process did not run, and could hear nobody."""
_STEADY_S: Final = 2.0
"""Time without a change of members, after which copies go to the members whose turn it is."""
_RETRY_S: Final = 1.0
"""Time after which sessions that nobody could keep are copied once more; twice as long each time that is in vain."""
_RETRY_S_MAX: Final = 60.0
"""Longest time between two such tries."""


@dataclass(slots=True)
class SentFigures:
    """Figures of the copies of this member's sessions."""

    sent_total: int = 0
    """Copies, and news of places, that were sent."""
    sent_bytes_total: int = 0
    """Bytes of them."""
    failed_total: int = 0
    """Calls that brought nothing."""
    alone_total: int = 0
    """Times that a session went on without a copy, because no other member could keep one."""
    refused_total: int = 0
    """Copies that were too large, or that no other member could keep."""


@dataclass(slots=True)
class _Group:
    """Copies that are waited for together."""

    left: int
    done: Callable[[], None]

    def settle(self) -> None:
        self.left -= 1
        if not self.left:
            self.done()


@dataclass(slots=True)
class _Copy:
    """A copy on its way."""

    client_id: str
    value: bytes | None
    group: _Group | None
    since_s: float
    """When it was made."""
    put_s: float
    """The same, in seconds for which this member has run."""
    epoch: Epoch
    """Since when the session is this member's, or was, when the copy was made."""

    def forgets(self, client_id: str) -> bool:
        """Return whether it only lets a member forget a copy of a client's session."""
        return self.client_id == client_id and self.value is None and self.group is None

    def release(self) -> None:
        """Let go what waits for it, once."""
        group, self.group = self.group, None
        if group is not None:
            group.settle()


@dataclass(slots=True)
class _Sent:
    """What is known of the copy of a session."""

    member: str | None = None
    """Member that keeps it; None for none."""
    unable: tuple[str, ...] = ()
    """Members that could not keep the newest copy, or were given it without success."""


@dataclass(slots=True)
class _Outbox:
    """What waits to be sent to one member."""

    task: asyncio.Task[None]
    """Sends it."""
    copies: deque[_Copy] = field(default_factory=deque)
    places: dict[str, bytes] = field(default_factory=dict)
    """Client Identifier to the places at which its session goes on."""
    forgetting: set[str] = field(default_factory=set)
    """Clients of whose sessions the member is being told to forget a copy."""


class SentCopies:
    """The copies of this member's sessions, as `fanout.server.keeping.session_copies.CopyCarrier`."""

    def __init__(
        self,
        ledger: SessionLedger,
        *,
        others: Others,
        clock: Clock,
    ) -> None:
        """Begin without any.

        Args:
            ledger: Knows since when a session is this member's, and ends those that are another one's.
            others: The other members.
            clock: Gives the time.
        """
        self.figures = SentFigures()
        """Counters."""
        self._ledger = ledger
        self._others = others
        self.copy_again: Callable[[Iterable[str]], None] = _nothing
        """Makes copies of sessions once more, and puts them."""
        self.claim: Callable[[Mapping[str, Epoch]], None] = _claim_nothing
        """Tells the others that sessions are here, each since an epoch."""
        self._clock = clock
        self.copied = 0
        """Number of sessions of which another member keeps a copy."""
        self._unclaimed: dict[str, Epoch] = {}
        """Since when sessions are here of which the others are not told before their copies are kept."""
        self._claims: dict[str, Epoch] = {}
        """Of these, the ones that the others are told of at the end of this turn."""
        self._number = clock.now_ns() // 1000
        self._sent: dict[str, _Sent] = {}
        self._pending: dict[str, _Copy] = {}
        """Copies on their way, oldest first."""
        self._outboxes: dict[str, _Outbox] = {}
        self._homeless: dict[str, _Copy] = {}
        """Copies that no member could keep when they were made, or that brought nothing."""
        self._members: tuple[str, ...] = ()
        """Members that can keep copies."""
        self._instances: dict[str, str] = {}
        """Process of each member that could keep copies, as it was heard last."""
        self._away: dict[str, float] = {}
        """Member that could keep copies until then, to that time."""
        self._ran_s = 0.0
        """For how long this member has run, in seconds: a pause shows nothing of the others."""
        self._looked_s = clock.monotonic()
        self._alone_since_s: float | None = 0.0
        """Since when no member could keep a copy, in seconds for which this one has run; None while one can."""
        self._moves_at_s: float | None = None
        """When copies go to the members whose turn it is; None while they are there."""
        self._uncopied: dict[str, None] = {}
        """Sessions that nobody could keep when they were copied last."""
        self._retry_s = _RETRY_S
        """Time from the next try with these to the one after that."""
        self._retry_at_s = math.inf
        self._again: dict[str, None] = {}
        """Sessions that are to be copied once more."""
        self._outdated = NotesForAbsent[Epoch]()
        """Sessions of which a member may have an older copy, until it has said that it has forgotten that.

        With the epoch of that copy, or a later one: the copy of a session that it gave here since is another one.
        """
        self._notice = AloneNotice(others=others, clock=clock)

    # For the server.

    def put(self, copies: Mapping[str, bytes | None], *, done: Callable[[], None]) -> None:
        """Carry copies by Client Identifier, None for a session that has ended; call `done` when they are kept."""
        group, now_s = _Group(len(copies), done), self._clock.monotonic()
        for client_id, value in copies.items():
            copy = _Copy(client_id, value, group, now_s, self._ran_s, self._ledger.epoch_of(client_id))
            sent = self._sent.setdefault(client_id, _Sent())
            sent.unable = ()
            self._pending.pop(client_id, None)
            self._pending[client_id] = copy
            homeless = self._homeless.pop(client_id, None)
            if homeless is not None:
                homeless.release()
            for outbox in self._outboxes.values():
                outbox.places.pop(client_id, None)
            self._again.pop(client_id, None)
            self._place(copy)
        self._tell_claims()

    def leave(self, client_id: str) -> None:
        """Leave the copies of a session where they are, and forget of it: the session is another member's.

        Until that one says that it has the session, they are what it goes on from if both are killed.
        """
        self._forget(client_id)
        for member in self._outdated.members_of(client_id):
            self._outdated.remove(member, client_id)
        self._homeless.pop(client_id, None)
        self._again.pop(client_id, None)
        self._unclaimed.pop(client_id, None)
        for outbox in self._outboxes.values():
            outbox.places.pop(client_id, None)
            if client_id in outbox.forgetting:
                outbox.forgetting.discard(client_id)
                outbox.copies = deque(one for one in outbox.copies if not one.forgets(client_id))
        pending = self._pending.pop(client_id, None)
        if pending is not None:
            pending.release()

    def claim_when_kept(self, client_id: str, epoch: Epoch) -> None:
        """Tell the other members that a session is here since an epoch, once the copy that `put` brings now is kept.

        The claim ends what they have of it, former copies too, so a copy is there before.
        """
        self._unclaimed[client_id] = epoch

    def put_places(self, places: bytes, client_ids: Sequence[str]) -> None:
        """Carry that these sessions, otherwise as they were copied, go on at other places now."""
        for client_id in client_ids:
            sent = self._sent.get(client_id)
            if sent is None or client_id in self._pending or sent.member is None:
                self._again[client_id] = None
                continue
            self._outbox(sent.member).places[client_id] = places

    # For the node.

    def came_from(self, client_id: str, member: str) -> None:
        """Note that a session came from a member, which keeps it as it gave it away."""
        self._uncopied.pop(client_id, None)
        self._keep_at(self._sent.setdefault(client_id, _Sent()), member)

    def is_pending(self, client_id: str) -> bool:
        """Return whether a copy of a session is on its way."""
        return client_id in self._pending

    def are_right_at(self, member: str) -> bool:
        """Return whether no copy that a member has is older than what clients were told, but for newer ones elsewhere.

        True is the word that the member relies on (`Others.went_alone`).
        """
        if member not in self._members or self._homeless:
            return False
        for client_id in self._outdated.of(member):
            sent = self._sent.get(client_id)
            if sent is None or sent.member is None:
                return False
        self._notice.withdraw()
        return True

    def oldest_unconfirmed_s(self) -> float:
        """Return how long the oldest copy is on its way, in seconds; 0 when none is."""
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else self._clock.monotonic() - oldest.since_s

    async def run(self) -> None:
        """Place copies anew as members come and go, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                self._look()
        finally:
            for outbox in self._outboxes.values():
                outbox.task.cancel()

    # Its own.

    def _look(self) -> None:
        now_s = self._clock.monotonic()
        self._ran_s += min(now_s - self._looked_s, _STOOD_S)
        self._looked_s = now_s
        for outbox in self._outboxes.values():
            if outbox.task.done():
                outbox.task.result()  # it has ended with an error: without this, all that waits would wait in silence
        self._look_at_members(now_s)
        members = self._members
        for member in members:
            for client_id, epoch in list(self._outdated.of(member).items()):
                kept = self._sent.get(client_id)
                if kept is not None and kept.member == member:
                    self._outdated.remove(member, client_id)
                elif client_id not in self._pending:
                    self._forget_at(member, client_id, epoch)
        self._notice.look()
        if not self._uncopied:
            self._retry_s, self._retry_at_s = _RETRY_S, math.inf
        elif members and now_s >= self._retry_at_s:
            self._retry_at_s = now_s + self._retry_s
            self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
            self._again |= dict.fromkeys(client_id for client_id in self._uncopied if client_id not in self._pending)
        homeless, self._homeless = self._homeless, {}
        for copy in homeless.values():
            if not self._is_newest(copy):  # what was released meanwhile has ended or replaced it
                copy.release()
            elif copy.value is not None and self._ran_s - copy.put_s >= ALONE_S:
                self._go_on_without(copy)
            else:
                self._place(copy)
        if self._again and self._members:
            again = list(self._again)[:_AGAIN_MAX]
            for client_id in again:
                del self._again[client_id]
            self.copy_again(client_id for client_id in again if client_id in self._sent)
        self._tell_claims()

    def _retry(self, *, after_s: float) -> None:
        """Try with the sessions that nobody could keep after some time, and often at first."""
        self._retry_s = _RETRY_S
        self._retry_at_s = min(self._retry_at_s, self._clock.monotonic() + after_s)

    def _look_at_members(self, now_s: float) -> None:
        """Make the copies of a member that is away at others, and move copies once members have stopped to change.

        A member that is silent for a moment has what it keeps. If each silence of a busy one moved thousands of
        copies, the others would be too busy to answer too.
        """
        instances = {other.name: other.instance for other in self._others.states() if other.keeps_copies}
        lost = {name for name, each in instances.items() if self._instances.get(name, each) != each}
        self._instances |= instances
        members = tuple(instances)
        has_changed = members != self._members
        if has_changed:
            for member in self._members:
                self._away.setdefault(member, now_s)
            self._members, self._moves_at_s = members, now_s + _STEADY_S
            self._alone_since_s = None if members else self._ran_s
            for member in members:
                self._away.pop(member, None)
        for member in [member for member, since_s in self._away.items() if now_s - since_s >= _AWAY_S]:
            del self._away[member]
            self._instances.pop(member, None)
            lost.add(member)
        moves = self._moves_at_s is not None and now_s >= self._moves_at_s
        if moves:
            self._moves_at_s = None
        if lost or has_changed:
            self._retry(after_s=0.0)
        if not lost and not moves:
            return
        for client_id, sent in self._sent.items():
            is_misplaced = sent.member in lost or (moves and sent.member != self._keeper_of(client_id, sent))
            if is_misplaced and client_id not in self._pending:
                self._again[client_id] = None

    def _place(self, copy: _Copy) -> None:
        """Send a copy to the member that is to keep it."""
        if copy.value is None:
            member = self._sent[copy.client_id].member
            if member is None or member not in self._members:
                if member is not None:
                    self._outdated.put(member, copy.client_id, copy.epoch)
                self._settle(copy, member=None)
                return
        elif len(copy.value) > COPY_BYTES_MAX - _HEAD_BYTES - len(copy.client_id.encode()):
            self._go_on_without(copy)
            return
        else:
            member = self._keeper_of(copy.client_id, self._sent[copy.client_id])
        if member is None:
            is_alone = self._alone_since_s is not None and self._ran_s - self._alone_since_s >= ALONE_S
            if self._members or is_alone:
                self._go_on_without(copy)
            else:
                self._homeless[copy.client_id] = copy
            return
        self._outbox(member).copies.append(copy)

    def _go_on_without(self, copy: _Copy) -> None:
        """Let a session go on without a copy, as no member can keep it, or none has for long.

        Where a member may have an older copy, all are told before.
        """
        client_id = copy.client_id
        has_older = self._sent[client_id].member is not None or self._outdated.members_of(client_id)
        if has_older and not self._notice.is_out():
            self._homeless[client_id] = copy
            return
        if self._members:
            self.figures.refused_total += 1
        else:
            self.figures.alone_total += 1
        self._settle(copy, member=None)

    def _keep_at(self, sent: _Sent, member: str | None) -> None:
        self.copied += (member is not None) - (sent.member is not None)
        sent.member = member

    def _forget(self, client_id: str) -> None:
        sent = self._sent.pop(client_id, None)
        self._uncopied.pop(client_id, None)
        if sent is not None:
            self._keep_at(sent, None)

    def _keeper_of(self, client_id: str, sent: _Sent) -> str | None:
        members = self._members
        return keeper_of(client_id, [one for one in members if one not in sent.unable] if sent.unable else members)

    def _outbox(self, member: str) -> _Outbox:
        """Return what waits to be sent to a member; it is sent as long as there is anything."""
        outbox = self._outboxes.get(member)
        if outbox is None:
            task = asyncio.create_task(self._send_all(member), name=f"session-copies-{member}")
            outbox = self._outboxes[member] = _Outbox(task)
        return outbox

    async def _send_all(self, member: str) -> None:
        loop, outbox = asyncio.get_running_loop(), self._outboxes[member]
        while outbox.copies or outbox.places:
            begun_s = loop.time()
            await self._send(member, outbox)
            await asyncio.sleep(max(0.0, begun_s + _WINDOW_S - loop.time()))
        del self._outboxes[member]

    async def _send(self, member: str, outbox: _Outbox) -> None:
        """Make one call."""
        copies: list[_Copy] = []
        size = 0
        while outbox.copies and len(copies) < _ROWS_MAX:
            size += len(outbox.copies[0].value or b"")
            if copies and size > _BYTES_AT_ONCE:
                break
            copies.append(outbox.copies.popleft())
        places, outbox.places = outbox.places, {}
        versions = [self._version(copy) for copy in copies]
        rows: list[Row] = [
            CopyRow(copy.client_id, version, copy.value) for copy, version in zip(copies, versions, strict=True)
        ]
        by_places: dict[bytes, list[str]] = {}
        for client_id, each in places.items():
            by_places.setdefault(each, []).append(client_id)
        rows += [PlacesRow(each, tuple(client_ids), self._next_number()) for each, client_ids in by_places.items()]
        body = encode_copy_request(CopyRequest(self._others.instance, rows))
        self.figures.sent_total += len(copies) + len(places)
        self.figures.sent_bytes_total += len(body)
        try:
            data = await self._others.call(
                member,
                COPY_PATH,
                body,
                timeout_s=_CALL_S + len(body) / _BYTES_PER_S,
                answer_bytes_max=COPY_BYTES_MAX,
            )
            answer = decode_copy_answer(data)
        except (AskFailed, ValueError):
            self.figures.failed_total += 1
            outbox.forgetting.difference_update(copy.client_id for copy in copies)
            self._again |= dict.fromkeys(places)
            for copy in copies:
                if copy.client_id in self._sent:
                    self._outdated.put(member, copy.client_id, copy.epoch)  # it may have come
                if self._is_newest(copy):
                    sent = self._sent[copy.client_id]
                    unable = (*sent.unable, member)
                    if any(one not in unable for one in self._members):
                        sent.unable = unable
                    self._homeless[copy.client_id] = copy
                else:
                    copy.release()
            return
        outbox.forgetting.difference_update(copy.client_id for copy in copies)
        self._note(member, copies, answer)

    def _note(self, member: str, copies: Sequence[_Copy], answer: CopyAnswer) -> None:
        for client_id, epoch in answer.newer.items():
            self._ledger.yield_to(SessionQuestion(client_id, epoch))
        self._again |= dict.fromkeys(client_id for client_id in answer.missing if client_id in self._sent)
        unable = frozenset(answer.full) | frozenset(answer.unable)
        for copy in copies:
            is_refused = copy.client_id in unable and copy.value is not None
            if not is_refused:
                self._outdated.remove(member, copy.client_id)
            if not self._is_newest(copy):
                if copy.value is not None and copy.client_id in self._sent:
                    self._outdated.put(member, copy.client_id, copy.epoch)
                copy.release()
            elif is_refused:  # it has what it had before: all that there is if this member dies now
                sent = self._sent[copy.client_id]
                sent.unable = (*sent.unable, member)
                self._place(copy)
            else:
                self._settle(copy, member=None if copy.client_id in answer.newer else member)
        self._tell_claims()

    def _settle(self, copy: _Copy, *, member: str | None) -> None:
        """Note what has become of the newest copy of a session, and release what waits for it."""
        unclaimed = self._unclaimed.get(copy.client_id)
        if unclaimed is not None and copy.epoch >= unclaimed:
            del self._unclaimed[copy.client_id]
            self._claims[copy.client_id] = unclaimed
        sent = self._sent[copy.client_id]
        former = sent.member
        del self._pending[copy.client_id]
        if copy.value is None:
            self._forget(copy.client_id)
        else:
            self._keep_at(sent, member)
            if member is None:
                self._uncopied[copy.client_id] = None
                self._retry_at_s = min(self._retry_at_s, self._clock.monotonic() + self._retry_s)
            elif copy.client_id in self._uncopied:  # a member has room
                del self._uncopied[copy.client_id]
                self._retry(after_s=_RETRY_S)
            if former is not None and former != member:
                self._outdated.put(former, copy.client_id, copy.epoch)
                if former in self._members:
                    self._forget_at(former, copy.client_id, copy.epoch)
            if member is not None and self._moves_at_s is None and member != self._keeper_of(copy.client_id, sent):
                self._again[copy.client_id] = None
        copy.release()

    def _forget_at(self, member: str, client_id: str, epoch: Epoch) -> None:
        """Let a member forget the copy that it has of a session up to an epoch; nothing waits for that."""
        outbox = self._outbox(member)
        if client_id not in outbox.forgetting:
            outbox.forgetting.add(client_id)
            outbox.copies.append(_Copy(client_id, None, None, self._looked_s, self._ran_s, epoch))

    def _tell_claims(self) -> None:
        """Tell the others of the sessions whose copies are kept by now, all of them at once."""
        if self._claims:
            claims, self._claims = self._claims, {}
            self.claim(claims)

    def _is_newest(self, copy: _Copy) -> bool:
        return self._pending.get(copy.client_id) is copy

    def _version(self, copy: _Copy) -> CopyVersion:
        return CopyVersion(copy.epoch, self._next_number())

    def _next_number(self) -> int:
        self._number += 1
        return self._number


def _nothing(client_ids: Iterable[str]) -> None:
    pass


def _claim_nothing(epochs: Mapping[str, Epoch]) -> None:
    pass
