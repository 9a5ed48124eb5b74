"""The sessions of a server, as the pool moves them: out of this node in three steps, and into it in three.

A session that goes is promised: its connection ends, and it collects messages until it is taken back or released. Its
value is exported up to the markers. For a session that comes, messages are collected from the first step on. Its value
is read and checked; then it is there, with the messages after the markers. Without markers its value ends with the
stream of its holder, and the history of this node has what follows. `fanout.durable.moving` decides on each step.

Owns the places of markers in the queues of sessions that go and come. A topic belongs to one link, so a message is
before a cut if it came before the marker of its own link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Final

from fanout.durable.form.session_copy import (
    COPIED_MESSAGES_MAX,
    SessionCopy,
    decode_places,
    encode_copy,
    encode_places,
    has_qos_2,
)
from fanout.durable.form.session_export import SHORT_BYTES, SessionExport
from fanout.durable.form.session_format import decode_in_steps
from fanout.durable.hosting.session_inheritance import messages_after, starts_of
from fanout.durable.hosting.session_values import SessionValues, owner_of
from fanout.durable.ownership.move_messages import Fetched, Piece, TakeQuestion
from fanout.durable.ownership.ownership import Owner, Reply
from fanout.errors import SessionFormInvalid, SessionMoveRefused
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.replica.recent import Place, Start
from fanout.runtime.slices import Slices
from fanout.server.base.counters import DropReason
from fanout.server.client.authorization_flow import Claim, claim_of
from fanout.server.client.server import Server
from fanout.server.messages.encoding import Message
from fanout.server.session.exported_session import ExportedSession, ExportedSubscription
from fanout.server.session.session import Session
from fanout.server.session.session_export import (
    ExportedMessages,
    WaitingMessages,
    message_of,
    queued,
    subscriptions_of,
)

__all__ = ["ServerSessions"]

_STEP: Final = 250
"""Subscriptions that begin to collect in one step."""
_GATHER_S: Final = 0.02
"""Time for which sessions are gathered whose messages are looked for in the history."""
_FOLLOWING_MAX: Final = 250
"""Of these, sessions of one turn of the event loop."""
_PLACES_MAX: Final = 16
"""Markers of one link whose places in a queue are remembered."""


@dataclass(slots=True)
class _Going:
    """A session that is promised to another member."""

    places: dict[tuple[str, str], int] = field(default_factory=dict)
    """Link and marker to the position in the queue at which the next message came, oldest first."""
    exported: SessionExport | None = None
    """Its exported value; None before it is exported."""
    encoding: asyncio.Task[None] | None = None
    """Makes the bytes of a long one."""
    keep: Callable[[int, bytes], bool] | None = None
    """Queued messages that are part of the value; None for all."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Link to the marker after the value; empty when it is inexact."""
    ends: Mapping[str, Place] = field(default_factory=dict)
    """Link to the place after the value, if it is inexact; empty when one has no name."""


@dataclass(slots=True)
class _Coming:
    """A session that comes."""

    collector: Session
    """Collects its messages."""
    read: ExportedSession | None = None
    """Its value, once that has come."""
    waiting: WaitingMessages | None = None
    """Its queued messages."""
    places: dict[str, int] = field(default_factory=dict)
    """Link to the position in the queue from which on what was collected is for it: that of its marker, mostly."""
    earlier: list[Message] | None = None
    """Messages after its value and in front of these positions; None if the value ends at markers."""
    lacks_values: bool = False
    """True if `earlier` may lack values: its client gets the retained messages again."""


