"""Gate between a link's output and its store on disk: acknowledgements wait until values are committed.

The changes of a read, and the session state after it, go to the store together. Acknowledgements wait until both are
committed; other output waits only until the session state is. So after a kill the disk has everything that the
primary counts as delivered, while heartbeats continue when only values wait for a slow disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from fanout.config import LinkConfig
from fanout.link.durability.session_codec import encode_session
from fanout.link.model.events import Applied, Event, HeartbeatReturned, SessionSeen
from fanout.link.model.resumption import StoredSession
from fanout.replica.update import Changes

__all__ = ["CommitGate", "ValueStore"]


_SEEN: Final = (HeartbeatReturned, SessionSeen)
"""Events that show that the session exists, so that its expiry counts from now."""


class ValueStore(Protocol):
    """Store in which a link's values survive the process; the node provides it."""

    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Callable[[], bytes] | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Store the changes of batches and the session beside them; call `done` when both are committed.

        `session` need be called for the newest of a transaction only, because it is slow with thousands of QoS 2
        messages in flight. It may be called in another thread.
        """


class CommitGate:
    """Commit gate of one link: values on their way to the disk, and output that waits for them."""

    def __init__(self, store: ValueStore, config: LinkConfig, *, node_id: str) -> None:
        """Begin with nothing on its way.

        Args:
            store: Store for values.
            config: The link's configuration.
            node_id: This node.
        """
        self._store = store
        self._config = config
        self._node_id = node_id
        self._session: StoredSession | None = None
        self._put = 0
        self._gating_put = 0
        """Number of puts when the session last changed such that all output must wait for it."""
        self._committed = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Output that waits, in order, each with the number of puts that must be committed before."""
        self._write: Callable[[bytes], None] | None = None

    def reselect(self, config: LinkConfig) -> None:
        """Take other selectors; the session is stored anew with them, also if nothing else changes."""
        self._config = config
        self._session = None

    def connected(self, write: Callable[[bytes], None]) -> None:
        """Note a new Network Connection, and how bytes are written to it."""
        self._write = write

    def disconnected(self) -> None:
        """Drop the output of a Network Connection that is gone."""
        self._write = None
        self._waiting.clear()

    def store(self, events: Sequence[Event], session: StoredSession | None, *, now_ns: int) -> None:
        """Store what the events of one read changed.

        Args:
            events: All events of the read, so that no half of it is ever committed.
            session: The session after the read; None when there is none that could be resumed.
            now_ns: Unix time in nanoseconds.
        """
        changes = [event.changes for event in events if type(event) is Applied and event.changes.updates]
        encode: Callable[[], bytes] | None = None
        gates_all_output = False
        seen = session is not None and any(type(event) in _SEEN for event in events)
        if seen or session != self._session:
            gates_all_output = _gates_all_output(self._session, session)
            self._session = session
            encode = bytes
            if session is not None:
                encode = self._encoder(session, seen_ns=now_ns)
        if changes or encode is not None:
            self._put += 1
            if gates_all_output:
                self._gating_put = self._put
            self._store.put(self._config.name, changes, session=encode, done=self._done)

    def remove(self, changes: Changes) -> None:
        """Store a piece of a tear-down."""
        self._store.put(self._config.name, [changes])

    def forget(self) -> None:
        """Store that there is no session: what is left of the store is removed at the next start."""
        self._store.put(self._config.name, [], session=bytes)

    def acknowledge(self, data: bytes) -> None:
        """Write acknowledgements once everything before is committed."""
        self._write_behind(self._put, data)

    def write(self, data: bytes) -> None:
        """Write other output once the session state is committed."""
        self._write_behind(self._gating_put, data)

    def _encoder(self, session: StoredSession, *, seen_ns: int) -> Callable[[], bytes]:
        """Return a function that encodes a session; thousands of these may wait for a slow disk."""
        unreleased = tuple(session.unreleased)  # of 16,384: 128 KiB and 0.1 ms, where the set has 512 to 1,024 KiB
        rest = replace(session, unreleased=frozenset())

        def encode() -> bytes:
            whole = replace(rest, unreleased=frozenset(unreleased))
            return encode_session(whole, self._config, node_id=self._node_id, seen_ns=seen_ns)

        return encode

    def _write_behind(self, put: int, data: bytes) -> None:
        if self._committed < put:
            # Output stays in order: it never waits for less than the output before it.
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


def _gates_all_output(before: StoredSession | None, now: StoredSession | None) -> bool:
    """Say whether all output must wait until the session state is committed.

    A QoS 2 message that was received delays only its PUBREC; one that was released delays its PUBCOMP, so all output.
    """
    if before is None or now is None:
        return before is not now
    return not before.unreleased <= now.unreleased or replace(before, unreleased=now.unreleased) != now
