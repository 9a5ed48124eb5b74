"""Inheritance of durable sessions: sessions of a member that is gone go on here, from their copies.

A copy names places in streams that this node has too. Later messages are dispatched once more, to the inherited
sessions alone, by the usual code, so subscriptions, limits and expiry hold.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, NamedTuple

from fanout.durable.form.session_copy import SessionCopy, with_in_flight
from fanout.durable.hosting.session_values import SessionValues
from fanout.errors import SessionMoveRefused
from fanout.replica.recent import Place, RecentBatch, RecentUpdates, Start
from fanout.server.base.counters import Counters
from fanout.server.client.server import Server
from fanout.server.messages.encoding import Message
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.session.exported_session import ExportedSession
from fanout.server.session.session import Session
from fanout.server.session.session_export import ExportedMessages

__all__ = ["Inherited", "inherit", "messages_after", "starts_of"]

_JOIN_STEPS: Final = 8
"""Steps in which sessions begin to collect: each rebuilds the routes of all topics, the greatest cost."""
_PIECE_UPDATES: Final = 1_000
"""Updates that are dispatched together."""


class Inherited(enum.Enum):
    """Outcome for a session of a member that is gone."""

    HERE = "here"
    """It goes on here."""
    EXPIRED = "expired"
    """It has ended; its Will Message is published, if it had one."""
    NO_PLACE = "no place"
    """Its place in the stream of a link had no name when it was copied."""
    NOT_HELD = "not held"
    """Messages after its place in the stream of a link are not held any more, or the place is another one here."""
    NO_MESSAGE = "no message"
    """A message that its client has not acknowledged is not held any more."""
    REFUSED = "refused"
    """It does not fit the limits or the access rules of this node."""


class _Heir(NamedTuple):
    """A session that is about to go on here."""

    session: ExportedSession
    starts: Mapping[str, Start]
    """Place of its first message in the stream of each link."""

    @property
    def first(self) -> int:
        """Number of the first batch after one of these."""
        return min((start.number for start in self.starts.values()), default=0)


def inherit(
    server: Server, recent: RecentUpdates, copies: Sequence[tuple[SessionCopy, int]], *, now_ns: int
) -> list[Inherited]:
    """Let sessions go on here, in one turn of the event loop.

    Args:
        server: The server; it has no session of these clients.
        recent: The recent updates of this node's links.
        copies: Copies, each with the milliseconds for which the session had no Network Connection meanwhile.
        now_ns: Unix time in nanoseconds.

    Returns:
        The outcome for each.
    """
    values, messages = SessionValues(server), ExportedMessages(now_ns=now_ns)
    found: list[Inherited] = []
    heirs: dict[int, _Heir] = {}
    for index, (copy, away_ms) in enumerate(copies):
        left_ms = copy.session.expiry_left_ms - away_ms
        if left_ms <= 0:
            values.publish_will(replace(copy.session, expiry_left_ms=1))
            found.append(Inherited.EXPIRED)
            continue
        if not copy.places.keys() >= set(recent.links):
            found.append(Inherited.NO_PLACE)
            continue
        starts = starts_of(copy.places, recent, exactly=copy.is_exact)
        if starts is None:
            found.append(Inherited.NOT_HELD)
            continue
        session = with_in_flight(copy, recent, messages=messages)
        if session is None:
            found.append(Inherited.NO_MESSAGE)
            continue
        will_left_ms = None if session.will_left_ms is None else max(0, session.will_left_ms - away_ms)
        session = replace(session, expiry_left_ms=left_ms, will_left_ms=will_left_ms)
        heirs[index] = _Heir(session, starts)
        found.append(Inherited.HERE)
    waiting = _dispatch_again(server, recent, heirs, now_ns=now_ns)
    for index, heir in heirs.items():
        try:
            values.import_session(heir.session, behind=waiting[index])
        except SessionMoveRefused:
            found[index] = Inherited.REFUSED
    return found


def messages_after(
    server: Server, recent: RecentUpdates, sessions: Sequence[tuple[ExportedSession, Mapping[str, Start]]]
) -> list[list[Message]]:
    """Return the messages at QoS 1 and 2 for sessions after places in the stream of each link, in order.

    Args:
        server: The server.
        recent: The recent updates of this node's links.
        sessions: Sessions, each with its places (`starts_of`).
    """
    heirs = {index: _Heir(*each) for index, each in enumerate(sessions)}
    waiting = _dispatch_again(server, recent, heirs, now_ns=server.context.clock.now_ns())
    return [waiting[index] for index in heirs]


def starts_of(places: Mapping[str, Place], recent: RecentUpdates, *, exactly: bool) -> dict[str, Start] | None:
    """Return where updates follow a place in the stream of each link; None if one is not known or not held any more."""
    starts: dict[str, Start] = {}
    for link in recent.links:
        place = places.get(link)
        start = None if place is None else recent.start(link, place, exactly=exactly)
        if start is None:
            return None
        starts[link] = start
    return starts


class _Piece:
    """Batches that are dispatched together once more: few long ones cost a session less than many short ones."""

    def __init__(self, batches: Sequence[RecentBatch]) -> None:
        self._batches = batches
        self.first = batches[0].number
        """Number of the first batch."""
        self.updates = list(chain.from_iterable(batch.updates for batch in batches))
        """The updates, in order."""
        self._places: dict[int, tuple[str, Start]] | None = None

    def place_of(self, message: Message) -> tuple[str, Start]:
        """Return the link of the update of a message, and its place there."""
        if self._places is None:  # only those in which a session begins are asked
            self._places = {
                id(update): (batch.link, Start(batch.number, offset))
                for batch in self._batches
                for offset, update in enumerate(batch.updates)
            }
        return self._places[id(message[0])]


def _dispatch_again(
    server: Server, recent: RecentUpdates, heirs: Mapping[int, _Heir], *, now_ns: int
) -> dict[int, list[Message]]:
    """Return the messages at QoS 1 and 2 after the places of sessions, in order."""
    registry = server.registry.empty()
    dispatcher = Dispatcher(registry.index, counters=Counters())
    collectors: dict[int, Session] = {}
    coming = sorted(heirs, key=lambda index: heirs[index].first, reverse=True)
    first = heirs[coming[-1]].first if coming else recent.next_number
    step = (recent.next_number - first) // _JOIN_STEPS + 1
    pieces: list[_Piece] = []
    for joins_until in range(first + step, recent.next_number + step, step):
        while coming and heirs[coming[-1]].first < joins_until:
            index = coming.pop()
            collectors[index] = registry.collect(heirs[index].session.subscriptions)
        for piece in _pieces(islice(recent.batches_from(joins_until - step), step)):
            pieces.append(piece)
            dispatcher.dispatch(piece.updates, now_ns=now_ns, position=len(pieces))
    return {
        index: list(_behind(collectors[index], heir.starts, pieces)) if index in collectors else []
        for index, heir in heirs.items()
    }


def _pieces(batches: Iterable[RecentBatch]) -> Iterator[_Piece]:
    """Put batches together."""
    part: list[RecentBatch] = []
    count = 0
    for batch in batches:
        part.append(batch)
        count += len(batch.updates)
        if count >= _PIECE_UPDATES:
            yield _Piece(part)
            part, count = [], 0
    if part:
        yield _Piece(part)


def _behind(collector: Session, starts: Mapping[str, Start], pieces: Sequence[_Piece]) -> Iterator[Message]:
    """Yield what a session has collected after the place of each link.

    Args:
        collector: It has collected the pieces, each with its number from 1 on.
        starts: The places.
        pieces: The pieces.
    """
    latest = max((start.number for start in starts.values()), default=0)
    for collected, begin in collector.sender.queue.entries():
        piece, messages = pieces[collected.position - 1], collected.messages[begin:]
        if piece.first > latest:
            yield from messages
            continue
        for message in messages:
            link, place = piece.place_of(message)
            if place >= starts[link]:
                yield message
