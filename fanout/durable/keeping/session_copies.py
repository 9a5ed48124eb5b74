"""Copies of durable sessions for another member of a pool: it makes the copy of each one that has changed.

Owns which sessions are copied, what a copy has, and when one is made. `SessionCopy` says what goes along. Packets that
a client relies on wait for the copy (`SessionMarks`). A session at QoS 1 does not: it goes on at its oldest
unacknowledged message. Regular looks at all sessions find that message. Sessions in step are at one place, so that a
look sends few bytes for many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

from fanout.durable.form.session_copy import (
    COPIED_MESSAGES_MAX,
    CopiedMessage,
    SessionCopy,
    encode_copy,
    encode_places,
    has_qos_2,
)
from fanout.durable.hosting.session_values import SessionValues
from fanout.durable.keeping.session_looks import LOOKED_AT, SHARE, seen
from fanout.mqtt.delivery import SendState
from fanout.replica.recent import Found, Place, RecentUpdates, message_digest
from fanout.replica.update import Update
from fanout.server.client.server import Server
from fanout.server.keeping.session_marks import SessionMarks
from fanout.server.messages.encoding import Message
from fanout.server.messages.shared_inflight import SharedInflight
from fanout.server.session.exported_session import ExportedInFlight
from fanout.server.session.session import Session
from fanout.server.session.session_export import ExportedMessages

__all__ = ["LOOK_S", "CopyCarrier", "SessionCopies"]

LOOK_S: Final = 0.1
"""Time between two looks at sessions that may have changed in a way that no client relies on."""
_TURN_S: Final = 0.02
"""Longest time of one look, which leaves the other sessions to the next: some have a long queue to go through."""
_LOOKED_FOR: Final = 5_000
"""Messages of a queue that are searched for their places in one turn: some ten milliseconds."""
_REFRESH: Final = 4
"""Divisor: a place moves on, though nothing was sent, once such a part of the history has come after it."""

_Step = tuple[SharedInflight, int]
"""State that sessions in step share: the log, and the position up to which it is acknowledged."""


class CopyCarrier(Protocol):
    """Carries copies to other members."""

    def put(self, copies: Mapping[str, bytes | None], *, done: Callable[[], None]) -> None:
        """Carry copies by Client Identifier, None for a session that has ended; call `done` when they are kept."""

    def leave(self, client_id: str) -> None:
        """Forget a session here, and leave its copy where it is."""

    def put_places(self, places: bytes, client_ids: Sequence[str]) -> None:
        """Carry new places of these sessions, whose copies are right in all other ways."""


class _Parts:
    """Both parts of a group: one is copied at once, the other in later turns of the event loop."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._left = 2

    def end_one(self) -> None:
        """Note that one is kept."""
        self._left -= 1
        if not self._left:
            self._done()


class _Entry:
    """A session that is copied, or is to be."""

    __slots__ = ("is_exact", "is_plain", "needs_from", "refreshed_at", "seen", "strays", "strays_until")

    def __init__(self) -> None:
        self.is_exact = False
        """True if it has to do with QoS 2."""
        self.is_plain = False
        """True if its copy has no messages, so that sending changes only its places."""
        self.refreshed_at = 0
        """`RecentUpdates.grown` when its places were copied last."""
        self.needs_from: int | None = None
        """`RecentUpdates.grown` at the oldest update that its copy needs; None without a copy."""
        self.seen: tuple[object, ...] = ()
        """Contents of its copy, as far as a look compares it."""
        self.strays: list[tuple[int, Message]] = []
        """Messages in its queue that have no place, each with its position: they are looked for once."""
        self.strays_until = 0
        """Position in its queue up to which they were looked for."""

    def forget_strays(self) -> None:
        """Search them again, because positions in its queue have changed."""
        self.strays, self.strays_until = [], 0


