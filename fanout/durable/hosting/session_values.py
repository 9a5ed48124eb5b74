"""Values of a server's sessions, and sessions of values: after a move, a restart, or the death of another member.

Owns the data beside the queue, such as deadlines and the owner, and the rule which session may come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fanout.access.authorization import Access
from fanout.access.identity import Identity
from fanout.durable.ownership.ownership import Owner
from fanout.errors import SessionMoveRefused
from fanout.server.base.timer import Deadline
from fanout.server.client.server import Server
from fanout.server.messages.encoding import Message
from fanout.server.session.exported_session import ExportedInFlight, ExportedSession, MoveRefusal
from fanout.server.session.session import Session
from fanout.server.session.session_export import (
    ExportedMessages,
    MessageMaker,
    WaitingMessages,
    batches_of,
    export_state,
)

__all__ = ["SessionValues", "owner_of", "refused"]

_MS_PER_S: Final = 1000
_REFUSALS: Final = {
    MoveRefusal.STOPPING: ("this node stops", "Ask another member of the pool"),
    MoveRefusal.SESSION_EXISTS: (
        "this node has one already",
        "End one of the two: the client knows which one it continues",
    ),
    MoveRefusal.NOT_ADMITTED: (
        "its owner may not connect here, or only one of both nodes has access control",
        "Give all members of the pool the same [access]",
    ),
    MoveRefusal.LIMITS: (
        "it is over a limit of this node",
        "Give all members of the pool the same limits in [server]",
    ),
}
"""The problem, and the remedy."""


class SessionValues:
    """Makes values of the sessions of a server, and its sessions of values."""

    def __init__(self, server: Server) -> None:
        """Prepare.

        Args:
            server: Serves the clients.
        """
        self._registry = server.registry
        self._lifecycles = server.lifecycles
        self._gate = server.gate
        self._session_expiry_max_s = server.context.config.session_expiry_max_s
        self._clock = server.context.clock
        self._logger = server.context.logger

    def value_of(
        self,
        session: Session,
        messages: ExportedMessages,
        *,
        waiting: Sequence[Message],
        in_flight: Sequence[ExportedInFlight] | None = None,
    ) -> tuple[ExportedSession, int]:
        """Return the value of a session, and how many of its messages were left out because they have expired.

        Args:
            session: The session, which is not changed.
            messages: Values of messages, with the time.
            waiting: The queued messages that go along.
            in_flight: The messages in flight that go along; None for all.
        """
        return export_state(
            session,
            expiry_left_ms=self._expiry_left_ms(session),
            will_left_ms=self._will_left_ms(session),
            messages=messages,
            waiting=waiting,
            in_flight=in_flight,
        )

    def epochs_of(self, client_id: str) -> bytes:
        """Return since when a session is this node's, or another one's, as a pool writes it; empty without a pool."""
        finder = self._lifecycles.finder
        return b"" if finder is None else finder.epochs_of(client_id)

    def why_refused(
        self, exported: ExportedSession, *, waiting: WaitingMessages | None = None, is_own: bool = False
    ) -> MoveRefusal | None:
        """Return why `import_session` would refuse a session now; None when it would not."""
        if self._lifecycles.stopping:
            return MoveRefusal.STOPPING
        if self._registry.get(exported.client_id) is not None:
            return MoveRefusal.SESSION_EXISTS
        if (exported.owner is None) is not (self._gate is None) or (
            self._gate is not None and self._access(exported) is None
        ):
            return MoveRefusal.NOT_ADMITTED
        if not self._expiry_s(exported) or not (is_own or self._registry.has_room_for(exported, waiting=waiting)):
            return MoveRefusal.LIMITS
        return None

    def import_session(
        self,
        exported: ExportedSession,
        *,
        behind: Sequence[Message] = (),
        waiting: WaitingMessages | None = None,
        retained_anew: bool = False,
        messages: MessageMaker | None = None,
        is_own: bool = False,
    ) -> None:
        """Put a session into this node; its client resumes it with Clean Start 0.

        Subscriptions that the rules of this node do not grant are removed.

        Args:
            exported: The session.
            behind: Messages that were collected for it here, to be queued after its own.
            waiting: Its queued messages; None to make them.
            retained_anew: True if its client gets the retained messages of all its subscriptions again.
            messages: Makes its messages; None when they are those of no other session, and were exported now.
            is_own: True for a session that this node has accepted before: no limit ends it.

        Raises:
            SessionMoveRefused: It must not come here; nothing has changed.
        """
        if (reason := self.why_refused(exported, waiting=waiting, is_own=is_own)) is not None:
            raise refused(exported.client_id, reason)
        messages = messages or MessageMaker(now_ns=self._clock.now_ns())
        session = self._registry.restore(exported, messages=messages, waiting=waiting, retained_anew=retained_anew)
        self._registry.set_access(session, self._access(exported))
        session.will = exported.will
        session.expiry_s = math.ceil(self._expiry_s(exported))
        self.set_deadlines(session, exported)
        for batch in batches_of(list(behind), session=session):
            session.enqueue(batch)
        self._lifecycles.revoke_lost(session)
        self._lifecycles.end_overflowed()
        if session.outlives_node:
            self._lifecycles.keepers.add(exported.client_id)
        self._logger.debug("session_imported", client_id=exported.client_id, queued=session.sender.queue.messages)

    def publish_will(self, exported: ExportedSession) -> None:
        """Publish the Will Message of a session that has ended, unless its client has a session again."""
        if self.why_refused(exported, is_own=True) is not None:
            return
        ended = replace(exported, subscriptions=(), in_flight=(), queue=(), retained=())
        self.import_session(ended, is_own=True)
        self._lifecycles.end_taken_over(exported.client_id)

    def set_deadlines(self, session: Session, exported: ExportedSession) -> None:
        """Let the time go on in which a session ends, and its Will Message is published, as its value says."""
        will_left_ms = exported.will_left_ms
        will_s = None if will_left_ms is None else will_left_ms / _MS_PER_S
        self._lifecycles.set_deadlines(session, expiry_s=self._expiry_s(exported), will_s=will_s)

    def _access(self, exported: ExportedSession) -> Access | None:
        if self._gate is None or exported.owner is None:
            return None
        return self._gate.authorize_moved(exported.owner)

    def _expiry_s(self, exported: ExportedSession) -> float:
        return min(exported.expiry_left_ms / _MS_PER_S, self._session_expiry_max_s)

    def _will_left_ms(self, session: Session) -> int | None:
        """Return the time until the Will Message of a session is published; None without one."""
        will = session.will
        if will is None:
            return None
        held = self._lifecycles.fence.deadlines_of(session)
        whole_s = will.delay_s if held is None or held.will_s is None else held.will_s
        return self._left_ms(session.will_deadline, whole_s=whole_s, at_least=0)

    def _expiry_left_ms(self, session: Session) -> int:
        """Return the time until a session ends."""
        held = self._lifecycles.fence.deadlines_of(session)
        return self._left_ms(session.expiry, whole_s=session.expiry_s if held is None else held.expiry_s)

    def _left_ms(self, deadline: Deadline | None, *, whole_s: float, at_least: int = 1) -> int:
        """Return the rest of a time in milliseconds; all of it without a deadline, as while the server stops."""
        left_s = whole_s if deadline is None else deadline.at_s - self._clock.monotonic()
        return max(at_least, math.ceil(left_s * _MS_PER_S))


def refused(client_id: str, reason: MoveRefusal) -> SessionMoveRefused:
    """Return the error for a reason."""
    problem, hint = _REFUSALS[reason]
    return SessionMoveRefused(f"The session of client {client_id!r} does not move: {problem}", reason=reason, hint=hint)


def owner_of(identity: Identity | None, *, since: int) -> Owner:
    """Return whose a session is, given the identity of its client; None without access control."""
    if identity is None:
        return Owner("", superuser=False, anyone=True, since=since)
    return Owner(identity.user, identity.superuser, anyone=False, since=since)
