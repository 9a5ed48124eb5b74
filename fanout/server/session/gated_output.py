"""Output of one connection that waits until the session it speaks of is kept: on disk, at another member, or both.

A packet that tells a client about its session has to be true after a kill: Packet Identifiers at QoS 2,
acknowledgements of what changes the session, the session's begin. Messages at QoS 0 and 1 do not wait: they may come
twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from fanout.mqtt.delivery import SendState
from fanout.server.session.session import Session

__all__ = ["GatedOutput", "Marks"]

_QOS_2: Final = 2


class Marks(Protocol):
    """Marks sessions that are to be kept; `SessionKeepers` is one."""

    def mark(self, client_id: str) -> int:
        """Have a session kept, as it is at the end of this turn of the event loop; return the mark's number."""

    def unwritten(self, client_id: str) -> int:
        """Return the number of the newest mark of a session that is not kept yet; 0 when there is none."""

    def wait(self, waiter: GatedOutput) -> None:
        """Call `written` of an output whenever marks are kept, until it says that nothing waits."""


class GatedOutput:
    """Output of one connection."""

    def __init__(
        self,
        marks: Marks,
        session: Session,
        *,
        write: Callable[[bytes], None],
        on_room: Callable[[], None],
        bytes_max: int,
    ) -> None:
        """Begin with nothing that waits.

        Args:
            marks: Marks the session.
            session: The session. It is paused while so much waits that no more should be added.
            write: Writes bytes to the connection.
            on_room: Called when there is room again.
            bytes_max: Bytes that may wait before the session is paused.
        """
        self._marks = marks
        self._session = session
        self._write = write
        self._on_room = on_room
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Output that waits, in order, each with the number of the mark that must be kept before."""
        self._steps_told = session.receiver.steps_told
        in_flight = session.sender.inflight.in_flight()
        self._speaks_qos_2 = any(state is not SendState.AWAIT_PUBACK for _, _, state in in_flight)
        self._on_empty: Callable[[], None] | None = None
        self.is_full = False
        """True if so much waits that no more messages should be added."""
        self.has_spoken = False
        """True if anything was written: the client has its CONNACK then."""

    def write(self, data: bytes) -> None:
        """Write bytes once what they say is kept."""
        client_id = self._session.client_id
        number = self._marks.mark(client_id) if self._must_mark() else self._marks.unwritten(client_id)
        if self._waiting:
            number = max(number, self._waiting[-1][0])
        else:
            if not number:
                self.has_spoken = True
                self._write(data)
                return
            self._marks.wait(self)
        self._waiting.append((number, data))
        self._bytes += len(data)
        if self._bytes > self._bytes_max and not self.is_full:
            self.is_full = True
            self._session.pause()

    def written(self, number: int) -> bool:
        """Write what waited for marks up to `number`; return whether more waits."""
        ready: list[bytes] = []
        while self._waiting and self._waiting[0][0] <= number:
            ready.append(self._waiting.popleft()[1])
        if ready:
            data = b"".join(ready)
            self._bytes -= len(data)
            self.has_spoken = True
            self._write(data)
        if self.is_full and self._bytes <= self._bytes_max:
            self.is_full = False
            self._on_room()
        if self._waiting:
            return True
        if self._on_empty is not None:
            self._on_empty()
        return False

    def when_empty(self, action: Callable[[], None]) -> None:
        """Call `action` once nothing waits any more; nothing is added after this."""
        if self._waiting:
            self._on_empty = action
        else:
            action()

    def drop(self) -> None:
        """Drop what waits, because the connection is gone."""
        self._waiting.clear()
        self._bytes = 0

    def _must_mark(self) -> bool:
        """Return whether the session may have changed in a way that its client relies on."""
        session = self._session
        if self._speaks_qos_2:
            return True
        if session.audience is not None and session.audience.qos_max == _QOS_2:
            self._speaks_qos_2 = True  # for the rest of the connection: messages may be in flight still
            return True
        before, self._steps_told = self._steps_told, session.receiver.steps_told
        return self._steps_told != before
