"""Sessions of this node for the pool: joins `fanout.durable`, the server of clients and the links.

Owns the places of markers in the queues of sessions that go and come. A topic belongs to one link, so a message is in
front of a cut when it came before the marker of its own link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Final, NamedTuple

from fanout.durable.form.session_copy import COPIED_MESSAGES_MAX, SessionCopy, encode_copy, has_qos_2
from fanout.durable.form.session_export import SessionExport
from fanout.durable.form.session_format import decode_in_steps
from fanout.durable.hosting.session_moves import SessionMoves, owner_of
from fanout.durable.moving.session_pool import SessionPool
from fanout.durable.ownership.epochs import encode_epoch
from fanout.durable.ownership.move_messages import Fetched, Piece, Subscription, TakeQuestion
from fanout.durable.ownership.ownership import Choice, Owner, Reply
from fanout.durable.ownership.ports import OtherMemberState
from fanout.errors import SessionFormInvalid, SessionMoveRefused
from fanout.link.link import Link
from fanout.mqtt.properties import Properties
from fanout.mqtt.reason_codes import ReasonCode
from fanout.pool.failure_detection import FailureDetector, LifeSigns
from fanout.pool.member_facts import MemberFacts
from fanout.pool.pool_members import PoolMembers
from fanout.replica.recent import Place
from fanout.runtime.slices import Slices
from fanout.runtime.system_clock import Clock
from fanout.server.base.ports import SessionFound
from fanout.server.client.authorization_flow import Claim, claim_of
from fanout.server.client.server import Server
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.exported_session import ExportedSession, ExportedSubscription, MoveRefusal
from fanout.server.session.session import Session
from fanout.server.session.session_export import WaitingMessages, message_of, queued

__all__ = ["LinkMarkers", "PoolSessionFinder", "PoolWitness", "ServerSessions"]

_NEVER: Final = float("-inf")
_STEP: Final = 250
"""Subscriptions that begin to collect in one step."""
_SHORT_BYTES: Final = 64 * 1024
"""Bytes of a value that is read in a few milliseconds."""
_PLACES_MAX: Final = 16
"""Markers of one link whose places in a queue are remembered."""
_FOUND: Final = {
    Choice.FETCH: SessionFound.HERE,
    Choice.BEGIN: SessionFound.NONE,
    Choice.BEGIN_ANEW: SessionFound.LOST,
    Choice.REFUSE: SessionFound.OF_ANOTHER_USER,
    Choice.LATER: SessionFound.UNKNOWN,
}


class _Client(NamedTuple):
    """Client of another member."""

    user: str
    superuser: bool


@dataclass(slots=True)
class _Going:
    """A session that is promised to another member."""

    places: dict[tuple[str, str], int] = field(default_factory=dict)
    """Link and marker to the position in the queue at which the next message came, oldest first."""
    exported: SessionExport | None = None
    """What it is exported as, once it is."""
    encoding: asyncio.Task[None] | None = None
    """Makes the bytes of a long one."""
    keep: Callable[[int, bytes], bool] | None = None
    """Which queued messages are part of the value; None for all."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Link to the marker behind the value; empty when it is inexact."""


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
    """Link to the position in the queue at which its marker came."""


