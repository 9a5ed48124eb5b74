"""Keepers of durable sessions: all places outside this process where sessions are kept, as one.

A packet that a client relies on is written to it when every keeper has the state. Without a keeper nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fanout.server.keeping.session_marks import SessionMarks
from fanout.server.session.gated_output import GatedOutput
from fanout.server.session.session import Session

__all__ = ["SessionKeeper", "SessionKeepers"]


class SessionKeeper(Protocol):
    """One place where sessions are kept."""

    @property
    def marks(self) -> SessionMarks:
        """Sessions that are to be kept, and what waits for that."""

    def enter(self, client_id: str, /) -> None:
        """Have the session of a new connection kept."""

    def add(self, client_id: str, /) -> None:
        """Have a session kept that has come from elsewhere."""

    def note(self, client_id: str, /, *, subscriptions: bool = False) -> None:
        """Note that a session, or its subscriptions, may have changed, or that it has ended."""

    def note_gone(self, client_id: str, /) -> None:
        """Note that a session has no connection any more."""

    def note_moved(self, client_id: str, /) -> None:
        """Note that a session is about to be another member's of the pool; it is here still, and kept as it is."""

    def let_go(self, client_id: str, /) -> None:
        """Note that the other member has a session on its disk: it need not be kept any more."""


class SessionKeepers:
    """All keepers of a server."""

    def __init__(self, *, bytes_max: int) -> None:
        """Begin without a keeper.

        Args:
            bytes_max: Bytes that may wait for one connection before its session is paused.
        """
        self._bytes_max = bytes_max
        self._keepers: list[SessionKeeper] = []
        self._disk: SessionKeeper | None = None
        self._marks: list[SessionMarks] = []
        """Those of each keeper."""
        self._waiting: dict[GatedOutput, None] = {}

    def join(self, keeper: SessionKeeper, *, is_disk: bool = False) -> None:
        """Keep sessions at a further place from now on; before any client is served.

        Args:
            keeper: The place.
            is_disk: True if it is the disk of this node.
        """
        if is_disk:
            self._disk = keeper
        self._keepers.append(keeper)
        self._marks.append(keeper.marks)
        keeper.marks.on_kept = self._tell

    def gate(
        self, session: Session, *, write: Callable[[bytes], None], on_room: Callable[[], None]
    ) -> GatedOutput | None:
        """Have the session of a new connection kept; return the gate of its output.

        Args:
            session: The session.
            write: Writes bytes to the connection.
            on_room: Called when the gate has room again, after it was full.

        Returns:
            None without a keeper, and for a session that does not outlive its connection.
        """
        if not self._keepers:
            return None
        if not session.outlives_node:
            self.note(session.client_id)  # a former one may be kept, and the output does not say of it
            return None
        for keeper in self._keepers:
            keeper.enter(session.client_id)
        return GatedOutput(self, session, write=write, on_room=on_room, bytes_max=self._bytes_max)

    def add(self, client_id: str) -> None:
        """Have a session kept that has come from elsewhere."""
        for keeper in self._keepers:
            keeper.add(client_id)

    def note(self, client_id: str, *, subscriptions: bool = False) -> None:
        """Note that a session, or its subscriptions, may have changed, or that it has ended."""
        for keeper in self._keepers:
            keeper.note(client_id, subscriptions=subscriptions)

    def note_gone(self, client_id: str) -> None:
        """Note that a session has no connection any more."""
        for keeper in self._keepers:
            keeper.note_gone(client_id)

    def note_moved(self, client_id: str) -> None:
        """Note that a session is about to be another member's of the pool; it is here still, and kept as it is."""
        for keeper in self._keepers:
            keeper.note_moved(client_id)

    def let_go(self, client_id: str) -> None:
        """Note that the other member has a session on its disk: it need not be kept any more."""
        for keeper in self._keepers:
            keeper.let_go(client_id)

    def mark(self, client_id: str) -> int:
        """Have a session kept, as it is at the end of this turn of the event loop; return the mark's number."""
        newest = 0
        for marks in self._marks:
            newest = max(newest, marks.mark(client_id))
        return newest

    def unwritten(self, client_id: str) -> int:
        """Return the number of the newest mark of a session that is not kept everywhere; 0 when there is none."""
        return max([marks.unwritten(client_id) for marks in self._marks], default=0)

    def wait(self, waiter: GatedOutput) -> None:
        """Call `written` of an output whenever marks are kept, until it says that nothing waits."""
        self._waiting[waiter] = None

    async def on_disk(self) -> None:
        """Wait until everything is on disk that is marked now; at once without a disk."""
        if self._disk is not None:
            await self._disk.marks.written()

    async def kept(self) -> None:
        """Wait until everything is kept everywhere that is marked now."""
        for marks in self._marks:
            await marks.written()

    def _tell(self) -> None:
        """Tell those who wait up to which number marks are kept everywhere."""
        number = min([marks.kept_until for marks in self._marks])
        for waiter in list(self._waiting):
            if not waiter.written(number):
                self._waiting.pop(waiter, None)
