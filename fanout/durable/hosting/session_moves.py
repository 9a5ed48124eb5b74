"""Moves of durable sessions between nodes and over a restart: taking them out of this node, and putting them into it.

Owns which session may go and which may come. `promise` ends the connection of a session that goes; `export` makes its
value, and the session stays and collects until `release` removes it or `take_back` lets it go on. `import_session`
makes a session of a value, with what was collected for it here. Who moves a session decides where the streams of both
nodes are cut (`fanout.durable.moving`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from fanout.access.authorization import Access
from fanout.access.identity import Identity
from fanout.durable.form.session_export import SessionExport
from fanout.durable.ownership.ownership import Owner
from fanout.errors import SessionMoveRefused
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.counters import DropReason
from fanout.server.base.deadlines import Deadline
from fanout.server.client.authorization_flow import Claim, SessionUser, claim_of
from fanout.server.client.server import Server
from fanout.server.messages.encoding import Message
from fanout.server.session.exported_session import ExportedInFlight, ExportedSession, ExportedSubscription, MoveRefusal
from fanout.server.session.session import Session
from fanout.server.session.session_export import (
    ExportedMessages,
    MessageMaker,
    WaitingMessages,
    batches_of,
    export_state,
    queued,
    subscriptions_of,
)

__all__ = ["SessionMoves", "owner_of", "refused"]

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
    MoveRefusal.OTHER_RIGHTS: (
        "its user has other rights now, or it belongs to nobody",
        "Begin a new session",
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
        self._counters = server.context.counters
        self._logger = server.context.logger

    def promise(self, client_id: str, *, claimant: SessionUser | None) -> tuple[ExportedSubscription, ...]:
        """Keep the session of a client ready to be exported: its connection ends (0x8E), its messages are queued.

        Args:
            client_id: Client Identifier.
            claimant: Client that connected elsewhere; None without access control.

        Returns:
            Its subscriptions.

        Raises:
            SessionMoveRefused: There is none that may go; it stays as it is.
        """
        session = self._registry.get(client_id)
        if session is None:
            raise refused(client_id, MoveRefusal.NO_SESSION)
        owner = None if session.access is None else session.access.identity
        claim = claim_of(claimant, owner)
        reason = {Claim.REFUSED: MoveRefusal.ANOTHER_USER, Claim.START_CLEAN: MoveRefusal.OTHER_RIGHTS}.get(claim)
        if reason is None:
            reason = self._why_it_stays(session, promised=True)
        if reason is not None:
            raise refused(client_id, reason)
        connection = self._lifecycles.connection_of.get(session)
        if connection is not None:
            self._counters.takeovers += 1
            connection.disconnect(ReasonCode.SESSION_TAKEN_OVER)  # [MQTT-3.1.4-3]
        return subscriptions_of(session)

    def position(self, client_id: str) -> int | None:
        """Return the position in the queue of a session at which the next message comes; None without a session."""
        session = self._registry.get(client_id)
        return None if session is None else session.sender.queue.appended_total

    def is_undecided(self, client_id: str) -> bool:
        """Return whether a message of a session's client has no verdict yet."""
        session = self._registry.get(client_id)
        return session is not None and session.receiver.undecided > 0

    def export(self, client_id: str, *, keep: Callable[[int, bytes], bool] | None = None) -> SessionExport:
        """Begin to export a session, which stays here until `release` or `take_back`; its Will Message waits.

        Args:
            client_id: Client Identifier.
            keep: Returns whether a queued message is part of the value, given its position and its topic; None for all.

        Raises:
            SessionMoveRefused: There is none that may go; it stays as it is.
        """
        session = self._registry.get(client_id)
        if session is None:
            raise refused(client_id, MoveRefusal.NO_SESSION)
        if (reason := self._why_it_stays(session)) is not None:
            raise refused(client_id, reason)
        messages = ExportedMessages(now_ns=self._clock.now_ns())
        value, _ = self.value_of(session, messages, waiting=())
        self._lifecycles.cancel_deadlines(session)
        self._logger.debug("session_exported", client_id=client_id, queued=session.sender.queue.messages)
        return SessionExport(session, value, messages=messages, keep=keep)

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

    def epoch_of(self, client_id: str) -> bytes:
        """Return since when a session is this node's, as a pool writes it; empty without a pool."""
        finder = self._lifecycles.finder
        return b"" if finder is None else finder.epoch_of(client_id)

    async def on_disk(self) -> None:
        """Wait until sessions are on disk as they are now; at once where none are."""
        await self._lifecycles.keepers.on_disk()

    def take_back(self, exported: ExportedSession) -> None:
        """Let a session go on that was exported, if it is still here and its client has not come back."""
        session = self._registry.get(exported.client_id)
        if session is not None and session not in self._lifecycles.connection_of:
            self._set_deadlines(session, exported)

    def release(self, client_id: str, *, keep: Callable[[int, bytes], bool] | None = None, expired: int = 0) -> None:
        """Remove a session that another node has now.

        Args:
            client_id: Client Identifier.
            keep: As in `export`: other members of share groups get what the value had not.
            expired: Messages that the value had not because they have expired.
        """
        session = self._registry.get(client_id)
        if session is None:
            return
        self._lifecycles.cancel_deadlines(session)
        self._lifecycles.keepers.note_moved(client_id)
        self._counters.dropped[DropReason.EXPIRED] += expired
        left: list[Message] = []
        if session.shared:
            kept = {position for _, position in queued(session, keep)}
            left = [message for message, position in queued(session) if position not in kept]
        self._lifecycles.redeliver(self._registry.end(session, undelivered=left))
        self._lifecycles.free_queue(session)

    def end(self, client_id: str) -> None:
        """End a session that began anew elsewhere, as a take-over with Clean Start does (0x8E)."""
        self._lifecycles.end_taken_over(client_id)

    def why_refused(
        self,
        exported: ExportedSession,
        *,
        claimant: SessionUser | None = None,
        waiting: WaitingMessages | None = None,
    ) -> MoveRefusal | None:
        """Return why `import_session` would refuse a session now; None when it would not."""
        if self._lifecycles.stopping:
            return MoveRefusal.STOPPING
        if self._registry.get(exported.client_id) is not None:
            return MoveRefusal.SESSION_EXISTS
        if claimant is not None and claim_of(claimant, exported.owner) is not Claim.RESUME:
            return MoveRefusal.ANOTHER_USER
        if (exported.owner is None) is not (self._gate is None) or (
            self._gate is not None and self._access(exported) is None
        ):
            return MoveRefusal.NOT_ADMITTED
        if not self._expiry_s(exported) or not self._registry.has_room_for(exported, waiting=waiting):
            return MoveRefusal.LIMITS
        return None

    def import_session(
        self,
        exported: ExportedSession,
        *,
        claimant: SessionUser | None = None,
        behind: Sequence[Message] = (),
        waiting: WaitingMessages | None = None,
        retained_anew: bool = False,
        messages: MessageMaker | None = None,
    ) -> None:
        """Put a session into this node; its client resumes it with Clean Start 0.

        Subscriptions that the rules of this node do not grant are removed.

        Args:
            exported: The session.
            claimant: Client that waits for it; None when none does.
            behind: Messages that were collected for it here, to be queued after its own.
            waiting: Its queued messages; None to make them.
            retained_anew: True if its client gets the retained messages of all its subscriptions again.
            messages: Makes its messages; None when they are those of no other session, and were exported now.

        Raises:
            SessionMoveRefused: It must not come here; nothing has changed.
        """
        if (reason := self.why_refused(exported, claimant=claimant, waiting=waiting)) is not None:
            raise refused(exported.client_id, reason)
        messages = messages or MessageMaker(now_ns=self._clock.now_ns())
        session = self._registry.restore(exported, messages=messages, waiting=waiting, retained_anew=retained_anew)
        session.access = self._access(exported)
        session.will = exported.will
        session.expiry_s = math.ceil(self._expiry_s(exported))
        self._set_deadlines(session, exported)
        for batch in batches_of(list(behind), session=session):
            session.enqueue(batch)
        self._lifecycles.revoke_lost(session)
        self._lifecycles.end_overflowed()
        if session.outlives_node:
            self._lifecycles.keepers.add(exported.client_id)
        self._logger.debug("session_imported", client_id=exported.client_id, queued=session.sender.queue.messages)

    def publish_will(self, exported: ExportedSession) -> None:
        """Publish the Will Message of a session that has ended, unless its client has a session again."""
        if self._registry.get(exported.client_id) is not None or self.why_refused(exported) is not None:
            return
        ended = replace(exported, subscriptions=(), in_flight=(), queue=(), retained=())
        self.import_session(ended)
        self.end(exported.client_id)

    def collect(self, subscriptions: Sequence[ExportedSubscription]) -> Session:
        """Collect the messages for a session that comes; see `SessionRegistry.collect`."""
        return self._registry.collect(subscriptions)

    def collect_more(self, session: Session, subscriptions: Sequence[ExportedSubscription]) -> None:
        """Collect for further subscriptions; see `SessionRegistry.collect_more`."""
        self._registry.collect_more(session, subscriptions)

    def stop_collecting(self, session: Session) -> None:
        """Collect nothing more; see `SessionRegistry.stop_collecting`."""
        self._registry.stop_collecting(session)

    def _access(self, exported: ExportedSession) -> Access | None:
        if self._gate is None or exported.owner is None:
            return None
        return self._gate.authorize_moved(exported.owner)

    def _expiry_s(self, exported: ExportedSession) -> float:
        return min(exported.expiry_left_ms / _MS_PER_S, self._session_expiry_max_s)

    def _set_deadlines(self, session: Session, exported: ExportedSession) -> None:
        will_left_ms = exported.will_left_ms
        will_s = None if will_left_ms is None else will_left_ms / _MS_PER_S
        self._lifecycles.set_deadlines(session, expiry_s=self._expiry_s(exported), will_s=will_s)

    def _why_it_stays(self, session: Session, *, promised: bool = False) -> MoveRefusal | None:
        """Return why a session cannot be exported, or `promised` to be exported soon."""
        if not session.expiry_s:
            return MoveRefusal.NOT_DURABLE
        if not promised and session in self._lifecycles.connection_of:
            return MoveRefusal.CONNECTED
        if not promised and session.receiver.undecided:
            return MoveRefusal.UNDECIDED
        if session.is_of_a_link:
            return MoveRefusal.LINK_OF_A_NODE
        return None

    def _will_left_ms(self, session: Session) -> int | None:
        """Return the time until the Will Message of a session is published before its end; None for not before."""
        will = session.will
        if will is None or will.delay_s >= session.expiry_s:  # [MQTT-3.1.3-9]
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