class ServerSessions:
    """The sessions of a server, as `fanout.durable.ownership.ports.SessionHost`."""

    def __init__(self, server: Server, *, links: Sequence[Link]) -> None:
        """Prepare.

        Args:
            server: Serves the clients.
            links: Every link of the node.
        """
        self._server = server
        self._moves = SessionMoves(server)
        self._slices = Slices()
        self._links = links
        self._only_link = links[0].config.name if len(links) == 1 else None
        self._going: dict[str, _Going] = {}
        self._coming: dict[str, _Coming] = {}

    @property
    def count(self) -> int:
        """Number of sessions."""
        return self._server.session_count

    def has(self, client_id: str) -> bool:
        """Return whether a client has a session here."""
        return self._server.registry.get(client_id) is not None

    def owner_of(self, client_id: str) -> Owner | None:
        """Return whose the session of a client is that is here; None without one."""
        session = self._server.registry.get(client_id)
        if session is None:
            return None
        identity = None if session.access is None else session.access.identity
        return owner_of(identity, since=session.owner_since or 0)

    def own(self, client_id: str, *, since: int) -> None:
        """Note since when the owner of a session has it that has just begun here, unless that is known."""
        session = self._server.registry.get(client_id)
        if session is not None and session.owner_since is None:
            session.owner_since = since

    def may_end(self, client: Owner, owner: Owner) -> bool:
        """Return whether a client may end the session of an owner with its Client Identifier."""
        one, other = (None if each.anyone else _Client(each.user, each.superuser) for each in (client, owner))
        return claim_of(one, other) is not Claim.REFUSED

    def copy_again(self, client_id: str) -> bool:
        """Have a session copied once more; return False for one that is not copied."""
        session = self._server.registry.get(client_id)
        is_copied = session is not None and session.outlives_node
        if is_copied:
            self._server.lifecycles.keepers.note(client_id)
        return is_copied

    # Sessions that go.

    def promise(self, question: TakeQuestion) -> tuple[Subscription, ...] | Reply:
        """End the connection of a session and keep it ready; return its subscriptions, or why another one begins."""
        client = None if question.anyone else _Client(question.user, question.superuser)
        try:
            subscriptions = self._moves.promise(question.client_id, claimant=client)
        except SessionMoveRefused as refused:
            return Reply.REFUSED if refused.reason == MoveRefusal.ANOTHER_USER else Reply.NONE
        self.take_back(question.client_id)
        self._going[question.client_id] = _Going()
        return tuple(
            Subscription(
                one.topic_filter.decode(),
                one.options.qos,
                one.options.no_local,
                one.options.retain_as_published,
                one.options.identifier,
            )
            for one in subscriptions
        )

    def note_place(self, client_ids: Sequence[str], link: str, marker: str) -> None:
        """Note the place in the queues of promised sessions that a marker has in the stream of a link."""
        for client_id in client_ids:
            going, position = self._going.get(client_id), self._moves.position(client_id)
            if going is None or position is None:
                continue
            going.places[link, marker] = position
            if len(going.places) > _PLACES_MAX:
                del going.places[next(iter(going.places))]

    def export(self, client_id: str, markers: Mapping[str, str]) -> Fetched:
        """Return the value of a promised session, with the messages before the markers, which are by link."""
        going = self._going.get(client_id)
        if going is None or self._moves.is_undecided(client_id):
            return Fetched("later")
        self._take_back(going)
        places = {
            link: going.places[link, marker] for link, marker in markers.items() if (link, marker) in going.places
        }
        exact = bool(markers) and len(places) == len(markers)
        keep = self._before(places) if exact else None
        try:
            exported = self._moves.export(client_id, keep=keep)
        except SessionMoveRefused:
            return Fetched("later")
        going.exported, going.keep, going.markers = exported, keep, markers if exact else {}
        if exported.is_long:
            going.encoding = asyncio.create_task(self._slices.run(exported.steps()), name="session-export")
        else:
            deque(exported.steps(), maxlen=0)
        return Fetched("exact" if exact else "inexact", exported.data or b"")

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
            self._moves.take_back(going.exported.value)
        going.exported = going.encoding = None

    def copy_of_given(self, client_id: str, *, to: str) -> bytes:
        """Return the copy of an exported session that another member has from now on; empty for one without."""
        going = self._going.get(client_id)
        exported = None if going is None else going.exported
        if going is None or exported is None or not going.markers or exported.queue.count > COPIED_MESSAGES_MAX:
            return b""
        session = replace(exported.value, will=None, will_left_ms=None)  # its client has come back
        is_exact = has_qos_2(
            qos_max=max((one.options.qos for one in session.subscriptions), default=0),
            unreleased=session.unreleased,
            states=(one.state for one in session.in_flight),
        )
        places = {link: Place(to, marker, 0, 0) for link, marker in going.markers.items()}
        copy = SessionCopy(session, is_connected=True, is_exact=is_exact, places=places)
        return encode_copy(copy, queue=exported.queue)

    def release(self, client_id: str) -> None:
        """Remove an exported session, which another member has now."""
        going = self._going.pop(client_id, None)
        if going is None:
            self._moves.release(client_id)
        else:
            expired = 0 if going.exported is None else going.exported.expired
            self._moves.release(client_id, keep=going.keep, expired=expired)

    async def on_disk(self) -> None:
        """Wait until it is on disk which sessions are here, where they are kept there."""
        await self._moves.on_disk()

    def end(self, client_id: str) -> None:
        """End a session that is older than one elsewhere, and its connection."""
        going = self._going.pop(client_id, None)
        if going is not None and going.encoding is not None:
            going.encoding.cancel()
        self._moves.end(client_id)

    def absent(self) -> Sequence[tuple[str, str, bool]]:
        """Return the sessions without a connection that may go: Client Identifier, user, and whether a superuser's."""
        connections = self._server.lifecycles.connection_of
        found = []
        for session in self._server.registry:
            if session.expiry_s and session not in connections:
                access = session.access
                superuser = access is not None and access.identity.superuser
                found.append((session.client_id, session.user, superuser))
        return found

    def send_away(self, count: int, *, to: Sequence[str]) -> int:
        """Disconnect so many clients, which are to use another server; return how many are left."""
        connections = self._server.lifecycles.connection_of
        reason_code, properties = self._server.lifecycles.farewell(ReasonCode.USE_ANOTHER_SERVER)
        named = [Properties(server_reference=address) for address in to] or [properties]
        for connection, each in zip(list(islice(connections.values(), count)), cycle(named), strict=False):
            connection.disconnect(reason_code, properties=each)
        return len(connections)

    def serve_until(self, until_s: float) -> None:
        """Ask for the next look before anything that is done later than that."""
        self._server.pauses.until_s = until_s

    def raise_fence(self) -> int:
        """Serve durable sessions no more, and return how many connections ended."""
        return self._server.lifecycles.raise_fence()

    def lower_fence(self) -> None:
        """Serve durable sessions again."""
        self._server.lifecycles.lower_fence()

    # Sessions that come.

    async def collect(self, client_id: str, subscriptions: Sequence[Subscription]) -> None:
        """Collect the messages for a session that comes."""
        self.stop_collecting(client_id)
        wanted = [
            ExportedSubscription(
                one.topic_filter.encode(),
                SubscriptionOptions(
                    qos=one.qos,
                    no_local=one.no_local,
                    retain_as_published=one.retain_as_published,
                    identifier=one.identifier,
                ),
            )
            for one in subscriptions
        ]
        coming = self._coming[client_id] = _Coming(self._moves.collect(wanted[:_STEP]))
        if len(wanted) > _STEP:
            await self._slices.run(self._collect_rest(coming, wanted))

    def _collect_rest(self, coming: _Coming, wanted: Sequence[ExportedSubscription]) -> Generator[None, None, None]:
        for first in range(_STEP, len(wanted), _STEP):
            self._moves.collect_more(coming.collector, wanted[first : first + _STEP])
            yield

    def note_collected(self, client_ids: Sequence[str], link: str) -> None:
        """Note the place of an own marker in what is collected."""
        for client_id in client_ids:
            coming = self._coming.get(client_id)
            if coming is not None:
                coming.places[link] = coming.collector.sender.queue.appended_total

    async def read(self, client_id: str, value: bytes) -> None:
        """Read the value of a session that comes, for `may_adopt` and `adopt`."""
        coming = self._coming[client_id]
        coming.waiting = WaitingMessages(partial(message_of, now_ns=self._server.context.clock.now_ns()))
        steps = _read(client_id, value, coming.waiting)
        if len(value) > _SHORT_BYTES:
            coming.read = await self._slices.run(steps)
        else:
            coming.read = _done(steps)

    def may_adopt(self, client_id: str, question: TakeQuestion) -> bool:
        """Return whether `adopt` would succeed now."""
        coming = self._coming.get(client_id)
        if coming is None or coming.read is None:
            return False
        client = None if question.anyone else _Client(question.user, question.superuser)
        return self._moves.why_refused(coming.read, claimant=client, waiting=coming.waiting) is None

    def adopt(self, client_id: str, *, exact: bool) -> bool:
        """Make the session of a value, with what was collected behind the markers; without any, with all of it."""
        coming = self._coming.get(client_id)
        exported = None if coming is None else coming.read
        if exported is None or coming is None:
            return False
        before = self._before(coming.places) if exact else lambda position, topic: False
        behind = [message for message, _ in queued(coming.collector, lambda *place: not before(*place))]
        try:
            self._moves.import_session(exported, behind=behind, waiting=coming.waiting, retained_anew=not exact)
        except SessionMoveRefused:
            return False
        return True

    def stop_collecting(self, client_id: str) -> None:
        """Forget what was collected."""
        coming = self._coming.pop(client_id, None)
        if coming is not None:
            self._moves.stop_collecting(coming.collector)

    def _before(self, places: Mapping[str, int]) -> Callable[[int, bytes], bool]:
        """Return what tells whether a message is in front of the marker of its link; others are in front."""

        def is_before(position: int, topic: bytes) -> bool:
            place = places.get(self._link_of(topic))
            return place is None or position < place

        return is_before

    def _link_of(self, topic: bytes) -> str:
        if self._only_link is not None:
            return self._only_link
        return next(
            (link.config.name for link in self._links if any(one.covers_local(topic) for one in link.config.selectors)),
            "",
        )


