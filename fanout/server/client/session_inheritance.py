"""Inheritance of durable sessions: sessions of a member that is gone go on here, from their copies.

A copy names places in streams that this node has too. What was sent to nobody behind them is dispatched once more, to
the inherited sessions alone, by the code that dispatches: so subscriptions, limits and expiry hold as they did.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fanout.errors import SessionMoveRefused
from fanout.replica.recent import RecentUpdates, Start
from fanout.server.base.counters import Counters
from fanout.server.client.server import Server
from fanout.server.keeping.session_copy import SessionCopy, with_in_flight
from fanout.server.messages.encoding import Message
from fanout.server.routing.dispatch import Dispatcher
from fanout.server.session.exported_session import ExportedSession
from fanout.server.session.session import Session
from fanout.server.session.session_export import ExportedMessages

__all__ = ["Inherited", "inherit"]


class Inherited(enum.Enum):
    """What became of a session of a member that is gone."""

    HERE = "here"
    """It goes on here."""
    EXPIRED = "expired"
    """It has ended; its Will Message is published, if it had one."""
    NO_PLACE = "no place"
    """Its place in the stream of a link had no name when it was copied."""
    NOT_HELD = "not held"
    """What follows its place in the stream of a link is not held any more, or is another one here."""
    NO_MESSAGE = "no message"
    """A message that its client has not acknowledged is not held any more."""
    REFUSED = "refused"
    """It does not fit the limits or the access rules of this node."""


class _Heir(NamedTuple):
    """A session that is about to go on here."""

    session: ExportedSession
    starts: Mapping[str, Start]
    """Place in the stream of each link from which on it gets messages."""
    first: int
    """Number of the first batch behind one of these."""


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
        What became of each.
    """
    messages = ExportedMessages(now_ns=now_ns)
    found: list[Inherited] = []
    heirs: dict[int, _Heir] = {}
    for index, (copy, away_ms) in enumerate(copies):
        left_ms = copy.session.expiry_left_ms - away_ms
        if left_ms <= 0:
            server.moves.publish_will(replace(copy.session, expiry_left_ms=1))
            found.append(Inherited.EXPIRED)
            continue
        if not copy.places.keys() >= set(recent.links):
            found.append(Inherited.NO_PLACE)
            continue
        starts = _starts(copy, recent)
        if starts is None:
            found.append(Inherited.NOT_HELD)
            continue
        session = with_in_flight(copy, recent, messages=messages)
        if session is None:
            found.append(Inherited.NO_MESSAGE)
            continue
        will_left_ms = None if session.will_left_ms is None else max(0, session.will_left_ms - away_ms)
        session = replace(session, expiry_left_ms=left_ms, will_left_ms=will_left_ms)
        first = min((start.number for start in starts.values()), default=recent.next_number)
        heirs[index] = _Heir(session, starts, first)
        found.append(Inherited.HERE)
    waiting = _dispatch_again(server, recent, heirs, now_ns=now_ns)
    for index, heir in heirs.items():
        try:
            server.moves.import_session(heir.session, behind=waiting[index])
        except SessionMoveRefused:
            found[index] = Inherited.REFUSED
    return found


def _starts(copy: SessionCopy, recent: RecentUpdates) -> dict[str, Start] | None:
    """Return where a session goes on in each stream; None when that is not known, or not held any more."""
    starts: dict[str, Start] = {}
    for link in recent.links:
        start = recent.start(link, copy.places[link], exactly=copy.is_exact)
        if start is None:
            return None
        starts[link] = start
    return starts


def _dispatch_again(
    server: Server, recent: RecentUpdates, heirs: Mapping[int, _Heir], *, now_ns: int
) -> dict[int, list[Message]]:
    """Return the messages at QoS 1 and 2 behind the places of sessions, in order."""
    registry = server.registry.empty()
    dispatcher = Dispatcher(registry.index, counters=Counters())
    collectors: dict[int, Session] = {}
    coming = sorted(heirs, key=lambda index: heirs[index].first, reverse=True)
    cuts: dict[int, set[int]] = defaultdict(set)
    for heir in heirs.values():
        for start in heir.starts.values():
            cuts[start.number].add(start.offset)
    pieces: list[tuple[str, Start]] = []
    first = heirs[coming[-1]].first if coming else recent.next_number
    for batch in recent.batches_from(first):
        while coming and heirs[coming[-1]].first <= batch.number:
            index = coming.pop()
            collectors[index] = registry.collect(heirs[index].session.subscriptions)
        offsets = sorted({0, *cuts.get(batch.number, ())})
        for begin, end in zip(offsets, [*offsets[1:], len(batch.updates)], strict=True):
            pieces.append((batch.link, Start(batch.number, begin)))
            dispatcher.dispatch(batch.updates[begin:end], now_ns=now_ns, position=len(pieces))
    return {
        index: [] if index not in collectors else _behind(collectors[index], heir.starts, pieces)
        for index, heir in heirs.items()
    }


def _behind(collector: Session, starts: Mapping[str, Start], pieces: Sequence[tuple[str, Start]]) -> list[Message]:
    """Return what a session has collected behind the place of each link.

    Args:
        collector: It has collected the pieces, each with its number from 1 on.
        starts: The places.
        pieces: The link of each piece, and its own place; no place of a session is inside of one.
    """
    kept: list[Message] = []
    for collected, begin in collector.sender.queue.entries():
        link, place = pieces[collected.position - 1]
        if place >= starts[link]:
            kept += collected.messages[begin:]
    return kept
