"""What a link leaves on disk, and what it may not write to the primary before that is there.

Owns the order: what a read changed, and what the session has become by it, go to the store together; acknowledgements
wait until they are committed, and everything else until what the session has become is. So a process that is killed has
on disk whatever its primary holds for delivered, while heartbeats go on when only values wait for a slow disk. It must
not know files, nor what the bytes mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from fanout.config import LinkConfig
from fanout.link.durability.session_codec import encode_session
from fanout.link.model.events import Applied, Event, HeartbeatReturned, SessionSeen
from fanout.link.model.resumption import KeptSession
from fanout.replica.update import Changes

__all__ = ["CommitGate", "ValueStore"]


_SEEN: Final = (HeartbeatReturned, SessionSeen)
"""What shows that the session is there, so that its expiry counts from now."""


class ValueStore(Protocol):
    """Where a link's values outlive the process; the node has it."""

    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Callable[[], bytes] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Take what batches changed, and what to leave beside them; call `done` when both are committed.

        Of what to leave only the newest of a transaction need be made: with thousands of QoS 2 messages under way it
        takes longer than all else that a read does. It may be made in another thread.
        """


class CommitGate:
    """The values of one link on their way to the disk, and its bytes that wait for them."""

    def __init__(self, store: ValueStore, config: LinkConfig, *, node_id: str) -> None:
        """Make one with nothing on its way.

        Args:
            store: Where values go.
            config: The link's configuration.
            node_id: This node.
        """
        self._store = store
        self._config = config
        self._node_id = node_id
        self._session: KeptSession | None = None
        self._put = 0
        self._session_put = 0
        """How much had been handed over when the session last became what more than acknowledgements must wait for."""
        self._committed = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        """What is to be written, in order, each with how much must be committed before."""
        self._write: Callable[[bytes], None] | None = None

    def connected(self, write: Callable[[bytes], None]) -> None:
        """Note a new Network Connection, and how bytes are written to it."""
        self._write = write

    def disconnected(self) -> None:
        """Forget what waits for the Network Connection, which is gone."""
        self._write = None
        self._waiting.clear()

    def keep(self, events: Sequence[Event], session: KeptSession | None, *, now_ns: int) -> None:
        """Hand over what happened.

        Args:
            events: What the session told, all of it: so no half of a read is ever committed.
            session: What it has become by it; None when there is none that could be resumed.
            now_ns: Unix time in nanoseconds.
        """
        changes = [event.changes for event in events if type(event) is Applied and event.changes.updates]
        encode: Callable[[], bytes] | None = None
        binds = False
        seen = session is not None and any(type(event) in _SEEN for event in events)
        if seen or session != self._session:
            binds = _binds(self._session, session)
            self._session = session
            encode = bytes
            if session is not None:
                encode = self._encoder(session, seen_ns=now_ns)
        if changes or encode is not None:
            self._put += 1
            if binds:
                self._session_put = self._put
            self._store.put(self._config.name, changes, session=encode, done=self._done)

    def remove(self, changes: Changes) -> None:
        """Hand over a piece of a tear-down."""
        self._store.put(self._config.name, [changes])

    def acknowledge(self, data: bytes) -> None:
        """Write acknowledgements once everything that was handed over is committed."""
        self._write_behind(self._put, data)

    def write(self, data: bytes) -> None:
        """Write anything else once what the session has become is committed."""
        self._write_behind(self._session_put, data)

    def _encoder(self, session: KeptSession, *, seen_ns: int) -> Callable[[], bytes]:
        """Return what makes the bytes of a session; thousands of them may wait for a slow disk."""
        unreleased = tuple(session.unreleased)  # of 16,384: 128 KiB and 0.1 ms, where the set has 512 to 1,024 KiB
        rest = replace(session, unreleased=frozenset())

        def encode() -> bytes:
            whole = replace(rest, unreleased=frozenset(unreleased))
            return encode_session(whole, self._config, node_id=self._node_id, seen_ns=seen_ns)

        return encode

    def _write_behind(self, put: int, data: bytes) -> None:
        if self._committed < put:
            # Nothing overtakes what waits for the same, or for less.
            self._waiting.append((max(put, self._waiting[-1][0]) if self._waiting else put, data))
        elif self._write is not None:
            self._write(data)

    def _done(self) -> None:
        self._committed += 1
        ready: list[bytes] = []
        while self._waiting and self._waiting[0][0] <= self._committed:
            ready.append(self._waiting.popleft()[1])
        if ready and self._write is not None:
            self._write(b"".join(ready))


def _binds(before: KeptSession | None, now: KeptSession | None) -> bool:
    """Say whether nothing may be written before what the session has become is committed.

    A message at QoS 2 that was received binds only its PUBREC; one that was released, its PUBCOMP.
    """
    if before is None or now is None:
        return before is not now
    return not before.unreleased <= now.unreleased or replace(before, unreleased=now.unreleased) != now