class LinkMarkers:
    """Markers of all links of a node, as `fanout.durable.ownership.ports.Markers`."""

    def __init__(self, links: Iterable[Link]) -> None:
        """Prepare.

        Args:
            links: Every link.
        """
        self._links = tuple(links)

    @property
    def come_back(self) -> bool:
        """Whether markers of all links come back, though none may be sent at the moment."""
        return all(link.has_markers for link in self._links)

    def send(self) -> Mapping[str, str]:
        """Publish one on each link, and return them by link; empty when one of the links cannot now."""
        if not all(link.may_send_marker for link in self._links):
            return {}
        return {link.config.name: link.send_marker() for link in self._links}


class PoolWitness:
    """The other members, as `fanout.durable.ownership.ports.Others`: who lives, by their answers and heartbeats."""

    def __init__(self, members: PoolMembers, *, links: Iterable[Link], clock: Clock) -> None:
        """Prepare.

        Args:
            members: The members.
            links: Every link.
            clock: Gives the time.
        """
        self._members = members
        self._links = tuple(links)
        self._clock = clock
        self._detector = FailureDetector(dead_after_s=members.config.dead_after_s)

    @property
    def instance(self) -> str:
        """The process of this node, as the others hear it."""
        return self._members.membership.instance

    @property
    def are_known(self) -> bool:
        """Whether all members are asked, however they are; False while the node starts."""
        return self._members.are_known

    def states(self) -> Sequence[OtherMemberState]:
        """Return every other member as it is now."""
        dead = self._look().dead
        states = []
        for other in self._members.others():
            facts = other.peer.facts
            said = "" if facts is None else facts.state
            states.append(
                OtherMemberState(
                    other.peer.name,
                    is_silent=not other.reachable,
                    is_dead=not other.reachable and other.peer.name in dead,
                    is_ready=other.reachable and said == "ready",
                    is_empty=facts is not None and said == "stopping" and not facts.sessions,
                    client_address=None if facts is None else facts.client_address,
                    instance="" if facts is None else facts.instance,
                    keeps_copies=other.reachable and facts is not None and self._keeps_copies(facts),
                )
            )
        return states

    def _keeps_copies(self, facts: MemberFacts) -> bool:
        is_alike = facts.config_digest == self._members.config_digest
        return facts.keeps_copies and is_alike and facts.state in ("ready", "not_ready")

    @property
    def is_isolated(self) -> bool:
        """True while this node hears neither another member nor itself at a primary."""
        return self._look().is_isolated

    @property
    def isolated_after_s(self) -> float:
        """Time after which this node is isolated when it hears nobody."""
        return self._detector.isolated_after_s

    def is_current(self, since_s: float) -> bool:
        """Return whether all has come here that the primaries had at a time: heartbeats sent since have come back."""
        return all(sent_s is not None and sent_s >= since_s for sent_s in self._own_sent_s())

    @property
    def has_witness(self) -> bool:
        """Whether what this node publishes for the others may come back from a primary."""
        return any(link.may_have_markers for link in self._links)

    def tell_alone(self) -> bool:
        """Tell the others, at the primaries, that sessions go on without copies here; return whether one takes it."""
        told = [link.tell_alone(self.instance) for link in self._links]
        return any(told)

    def said_alone_s(self, instance: str) -> float:
        """Return when a process, this one too, was heard last to say so, monotonic seconds; long ago for never."""
        return max((link.said_alone_s(instance) or _NEVER for link in self._links), default=_NEVER)

    def went_alone(self, instance: str) -> bool:
        """Return whether a process has said so, and not since that all its copies here are right."""
        return self.said_alone_s(instance) > self._members.vouched_s(instance)

    async def call(self, name: str, path: str, body: bytes, *, timeout_s: float, answer_bytes_max: int) -> bytes:
        """Send a request to a member.

        Raises:
            AskFailed: It brought nothing.
        """
        return await self._members.call(name, path, body, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max)

    def _look(self) -> FailureDetector:
        """Judge who is dead now, and whether this node is isolated."""
        self._detector.look(
            [
                LifeSigns(peer.name, max(self._members.silent_since(peer), self._heard_s(peer.name)), peer.asked_s)
                for peer in self._members.membership.others()
            ],
            own_sent_s=self._own_sent_s(),
            now_s=self._clock.monotonic(),
        )
        return self._detector

    def _own_sent_s(self) -> list[float | None]:
        """Return for each link whose heartbeats may come back when the newest one was sent that did."""
        return [link.marker_sent_s for link in self._links if link.may_have_markers]

    def _heard_s(self, node: str) -> float:
        """Return when the newest heartbeat of a member came through a primary; long ago for never."""
        return max((link.heard_s(node) or _NEVER for link in self._links), default=_NEVER)


