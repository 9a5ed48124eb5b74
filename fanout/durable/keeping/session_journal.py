"""Journal of durable sessions: it writes each one that has changed to disk, so that a kill loses none.

Owns the set of sessions, the time at which each is written, and the part of the history that they need.

A session is written whole, except its queue: `SessionRecord` names the place in the history where the queue begins.
Packets that a client relies on wait for the record (`SessionMarks`). Other changes, such as acknowledgements at QoS 1,
are found by a look at each session now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from fanout.durable.form.inflight_forms import InFlightForms
from fanout.durable.form.session_format import SessionEncoder
from fanout.durable.form.session_record import ALL_UNSENT, SessionRecord, encode_record
from fanout.durable.hosting.session_values import SessionValues
from fanout.durable.keeping.session_looks import LOOKED_AT, SHARE, seen
from fanout.server.client.server import Server
from fanout.server.keeping.session_marks import SessionMarks
from fanout.server.messages.encoding import Message
from fanout.server.messages.queue import MessageQueue
from fanout.server.session.session import Session
from fanout.server.session.session_export import ExportedMessages

__all__ = ["SessionJournal", "SessionStore"]

LOOK_S: Final = 1.0
"""Time between two looks at sessions that may have changed in a way that no client relies on."""
_FAR: Final = 100_000
"""Updates in the history, after which a session that needs none of them is written anew, so that they can go."""
_TOO_FAR: Final = 1_000_000
"""Updates in the history, after which a session is written with its whole queue."""


class SessionStore(Protocol):
    """The disk."""

    @property
    def history_position(self) -> int:
        """Number of the newest batch of the history."""

    @property
    def history_updates(self) -> int:
        """Number of updates that were put into the history."""

    def keep_history(self, wanted: bool, /) -> None:
        """Say whether batches that are dispatched from now on are needed."""

    def put_sessions(self, records: dict[str, bytes | None], *, history_from: int, done: Callable[[], None]) -> None:
        """Write records by Client Identifier, None for a session that has ended; call `done` when they are written.

        `history_from` is the number of the oldest batch that is needed still; 0 leaves the history as it is.
        """


class _Entry:
    """A session that is on disk, or is to be."""

    __slots__ = ("encoder", "given", "inline_until", "is_connected", "position", "seen")

    def __init__(self, position: int) -> None:
        self.is_connected = False
        """True if it has a connection."""
        self.position = position
        """The number in its record: the history is needed from there on."""
        self.inline_until = 0
        """Messages of batches up to this number do not follow from the history: they are in the record."""
        self.given: bytes | None = None
        """Its record if it was given to another member, until that has one; None for a session that is here."""
        self.seen: tuple[int, ...] = ()
        """Contents of its record, as far as a look compares it."""
        self.encoder = SessionEncoder()


class SessionJournal:
    """The journal of a server's sessions."""

    def __init__(self, server: Server, store: SessionStore) -> None:
        """Begin with no session on disk.

        Args:
            server: Has the sessions.
            store: The disk.
        """
        self._store = store
        self._registry = server.registry
        self._values = SessionValues(server)
        self._clock = server.context.clock
        self._timer = server.context.timer
        self._entries: dict[str, _Entry] = {}
        self._messages = ExportedMessages(now_ns=0)
        """Values of messages in the newest records: most of them are in the next ones too."""
        self._in_flight = InFlightForms()
        self.marks = SessionMarks(self._write)
        """Sessions whose records are to be written, and the output that waits for them."""
        self._has_stopped = False
        self._spent_s = 0.0
        self._left_to_look_at: list[str] = []
        self._earlier: deque[tuple[int, int]] = deque([(0, 0)])
        """Position and updates of the history at earlier looks, ascending."""
        self._history_from = 0
        self._timer.after(LOOK_S, self._look)

    # For the server.

    def enter(self, client_id: str) -> None:
        """Have the session of a new connection written."""
        self.add(client_id)
        self._entries[client_id].is_connected = True

    def add(self, client_id: str) -> None:
        """Have a session written that has come from elsewhere."""
        entry = self._entries.get(client_id)
        if entry is None or entry.given is not None:
            self._enter(client_id, position=self._store.history_position + 1)
        self.marks.mark(client_id)

    def note(self, client_id: str, *, subscriptions: bool = False) -> None:
        """Note that a session that may be on disk has changed, or ended.

        Args:
            client_id: Its Client Identifier.
            subscriptions: True if its subscriptions have changed, so that its queue does not follow from them.
        """
        entry = self._entries.get(client_id)
        if entry is not None:
            if subscriptions:
                entry.inline_until = self._store.history_position
            self.marks.mark(client_id)

    def note_gone(self, client_id: str) -> None:
        """Note that a session has no connection any more."""
        entry = self._entries.get(client_id)
        if entry is not None:
            entry.is_connected = False
            self.marks.mark(client_id)

    def note_moved(self, client_id: str) -> None:
        """Keep the record of a session that is about to be another member's of the pool, and note there that it is.

        Until that member has it on its own disk, it is what is left if both lose their power.
        """
        entry = self._entries.get(client_id)
        if entry is not None:
            self._in_flight.begin_group()
            entry.given = self._record(client_id, self._messages.later(self._clock.now_ns()))
            self.marks.mark(client_id)

    def let_go(self, client_id: str) -> None:
        """Remove the record of a session that was given away: the other member has it on its disk."""
        entry = self._entries.get(client_id)
        if entry is not None and entry.given is not None:
            entry.given = None
            self.marks.mark(client_id)

    # For the node.

    def restored(self, client_id: str, *, position: int) -> None:
        """Note that a session on disk is here again, as its record says."""
        self._enter(client_id, position=position)

    def write_all(self) -> None:
        """Put everything on its way that is not written, in one piece: the server has stopped, and nothing changes.

        The end of each connection has marked its session. The sessions with shared subscriptions are written only now:
        nothing else will deliver their messages.
        """
        self._has_stopped = True
        for session in self._registry:
            if session.client_id not in self._entries and session.outlives_node:
                self._enter(session.client_id, position=self._store.history_position + 1)
                self.marks.mark(session.client_id)
        self.marks.keep_all()

    # Its own.

    def _enter(self, client_id: str, *, position: int) -> _Entry:
        if not self._entries:
            self._store.keep_history(True)
        entry = self._entries[client_id] = _Entry(position)
        return entry

    def _write(self, client_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Make records of marked sessions, and put them on their way."""
        began_s = self._clock.monotonic()
        self._messages = messages = self._messages.later(self._clock.now_ns())
        self._in_flight.begin_group()
        records = {client_id: self._record(client_id, messages) for client_id in client_ids}
        self._store.put_sessions(records, history_from=0, done=done)
        self._spent_s += self._clock.monotonic() - began_s

    def _record(self, client_id: str, messages: ExportedMessages) -> bytes | None:
        """Return the record of a session; None when none is kept."""
        session, entry = self._registry.get(client_id), self._entries.get(client_id)
        if entry is None:
            return None
        if entry.given is not None:
            return entry.given
        if session is None or not self._is_kept(session):
            if not entry.is_connected:
                del self._entries[client_id]
                if not self._entries:
                    self._store.keep_history(False)
            return None
        inline_until = self._store.history_position if session.shared else entry.inline_until
        waiting, position, unsent = _split(session.sender.queue, inline_until)
        if not position:
            position, unsent = self._store.history_position + 1, ALL_UNSENT
        entry.position = position
        entry.seen = _seen(session)
        value, _ = self._values.value_of(session, messages, waiting=waiting, in_flight=())
        epoch = self._values.epochs_of(client_id)
        return encode_record(
            SessionRecord(
                value, messages.now_ns, entry.is_connected, position, unsent, epoch, as_of=self._store.history_position
            ),
            encoder=entry.encoder,
            in_flight=self._in_flight.of(session.sender.inflight, messages),
        )

    def _is_kept(self, session: Session) -> bool:
        """Return True if a session is on disk: one with a shared subscription only after a stop."""
        return session.outlives_node and (self._has_stopped or not session.shared)

    def _look(self) -> None:
        """Mark sessions that have changed without being marked, and those that hold the history back."""
        if not self._left_to_look_at:
            self._left_to_look_at = list(self._entries)
        part, self._left_to_look_at = self._left_to_look_at[:LOOKED_AT], self._left_to_look_at[LOOKED_AT:]
        newest, updates = self._store.history_position, self._store.history_updates
        if updates - self._earlier[-1][1] >= _FAR // 10:
            self._earlier.append((newest, updates))
        while len(self._earlier) > 1 and self._earlier[1][1] <= updates - _TOO_FAR:
            self._earlier.popleft()
        too_far = self._earlier[0][0]
        far = next((position for position, earlier in reversed(self._earlier) if earlier <= updates - _FAR), 0)
        for client_id in part:
            entry = self._entries.get(client_id)
            if entry is None:
                continue
            if entry.given is not None:
                if entry.position < far:
                    self.let_go(client_id)
            elif entry.position < too_far:
                entry.inline_until = newest
                self.marks.mark(client_id)
            elif self._has_changed(client_id, entry, far=far):
                self.marks.mark(client_id)
        oldest = min((entry.position for entry in self._entries.values()), default=newest + 1)
        if oldest > self._history_from:
            self._history_from = oldest
            self._store.put_sessions({}, history_from=oldest, done=_nothing)
        spent_s, self._spent_s = self._spent_s, 0.0
        self._timer.after(max(LOOK_S, spent_s * SHARE), self._look)

    def _has_changed(self, client_id: str, entry: _Entry, *, far: int = 0) -> bool:
        """Return whether a session differs from its record, or may let go of the history before `far`."""
        session = self._registry.get(client_id)
        if session is None or (entry.is_connected and _seen(session) != entry.seen):
            return True
        if entry.position >= far:
            return False
        return next(
            (batch.position > entry.position for batch, _ in session.sender.queue.entries() if batch.position), True
        )


def _split(queue: MessageQueue, inline_until: int) -> tuple[list[Message], int, int]:
    """Return the messages of a queue that are not in the history, and the place in the history where the others begin.

    Returns:
        The messages at QoS 1 and 2 of batches up to `inline_until`; the number of the first later batch, 0 when there
        is none; how many messages at QoS 1 and 2 of that are in the queue.
    """
    inline: list[Message] = []
    position = unsent = 0
    for batch, start in queue.entries():
        durable = [message for message in batch.messages[start:] if message[1]]
        if not position and batch.position <= inline_until:
            inline += durable
        elif position in (0, batch.position):
            position = batch.position
            unsent += len(durable)
        else:
            break
    return inline, position, unsent


def _seen(session: Session) -> tuple[int, ...]:
    """Return what tells that messages were sent, acknowledged or dropped."""
    return (*seen(session), session.follower.in_flight)


def _nothing() -> None:
    pass
