"""Journal of durable sessions: it writes each one that has changed to disk, so that a kill loses none.

Owns which sessions are there, when one is written, and how far back the history of messages is needed.

A session is written whole, but for its queue: `SessionRecord` says from where on that follows from the history. What a
client relies on waits for the record (`GatedOutput`), and one record stands for all changes of the meantime: while
records are on their way to the disk, no others are made. Other changes, such as acknowledgements at QoS 1, are
found by a look at each session now and then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

from fanout.server.base.context import ServerContext
from fanout.server.messages.encoding import Message
from fanout.server.messages.queue import MessageQueue
from fanout.server.session.exported_session import ExportedSession
from fanout.server.session.gated_output import GatedOutput
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.session import Session
from fanout.server.session.session_export import ExportedMessages
from fanout.server.session.session_record import ALL_UNSENT, SessionRecord, encode_record

__all__ = ["SessionJournal", "SessionStore"]

LOOK_S: Final = 1.0
"""Time between two looks at sessions that may have changed in a way that no client relies on."""
_LOOKED_AT: Final = 2_000
"""Sessions of one look."""
_WRITTEN_AT_ONCE: Final = 256
"""Records that are made in one turn of the event loop: some ten milliseconds."""
_SHARE: Final = 10
"""The next look comes after that many times what the last records took, so that they take a tenth of the time."""
_FAR: Final = 100_000
"""Updates in the history, behind which a session that needs none of them is written anew, so that they can go."""
_TOO_FAR: Final = 1_000_000
"""Updates in the history, behind which a session is written with its whole queue."""


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


class SessionValues(Protocol):
    """Makes values of sessions; `SessionMoves` is one."""

    def outlives(self, session: Session) -> bool:
        """Return whether a session outlives this process."""

    def value_of(
        self, session: Session, messages: ExportedMessages, *, waiting: Sequence[Message]
    ) -> tuple[ExportedSession, int]:
        """Return the value of a session with these queued messages, and how many of them have expired."""

    def epoch_of(self, client_id: str) -> bytes:
        """Return since when a session is this node's, as a pool writes it; empty without a pool."""


class Waiter(Protocol):
    """Waits for marks to be written."""

    def written(self, number: int) -> bool:
        """Take it that marks up to `number` are written; return whether more waits."""