class PoolSessionFinder:
    """Finds the sessions of clients for the server, as `fanout.server.base.ports.SessionFinder`."""

    def __init__(self, pool: SessionPool, *, has_access: bool) -> None:
        """Prepare.

        Args:
            pool: The sessions of the pool.
            has_access: Whether this node has access control.
        """
        self._pool = pool
        self._anyone = not has_access

    @property
    def may_resume(self) -> bool:
        """Whether this node may go on with its own sessions."""
        return self._pool.may_resume

    @property
    def is_fenced(self) -> bool:
        """Whether this node may not serve durable sessions, as others may take it for dead; looked at anew."""
        return self._pool.is_fenced

    @property
    def is_leaving(self) -> bool:
        """Whether this node gives its sessions away, and takes no client any more."""
        return self._pool.is_leaving

    def began(self, client_id: str, *, is_copied: bool) -> None:
        """Note that the session of a client begins here, or goes on here."""
        self._pool.began(client_id, is_copied=is_copied)

    def epoch_of(self, client_id: str) -> bytes:
        """Return since when the session of a client is this node's."""
        return encode_epoch(self._pool.epoch_of(client_id))

    def find(self, client_id: str, *, user: str, superuser: bool, clean: bool = False) -> asyncio.Future[SessionFound]:
        """Bring the session of a client here that has none here, and tell where it is."""
        found: asyncio.Future[SessionFound] = asyncio.get_running_loop().create_future()

        def told(choice: asyncio.Future[Choice]) -> None:
            if not found.done():
                found.set_result(_FOUND[choice.result()])

        def ended(found: asyncio.Future[SessionFound]) -> None:
            if found.cancelled():  # the client has left
                chosen.cancel()

        chosen = self._pool.find(client_id, user=user, superuser=superuser, anyone=self._anyone, clean=clean)
        chosen.add_done_callback(told)
        found.add_done_callback(ended)
        return found


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


def _done(steps: Generator[None, None, ExportedSession | None]) -> ExportedSession | None:
    """Do all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            read: ExportedSession | None = ended.value
            return read
