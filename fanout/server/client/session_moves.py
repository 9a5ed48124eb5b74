"""Moves of durable sessions between nodes: taking one out of this node, and putting one into it.

Owns which session may go and which may come. A session is at one place: `export` removes it, so nothing reaches it any
more and no other export gets it; `import_session` makes it again, here or at another node. What comes from the primary
in between is not for it: who moves a session decides where the streams of both nodes are cut.
"""

from __future__ import annotations

import math
from typing import Final

from fanout.access.gate import Gate
from fanout.access.identity import Identity
from fanout.errors import SessionMoveRefused
from fanout.server.base.context import ServerContext
from fanout.server.base.counters import DropReason
from fanout.server.base.deadlines import Deadline
from fanout.server.client.authorization_flow import Claim, claim_of
from fanout.server.client.session_lifecycle import SessionLifecycles
from fanout.server.session.exported_session import ExportedSession, MoveRefusal
from fanout.server.session.registry import SessionRegistry
from fanout.server.session.session import Session
from fanout.server.session.session_export import export_state

__all__ = ["SessionMoves", "refused"]

_MS_PER_S: Final = 1000
_REFUSALS: Final = {
    MoveRefusal.NO_SESSION: ("this node has none", "It has ended, or is at another node"),
    MoveRefusal.NOT_DURABLE: (
        "its Session Expiry Interval is 0",
        "Let it end: it has nothing that outlives its connection",
    ),
    MoveRefusal.CONNECTED: ("its client is connected", "Disconnect its client first"),
    MoveRefusal.UNDECIDED: (
        "messages of its client have no verdict yet",
        "Ask again when the primary has answered; until then they may still reach it from here",
    ),
    MoveRefusal.LINK_OF_A_NODE: (
        "its client is the link of a node",
        "Let it end: the link takes a new snapshot at its next node",
    ),
    MoveRefusal.STOPPING: ("this node stops", "Ask another member of the pool"),
    MoveRefusal.SESSION_EXISTS: (
        "this node has one already",
        "End one of the two: the client knows which one it continues",
    ),
    MoveRefusal.ANOTHER_USER: (
        "it belongs to another user",
        "Connect with the user that it belongs to, or with another Client Identifier",
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
"""What is wrong, and what to do about it."""


class SessionMoves:
    """Takes sessions out of a node, and puts them into it."""

    def __init__(
        self,
        context: ServerContext,
        *,
        registry: SessionRegistry,
        lifecycles: SessionLifecycles,
        gate: Gate | None,
    ) -> None:
        """Prepare.

        Args:
            context: Shared objects of the server.
            registry: The sessions.
            lifecycles: Has their connections and deadlines.
            gate: Decides whether the owner of a session may have it here; None when this node has no access control.
        """
        self._registry = registry
        self._lifecycles = lifecycles
        self._gate = gate
        self._session_expiry_max_s = context.config.session_expiry_max_s
        self._clock = context.clock
        self._counters = context.counters
        self._logger = context.logger

    def export(self, client_id: str) -> ExportedSession:
        """Take the session of a client out of this node.

        Its Will Message is not published, and messages of its shared subscriptions go along.

        Raises:
            SessionMoveRefused: There is none that may go; it stays as it is.
        """
        session = self._registry.get(client_id)
        if session is None:
            raise refused(client_id, MoveRefusal.NO_SESSION)
        if (reason := self._why_it_stays(session)) is not None:
            raise refused(client_id, reason)
        now_ns = self._clock.now_ns()
        exported, expired = export_state(
            session,
            expiry_left_ms=self._left_ms(session.expiry, whole_s=session.expiry_s),
            will_left_ms=self._will_left_ms(session),
            now_ns=now_ns,
        )
        self._counters.dropped[DropReason.EXPIRED] += expired
        self._lifecycles.cancel_deadlines(session)
        self._registry.remove(session)
        self._logger.debug("session_exported", client_id=client_id, queued=len(exported.queue))
        return exported

    def import_session(self, exported: ExportedSession, *, claimant: Identity | None = None) -> None:
        """Put a session into this node; its client resumes it with Clean Start 0.

        Subscriptions that the rules of this node do not grant are removed.

        Args:
            exported: The session.
            claimant: Client that waits for it; None when none does.

        Raises:
            SessionMoveRefused: It must not come here; nothing has changed.
        """
        client_id = exported.client_id
        if self._lifecycles.stopping:
            raise refused(client_id, MoveRefusal.STOPPING)
        if self._registry.get(client_id) is not None:
            raise refused(client_id, MoveRefusal.SESSION_EXISTS)
        if claimant is not None and claim_of(claimant, exported.owner) is not Claim.RESUME:
            raise refused(client_id, MoveRefusal.ANOTHER_USER)
        access = None
        if self._gate is not None and exported.owner is not None:
            access = self._gate.authorize_moved(exported.owner)
        if (access is None) is not (self._gate is None) or (exported.owner is None) is not (self._gate is None):
            raise refused(client_id, MoveRefusal.NOT_ADMITTED)
        expiry_s = min(exported.expiry_left_ms / _MS_PER_S, self._session_expiry_max_s)
        if not expiry_s or not self._registry.has_room_for(exported):
            raise refused(client_id, MoveRefusal.LIMITS)
        session = self._registry.restore(exported, now_ns=self._clock.now_ns())
        session.access = access
        session.will = exported.will
        session.expiry_s = math.ceil(expiry_s)
        will_left_ms = exported.will_left_ms
        self._lifecycles.set_deadlines(
            session, expiry_s=expiry_s, will_s=None if will_left_ms is None else will_left_ms / _MS_PER_S
        )
        self._lifecycles.revoke_lost(session)
        self._logger.debug("session_imported", client_id=client_id, queued=len(exported.queue))

    def _why_it_stays(self, session: Session) -> MoveRefusal | None:
        """Return why a session cannot be exported."""
        if not session.expiry_s:
            return MoveRefusal.NOT_DURABLE
        if session in self._lifecycles.connection_of:
            return MoveRefusal.CONNECTED
        if session.receiver.undecided:
            return MoveRefusal.UNDECIDED
        if session.wire.stamped or any(delivery.has_manifest for delivery in session.sender.deliveries):
            return MoveRefusal.LINK_OF_A_NODE
        return None

    def _will_left_ms(self, session: Session) -> int | None:
        """Return the time until the Will Message of a session is published before its end; None for not before."""
        will = session.will
        if will is None or will.delay_s >= session.expiry_s:  # [MQTT-3.1.3-9]
            return None
        return self._left_ms(session.will_deadline, whole_s=will.delay_s, at_least=0)

    def _left_ms(self, deadline: Deadline | None, *, whole_s: int, at_least: int = 1) -> int:
        """Return the rest of a time in milliseconds; all of it without a deadline, as while the server stops."""
        left_s = whole_s if deadline is None else deadline.at_s - self._clock.monotonic()
        return max(at_least, math.ceil(left_s * _MS_PER_S))


def refused(client_id: str, reason: MoveRefusal) -> SessionMoveRefused:
    """Return the error for a reason."""
    problem, hint = _REFUSALS[reason]
    return SessionMoveRefused(f"The session of client {client_id!r} does not move: {problem}", reason=reason, hint=hint)