class _Barrier:
    """Waits for one mark."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.passed = asyncio.Event()
        """Set once it is written."""

    def written(self, number: int) -> bool:
        """Take it that marks up to `number` are written; return whether more waits."""
        if number < self._number:
            return True
        self.passed.set()
        return False


class _Entry:
    """A session that is on disk, or is to be."""

    __slots__ = ("inline_until", "is_connected", "position", "seen")

    def __init__(self, position: int) -> None:
        self.is_connected = False
        """Whether it has a connection."""
        self.position = position
        """The number in its record: the history is needed from there on."""
        self.inline_until = 0
        """Messages of batches up to this number do not follow from the history: they are in the record."""
        self.seen: tuple[int, ...] = ()
        """What its record says, as far as a look compares it."""


class SessionJournal:
    """The journal of a server's sessions."""

    def __init__(
        self, context: ServerContext, store: SessionStore, *, registry: SessionRegistry, moves: SessionValues
    ) -> None:
        """Begin with no session on disk.

        Args:
            context: Shared objects of the server.
            store: The disk.
            registry: The sessions.
            moves: Makes their values.
        """
        self._store = store
        self._registry = registry
        self._moves = moves
        self._clock = context.clock
        self._timer = context.timer
        self._bytes_max = context.config.write_buffer_high_bytes
        self._entries: dict[str, _Entry] = {}
        self._messages = ExportedMessages(now_ns=0)
        """Values of messages in the newest records: most of them are in the next ones too."""
        self._number = 0
        """Number of the newest mark."""
        self._written_number = 0
        """Number up to which all marks are written."""
        self._marked: dict[str, int] = {}
        """Numbers of the marks that no record is made for yet, by Client Identifier, ascending."""
        self._newest: dict[str, int] = {}
        """Number of the newest mark of each session that is not written yet."""
        self._waiting: dict[Waiter, None] = {}
        """What waits for marks to be written."""
        self._writing = self._scheduled = self._has_stopped = False
        self._spent_s = 0.0
        self._left_to_look_at: list[str] = []
        self._earlier: deque[tuple[int, int]] = deque([(0, 0)])
        """Position and updates of the history at earlier looks, ascending."""
        self._history_from = 0
        self._timer.after(LOOK_S, self._look)

    # For connections and lifecycles.

    def gate(
        self, session: Session, *, write: Callable[[bytes], None], on_room: Callable[[], None]
    ) -> GatedOutput | None:
        """Have the session of a new connection written; return the gate of its output.

        Args:
            session: The session.
            write: Writes bytes to the connection.
            on_room: Called when the gate has room again, after it was full.

        Returns:
            None for a session that does not outlive its connection.
        """
        if not self._moves.outlives(session):
            self.note(session.client_id)  # a former one may be on disk, and the output does not say of it
            return None
        entry = self._entries.get(session.client_id)
        if entry is None:
            entry = self._enter(session.client_id, position=self._store.history_position + 1)
        entry.is_connected = True
        self.mark(session.client_id)
        return GatedOutput(self, session, write=write, on_room=on_room, bytes_max=self._bytes_max)

    def note(self, client_id: str, *, subscriptions: bool = False) -> None:
        """Note that a session that may be on disk has changed, or ended.

        Args:
            client_id: Its Client Identifier.
            subscriptions: Whether its subscriptions have changed: what it waits for does not follow from them then.
        """
        entry = self._entries.get(client_id)
        if entry is not None:
            if subscriptions:
                entry.inline_until = self._store.history_position
            self.mark(client_id)

    def note_gone(self, client_id: str) -> None:
        """Note that a session has no connection any more."""
        entry = self._entries.get(client_id)
        if entry is not None:
            entry.is_connected = False
            self.mark(client_id)

    def mark(self, client_id: str) -> int:
        """Have a session written, as it is at the end of this turn of the event loop; return the mark's number."""
        number = self._marked.get(client_id)
        if number is None:
            self._number = number = self._number + 1
            self._marked[client_id] = self._newest[client_id] = number
            self._schedule()
        return number

    def unwritten(self, client_id: str) -> int:
        """Return the number of the newest mark of a session that is not written yet; 0 when there is none."""
        return self._newest.get(client_id, 0)

    def wait(self, waiter: Waiter) -> None:
        """Call `written` of a waiter whenever marks are written, until it says that nothing waits."""
        self._waiting[waiter] = None

    # For the node.

    def restored(self, client_id: str, *, position: int) -> None:
        """Note that a session on disk is here again, as its record says."""
        self._enter(client_id, position=position)

    def add(self, client_id: str) -> None:
        """Have a session written that has come from elsewhere."""
        if client_id not in self._entries:
            self._enter(client_id, position=self._store.history_position + 1)
        self.mark(client_id)

    async def written(self) -> None:
        """Wait until all is written that is marked now."""
        if self._newest:
            barrier = _Barrier(self._number)
            self.wait(barrier)
            await barrier.passed.wait()

    def write_all(self) -> None:
        """Put everything on its way that is not written, in one piece: the server has stopped, and nothing changes.

        Now the sessions with shared subscriptions are written too: nothing else will deliver what waits for them.
        """
        self._has_stopped = True
        for session in self._registry:
            if session.client_id not in self._entries and self._moves.outlives(session):
                self._enter(session.client_id, position=self._store.history_position + 1)
                self.mark(session.client_id)
        for client_id, entry in self._entries.items():
            if self._has_changed(client_id, entry):
                self.mark(client_id)
        while self._marked:
            self._write()

    # Its own.

    def _enter(self, client_id: str, *, position: int) -> _Entry:
        if not self._entries:
            self._store.keep_history(True)
        entry = self._entries[client_id] = _Entry(position)
        return entry

    def _schedule(self) -> None:
        if not self._scheduled and not self._writing:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._scheduled = False
        if self._marked and not self._writing:
            self._write()

    def _write(self) -> None:
        """Make records of marked sessions, and put them on their way."""
        began_s = self._clock.monotonic()
        group = dict(islice(self._marked.items(), _WRITTEN_AT_ONCE))
        self._messages = messages = self._messages.later(self._clock.now_ns())
        records: dict[str, bytes | None] = {}
        for client_id in group:
            del self._marked[client_id]
            records[client_id] = self._record(client_id, messages)
        self._writing = True
        self._store.put_sessions(records, history_from=0, done=partial(self._written, group))
        self._spent_s += self._clock.monotonic() - began_s

    def _written(self, group: dict[str, int]) -> None:
        """Release what waited for a group of marks; groups are written in order."""
        self._writing = False
        for client_id, number in group.items():
            if self._newest.get(client_id) == number:
                del self._newest[client_id]
            self._written_number = number
        for waiter in list(self._waiting):
            if not waiter.written(self._written_number):
                self._waiting.pop(waiter, None)
        if self._marked:
            self._schedule()

    def _record(self, client_id: str, messages: ExportedMessages) -> bytes | None:
        """Return the record of a session; None when none is kept."""
        session, entry = self._registry.get(client_id), self._entries.get(client_id)
        if entry is None:
            return None
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
        value, _ = self._moves.value_of(session, messages, waiting=waiting)
        epoch = self._moves.epoch_of(client_id)
        return encode_record(SessionRecord(value, messages.now_ns, entry.is_connected, position, unsent, epoch))

    def _is_kept(self, session: Session) -> bool:
        """Return whether a session is on disk: what comes by a shared subscription does not follow from the history."""
        return self._moves.outlives(session) and (self._has_stopped or not session.shared)

    def _look(self) -> None:
        """Mark sessions that have changed without being marked, and those that hold the history back."""
        if not self._left_to_look_at:
            self._left_to_look_at = list(self._entries)
        part, self._left_to_look_at = self._left_to_look_at[:_LOOKED_AT], self._left_to_look_at[_LOOKED_AT:]
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
            if entry.position < too_far:
                entry.inline_until = newest
                self.mark(client_id)
            elif self._has_changed(client_id, entry, far=far):
                self.mark(client_id)
        oldest = min((entry.position for entry in self._entries.values()), default=newest + 1)
        if oldest > self._history_from:
            self._history_from = oldest
            self._store.put_sessions({}, history_from=oldest, done=_nothing)
        spent_s, self._spent_s = self._spent_s, 0.0
        self._timer.after(max(LOOK_S, spent_s * _SHARE), self._look)

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
    """Return what of a queue does not follow from the history, and from where on the rest does.

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
    sender = session.sender
    outbound, follower = sender.inflight.outbound, session.follower
    return (
        sender.queue.appended_total - sender.queue.messages,
        outbound.last_packet_id,
        len(outbound),
        follower.completed,
        follower.in_flight,
        len(sender.deliveries),
    )


def _nothing() -> None:
    pass