class SessionCopies:
    """The copies of a server's sessions."""

    def __init__(self, server: Server, carrier: CopyCarrier, *, recent: RecentUpdates) -> None:
        """Begin with no copy.

        Args:
            server: Has the sessions.
            carrier: Carries copies to other members.
            recent: The recent updates of the links.
        """
        self.marks = SessionMarks(self._copy)
        """Sessions that are to be copied, and the output that waits for it."""
        self._carrier = carrier
        self._recent = recent
        self._registry = server.registry
        self._values = SessionValues(server)
        self._clock = server.context.clock
        self._timer = server.context.timer
        self._entries: dict[str, _Entry] = {}
        self._unplaced: dict[str, None] = {}
        """Sessions with a copy that lacks a place, because it had no name."""
        self._messages = ExportedMessages(now_ns=0)
        self._left_to_look_at: list[str] = []
        self._is_looking = False
        self._history_used = 0.0
        self._oldest = 0
        self._interruptions = recent.interruptions
        """`RecentUpdates.interruptions` when the sessions were last looked at anew for it."""

    # For the server.

    def enter(self, client_id: str) -> None:
        """Have the session of a new connection copied."""
        self.add(client_id)

    def add(self, client_id: str) -> None:
        """Have a session copied that has come from elsewhere."""
        self._entries.setdefault(client_id, _Entry()).forget_strays()
        self.marks.mark(client_id)
        if not self._is_looking:
            self._is_looking = True
            self._timer.after(LOOK_S, self._look)

    def note(self, client_id: str, *, subscriptions: bool = False) -> None:
        """Note that a session that may be copied has changed, or ended."""
        if client_id in self._entries:
            self.marks.mark(client_id)

    def note_gone(self, client_id: str) -> None:
        """Note that a session has no connection any more."""
        if (entry := self._entries.get(client_id)) is not None:
            entry.forget_strays()  # its messages at QoS 0 are gone
        self.note(client_id)

    def note_moved(self, client_id: str) -> None:
        """Note that a session is another member's of the pool from now on.

        Its copy stays until that member says that it has the session: it goes on from there if both are killed before.
        """
        if self._entries.pop(client_id, None) is not None:
            self._carrier.leave(client_id)

    def let_go(self, client_id: str) -> None:
        """Note that the other member has a session on its disk: the claim which said so has ended copies too."""

    # For the node.

    @property
    def count(self) -> int:
        """Number of sessions that are copied, or are to be."""
        return len(self._entries)

    @property
    def history_used(self) -> float:
        """Part of the history of recent updates that has come since the oldest message that waits for a session.

        It is of the last round of looks. From 1 on such a session cannot go on elsewhere.
        """
        return self._history_used

    def marker_passed(self) -> None:
        """Note that places have a name again."""
        if self._recent.interruptions != self._interruptions:
            self._interruptions = self._recent.interruptions
            self.look_anew()
        unplaced, self._unplaced = self._unplaced, {}
        for client_id in unplaced:
            self.note(client_id)

    def copy_again(self, client_ids: Iterable[str]) -> None:
        """Copy sessions whole once more, because another member is to have them."""
        for client_id in client_ids:
            self.note(client_id)

    def look_anew(self) -> None:
        """Have all sessions told of by the next looks, as members may not know the places any more that copies name.

        Nothing else would tell of a session that does not change.
        """
        for entry in self._entries.values():
            entry.seen = ()

    # Its own.

    def _copy(self, client_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Make copies of marked sessions, and put them on their way."""
        self._messages = messages = self._messages.later(self._clock.now_ns())
        places = _Places(self._recent)
        copies: dict[str, bytes | None] = {}
        began_s, left = self._clock.monotonic(), list(client_ids)
        while left and (not copies or self._clock.monotonic() - began_s < _TURN_S):
            client_id = left.pop(0)
            session, entry = self._registry.get(client_id), self._entries.get(client_id)
            if entry is None:  # it has moved
                continue
            if session is None or not session.outlives_node or session.shared:
                copies[client_id] = None
                if session is None:
                    self._entries.pop(client_id, None)
                else:
                    entry.seen, entry.needs_from, entry.is_plain = _seen(session), None, False
                continue
            copy = self._copy_of(session, entry, places, messages)
            if copy is None:  # too much would go along whole, or not all is known yet: it goes on without
                is_known = entry.strays_until == session.sender.queue.appended_total
                if not is_known and len(entry.strays) <= COPIED_MESSAGES_MAX:
                    self.marks.mark(client_id)
                copies[client_id] = None
                entry.seen, entry.needs_from, entry.is_plain = _seen(session), None, False
                continue
            if len(copy.places) < len(places.links):
                self._unplaced[client_id] = None
            value = copy.session
            entry.is_exact = copy.is_exact
            entry.is_plain = not (value.in_flight or copy.in_flight or value.queue or value.retained)
            entry.seen = _seen(session)
            entry.refreshed_at = self._recent.grown
            in_flight = [(one.link, one.place) for one in copy.in_flight[:1]]  # the first was dispatched first
            entry.needs_from = places.needs_from([*copy.places.items(), *in_flight])
            copies[client_id] = encode_copy(copy)
        if left:  # what they are in the next turn is as good
            parts = _Parts(done)
            asyncio.get_running_loop().call_soon(self._copy, left, parts.end_one)
            done = parts.end_one
        if copies:
            self._carrier.put(copies, done=done)
        else:
            done()

    def _copy_of(
        self, session: Session, entry: _Entry, places: _Places, messages: ExportedMessages
    ) -> SessionCopy | None:
        """Return the copy of a session; None if too many of its messages have no place, or were not looked for yet."""
        in_flight = list(session.sender.inflight.in_flight())
        is_exact = _is_exact(session, in_flight)
        copied: list[CopiedMessage] = []
        whole: list[ExportedInFlight] = []
        first: Found | None = None
        inline: list[Message] = []
        for index, (packet_id, message, state) in enumerate(in_flight if is_exact else ()):
            found = None if state is SendState.AWAIT_PUBCOMP else places.of(message[0])
            if found is None:
                is_released = state is SendState.AWAIT_PUBCOMP
                whole.append(ExportedInFlight(packet_id, state, None if is_released else messages.of(message)))
            else:
                copied.append(
                    CopiedMessage(
                        index,
                        packet_id,
                        state,
                        found.link,
                        found.place,
                        message_digest(message[0]),
                        message[2],
                        message[3],
                    )
                )
        waiting = [] if is_exact else [message for _, message, _ in in_flight]
        own = min(len(waiting), len(session.sender.inflight.outbound))
        if not _look_for_strays(session, entry, places):
            return None
        named: dict[str, Place] = {}
        for index, message in enumerate(chain(waiting, _queued(session, entry, places))):
            if len(inline) > COPIED_MESSAGES_MAX:
                return None
            found = places.of(message[0])
            if index < own and message[2]:  # retained ones are sent out of turn: what came after them is not for it
                inline.append(message)
            elif found is None:  # one that is held without a name comes behind the first place, where its link has one
                if places.link_of(message[0]) not in named:
                    inline.append(message)
            elif first is None:
                first, named = found, places.at(found, exactly=is_exact)
        value, _ = self._values.value_of(session, messages, waiting=inline, in_flight=whole)
        return SessionCopy(
            session=value,
            is_connected=session.is_connected,
            is_exact=is_exact,
            places=places.at(first, exactly=is_exact),
            in_flight=tuple(copied),
        )

    def _look(self) -> None:
        """Report the progress of sessions that changed without being marked, or whose places grow old."""
        began_s = self._clock.monotonic()
        if not self._left_to_look_at:
            self._left_to_look_at = list(self._entries)
            self._history_used = self._oldest / self._recent.bytes_max
            self._oldest = 0
        left = self._left_to_look_at
        looked_at = 0
        places, grown = _Places(self._recent), self._recent.grown
        old = grown - self._recent.bytes_max // _REFRESH
        moved: dict[tuple[tuple[str, Place], ...], list[str]] = {}
        for client_id in left[:LOOKED_AT]:
            if self._clock.monotonic() - began_s > _TURN_S:
                break
            looked_at += 1
            session, entry = self._registry.get(client_id), self._entries.get(client_id)
            if session is None or entry is None:
                continue
            now_seen, queued = _seen(session), session.sender.queue.messages
            if entry.needs_from is not None:
                self._oldest = max(self._oldest, grown - entry.needs_from)
            if now_seen == entry.seen and (queued or entry.needs_from is None or entry.refreshed_at >= old):
                continue
            found: tuple[tuple[str, Place], ...] | None = None
            if entry.is_plain and not session.sender.deliveries:
                found = self._place_of(session, entry, places)
            if found is None:
                self.marks.mark(client_id)
                continue
            entry.seen, entry.refreshed_at, entry.needs_from = now_seen, grown, places.needs_from(found)
            moved.setdefault(found, []).append(client_id)
        for found, client_ids in moved.items():
            self._carrier.put_places(encode_places(dict(found)), client_ids)
        self._left_to_look_at = left[looked_at:]
        share = looked_at / max(1, len(self._entries))
        spent_s = self._clock.monotonic() - began_s
        self._timer.after(max(LOOK_S * min(1.0, share or 1.0), spent_s * SHARE), self._look)

    def _place_of(self, session: Session, entry: _Entry, places: _Places) -> tuple[tuple[str, Place], ...] | None:
        """Return where a session goes on; None when that is not all that there is to say of it."""
        follower, own = session.follower, session.sender.inflight.outbound
        if not _look_for_strays(session, entry, places):
            return None
        if entry.is_exact:
            is_settled = not (len(own) or follower.in_flight or session.sender.queue.messages)
            return places.ends(exactly=True) if is_settled else None
        if follower.log is not None and not len(own) and not session.sender.queue.messages:
            return places.of_step((follower.log, follower.completed))
        return places.of_messages(_unsettled(session, entry, places))


class _Places:
    """Places in the streams at one moment, each found once."""

    def __init__(self, recent: RecentUpdates) -> None:
        self.links = recent.links
        """The links."""
        self._recent = recent
        self._found: dict[int, tuple[Update, Found | None]] = {}
        self._links: dict[int, str | None] = {}
        self._steps: dict[_Step, tuple[tuple[str, Place], ...] | None] = {}
        self._at: dict[tuple[Found | None, bool], tuple[tuple[str, Place], ...]] = {}
        self._grown: dict[tuple[str, Place], int] = {}

    def of(self, update: Update) -> Found | None:
        """Return the place of an update; None when it is in no stream."""
        known = self._found.get(id(update))
        if known is None:
            known = self._found[id(update)] = update, self._recent.find(update)
        return known[1]

    def link_of(self, update: Update) -> str | None:
        """Return the link of an update that `of` was asked for before; None for one that is not held."""
        if id(update) not in self._links:
            self._links[id(update)] = self._recent.link_of(update)
        return self._links[id(update)]

    def at(self, first: Found | None, *, exactly: bool) -> dict[str, Place]:
        """Return the place in each stream before an update; with None the place after everything."""
        return dict(self._all(first, exactly=exactly))

    @property
    def stray_number(self) -> int:
        """Number of the newest batch when an update without a place was dispatched last."""
        return self._recent.stray_number

    def of_step(self, step: _Step) -> tuple[tuple[str, Place], ...] | None:
        """Return the place at which sessions at QoS 1 go on, given their acknowledged position in the log."""
        if step not in self._steps:
            log, completed = step
            left = (message for _, message in log.messages_from(completed)) if completed < log.end else ()
            self._steps[step] = self.of_messages(left)
        return self._steps[step]

    def of_messages(self, messages: Iterable[Message]) -> tuple[tuple[str, Place], ...] | None:
        """Return the place at which a session with unacknowledged messages goes on; None if one is in no stream."""
        first: Found | None = None
        for message in messages:
            found = self.of(message[0])
            if found is None:
                return None
            first = first or found
            if first.number > self._recent.stray_number:
                break  # what was dispatched later has a place
        return self._whole(first, exactly=False)

    def ends(self, *, exactly: bool) -> tuple[tuple[str, Place], ...] | None:
        """Return the place after everything; None when it lacks a name."""
        return self._whole(None, exactly=exactly)

    def needs_from(self, places: Iterable[tuple[str, Place]]) -> int:
        """Return `RecentUpdates.grown` at the oldest update after places."""
        return min(map(self._grown_at, places), default=self._recent.grown)

    def _grown_at(self, named: tuple[str, Place]) -> int:
        grown = self._grown.get(named)
        if grown is None:
            link, place = named
            start = self._recent.start(link, place, exactly=False)
            # Behind one that is not found nothing is held.
            grown = self._grown[named] = self._recent.grown_at(0 if start is None else start.number)
        return grown

    def _whole(self, first: Found | None, *, exactly: bool) -> tuple[tuple[str, Place], ...] | None:
        places = self._all(first, exactly=exactly)
        return places if len(places) == len(self.links) else None

    def _all(self, first: Found | None, *, exactly: bool) -> tuple[tuple[str, Place], ...]:
        places = self._at.get((first, exactly))
        if places is None:
            named = self._recent.ends(exactly=exactly) if first is None else self._recent.in_front_of(first)
            places = tuple((link, place) for link, place in named.items() if place is not None)
            self._at[first, exactly] = places
        return places


def _is_exact(session: Session, in_flight: Iterable[tuple[int, Message, SendState]]) -> bool:
    """Return whether messages at QoS 2 go to a session, or are under way in either direction."""
    return has_qos_2(
        qos_max=0 if session.audience is None else session.audience.qos_max,
        unreleased=session.receiver.unreleased,
        states=(state for _, _, state in in_flight),
    )


def _look_for_strays(session: Session, entry: _Entry, places: _Places) -> bool:
    """Look for messages in the queue of a session that have no place; return False if that does not come to its end.

    It goes through some thousand messages at most, and goes on with the next ones when it is called again.
    """
    queue = session.sender.queue
    position = queue.appended_total - queue.messages
    entry.strays = [(at, one) for at, one in entry.strays if at >= position]
    entry.strays_until = max(entry.strays_until, position)
    new = queue.part(entry.strays_until, _LOOKED_FOR)
    for at, message in enumerate(new, entry.strays_until):
        if message[1]:
            found = places.of(message[0])
            if found is None:
                entry.strays.append((at, message))
            elif found.number > places.stray_number:  # what was dispatched later has a place
                entry.strays_until = queue.appended_total
                return True
    entry.strays_until += len(new)
    return entry.strays_until == queue.appended_total and len(entry.strays) <= COPIED_MESSAGES_MAX


def _queued(session: Session, entry: _Entry, places: _Places) -> Iterator[Message]:
    """Yield the messages at QoS 1 and 2 in the queue that a copy depends on, in order; strays were looked for.

    These are all messages before the first one with a place, and later ones without a place. The others follow from
    that place. Each message is looked for once at most, so that a long queue costs no more than a short one.
    """
    queue = session.sender.queue
    position = queue.appended_total - queue.messages
    for message in queue.waiting():
        position += 1
        if message[1]:
            yield message
            if places.of(message[0]) is not None:
                break
    yield from (one for at, one in entry.strays if at >= position)


def _unsettled(session: Session, entry: _Entry, places: _Places) -> Iterator[Message]:
    """Yield the messages at QoS 1 that are sent without acknowledgement, and those of the queue, in order."""
    for _, message, _ in session.sender.inflight.in_flight():
        yield message
    yield from _queued(session, entry, places)


def _seen(session: Session) -> tuple[object, ...]:
    """Return the values that change when messages are sent, acknowledged or dropped."""
    return (*seen(session), session.follower.log)