class ServerSessions:
    """The sessions of a server, as `fanout.durable.ownership.ports.SessionHost`."""

    def __init__(self, server: Server, *, link_of: Callable[[bytes], str]) -> None:
        """Prepare.

        Args:
            server: Serves the clients.
            link_of: Returns the name of the link of a local topic; of any link, or of none, for a topic of no link.
        """
        self._server = server
        self._registry = server.registry
        self._lifecycles = server.lifecycles
        self._values = SessionValues(server)
        self._slices = Slices()
        self._link_of = link_of
        self._going: dict[str, _Going] = {}
        self._coming: dict[str, _Coming] = {}
        self._following: list[tuple[_Coming, bytes]] = []
        """Sessions for which `_follows` collects next, each with its places."""
        self._follows: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Number of sessions."""
        return self._server.session_count

    def has(self, client_id: str) -> bool:
        """Return whether a client has a session here."""
        return self._registry.get(client_id) is not None

    def owner_of(self, client_id: str) -> Owner | None:
        """Return whose the session of a client is that is here; None without one."""
        session = self._registry.get(client_id)
        if session is None:
            return None
        identity = None if session.access is None else session.access.identity
        return owner_of(identity, since=session.owner_since or 0)

    def own(self, client_id: str, *, since: int) -> None:
        """Note since when the owner of a session has it that has just begun here, unless that is known."""
        session = self._registry.get(client_id)
        if session is not None and session.owner_since is None:
            session.owner_since = since

    def may_end(self, client: Owner, owner: Owner) -> bool:
        """Return whether a client may end the session of an owner with its Client Identifier."""
        return claim_of(None if client.anyone else client, None if owner.anyone else owner) is not Claim.REFUSED

    def copy_again(self, client_id: str) -> bool:
        """Have a session copied once more; return False for one that is not copied."""
        session = self._registry.get(client_id)
        is_copied = session is not None and session.outlives_node
        if is_copied:
            self._lifecycles.keepers.note(client_id)
        return is_copied

    # Sessions that go.

    def promise(self, question: TakeQuestion) -> tuple[ExportedSubscription, ...] | Reply:
        """End the connection of a session and keep it ready; return its subscriptions, or why another one begins."""
        session = self._registry.get(question.client_id)
        if session is None:
            return Reply.NONE
        owner = None if session.access is None else session.access.identity
        claim = claim_of(None if question.anyone else question, owner)
        if claim is Claim.REFUSED:
            return Reply.REFUSED
        # The proofs of a link of a node hold for one server only: it takes a new snapshot.
        if claim is Claim.START_CLEAN or not session.expiry_s or session.is_of_a_link:
            return Reply.NONE
        connection = self._lifecycles.connection_of.get(session)
        if connection is not None:
            self._server.context.counters.takeovers += 1
            connection.disconnect(ReasonCode.SESSION_TAKEN_OVER)  # [MQTT-3.1.4-3]
        self.take_back(question.client_id)
        self._going[question.client_id] = _Going()
        return subscriptions_of(session)

    def note_place(self, client_ids: Sequence[str], link: str, marker: str) -> None:
        """Note the place in the queues of promised sessions that a marker has in the stream of a link."""
        for client_id in client_ids:
            going, session = self._going.get(client_id), self._registry.get(client_id)
            if going is not None and session is not None:
                going.places[link, marker] = session.sender.queue.appended_total
                if len(going.places) > _PLACES_MAX:
                    del going.places[next(iter(going.places))]

    def export(self, client_id: str, markers: Mapping[str, str]) -> Fetched:
        """Return the value of a promised session, with the messages before the markers, which are by link.

        It stays here until `release` or `take_back`, and its time stands still. While a message of its client has no
        verdict, it may still reach the primary from here, so the session does not go.
        """
        going, session = self._going.get(client_id), self._registry.get(client_id)
        if going is None or session is None or session.receiver.undecided:
            return Fetched("later")
        self._take_back(going)
        if not session.expiry_s or session in self._lifecycles.connection_of:
            return Fetched("later")
        places = {
            link: going.places[link, marker] for link, marker in markers.items() if (link, marker) in going.places
        }
        exact = bool(markers) and len(places) == len(markers)
        keep = self._before(places) if exact else None
        messages = ExportedMessages(now_ns=self._server.context.clock.now_ns())
        value, _ = self._values.value_of(session, messages, waiting=())
        self._lifecycles.cancel_deadlines(session)
        exported = SessionExport(session, value, messages=messages, keep=keep)
        going.exported, going.keep, going.markers = exported, keep, markers if exact else {}
        going.ends = {} if exact else self._ends()
        if exported.is_long:
            going.encoding = asyncio.create_task(self._slices.run(exported.steps()), name="session-export")
        else:
            deque(exported.steps(), maxlen=0)
        # A value with long Topic Filters or properties is pulled in pieces, as one with many messages is.
        data = exported.data if exported.data is not None and len(exported.data) <= SHORT_BYTES else b""
        return Fetched("exact" if exact else "inexact", data, encode_places(going.ends) if going.ends else b"")

    def _ends(self) -> Mapping[str, Place]:
        """Return the place after everything that was dispatched, by link; empty when one has no name."""
        recent = self._server.recent
        named = {} if recent is None else recent.ends(exactly=True)
        ends = {link: place for link, place in named.items() if place is not None}
        return ends if len(ends) == len(named) else {}

    def piece(self, client_id: str, offset: int, *, bytes_max: int) -> Piece:
        """Return a piece of the value of an exported session from an offset on."""
        going = self._going.get(client_id)
        if going is None or going.exported is None:
            return Piece(is_there=False)
        data = going.exported.data
        if data is None:
            return Piece(is_there=True)
        return Piece(True, len(data), going.exported.digest, data[offset : offset + bytes_max])

    def take_back(self, client_id: str) -> None:
        """Let a session that was promised or exported go on here."""
        going = self._going.pop(client_id, None)
        if going is not None:
            self._take_back(going)

    def _take_back(self, going: _Going) -> None:
        if going.encoding is not None:
            going.encoding.cancel()
        if going.exported is not None:
            value = going.exported.value
            session = self._registry.get(value.client_id)
            if session is not None and session not in self._lifecycles.connection_of:
                self._values.set_deadlines(session, value)
        going.exported = going.encoding = None

    def copy_of_given(self, client_id: str, *, to: str) -> bytes:
        """Return the copy of an exported session that another member has from now on; empty for one without."""
        going = self._going.get(client_id)
        exported = None if going is None else going.exported
        if going is None or exported is None or exported.queue.count > COPIED_MESSAGES_MAX:
            return b""
        places = {link: Place(to, marker, 0, 0) for link, marker in going.markers.items()} or going.ends
        if not places:
            return b""
        session = replace(exported.value, will=None, will_left_ms=None)  # its client has come back
        is_exact = has_qos_2(
            qos_max=max((one.options.qos for one in session.subscriptions), default=0),
            unreleased=session.unreleased,
            states=(one.state for one in session.in_flight),
        )
        copy = SessionCopy(session, is_connected=True, is_exact=is_exact, places=places)
        return encode_copy(copy, queue=exported.queue)

    def release(self, client_id: str) -> None:
        """Remove an exported session, which another member has now; of its share groups others get what is left."""
        going, session = self._going.pop(client_id, None) or _Going(), self._registry.get(client_id)
        if session is None:
            return
        self._lifecycles.cancel_deadlines(session)
        self._lifecycles.keepers.note_moved(client_id)
        if going.exported is not None:
            self._server.context.counters.dropped[DropReason.EXPIRED] += going.exported.expired
        left: list[Message] = []
        if session.shared:
            kept = {position for _, position in queued(session, going.keep)}
            left = [message for message, position in queued(session) if position not in kept]
        self._lifecycles.redeliver(self._registry.end(session, undelivered=left))
        self._lifecycles.free_queue(session)

    def let_go(self, client_id: str) -> None:
        """Let go of the record on disk of a session that was given away: another member has it on its own."""
        self._lifecycles.keepers.let_go(client_id)

    async def on_disk(self) -> None:
        """Wait until it is on disk which sessions are here, where they are kept there."""
        await self._lifecycles.keepers.on_disk()

    def end(self, client_id: str) -> None:
        """End a session that is older than one elsewhere, and its connection (0x8E), as one with Clean Start does."""
        going = self._going.pop(client_id, None)
        if going is not None and going.encoding is not None:
            going.encoding.cancel()
        self._lifecycles.end_taken_over(client_id)

    def absent(self) -> Sequence[tuple[str, str, bool]]:
        """Return the sessions without a connection that may go: Client Identifier, user, and whether a superuser's."""
        connections = self._lifecycles.connection_of
        found = []
        for session in self._registry:
            if session.expiry_s and session not in connections:
                access = session.access
                superuser = access is not None and access.identity.superuser
                found.append((session.client_id, session.user, superuser))
        return found

    def send_away(self, count: int, *, to: Sequence[str]) -> int:
        """Disconnect so many clients, which are to use another server; return how many are left."""
        connections = self._lifecycles.connection_of
        reason_code, properties = self._lifecycles.farewell(ReasonCode.USE_ANOTHER_SERVER)
        named = [Properties(server_reference=address) for address in to] or [properties]
        for connection, each in zip(list(islice(connections.values(), count)), cycle(named), strict=False):
            connection.disconnect(reason_code, properties=each)
        return len(connections)

    def serve_until(self, until_s: float) -> None:
        """Ask for the next look before anything that is done later than that."""
        self._server.pauses.until_s = until_s

    def raise_fence(self) -> int:
        """Serve durable sessions no more, and return how many connections ended."""
        return self._lifecycles.raise_fence()

    def lower_fence(self) -> None:
        """Serve durable sessions again."""
        self._lifecycles.lower_fence()

    # Sessions that come.

    async def collect(self, client_id: str, subscriptions: Sequence[ExportedSubscription]) -> None:
        """Collect the messages for a session that comes."""
        self.stop_collecting(client_id)
        coming = self._coming[client_id] = _Coming(self._registry.collect(subscriptions[:_STEP]))
        if len(subscriptions) > _STEP:
            await self._slices.run(self._collect_rest(coming, subscriptions))

    def _collect_rest(self, coming: _Coming, wanted: Sequence[ExportedSubscription]) -> Generator[None, None, None]:
        for first in range(_STEP, len(wanted), _STEP):
            self._registry.collect_more(coming.collector, wanted[first : first + _STEP])
            yield

    def note_collected(self, client_ids: Sequence[str], link: str) -> None:
        """Note the place of an own marker in what is collected."""
        for client_id in client_ids:
            coming = self._coming.get(client_id)
            if coming is not None and coming.earlier is None:
                coming.places[link] = coming.collector.sender.queue.appended_total

    async def read(self, client_id: str, value: bytes) -> None:
        """Read the value of a session that comes, for `may_adopt` and `adopt`."""
        coming = self._coming[client_id]
        coming.waiting = WaitingMessages(partial(message_of, now_ns=self._server.context.clock.now_ns()))
        steps = _read(client_id, value, coming.waiting)
        coming.read = await self._slices.run(steps)

    def follows(self, places: bytes) -> bool:
        """Return whether everything that follows places of `Fetched` is held here."""
        return self._starts(places) is not None

    def awaits(self, places: bytes) -> bool:
        """Return True if a stream here has not come to its place of `Fetched` yet."""
        recent, named = self._server.recent, _places(places)
        return recent is not None and any(recent.is_ahead(link, named[link]) for link in recent.links if link in named)

    def _starts(self, places: bytes) -> dict[str, Start] | None:
        recent = self._server.recent
        return None if recent is None else starts_of(_places(places), recent, exactly=True)

    async def follow(self, client_id: str, places: bytes) -> bool:
        """Collect what follows the places at which a value ends that was read; return False if not all is held here.

        Sessions that come at about one time are collected for together: each turn looks up the routes of all topics.
        """
        coming = self._coming[client_id]
        self._following.append((coming, places))
        if self._follows is None:
            self._follows = asyncio.create_task(self._follow_gathered(), name="session-follow")
        await asyncio.shield(self._follows)
        return coming.earlier is not None

    async def _follow_gathered(self) -> None:
        """Collect for the sessions that come within a moment, in turns of some at a time."""
        await asyncio.sleep(_GATHER_S)
        gathered, self._following, self._follows = self._following, [], None
        for first in range(0, len(gathered), _FOLLOWING_MAX):
            self._follow_all(gathered[first : first + _FOLLOWING_MAX])
            await asyncio.sleep(0)

    def _follow_all(self, gathered: Sequence[tuple[_Coming, bytes]]) -> None:
        recent = self._server.recent
        known = [
            (coming, coming.read, starts)
            for coming, places in gathered
            if coming.read is not None and (starts := self._starts(places)) is not None
        ]
        if recent is None or not known:
            return
        found = messages_after(self._server, recent, [(read, starts) for _, read, starts in known])
        for (coming, _, starts), messages in zip(known, found, strict=True):
            coming.earlier = messages
            coming.places = dict.fromkeys(recent.links, coming.collector.sender.queue.appended_total)
            coming.lacks_values = recent.incomplete_number >= min(start.number for start in starts.values())

    def may_adopt(self, client_id: str, question: TakeQuestion, *, is_offered: bool = False) -> bool:
        """Return whether a session may come: `adopt` would succeed now, and unless offered its user has room for it."""
        coming = self._coming.get(client_id)
        if coming is None or coming.read is None:
            return False
        if not (question.anyone or claim_of(question, coming.read.owner) is Claim.RESUME):
            return False
        subscriptions = len(coming.read.subscriptions)
        if not is_offered and not self._server.quotas.admits(question.user, subscriptions=subscriptions):
            return False
        return self._values.why_refused(coming.read, waiting=coming.waiting) is None

    def adopt(self, client_id: str, *, exact: bool) -> bool:
        """Make the session of a value, with what was collected after the markers; without any, with all of it."""
        coming = self._coming.get(client_id)
        exported = None if coming is None else coming.read
        if exported is None or coming is None:
            return False
        before = self._before(coming.places) if exact else lambda position, topic: False
        behind = [message for message, _ in queued(coming.collector, lambda *place: not before(*place))]
        retained_anew = not exact or coming.lacks_values
        if exact and coming.earlier:
            behind = [*coming.earlier, *behind]
        try:
            self._values.import_session(exported, behind=behind, waiting=coming.waiting, retained_anew=retained_anew)
        except SessionMoveRefused:
            return False
        return True

    def stop_collecting(self, client_id: str) -> None:
        """Forget what was collected."""
        coming = self._coming.pop(client_id, None)
        if coming is not None:
            self._registry.stop_collecting(coming.collector)

    def _before(self, places: Mapping[str, int]) -> Callable[[int, bytes], bool]:
        """Return what tells whether a message is in front of the marker of its link; others are in front."""

        def is_before(position: int, topic: bytes) -> bool:
            place = places.get(self._link_of(topic))
            return place is None or position < place

        return is_before


def _places(data: bytes) -> Mapping[str, Place]:
    """Return the places of `Fetched`, by link; none if they cannot be read."""
    try:
        return decode_places(data) if data else {}
    except SessionFormInvalid:
        return {}


def _read(client_id: str, value: bytes, waiting: WaitingMessages) -> Generator[None, None, ExportedSession | None]:
    """Read a value, and its queued messages; return None for no value of that session."""
    try:
        exported = yield from decode_in_steps(value, take=waiting.add)
    except SessionFormInvalid:
        return None
    if exported.client_id != client_id:
        return None
    yield from waiting.make_batches(exported.wire)
    return exported
